# SPDX-License-Identifier: Apache-2.0
"""CuPy: cupy.cuda.nccl and cupyx.distributed.

Arrays are made on the processor and copied to the device, so that no kernel is compiled.
"""

import socket

import cupy
import numpy as np
from cupy.cuda import nccl
from ranks import expect, fork_and, run, unharmed_by_children

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
    expect("getDeviceCount", cupy.cuda.runtime.getDeviceCount(), rank.count)
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


def ready(rank):
    cupy.cuda.Device(rank.rank).use()
    import pickle

    number = pickle.loads(rank.agree("id", lambda: pickle.dumps(nccl.get_unique_id())))
    return nccl.NcclCommunicator(rank.count, number, rank.rank)


def communicator(rank):
    comm = ready(rank)
    expect("size and rank", (comm.size(), comm.rank_id()), (rank.count, rank.rank))
    every = [of(peer) for peer in range(rank.count)]
    mine, right, left = every[rank.rank], (rank.rank + 1) % rank.count, (rank.rank - 1) % rank.count
    stream = cupy.cuda.Stream(non_blocking=True)

    def done(what, array, wanted):
        stream.synchronize()
        expect(what, array.get(), wanted)

    given, result = on_device(mine), zeros()
    comm.allReduce(given.data.ptr, result.data.ptr, COUNT, FLOAT32, nccl.NCCL_SUM, stream.ptr)
    done("allReduce", result, sum(every))
    comm.reduce(given.data.ptr, result.data.ptr, COUNT, FLOAT32, nccl.NCCL_MAX, 0, stream.ptr)
    done("reduce", result, np.max(every, 0) if rank.rank == 0 else sum(every))
    comm.broadcast(given.data.ptr, result.data.ptr, COUNT, FLOAT32, 1, stream.ptr)
    done("broadcast", result, every[1])
    whole = zeros(COUNT * rank.count)
    comm.allGather(given.data.ptr, whole.data.ptr, COUNT, FLOAT32, stream.ptr)
    done("allGather", whole, np.concatenate(every))
    whole = on_device(np.concatenate(every))
    comm.reduceScatter(whole.data.ptr, result.data.ptr, COUNT, FLOAT32, nccl.NCCL_SUM, stream.ptr)
    done("reduceScatter", result, rank.count * mine)
    nccl.groupStart()
    comm.send(given.data.ptr, COUNT, FLOAT32, right, stream.ptr)
    comm.recv(result.data.ptr, COUNT, FLOAT32, left, stream.ptr)
    nccl.groupEnd()
    done("send and recv", result, every[left])
    comm.check_async_error()
    comm.destroy()


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
    import multiprocessing

    comm = ready(rank)
    given, result = on_device(of(rank.rank)), zeros()

    def once_more():
        comm.allReduce(given.data.ptr, result.data.ptr, COUNT, FLOAT32, nccl.NCCL_SUM, 0)
        cupy.cuda.get_current_stream().synchronize()
        expect("allReduce", result.get(), sum(of(peer) for peer in range(rank.count)))

    def pool():
        with multiprocessing.get_context("fork").Pool(2) as workers:
            expect("a pool's work", workers.map(abs, [-1, -2]), [1, 2])

    once_more()
    unharmed_by_children(
        once_more,
        {
            "os.fork and exit handlers": lambda: fork_and(lambda: None),
            "a child that deletes the communicator": lambda: fork_and(lambda: comm.destroy()),
            "multiprocessing with fork": pool,
        },
    )
    comm.destroy()


run(
    {
        "library": library,
        "runtime": runtime,
        "communicator": communicator,
        "distributed": distributed,
        "fork": fork,
    }
)
