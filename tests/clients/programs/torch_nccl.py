# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA build and its process groups over NCCL.

From 2.15 on "nccl" is ProcessGroupNCCL2, or ProcessGroupNCCL with TORCH_DIST_USE_NCCL2=0.

Tensors are made on the processor and copied to the device, so that a trial launches no kernel
unless its subject is kernels.
"""

import datetime
import multiprocessing
import os
import pickle
import sys
import time

import torch
import torch.distributed as dist
from ranks import devices, expect, fork_and, run, unharmed_by_children

COUNT = 1000
FEW = 10


def of(rank, count=COUNT, dtype=torch.float32):
    return (torch.arange(count) % 7 + 10 * rank).to(dtype)


def on_device(tensor):
    return tensor.to("cuda")


def same(what, got, wanted):
    got = got.cpu()
    if got.shape != wanted.shape or not torch.equal(got, wanted.to(got.dtype)):
        sys.exit(f"{what}: got {got.flatten()[:8]}, wanted {wanted.flatten()[:8]}")


def ready(rank, timeout_s=60):
    torch.cuda.set_device(rank.rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{rank.folder}/store",
        rank=rank.rank,
        world_size=rank.count,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=torch.device("cuda", rank.rank),
    )


def init(rank):
    torch.cuda.init()
    expect("is_available", torch.cuda.is_available(), True)
    expect("device_count", torch.cuda.device_count(), devices())
    torch.cuda.set_device(rank.rank)
    expect("the name of the device", torch.cuda.get_device_name(rank.rank) != "", True)
    data = of(3)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there = data.to("cuda", non_blocking=True)
    stream.synchronize()
    same("a tensor that was there and back", there, data)
    free, total = torch.cuda.mem_get_info()
    expect("free memory is part of all", 0 < free <= total, True)
    torch.cuda.empty_cache()


def collectives(rank):
    ready(rank)
    ranks, root = rank.count, rank.count - 1
    types = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    )
    for dtype in types:
        every = torch.stack([of(peer, dtype=dtype) for peer in range(ranks)])
        for op, wanted in (
            (dist.ReduceOp.SUM, every.sum(0)),
            (dist.ReduceOp.MAX, every.amax(0)),
            (dist.ReduceOp.MIN, every.amin(0)),
        ):
            data = on_device(every[rank.rank])
            dist.all_reduce(data, op=op)
            same(f"all_reduce {op} {dtype}", data, wanted.to(dtype))
    every = [of(peer) for peer in range(ranks)]
    mine, total, whole = every[rank.rank], sum(every), torch.cat(every)
    data = on_device(mine)
    dist.all_reduce(data, op=dist.ReduceOp.AVG)
    same("all_reduce AVG", data, total / ranks)
    data = on_device(mine)
    dist.all_reduce(data, op=dist._make_nccl_premul_sum(3.0))
    same("all_reduce with a factor", data, 3 * total)
    flags = on_device(torch.tensor([rank.rank == 0, False]))
    dist.all_reduce(flags)
    same("all_reduce of booleans", flags, torch.tensor([True, False]))
    data = on_device(mine)
    dist.broadcast(data, src=root)
    same("broadcast", data, every[root])
    data = on_device(mine)
    dist.reduce(data, dst=root)
    if rank.rank == root:
        same("reduce", data, total)
    parts = [on_device(0 * mine) for _ in range(ranks)]
    dist.all_gather(parts, on_device(mine))
    same("all_gather", torch.cat([part.cpu() for part in parts]), whole)
    uneven = [on_device(torch.zeros(5 + peer)) for peer in range(ranks)]
    dist.all_gather(uneven, on_device(of(rank.rank, 5 + rank.rank)))
    same(
        "all_gather of different sizes",
        torch.cat([part.cpu() for part in uneven]),
        torch.cat([of(peer, 5 + peer) for peer in range(ranks)]),
    )
    data = on_device(0 * whole)
    dist.all_gather_into_tensor(data, on_device(mine))
    same("all_gather_into_tensor", data, whole)
    data = on_device(0 * mine)
    dist.reduce_scatter_tensor(data, on_device(whole))
    same("reduce_scatter_tensor", data, ranks * mine)
    data = on_device(0 * mine)
    dist.reduce_scatter(data, [on_device(part) for part in every])
    same("reduce_scatter", data, ranks * mine)
    data = on_device(0 * whole)
    dist.all_to_all_single(data, on_device(mine.repeat(ranks)))
    same("all_to_all_single", data, whole)
    # Rank a sends 1 + a + b elements to rank b, each of them 10 * a + b.
    sizes = [1 + rank.rank + peer for peer in range(ranks)]
    given = torch.cat(
        [torch.full((size,), 10.0 * rank.rank + peer) for peer, size in enumerate(sizes)]
    )
    data = on_device(torch.zeros(sum(sizes)))
    dist.all_to_all_single(data, on_device(given), sizes, sizes)
    wanted = torch.cat(
        [torch.full((size,), 10.0 * peer + rank.rank) for peer, size in enumerate(sizes)]
    )
    same("all_to_all_single of different sizes", data, wanted)
    parts = [on_device(0 * mine) for _ in range(ranks)]
    dist.all_to_all(parts, [on_device(mine) for _ in range(ranks)])
    same("all_to_all", torch.cat([part.cpu() for part in parts]), whole)
    parts = [on_device(0 * mine) for _ in range(ranks)] if rank.rank == root else None
    dist.gather(on_device(mine), parts, dst=root)
    if parts is not None:
        same("gather", torch.cat([part.cpu() for part in parts]), whole)
    data = on_device(0 * mine)
    dist.scatter(data, [on_device(part) for part in every] if rank.rank == root else None, src=root)
    same("scatter", data, mine)
    if rank.rank == 0:
        dist.send(on_device(mine), dst=1)
    elif rank.rank == 1:
        data = on_device(0 * mine)
        dist.recv(data, src=0)
        same("send and recv", data, every[0])
    work = dist.all_reduce(on_device(mine), async_op=True)
    work.wait()
    torch.cuda.synchronize()
    expect("the work is done", work.is_completed(), True)
    dist.destroy_process_group()


def coalesced(rank):
    ready(rank)
    every = [of(peer) for peer in range(rank.count)]
    mine = every[rank.rank]
    data = [on_device(mine), on_device(2 * mine), on_device(3 * mine)]
    with dist._coalescing_manager(device=data[0].device, async_ops=True) as manager:
        for one in data:
            dist.all_reduce(one)
    manager.wait()
    for factor, one in enumerate(data, 1):
        same("coalesced all_reduce", one, factor * sum(every))
    data = [on_device(torch.zeros(COUNT * rank.count)) for _ in range(2)]
    with dist._coalescing_manager(device=data[0].device):
        for one in data:
            dist.all_gather_into_tensor(one, on_device(mine))
    for one in data:
        same("coalesced all_gather", one, torch.cat(every))
    data = [on_device(torch.zeros(COUNT)) for _ in range(2)]
    with dist._coalescing_manager(device=data[0].device):
        for one in data:
            dist.reduce_scatter_tensor(one, on_device(torch.cat(every)))
    for one in data:
        same("coalesced reduce_scatter", one, rank.count * mine)
    left, right = (rank.rank - 1) % rank.count, (rank.rank + 1) % rank.count
    data = on_device(0 * mine)
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, on_device(mine), right), dist.P2POp(dist.irecv, data, left)]
    ):
        request.wait()
    same("batch_isend_irecv", data, every[left])
    dist.destroy_process_group()


def split_group(rank):
    ready(rank)
    every = list(range(rank.count))
    for ranks in (every, every[::-1]):
        group = dist.split_group(split_ranks=[ranks])
        data = on_device(of(rank.rank))
        dist.all_reduce(data, group=group)
        same("all_reduce in a split group", data, sum(of(peer) for peer in every))
    group = dist.split_group(split_ranks=[[peer] for peer in every])
    data = on_device(of(rank.rank))
    dist.all_reduce(data, group=group)
    same("all_reduce alone", data, of(rank.rank))
    group = dist.new_group(every)
    data = on_device(of(rank.rank))
    dist.all_reduce(data, group=group)
    same("all_reduce in a new group", data, sum(of(peer) for peer in every))
    dist.destroy_process_group()


def barrier_and_objects(rank):
    ready(rank)
    dist.barrier()
    objects = [None] * rank.count
    dist.all_gather_object(objects, {"rank": rank.rank})
    expect("all_gather_object", objects, [{"rank": peer} for peer in range(rank.count)])
    objects = [{"from": 0} if rank.rank == 0 else None]
    dist.broadcast_object_list(objects, src=0)
    expect("broadcast_object_list", objects, [{"from": 0}])
    dist.destroy_process_group()


def watchdog(rank):
    """A rank that does not come: the watchdog of the other aborts, and the stream is released."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"  # abort, and leave the process alone
    # Before it aborts, the watchdog waits four times as long for a dump of the flight recorder.
    os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "500"
    ready(rank, timeout_s=5)
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank.rank != 0:
        rank.hear("aborted")
        os._exit(0)
    start = time.monotonic()
    work = dist.all_reduce(on_device(of(0)), async_op=True)
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    expect(f"released by the watchdog after {seconds:.1f} s", 4 < seconds < 30, True)
    expect("the work is over", work.is_completed(), True)
    rank.tell("aborted", b"")
    sys.stdout.flush()
    os._exit(0)


