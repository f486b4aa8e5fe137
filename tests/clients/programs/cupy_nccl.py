# SPDX-License-Identifier: Apache-2.0
"""CuPy: cupy.cuda.nccl and cupyx.distributed.

CuPy's own arrays are made on the processor and copied to the device, so that no kernel is compiled.
"""

import ctypes
import multiprocessing
import pickle
import socket
import sys

import cupy
import numpy as np
from cupy.cuda import nccl
from ranks import devices, expect, fork_and, run, unharmed_by_children

COUNT = 1000
FLOAT32 = nccl.NCCL_FLOAT32


def of(rank, count=COUNT):
    return np.arange(count, dtype=np.float32) % 7 + 10 * rank


def on_device(values):
    array = cupy.ndarray(values.shape, values.dtype)
    array.set(np.ascontiguousarray(values))
    return array


def zeros(count=COUNT):
    return on_device(np.zeros(count, np.float32))


def runtime(rank):
    """The runtime that is linked into CuPy, on the stand-in for the driver."""
    expect("getDeviceCount", cupy.cuda.runtime.getDeviceCount(), devices())
    cupy.cuda.Device(rank.rank).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = on_device(of(1))
    stream.synchronize()
    expect("what was there and back", array.get(), of(1))
    free, total = cupy.cuda.runtime.memGetInfo()
    expect("free memory is part of all", 0 < free <= total, True)


def library(rank):
    """The module loads and calls NCCL; no CUDA is needed for that."""
    expect("nccl is available", nccl.available, True)
    expect("the version", nccl.get_version() >= 23100, True)
    expect("the length of an id", len(nccl.get_unique_id()), 128)


class Memory:
    """Device memory of the shared runtime, with what CuPy's arrays would be asked for here.

    CuPy's own arrays need the runtime that is linked into CuPy (the trial `runtime`).
    """

    shared = None

    def __init__(self, values):
        Memory.shared = Memory.shared or ctypes.CDLL("libcudart.so.13")
        values = np.ascontiguousarray(values)
        self.like, self.pointer = values, ctypes.c_void_p()
        self.size = ctypes.c_size_t(values.nbytes)
        self.checked(self.shared.cudaMalloc(ctypes.byref(self.pointer), self.size))
        self.copy(self.pointer, ctypes.c_void_p(values.ctypes.data), 1)

    @staticmethod
    def checked(result):
        if result != 0:
            sys.exit(f"CUDA's runtime returned {result}")

    def copy(self, to, source, kind):
        self.checked(self.shared.cudaMemcpy(to, source, self.size, kind))

    @property
    def at(self):
        return self.pointer.value

    def get(self):
        self.checked(self.shared.cudaDeviceSynchronize())
        result = np.empty_like(self.like)
        self.copy(ctypes.c_void_p(result.ctypes.data), self.pointer, 2)
        return result


class HostMemory:
    """The same on memory of the host, where there is no CUDA at all."""

    def __init__(self, values):
        self.values = np.array(values)

    @property
    def at(self):
        return self.values.ctypes.data

    def get(self):
        return self.values.copy()


def ready(rank, memory):
    if memory is Memory:
        runtime = ctypes.CDLL("libcudart.so.13")
        Memory.checked(runtime.cudaSetDevice(rank.rank))
    number = pickle.loads(rank.agree("id", lambda: pickle.dumps(nccl.get_unique_id())))
    return nccl.NcclCommunicator(rank.count, number, rank.rank)


def communicator(rank, memory=Memory):
    comm = ready(rank, memory)
    expect("size and rank", (comm.size(), comm.rank_id()), (rank.count, rank.rank))
    every = [of(peer) for peer in range(rank.count)]
    mine, right, left = every[rank.rank], (rank.rank + 1) % rank.count, (rank.rank - 1) % rank.count
    given, result, stream = memory(mine), memory(0 * mine), 0
    comm.allReduce(given.at, result.at, COUNT, FLOAT32, nccl.NCCL_SUM, stream)
    expect("allReduce", result.get(), sum(every))
    comm.reduce(given.at, result.at, COUNT, FLOAT32, nccl.NCCL_MAX, 0, stream)
    expect("reduce", result.get(), np.max(every, 0) if rank.rank == 0 else sum(every))
    comm.broadcast(given.at, result.at, COUNT, FLOAT32, 1, stream)
    expect("broadcast", result.get(), every[1])
    whole = memory(np.zeros(COUNT * rank.count, np.float32))
    comm.allGather(given.at, whole.at, COUNT, FLOAT32, stream)
    expect("allGather", whole.get(), np.concatenate(every))
    whole = memory(np.concatenate(every))
    comm.reduceScatter(whole.at, result.at, COUNT, FLOAT32, nccl.NCCL_SUM, stream)
    expect("reduceScatter", result.get(), rank.count * mine)
    nccl.groupStart()
    comm.send(given.at, COUNT, FLOAT32, right, stream)
    comm.recv(result.at, COUNT, FLOAT32, left, stream)
    nccl.groupEnd()
    expect("send and recv", result.get(), every[left])
    comm.check_async_error()
    comm.destroy()


