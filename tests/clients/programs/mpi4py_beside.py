# SPDX-License-Identifier: Apache-2.0
"""mpi4py and NCCL in one process: MPI exchanges the unique id, and both move data by turns."""

import ctypes
import sys

import numpy as np
from mpi4py import MPI

FLOAT32, SUM, COUNT = 7, 0, 1000


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def expect(what, got, wanted):
    if not np.array_equal(got, wanted):
        sys.exit(f"rank {MPI.COMM_WORLD.rank}: {what}: got {got}, wanted {wanted}")


def beside():
    world = MPI.COMM_WORLD
    runtime, nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
    expect("cudaSetDevice", runtime.cudaSetDevice(world.rank), 0)
    number = UniqueId()
    if world.rank == 0:
        expect("ncclGetUniqueId", nccl.ncclGetUniqueId(ctypes.byref(number)), 0)
    number = UniqueId.from_buffer_copy(world.bcast(bytes(number)))
    comm, stream = ctypes.c_void_p(), ctypes.c_void_p()
    expect(
        "ncclCommInitRank",
        nccl.ncclCommInitRank(ctypes.byref(comm), world.size, number, world.rank),
        0,
    )
    expect("cudaStreamCreate", runtime.cudaStreamCreate(ctypes.byref(stream)), 0)
    pointer = ctypes.c_void_p()
    size = ctypes.c_size_t(4 * COUNT)
    expect("cudaMalloc", runtime.cudaMalloc(ctypes.byref(pointer), size), 0)
    total = np.zeros(COUNT, np.float32)
    for turn in range(20):
        mine = np.arange(COUNT, dtype=np.float32) % 7 + world.rank + turn
        address = ctypes.c_void_p(mine.ctypes.data)
        expect("cudaMemcpyAsync", runtime.cudaMemcpyAsync(pointer, address, size, 1, stream), 0)
        expect(
            "ncclAllReduce",
            nccl.ncclAllReduce(
                pointer, pointer, ctypes.c_size_t(COUNT), FLOAT32, SUM, comm, stream
            ),
            0,
        )
        # MPI's, while NCCL's is under way.
        world.Allreduce(mine, total)
        result = np.zeros(COUNT, np.float32)
        address = ctypes.c_void_p(result.ctypes.data)
        expect("cudaMemcpyAsync", runtime.cudaMemcpyAsync(address, pointer, size, 2, stream), 0)
        expect("cudaStreamSynchronize", runtime.cudaStreamSynchronize(stream), 0)
        wanted = sum(np.arange(COUNT) % 7 + peer + turn for peer in range(world.size))
        expect("MPI's sum", total, wanted)
        expect("NCCL's sum", result, wanted)
    expect("ncclCommDestroy", nccl.ncclCommDestroy(comm), 0)


if sys.argv[1:] != ["beside"]:
    sys.exit(f"usage: mpirun -n 2 python {sys.argv[0]} beside")
beside()