def abort(rank):
    """A program aborts its group while an operation waits for a rank; then it makes a new one."""
    ready(rank)
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank.rank == 0:
        dist.all_reduce(on_device(of(0)), async_op=True)  # for which the other does not come
    start = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    expect("abort and what it releases take seconds", time.monotonic() - start < 30, True)
    rank.barrier("aborted")
    dist.init_process_group(
        "nccl",
        init_method=f"file://{rank.folder}/again",
        rank=rank.rank,
        world_size=rank.count,
    )
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    same("all_reduce in a new group", data, sum(of(peer) for peer in range(rank.count)))
    dist.destroy_process_group()


def shrink(rank):
    """ncclCommShrink: the last rank leaves, and the others go on."""
    ready(rank)
    last = rank.count - 1
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank.rank == last:
        rank.hear("shrunk")
        return
    dist.shrink_group([last])
    expect("the size", dist.get_world_size(), last)
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    same("all_reduce after the shrink", data, sum(of(peer) for peer in range(last)))
    if rank.rank == 0:
        rank.tell("shrunk", b"")
    dist.destroy_process_group()


def symmetric_memory(rank):
    """Tensors in memory of ncclMemAlloc, with windows over it."""
    from torch.distributed import _symmetric_memory

    ready(rank)
    data = on_device(of(rank.rank))
    dist.all_reduce(data)
    _symmetric_memory.set_backend("NCCL")
    memory = _symmetric_memory.empty(COUNT, dtype=torch.float32, device=f"cuda:{rank.rank}")
    _symmetric_memory.rendezvous(memory, dist.group.WORLD.group_name)
    memory.copy_(of(rank.rank))
    dist.all_reduce(memory)
    same("all_reduce in a window", memory, sum(of(peer) for peer in range(rank.count)))
    dist.destroy_process_group()


