# SPDX-License-Identifier: Apache-2.0
"""One rank of a PyTorch job that does what training jobs do beside their collectives.

    pytorch_cases.py CASE [--device cpu --backend gloo]

torchrun's variables tell it who it is. Every value is checked against what one process computes;
the exit status is 0 when all were right. A case is a function below; some of them let the last rank
come late, so that work of the program's is submitted behind a collective that waits.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from pytorch_rank import leave

LATE_S = 0.5


def expect(what, good):
    if not good:
        sys.exit(f"rank {dist.get_rank()}: {what} is wrong")


def late(rank, ranks):
    if rank == ranks - 1:
        time.sleep(LATE_S)


def summed(device, rank, ranks, count=1 << 20):
    """An all_reduce that is under way, and what it must give."""
    data = torch.full((count,), rank + 1.0, device=device)
    late(rank, ranks)
    return data, dist.all_reduce(data, async_op=True), sum(range(1, ranks + 1))


def right(pending):
    data, work, wanted = pending
    work.wait()
    expect("the sum", bool((data == wanted).all()))


def wide(device, width=1024, layers=8):
    torch.manual_seed(5)
    stack = [torch.nn.Linear(width, width) for _ in range(layers)]
    return torch.nn.Sequential(*stack).to(device=device, dtype=torch.float64)


def steps(model, inputs, count=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def same_as_alone(model, alone):
    for ours, wanted in zip(model.parameters(), alone.parameters()):
        worst = (whole(ours).detach() - wanted.detach()).abs().max().item()
        expect(f"a parameter, by {worst},", worst < 1e-9)


def trained(device, rank, ranks, wrap):
    torch.manual_seed(6)
    inputs = torch.randn(8 * ranks, 1024, dtype=torch.float64).to(device)
    alone = wide(device)
    steps(alone, inputs)
    model = wrap(wide(device))
    steps(model, inputs[8 * rank : 8 * (rank + 1)])
    same_as_alone(model, alone)


def buckets(device, rank, ranks):
    """DistributedDataParallel, 64 MiB of gradients in buckets of 25 MiB."""
    devices = [device] if device.type == "cuda" else None
    ddp = torch.nn.parallel.DistributedDataParallel
    trained(device, rank, ranks, lambda net: ddp(net, device_ids=devices, bucket_cap_mb=25))


def shards(device, rank, ranks):
    from torch.distributed.fsdp import fully_shard

    def wrap(net):
        for layer in net:
            fully_shard(layer)
        return fully_shard(net)

    trained(device, rank, ranks, wrap)


def messages(device, rank, ranks):
    """A batch of large messages with every other rank."""
    count = 1 << 20
    others = [peer for peer in range(ranks) if peer != rank]
    given = {peer: torch.full((count,), 100.0 * rank + peer, device=device) for peer in others}
    taken = {peer: torch.zeros(count, device=device) for peer in others}
    late(rank, ranks)
    for _ in range(3):
        batch = [dist.P2POp(dist.isend, given[peer], peer) for peer in others]
        batch += [dist.P2POp(dist.irecv, taken[peer], peer) for peer in others]
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()
    for peer in others:
        expect(f"a message from {peer}", bool((taken[peer] == 100.0 * peer + rank).all()))


def new_kernels(device, rank, ranks):
    """Kernels that the process has never used, behind a collective that waits."""
    pending = summed(device, rank, ranks)
    data = torch.rand(1000, device=device)
    for function in (torch.erfinv, torch.lgamma, torch.special.i0, torch.frac, torch.sinc):
        data = function(data).clamp(0.1, 0.9)
    expect("a kernel's result", bool(torch.isfinite(data).all()))
    right(pending)


def launches_ahead(device, rank, ranks):
    pending = summed(device, rank, ranks)
    data = torch.zeros(16, device=device)
    for _ in range(3000):
        data.add_(1)
    right(pending)
    expect("the count of launches", bool((data == 3000).all()))


def empty_cache(device, rank, ranks):
    """Memory goes back to the driver while a collective waits."""
    for _ in range(3):
        pending = summed(device, rank, ranks)
        held = torch.ones(8 << 20, device=device)
        del held
        if device.type == "cuda":
            torch.cuda.empty_cache()
        right(pending)


def large(device, rank, ranks):
    """300 MiB in one call."""
    right(summed(device, rank, ranks, count=75 << 20))


def killed(device, rank, ranks):
    """The last rank dies; the others get an error, in which the collective ends."""
    if ranks == 1:
        return
    right(summed(device, rank, ranks))
    if rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    data = torch.ones(1 << 20, device=device)
    try:
        for _ in range(100):
            dist.all_reduce(data)
            if device.type == "cuda":
                torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}", flush=True)
        os._exit(0)
    sys.exit(f"rank {rank}: a lost rank is no error")


def leaves_at_once(device, rank, ranks):
    """The process ends, in order, with work under way."""
    right(summed(device, rank, ranks))
    data = torch.ones(1 << 20, device=device)
    dist.all_reduce(data, async_op=True)
    sys.exit(0)


CASES = (
    buckets,
    shards,
    messages,
    new_kernels,
    launches_ahead,
    empty_cache,
    large,
    killed,
    leaves_at_once,
)


def main():
    names = [case.__name__ for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=names)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", default="nccl")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    dist.init_process_group(arguments.backend)
    CASES[names.index(arguments.case)](device, rank, ranks)
    dist.barrier()
    if rank == 0:
        print(f"{ranks} ranks: {arguments.case} right", flush=True)
    leave(arguments.backend)


if __name__ == "__main__":
    main()
