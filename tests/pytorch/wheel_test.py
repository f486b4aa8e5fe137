# SPDX-License-Identifier: Apache-2.0
"""The wheel holds all that it needs, works where nothing of the build is found, and refuses another
PyTorch by name.

    wheel_test.py BUILD
"""

import glob
import os
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PROGRAM = """
import os, torch, torch.distributed as dist, weir
dist.init_process_group("weir", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert weir.operation_counts()["ALLREDUCE"].calls == 1
with open("/proc/self/maps") as maps:
    paths = {line.split()[-1] for line in maps if "libweir.so" in line}
print(*paths)
"""


RECORDED = """
import subprocess, sys, torch, torch.distributed as dist, weir
from weir import flight_recorder
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("weir", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
if rank == 0:
    print(flight_recorder._find_weir_trace())
    command = [sys.executable, "-m", "weir", "flight-recorder", folder + "/records"]
    subprocess.run([*command, "--output", folder + "/dumps"], check=True)
dist.barrier()
"""


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, **more)


def check(holds, text):
    if not holds:
        sys.exit(f"FAILED: {text}")


def main():
    build = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="weir_wheel_") as folder:
        environment = dict(os.environ, WEIR_BUILD=build)
        environment.pop("PYTHONPATH", None)
        # setup.py writes beside itself: a copy of the tree's few files keeps the tree clean.
        copy = os.path.join(folder, "source")
        os.makedirs(copy)
        for name in ("python", "CMakeLists.txt", "LICENSE"):
            done = run("cp", "-r", os.path.join(SOURCE, name), copy)
            check(done.returncode == 0, done.stderr)
        done = run(
            sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps",
            "--no-build-isolation", "--wheel-dir", folder, os.path.join(copy, "python"),
            env=environment,
        )  # fmt: skip
        check(done.returncode == 0, done.stdout + done.stderr)
        (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
        series = ".".join(__import__("torch").__version__.split(".")[:2])
        check(f"+torch{series}-" in os.path.basename(wheel), f"name of {wheel}")
        installed = os.path.join(folder, "installed")
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        done = run(
            sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps",
            "--no-index", "--target", installed, wheel,
        )  # fmt: skip
        check(done.returncode == 0, done.stdout + done.stderr)
        for name in (
            "weir/__init__.py",
            "weir/run.py",
            "weir/py.typed",
            "weir/hook/sitecustomize.py",
            "weir/_built_for.py",
            "weir/lib/libweir.so.0",
            "weir/bin/weir-trace",
            "weir_in_place.py",
        ):
            check(name in names, f"{name} is not in the wheel, which has {sorted(names)}")
        (metadata,) = [name for name in names if name.endswith("METADATA")]
        with open(os.path.join(installed, metadata), encoding="utf-8") as file:
            check(f"Requires-Dist: torch=={series}.*" in file.read(), "the required PyTorch")

        environment = dict(os.environ, PYTHONPATH=installed)
        done = run(sys.executable, "-c", PROGRAM, env=environment, cwd=folder)
        check(done.returncode == 0, done.stdout + done.stderr)
        check(done.stdout.strip().startswith(installed), f"libweir.so is {done.stdout}")

        # weir-trace is found in the package, and needs nothing but the C library.
        done = run("ldd", os.path.join(installed, "weir/bin/weir-trace"))
        needed = {line.split()[0].split("/")[-1].split(".")[0] for line in done.stdout.splitlines()}
        allowed = {"linux-vdso", "libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
        check(needed and needed <= allowed, f"weir-trace needs {sorted(needed)}")
        records = os.path.join(folder, "records")
        os.mkdir(records, 0o700)
        record = dict(environment, WEIR_RECORDER_DIR=records, PATH="/usr/bin:/bin")
        other = subprocess.Popen([sys.executable, "-c", RECORDED, "1", folder], env=record)
        done = run(sys.executable, "-c", RECORDED, "0", folder, env=record, cwd=folder)
        check(done.returncode == 0 and other.wait() == 0, done.stdout + done.stderr)
        check(done.stdout.startswith(installed), f"weir-trace is {done.stdout}")
        check(len(os.listdir(os.path.join(folder, "dumps"))) == 2, done.stdout)

        with open(os.path.join(installed, "weir/_built_for.py"), "w", encoding="utf-8") as file:
            file.write('TORCH_VERSION = "1.0.0"\n')
        done = run(sys.executable, "-c", "import weir", env=environment, cwd=folder)
        check(done.returncode != 0, "a package for PyTorch 1.0.0 was imported")
        for text in ("ImportError", "built for PyTorch 1.0.0"):
            check(text in done.stderr, done.stderr)
    print("the wheel holds what it needs")


if __name__ == "__main__":
    main()
