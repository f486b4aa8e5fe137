# SPDX-License-Identifier: Apache-2.0
"""One rank of a PyTorch job: collectives, messages, DistributedDataParallel, a captured graph.

torchrun's variables tell it who it is. Every value is checked against what one process computes;
the exit status is 0 when all were right. With --device cpu and --backend gloo it checks the checks.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

COUNTS = (1, 1000, 300_000)


def expect(what, got, wanted):
    if not torch.equal(got.cpu(), wanted.cpu()):
        worst = (got.cpu().double() - wanted.cpu().double()).abs().max().item()
        sys.exit(f"rank {dist.get_rank()}: {what} is wrong, by up to {worst}")


def of(rank, count, dtype, device):
    """What a rank gives: small whole numbers, so that a sum is exact in every type and order."""
    return ((torch.arange(count, device=device) % 5) + rank + 1).to(dtype)


def reductions(device, rank, ranks):
    types = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]
    if device.type == "cuda":
        types += [torch.float16, torch.bfloat16]
    for dtype in types:
        for count in COUNTS:
            given = torch.stack([of(peer, count, dtype, device) for peer in range(ranks)])
            for op, wanted in (
                (dist.ReduceOp.SUM, given.sum(0).to(dtype)),
                (dist.ReduceOp.MAX, given.amax(0)),
                (dist.ReduceOp.MIN, given.amin(0)),
                (dist.ReduceOp.PRODUCT, given.prod(0).to(dtype)),
            ):
                data = of(rank, count, dtype, device)
                dist.all_reduce(data, op=op)
                expect(f"all_reduce {op} of {count} {dtype}", data, wanted)
            data = of(rank, count, dtype, device)
            dist.reduce(data, dst=ranks - 1)
            if rank == ranks - 1:
                expect(f"reduce of {count} {dtype}", data, given.sum(0).to(dtype))
    if device.type == "cuda":
        data = of(rank, 1000, torch.float32, device)
        dist.all_reduce(data, op=dist.ReduceOp.AVG)
        wanted = sum(of(peer, 1000, torch.float32, device) for peer in range(ranks)) / ranks
        if not torch.allclose(data, wanted):
            sys.exit(f"rank {rank}: the average is wrong")


def moves(device, rank, ranks):
    for count in COUNTS:
        mine = of(rank, count, torch.float32, device)
        every = [of(peer, count, torch.float32, device) for peer in range(ranks)]
        data = mine.clone()
        dist.broadcast(data, src=ranks - 1)
        expect("broadcast", data, every[-1])
        gathered = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(gathered, mine)
        expect("all_gather", torch.stack(gathered), torch.stack(every))
        if device.type == "cuda":
            whole = torch.cat(every)
            result = torch.empty_like(whole)
            dist.all_gather_into_tensor(result, mine)
            expect("all_gather_into_tensor", result, whole)
            part = torch.empty_like(mine)
            dist.reduce_scatter_tensor(part, whole.clone())
            expect("reduce_scatter_tensor", part, ranks * every[rank])
            result = torch.empty_like(whole)
            dist.all_to_all_single(result, whole + 100 * rank)
            expect(
                "all_to_all_single",
                result,
                torch.cat([every[rank] + 100 * peer for peer in range(ranks)]),
            )
            uneven(device, rank, ranks, count)
        ring(device, rank, ranks, count)
    dist.barrier()


def uneven(device, rank, ranks, count):
    """Each rank gives rank + peer elements to a peer, and nothing between 0 and 0."""
    pattern = of(0, count + 2 * ranks, torch.float32, device)
    out = torch.cat([pattern[: rank + peer] + rank for peer in range(ranks)])
    result = torch.empty(sum(peer + rank for peer in range(ranks)), device=device)
    splits = [rank + peer for peer in range(ranks)]
    dist.all_to_all_single(result, out, splits, splits)
    expect(
        "uneven all_to_all_single",
        result,
        torch.cat([pattern[: rank + peer] + peer for peer in range(ranks)]),
    )


def ring(device, rank, ranks, count):
    if ranks == 1:
        return
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    given = of(rank, count, torch.float32, device)
    result = torch.empty_like(given)
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, result, before)]
    ):
        request.wait()
    expect("ring of messages", result, of(before, count, torch.float32, device))


def network(device):
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    return layers.to(device=device, dtype=torch.float64)


def train(model, inputs, wanted, steps=20):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def training(device, rank, ranks):
    """The mean of the ranks' gradients over equal shares is the gradient over all of it."""
    torch.manual_seed(11)
    inputs = torch.randn(ranks * 24, 16, dtype=torch.float64).to(device)
    wanted = inputs.pow(2).sum(1, keepdim=True)
    alone = train(network(device), inputs, wanted)
    share = slice(rank * 24, (rank + 1) * 24)
    devices = [device] if device.type == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(network(device), device_ids=devices)
    together = train(model, inputs[share], wanted[share])
    worst = (alone - together).abs().max().item()
    if worst > 1e-10:
        sys.exit(
            f"rank {rank}: trained together, the parameters are {worst} away from those of one "
            "process"
        )


def replays(device, rank, ranks):
    data = torch.zeros(100_000, device=device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # what is made at the first use is made outside the capture
            dist.all_reduce(data)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        dist.all_reduce(data)
        data.add_(1)
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
    for number in range(10):
        data.copy_(of(rank + number, data.numel(), torch.float32, device))
        graph.replay()
        torch.cuda.synchronize()
        wanted = (
            sum(of(peer + number, data.numel(), torch.float32, device) for peer in range(ranks)) + 1
        )
        expect(f"replay {number}", data, wanted)


def leave(backend):
    """The end of a rank, when all of them are right."""
    sys.stdout.flush()
    if backend == "gloo":
        # Now and then Gloo aborts while its group is destroyed ("terminate called without an
        # active exception", PyTorch 2.13), and it is not what is tested.
        os._exit(0)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", default="nccl")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = (
        torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(arguments.backend)
    for part in (reductions, moves, training) + ((replays,) if device.type == "cuda" else ()):
        part(device, rank, ranks)
        if rank == 0:
            print(f"{ranks} ranks: {part.__name__} right", flush=True)
    dist.barrier()
    leave(arguments.backend)


if __name__ == "__main__":
    main()
