# SPDX-License-Identifier: Apache-2.0
"""nccl4py: NVIDIA's Python bindings of NCCL, with memory and streams of cuda-bindings."""

import os
import sys

import nccl.core as nccl
import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from ranks import expect, fork_and, run, unharmed_by_children


def checked(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"the driver returned {result[0]}")
    return result[1] if len(result) == 2 else None


class Array:
    """Device memory of the driver's with a shape, which NCCL's bindings accept as it is."""

    def __init__(self, values):
        values = np.ascontiguousarray(values)
        self.shape, self.dtype, self.bytes = values.shape, values.dtype, values.nbytes
        self.pointer = checked(driver.cuMemAlloc(max(self.bytes, 1)))
        checked(driver.cuMemcpyHtoD(self.pointer, values.ctypes.data, self.bytes))

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (int(self.pointer), False),
            "version": 3,
        }

    def value(self):
        result = np.empty(self.shape, self.dtype)
        checked(driver.cuMemcpyDtoH(result.ctypes.data, self.pointer, self.bytes))
        return result


COUNT = 1000


def of(rank, count=COUNT):
    return np.arange(count, dtype=np.float32) % 7 + 10 * rank


def ready(rank):
    device = Device(rank.rank)
    device.set_current()
    number = rank.agree("id", lambda: bytes(nccl.get_unique_id()))
    comm = nccl.Communicator.init(rank.count, rank.rank, nccl.UniqueId.from_bytes(number))
    return comm, device.create_stream()


def collectives(rank):
    comm, stream = ready(rank)
    expect(
        "nranks, rank, device",
        (comm.nranks, comm.rank, comm.cuda_dev),
        (rank.count, rank.rank, rank.rank),
    )
    every = [of(peer) for peer in range(rank.count)]
    total, root, left = sum(every), rank.count - 1, (rank.rank - 1) % rank.count
    mine, right = of(rank.rank), (rank.rank + 1) % rank.count

    def result(shape=COUNT):
        return Array(np.zeros(shape, np.float32))

    def done(what, array, wanted):
        stream.sync()
        expect(what, array.value(), wanted)

    for op, wanted in (
        (nccl.SUM, total),
        (nccl.MAX, np.max(every, 0)),
        (nccl.MIN, every[0]),
        (nccl.PROD, np.prod(every, 0)),
        (nccl.AVG, total / rank.count),
    ):
        to = result()
        comm.allreduce(Array(mine), to, op, stream=stream)
        done(f"allreduce {op}", to, wanted)
    to = result()
    op = comm.create_pre_mul_sum(np.array([3], np.float32))
    comm.allreduce(Array(mine), to, op, stream=stream)
    op.close()
    done("allreduce with a factor", to, 3 * total)
    data = Array(mine)
    comm.broadcast(data, data, root, stream=stream)
    done("broadcast", data, every[root])
    to = result()
    comm.reduce(Array(mine), to, nccl.SUM, root, stream=stream)
    done("reduce", to, total if rank.rank == root else 0 * total)
    to = result(COUNT * rank.count)
    comm.allgather(Array(mine), to, stream=stream)
    done("allgather", to, np.concatenate(every))
    to = result()
    comm.reduce_scatter(Array(np.tile(mine, rank.count)), to, nccl.SUM, stream=stream)
    done("reduce_scatter", to, total)
    to = result(COUNT * rank.count)
    comm.alltoall(Array(np.tile(mine, rank.count)), to, stream=stream)
    done("alltoall", to, np.concatenate(every))
    to = result(COUNT * rank.count)
    comm.gather(Array(mine), to, root, stream=stream)
    done("gather", to, np.concatenate(every) if rank.rank == root else to.value())
    to = result()
    comm.scatter(Array(np.tile(mine, rank.count)), to, root, stream=stream)
    done("scatter", to, every[root])
    to = result()
    with nccl.group():
        comm.send(Array(mine), right, stream=stream)
        comm.recv(to, left, stream=stream)
    done("send and recv", to, every[left])
    expect("the asynchronous error", int(comm.get_async_error()), 0)
    comm.finalize()
    comm.destroy()


