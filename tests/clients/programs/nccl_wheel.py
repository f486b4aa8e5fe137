# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL from its wheel, behind Weir's libnccl.so.2, on a machine without a GPU."""

import ctypes
import importlib.metadata
import os
import re
import subprocess
import sys

from ranks import expect, run

FLOAT32, SUM, COUNT = 7, 0, 1000


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def wheels_file(name):
    files = importlib.metadata.files("nvidia-nccl-cu13")
    return str(next(file.locate() for file in files if file.name == name))


def symbols_of(library):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in listed.splitlines()}


def declared():
    """The functions of nccl.h; the library exports others, which are NCCL's own affair."""
    with open(wheels_file("nccl.h"), encoding="utf-8") as file:
        return set(re.findall(r"\b(p?nccl[A-Z]\w*)\s*\(", file.read()))


def symbols(rank):
    """A program that is built for the newest NCCL finds all of its functions."""
    wanted = symbols_of(wheels_file("libnccl.so.2")) & declared()
    expect("the number of NCCL's functions is plausible", len(wanted) > 100, True)
    missing = wanted - symbols_of(os.environ["CLIENT_NCCL"])
    if missing:
        sys.exit(f"Weir's libnccl.so.2 lacks {', '.join(sorted(missing))}")


def all_reduce_on(rank, pointer_of):
    """An all-reduce through Weir's library; `pointer_of` makes memory of given floats."""
    nccl = ctypes.CDLL("libnccl.so.2")

    def checked(what, result):
        if result != 0:
            nccl.ncclGetLastError.restype = ctypes.c_char_p
            text = (nccl.ncclGetLastError(None) or b"").decode()
            sys.exit(f"{what} returned {result}: {text}")

    def new_id():
        number = UniqueId()
        checked("ncclGetUniqueId", nccl.ncclGetUniqueId(ctypes.byref(number)))
        return bytes(number)

    number = UniqueId.from_buffer_copy(rank.agree("id", new_id))
    comm = ctypes.c_void_p()
    checked(
        "ncclCommInitRank", nccl.ncclCommInitRank(ctypes.byref(comm), rank.count, number, rank.rank)
    )
    data = (ctypes.c_float * COUNT)(*[at % 5 + rank.rank for at in range(COUNT)])
    pointer, value = pointer_of(data)
    checked(
        "ncclAllReduce",
        nccl.ncclAllReduce(
            ctypes.c_void_p(pointer),
            ctypes.c_void_p(pointer),
            ctypes.c_size_t(COUNT),
            FLOAT32,
            SUM,
            comm,
            None,
        ),
    )
    expect(
        "the sum",
        value(),
        [sum(at % 5 + peer for peer in range(rank.count)) for at in range(COUNT)],
    )
    checked("ncclCommDestroy", nccl.ncclCommDestroy(comm))


def no_driver(rank):
    """Without CUDA: Weir passes the wheel over, and works on host memory."""
    expect("libcuda.so.1 is not to be found", has("libcuda.so.1"), False)
    all_reduce_on(rank, lambda data: (ctypes.addressof(data), lambda: list(data)))


def has(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def stand_in(rank):
    """With the stand-in for CUDA, on its device memory: Weir's transports do the work."""
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.cudaSetDevice(rank.rank)

    def pointer_of(data):
        pointer = ctypes.c_void_p()
        size = ctypes.c_size_t(ctypes.sizeof(data))
        expect("cudaMalloc", runtime.cudaMalloc(ctypes.byref(pointer), size), 0)
        expect("cudaMemcpy", runtime.cudaMemcpy(pointer, data, size, 1), 0)

        def value():
            expect("cudaDeviceSynchronize", runtime.cudaDeviceSynchronize(), 0)
            expect("cudaMemcpy", runtime.cudaMemcpy(data, pointer, size, 2), 0)
            return list(data)

        return pointer.value, value

    all_reduce_on(rank, pointer_of)


os.environ.setdefault("WEIR_NCCL_LIBRARY", wheels_file("libnccl.so.2"))
run({"symbols": symbols, "no_driver": no_driver, "stand_in": stand_in})
