# SPDX-License-Identifier: Apache-2.0
"""The wheel of the package `weir`, for the PyTorch that is installed here:

    pip wheel --no-build-isolation --no-deps <Weir's source>/python

It holds libweir.so and its transports, so that it needs nothing but PyTorch. CMake builds them in
build/wheel of the source; with WEIR_BUILD=<folder> in that build folder, which exists already.
"""

import os
import re
import shutil
import subprocess
import sys

import torch
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
TORCH = torch.__version__.split("+")[0]
SERIES = ".".join(TORCH.split(".")[:2])


def version():
    with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(weir VERSION ([0-9.]+)", file.read()).group(1)


class Build(build_ext):
    def build_extension(self, extension):
        folder = os.environ.get("WEIR_BUILD")
        if not folder:
            folder = os.path.join(SOURCE, "build", "wheel")
            options = [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DWEIR_BUILD_TESTS=OFF",
                f"-DWEIR_PYTHON={sys.executable}",
            ]
            # A folder keeps the generator with which it was made.
            if shutil.which("ninja") and not os.path.exists(os.path.join(folder, "CMakeCache.txt")):
                options += ["-G", "Ninja"]
            subprocess.check_call(["cmake", "-S", SOURCE, "-B", folder, *options])
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(min(8, os.cpu_count() or 1)))
        subprocess.check_call(["cmake", "--build", folder, "-j", jobs, "--target", "weir_wheel"])
        target = os.path.dirname(os.path.abspath(self.get_ext_fullpath(extension.name)))
        subprocess.check_call(
            ["cmake", "--install", folder, "--component", "wheel", "--prefix", target, "--strip"]
        )


class Files(build_py):
    """With the one file that says which PyTorch this is for."""

    def run(self):
        super().run()
        package = os.path.join(self.build_lib, "weir")
        with open(os.path.join(package, "_built_for.py"), "w", encoding="utf-8") as file:
            file.write("# SPDX-License-Identifier: Apache-2.0\n")
            file.write(f'TORCH_VERSION = "{torch.__version__}"\n')
        shutil.copy(os.path.join(SOURCE, "LICENSE"), package)


setup(
    version=f"{version()}+torch{SERIES}",
    install_requires=[f"torch=={SERIES}.*"],
    packages=["weir", "weir.hook"],
    py_modules=["weir_in_place"],
    package_data={"weir": ["py.typed", "*.pyi"]},
    ext_modules=[Extension("weir._C", sources=[])],
    cmdclass={"build_ext": Build, "build_py": Files},
)
