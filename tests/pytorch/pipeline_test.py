# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedules of torch.distributed.pipelining against one process."""

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

WIDTH = 16
ROWS = 16
MICROBATCHES = 8


def layers(count):
    torch.manual_seed(13)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def data():
    generator = torch.Generator().manual_seed(17)
    return [torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)]


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def alone(count):
    """Gradients and losses of the micro-batches in one process; the losses are averaged."""
    net = layers(count)
    losses = []
    for x, y in zip(*(whole.chunk(MICROBATCHES) for whole in data())):
        loss = loss_of(nn.Sequential(*net)(x), y)
        (loss / MICROBATCHES).backward()
        losses.append(loss.detach())
    return net, losses


def run(rank, size, schedule_class, stages_of_rank, has_list):
    per_rank = len(stages_of_rank)
    count = per_rank * size
    expected, expected_losses = alone(count)
    own = layers(count)
    stages = [
        PipelineStage(own[index], index, count, torch.device("cpu")) for index in stages_of_rank
    ]
    schedule = schedule_class(
        stages if has_list else stages[0], n_microbatches=MICROBATCHES, loss_fn=loss_of
    )
    x, y = data()
    is_last = count - 1 in stages_of_rank
    for _ in range(2):
        schemes.forget_served()  # of the first step also the exchange of the shapes
        for index in stages_of_rank:
            own[index].zero_grad()
        losses = []
        arguments = [x] if 0 in stages_of_rank else []
        output = schedule.step(*arguments, **({"target": y, "losses": losses} if is_last else {}))
    # Activations forward and gradients backward between stages that lie on different ranks.
    rank_of = {}
    for r in range(size):
        for index in [i for i in range(count) if place_of(i, size, schedule_class) == r]:
            rank_of[index] = r
    edges = [(i, i + 1) for i in range(count - 1) if rank_of[i] != rank_of[i + 1]]
    sent = sum((rank_of[a] == rank) + (rank_of[b] == rank) for a, b in edges)
    ranks.served({"SEND": sent * x.nbytes, "RECV": sent * x.nbytes})
    for index in stages_of_rank:
        schemes.expect_close(
            [p.grad for p in own[index].parameters()],
            [p.grad for p in expected[index].parameters()],
            f"{schedule_class.__name__}: stage {index}",
        )
    if is_last:
        schemes.expect_close(losses, expected_losses, f"{schedule_class.__name__}: losses")
        schemes.expect_close(
            [output], [nn.Sequential(*expected)(x)], f"{schedule_class.__name__}: output"
        )
    schemes.forget_served()


def place_of(index, size, schedule_class):
    """The rank of a stage: around the ranks, or there and back (ZBV)."""
    if schedule_class is ScheduleZBVZeroBubble:
        return index if index < size else 2 * size - 1 - index
    return index % size


def test_gpipe(rank, size):
    run(rank, size, ScheduleGPipe, [rank], False)


def test_1f1b(rank, size):
    run(rank, size, Schedule1F1B, [rank], False)


def test_looped_breadth_first(rank, size):
    run(rank, size, ScheduleLoopedBFS, [rank, rank + size], True)


def test_interleaved_1f1b(rank, size):
    run(rank, size, ScheduleInterleaved1F1B, [rank, rank + size], True)


def test_interleaved_zero_bubble(rank, size):
    run(rank, size, ScheduleInterleavedZeroBubble, [rank, rank + size], True)


def test_zero_bubble_there_and_back(rank, size):
    run(rank, size, ScheduleZBVZeroBubble, [rank, 2 * size - 1 - rank], True)


ranks.main(__name__)