def host_mode(rank):
    communicator(rank, HostMemory)


def groups(rank):
    """Communicators of one process, made together, and calls in a group."""
    comms = nccl.NcclCommunicator.initAll(2)
    data = [HostMemory(of(peer)) for peer in range(2)]
    nccl.groupStart()
    for comm, one in zip(comms, data):
        comm.allReduce(one.at, one.at, COUNT, FLOAT32, nccl.NCCL_SUM, 0)
    nccl.groupEnd()
    for one in data:
        expect("allReduce", one.get(), of(0) + of(1))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1]).encode()


def distributed(rank):
    from cupyx.distributed import init_process_group

    cupy.cuda.Device(rank.rank).use()
    port = int(rank.agree("port", free_port))
    comm = init_process_group(rank.count, rank.rank, backend="nccl", port=port)
    every = [of(peer) for peer in range(rank.count)]
    mine, root = every[rank.rank], rank.count - 1

    def done(what, array, wanted):
        cupy.cuda.get_current_stream().synchronize()
        expect(what, array.get(), wanted)

    given, result = on_device(mine), zeros()
    comm.all_reduce(given, result)
    done("all_reduce", result, sum(every))
    comm.reduce(given, result, root, "min")
    done("reduce", result, every[0] if rank.rank == root else sum(every))
    result = on_device(mine)
    comm.broadcast(result, root)
    done("broadcast", result, every[root])
    table = on_device(np.stack(every))
    comm.reduce_scatter(table, result, COUNT)
    done("reduce_scatter", result, rank.count * mine)
    table = on_device(np.zeros((rank.count, COUNT), np.float32))
    comm.all_gather(given, table, COUNT)
    done("all_gather", table, np.stack(every))
    table = on_device(np.zeros((rank.count, COUNT), np.float32))
    comm.all_to_all(on_device(np.stack([mine] * rank.count)), table)
    done("all_to_all", table, np.stack(every))
    table = on_device(np.zeros((rank.count, COUNT), np.float32))
    comm.gather(given, table, root)
    done("gather", table, np.stack(every) if rank.rank == root else 0 * np.stack(every))
    comm.scatter(on_device(np.stack(every)), result, root)
    done("scatter", result, mine)
    if rank.rank == 0:
        comm.send(given, 1)
    else:
        comm.recv(result, 0)
        done("recv", result, every[0])
    comm.send_recv(given, result, (rank.rank + 1) % rank.count)
    done("send_recv", result, every[(rank.rank + 1) % rank.count])
    comm.barrier()
    comm.stop()


def fork(rank):
    """CuPy's exit handlers in a child, which destroy what they find."""
    comm = ready(rank, Memory)
    given = Memory(of(rank.rank))
    result = Memory(0 * of(0))

    def once_more():
        comm.allReduce(given.at, result.at, COUNT, FLOAT32, nccl.NCCL_SUM, 0)
        expect("allReduce", result.get(), sum(of(peer) for peer in range(rank.count)))

    def pool():
        with multiprocessing.get_context("fork").Pool(2) as workers:
            expect("a pool's work", workers.map(abs, [-1, -2]), [1, 2])

    once_more()
    unharmed_by_children(
        once_more,
        {
            "os.fork and exit handlers": lambda: fork_and(lambda: None),
            "a child that destroys the communicator": lambda: fork_and(comm.destroy),
            "multiprocessing with fork": pool,
        },
    )
    comm.destroy()


run(
    {
        "library": library,
        "communicator": communicator,
        "host_mode": host_mode,
        "groups": groups,
        "fork": fork,
        "runtime": runtime,
        "distributed": distributed,
    },
    counts={"library": 1, "groups": 1},
)
