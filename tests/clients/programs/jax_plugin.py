# SPDX-License-Identifier: Apache-2.0
"""JAX's CUDA plugin: that it loads, and resolves what it needs of CUDA's driver and of NCCL."""

import ctypes
import glob
import importlib.metadata
import os
import re
import sys

from ranks import run

NCCL_NAME = re.compile(rb"\0(p?nccl[A-Z][A-Za-z0-9]+)(?=\0)")


def file_of(package, name):
    for file in importlib.metadata.files(package):
        if file.name == name:
            return str(file.locate())
    sys.exit(f"{package} has no {name}")


def plugin():
    found = glob.glob(
        os.path.join(
            os.path.dirname(file_of("jax-cuda13-pjrt", "xla_cuda_plugin.so")), "xla_cuda_plugin.so"
        )
    )
    return found[0]


def loads(rank):
    """All symbols of the plugin at once, as the loader does under LD_BIND_NOW."""
    library = ctypes.CDLL(plugin(), mode=os.RTLD_NOW)
    library.GetPjrtApi.restype = ctypes.c_void_p
    if not library.GetPjrtApi():
        sys.exit("GetPjrtApi returned NULL")


def resolves(rank):
    """Every function of NCCL that the plugin looks up by name is in Weir's library."""
    with open(plugin(), "rb") as file:
        names = {name.decode() for name in NCCL_NAME.findall(file.read())}
    nccl = ctypes.CDLL("libnccl.so.2")
    if "ncclAllReduce" not in names:
        sys.exit(f"the plugin names no ncclAllReduce; it names {sorted(names)}")
    missing = sorted(name for name in names if not hasattr(nccl, name))
    if missing:
        sys.exit(f"Weir's libnccl.so.2 lacks {', '.join(missing)}")


def devices(rank):
    """JAX sees the stand-in's devices."""
    import jax

    print(jax.devices("cuda"))


run({"loads": loads, "resolves": resolves, "devices": devices}, count=1)
