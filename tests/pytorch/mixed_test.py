# SPDX-License-Identifier: Apache-2.0
"""Pipelines of data and tensor parallel stages, and overlapping groups all active, on 4 ranks."""

import itertools
import threading

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 16
ROWS = 16
MICROBATCHES = 4


def stage_of(index):
    torch.manual_seed(20 + index)
    layers = nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)
    return nn.Sequential(*layers).double()


def data():
    generator = torch.Generator().manual_seed(17)
    return [torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)]


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def alone(stages):
    net = nn.Sequential(*(stage_of(index) for index in range(stages)))
    x, y = data()
    loss_of(net(x), y).backward()
    return net


def run_mesh(rank, pipeline, data_parallel, tensor_parallel):
    mesh = init_device_mesh(
        "cpu", (pipeline, data_parallel, tensor_parallel), mesh_dim_names=("pp", "dp", "tp")
    )
    index, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    net = stage_of(index)
    if tensor_parallel > 1:
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    held_bytes = sum(
        (p.to_local() if isinstance(p, DTensor) else p).nbytes
        for p in net.parameters()
    )
    if data_parallel > 1:
        fully_shard(net, mesh=mesh["dp"])
    x, y = (whole.chunk(data_parallel)[replica] for whole in data())
    step = step_of(net, index, pipeline, mesh, x, y)
    schemes.forget_served()
    step()
    schemes.forget_served()  # the exchange of the shapes, too
    net.zero_grad()
    step()
    expected = alone(pipeline)[index]
    what = f"stages x copies x parts {pipeline} x {data_parallel} x {tensor_parallel}"
    expected_bytes = {}
    if pipeline > 1:  # activations forward, gradients backward
        neighbors = (index > 0) + (index < pipeline - 1)
        expected_bytes["SEND"] = expected_bytes["RECV"] = neighbors * x.nbytes
    if tensor_parallel > 1:  # the output, and the gradient of an input that is not the data
        expected_bytes["ALLREDUCE"] = (1 + (index > 0)) * x.nbytes
    if data_parallel > 1:  # a rank's shard of the parameters, and the whole of its gradients
        expected_bytes["_ALLGATHER_BASE"] = held_bytes // data_parallel
        expected_bytes["_REDUCE_SCATTER_BASE"] = held_bytes
    ranks.served(expected_bytes)
    schemes.expect_close(
        [p.grad for p in net.parameters()], [p.grad for p in expected.parameters()], what
    )
    schemes.forget_served()


def step_of(net, index, pipeline, mesh, x, y):
    if pipeline == 1:
        return lambda: loss_of(net(x), y).backward()
    stage = PipelineStage(net, index, pipeline, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss_of)
    if index == 0:
        return lambda: schedule.step(x)
    return lambda: schedule.step(target=y)


def test_meshes(rank, size):
    for shape in ((2, 2, 1), (2, 1, 2), (1, 2, 2), (4, 1, 1)):
        run_mesh(rank, *shape)


def overlapping(size):
    """Every pair, every three, and all ranks, numbered alike on all: (number, members, group)."""
    members = [c for n in (2, 3) for c in itertools.combinations(range(size), n)]
    members.append(tuple(range(size)))
    return [(number, of, dist.new_group(list(of))) for number, of in enumerate(members)]


def test_overlapping_groups_in_flight_at_once(rank, size):
    groups = [group for group in overlapping(size) if rank in group[1]]
    schemes.forget_served()
    for turn in range(10):
        works = []
        for number, members, group in groups:
            count = (1, 500, 20000)[(turn + number) % 3]
            total = torch.full((count,), float(rank + turn))
            work = dist.all_reduce(total, group=group, async_op=True)
            works.append((work, total, sum(r + turn for r in members)))
            gathered = torch.empty(len(members) * count)
            work = dist.all_gather_into_tensor(
                gathered, torch.full((count,), float(rank)), group=group, async_op=True
            )
            works.append((work, gathered, members))
        # In another order than they were started in, another on each rank.
        generator = torch.Generator().manual_seed(turn * size + rank)
        for i in torch.randperm(len(works), generator=generator).tolist():
            work, tensor, expected = works[i]
            work.wait()
            if isinstance(expected, tuple):
                rows = tensor.view(len(expected), -1)
                assert all((row == r).all() for row, r in zip(rows, expected)), expected
            else:
                assert (tensor == expected).all(), (tensor, expected)
    counts = ranks.served()
    assert counts["ALLREDUCE"].calls == counts["_ALLGATHER_BASE"].calls == 10 * len(groups)


def test_a_thread_for_each_group(rank, size):
    groups = [group for group in overlapping(size) if rank in group[1]]
    failures = []
    schemes.forget_served()

    def work(_, members, group):
        try:
            for turn in range(20):
                tensor = torch.full((3000,), float(rank * turn))
                dist.all_reduce(tensor, group=group)
                assert (tensor == turn * sum(members)).all(), (members, tensor)
        except BaseException as error:
            failures.append(f"{members}: {error!r}")

    threads = [threading.Thread(target=work, args=group) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    ranks.served({"ALLREDUCE": 20 * 12000 * len(groups)})


ranks.main(__name__)