def recorded():
    """What PyTorch's flight recorder has: since 2.15 there is one for each backend."""
    library = torch._C._distributed_c10d
    traces = [library._dump_nccl_trace()]
    try:
        traces.append(library._dump_fr_trace(backend="nccl2"))
    except (AttributeError, TypeError):
        pass  # before 2.15
    entries = [entry for trace in traces for entry in pickle.loads(trace)["entries"]]
    return [(entry["profiling_name"].split(":")[-1], entry["state"]) for entry in entries]


def flight_recorder(rank):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
    ready(rank)
    data = on_device(of(rank.rank))
    for _ in range(3):
        dist.all_reduce(data)
    dist.broadcast(data, src=0)
    torch.cuda.synchronize()
    time.sleep(2)  # the watchdog records that they are done
    wanted = 3 * [("all_reduce", "completed")] + [("broadcast", "completed")]
    expect("the recorded operations", recorded(), wanted)
    dist.destroy_process_group()


def of_a_worker(number):
    return number * number


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.tensor(at * at)


def fork(rank):
    ready(rank)
    data = on_device(of(rank.rank))

    def once_more():
        to = data.clone()
        dist.all_reduce(to)
        same("all_reduce", to, sum(of(peer) for peer in range(rank.count)))

    def pool():
        with multiprocessing.get_context("fork").Pool(2) as workers:
            expect("a pool's work", workers.map(of_a_worker, range(5)), [0, 1, 4, 9, 16])

    def loader():
        batches = torch.utils.data.DataLoader(
            Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork"
        )
        expect(
            "what the workers loaded",
            sum(int(batch.sum()) for batch in batches),
            sum(at * at for at in range(64)),
        )

    once_more()
    unharmed_by_children(
        once_more,
        {
            "os.fork and exit handlers": lambda: fork_and(lambda: None),
            "multiprocessing with fork": pool,
            "DataLoader's workers": loader,
        },
    )
    dist.destroy_process_group()