def changes(rank):
    comm, stream = ready(rank)
    half = comm.split(0, rank.count - rank.rank)
    expect("the rank after a split", half.rank, rank.count - 1 - rank.rank)
    alone = comm.split(rank.rank)
    expect("the size of a split by rank", alone.nranks, 1)
    data = Array(of(rank.rank))
    half.allreduce(data, data, nccl.SUM, stream=stream)
    stream.sync()
    expect("allreduce after a split", data.value(), sum(of(peer) for peer in range(rank.count)))
    none = comm.split(0 if rank.rank == 0 else None)
    expect("a split without a color", none.is_valid, rank.rank == 0)
    config = nccl.NCCLConfig(blocking=True, comm_name="again", min_ctas=1, max_ctas=8)
    number = rank.agree("again", lambda: bytes(nccl.get_unique_id()))
    again = nccl.Communicator.init(rank.count, rank.rank, nccl.UniqueId.from_bytes(number), config)
    again.abort()
    comm.close_all_resources()
    for each in (none, alone, half):
        if each.is_valid:
            each.destroy()
    comm.destroy()


def one_sided(rank):
    comm, stream = ready(rank)
    memory = nccl.mem_alloc(4 * COUNT)
    right, left = (rank.rank + 1) % rank.count, (rank.rank - 1) % rank.count
    values = of(rank.rank)
    checked(driver.cuMemcpyHtoD(int(memory.handle), values.ctypes.data, values.nbytes))
    checked(driver.cuMemsetD32(int(memory.handle), 0, COUNT))
    window = comm.register_window(memory)
    comm.put_signal(Array(values.view(np.int8)), right, window, stream=stream)
    comm.wait_signal([nccl.WaitSignalDesc(peer=left, op_count=1)], stream=stream)
    stream.sync()
    result = np.empty_like(values)
    checked(driver.cuMemcpyDtoH(result.ctypes.data, int(memory.handle), result.nbytes))
    expect("what the left rank put", result, of(left))
    rank.barrier("put")
    window.close()
    comm.destroy()


def one_process(rank):
    comms = nccl.Communicator.init_all(2)
    data = []
    for device in range(2):
        Device(device).set_current()
        data.append(Array(of(device)))
    with nccl.group():
        for comm, array in zip(comms, data):
            comm.allreduce(array, array, nccl.SUM)
    for device in range(2):
        Device(device).set_current()
        checked(driver.cuCtxSynchronize())
        expect("allreduce", data[device].value(), of(0) + of(1))
    for comm in comms:
        comm.destroy()


def parameters(rank):
    library = nccl.get_version().libnccl
    expect("the API's version", library.version.release >= (2, 31), True)
    expect("the loaded file", str(library.path), os.environ["CLIENT_NCCL"])
    expect("a text for a result", nccl.get_error_string(5) != "", True)
    expect("parameters are listed", len(list(nccl.params)) > 0, True)


def fork(rank):
    comm, stream = ready(rank)
    data = Array(of(rank.rank))

    def once_more():
        to = Array(0 * of(0))
        comm.allreduce(data, to, nccl.SUM, stream=stream)
        stream.sync()
        expect("allreduce", to.value(), sum(of(peer) for peer in range(rank.count)))

    def use():
        try:
            comm.allreduce(data, data, nccl.SUM)
        except Exception:
            return
        raise RuntimeError("a child may use its parent's communicator")

    once_more()
    unharmed_by_children(
        once_more,
        {
            "a child that exits": lambda: fork_and(lambda: None),
            "a child that calls it": lambda: fork_and(use),
            "a child that destroys it": lambda: fork_and(comm.destroy),
        },
    )
    comm.destroy()


run(
    {
        "collectives": collectives,
        "changes": changes,
        "one_sided": one_sided,
        "one_process": one_process,
        "parameters": parameters,
        "fork": fork,
    },
    counts={"one_process": 1, "parameters": 1},
)