def allocator(rank):
    """Memory of ncclMemAlloc as a pool of PyTorch's, and a window over it."""
    ready(rank)
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        data = on_device(of(rank.rank))
    backend.register_mem_pool(pool)
    dist.all_reduce(data)
    same("all_reduce of NCCL's memory", data, sum(of(peer) for peer in range(rank.count)))
    backend.deregister_mem_pool(pool)
    dist.destroy_process_group()


def graph(rank):
    ready(rank)
    every = [of(peer) for peer in range(rank.count)]
    given, result = on_device(every[rank.rank]), on_device(0 * every[0])
    dist.all_gather_into_tensor(on_device(torch.cat(every)), given)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result.copy_(given)
        dist.all_reduce(result)
    for _ in range(3):
        captured.replay()
        torch.cuda.synchronize()
        same("a replayed all_reduce", result, sum(every))
    del captured
    dist.destroy_process_group()


class Product(torch.autograd.Function):
    """first * given + second * given, on the processor: what DDP itself does is of interest."""

    @staticmethod
    def forward(context, first, second, given):
        context.given = given.cpu()
        few = context.given[: len(second)]
        return ((first.cpu() * context.given).sum() + (second.cpu() * few).sum()).to("cuda")

    @staticmethod
    def backward(context, gradient):
        first = gradient.cpu() * context.given
        return first.to("cuda"), first[:FEW].to("cuda"), None


class Model(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.first = torch.nn.Parameter(on_device(of(rank)))
        self.second = torch.nn.Parameter(on_device(of(rank, FEW)))

    def forward(self, given):
        return Product.apply(self.first, self.second, given)


def data_parallel(rank):
    """DistributedDataParallel: rank 0's parameters on all ranks, and the mean of the gradients."""
    ready(rank)
    model = torch.nn.parallel.DistributedDataParallel(Model(rank.rank), device_ids=[rank.rank])
    same("a parameter", model.module.first.detach(), of(0))
    model(on_device(of(rank.rank))).backward()
    mean = sum(of(peer) for peer in range(rank.count)) / rank.count
    same("the mean gradient", model.module.first.grad, mean)
    same("another mean gradient", model.module.second.grad, mean[:FEW])
    dist.destroy_process_group()


def matrices(rank):
    """A product of matrices, for which PyTorch asks cuBLAS."""
    torch.cuda.set_device(rank.rank)
    one = torch.eye(4).to("cuda")
    same("a product", one @ one, torch.eye(4))


run(
    {
        "init": init,
        "collectives": collectives,
        "coalesced": coalesced,
        "split_group": split_group,
        "barrier_and_objects": barrier_and_objects,
        "watchdog": watchdog,
        "abort": abort,
        "shrink": shrink,
        "symmetric_memory": symmetric_memory,
        "flight_recorder": flight_recorder,
        "fork": fork,
        "allocator": allocator,
        "graph": graph,
        "data_parallel": data_parallel,
        "matrices": matrices,
    },
    counts={"shrink": 3, "matrices": 1},
)
