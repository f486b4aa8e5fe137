# SPDX-License-Identifier: Apache-2.0
"""Tests on the base classes that PyTorch ships for DTensor, FSDP and pipelines (shipped_tests.py).

The tests of these classes are not in PyTorch's install. Those here are short and cover what the
classes do with a group: the way in which they make it, which knows backends by their names, their
checks, and the collectives beneath them. FSDPTest skips each test where there is no accelerator, on
Gloo too; here it counts the processors as such.
"""

from __future__ import annotations

import os
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DeviceMesh, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_fsdp import MLP, FSDPTest, check_sharded_parity
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorConverter,
    DTensorTestBase,
    MLPModule,
    with_comms,
)


def number_of_ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


class DTensorClass(DTensorTestBase):
    @property
    def world_size(self):
        return number_of_ranks()

    @property
    def device_type(self):
        return "cpu"

    @with_comms
    def test_dtensor_redistributions(self):
        mesh = DeviceMesh("cpu", list(range(self.world_size)))
        whole = torch.arange(7.0 * 12).reshape(7, 12)
        for first in (Replicate(), Shard(0), Shard(1)):
            for second in (Replicate(), Shard(0), Shard(1)):
                moved = distribute_tensor(whole, mesh, [first]).redistribute(mesh, [second])
                self.assertEqual(moved.full_tensor(), whole)
        part = torch.distributed.tensor.DTensor.from_local(whole, mesh, [Partial()])
        for placement in (Replicate(), Shard(0), Shard(1)):
            summed = part.redistribute(mesh, [placement]).full_tensor()
            self.assertEqual(summed, whole * self.world_size)

    @with_comms
    def test_dtensor_operations_by_every_placement(self):
        mesh = DeviceMesh("cpu", list(range(self.world_size)))
        left, right = torch.randn(12, 12), torch.randn(12, 12)
        converter = DTensorConverter(mesh, (left, right), {})
        for arguments, keywords in converter:
            if not converter.successful():
                continue
            found = torch.mm(*arguments, **keywords).full_tensor()
            self.assertEqual(found, left @ right, atol=1e-4, rtol=1e-4)

    @with_comms
    def test_dtensor_tensor_parallel(self):
        mesh = DeviceMesh("cpu", list(range(self.world_size)))
        torch.manual_seed(3)
        alone = MLPModule("cpu")
        split = MLPModule("cpu")
        # Its own 16 columns do not divide by 3.
        for module in (alone, split):
            module.net1, module.net2 = torch.nn.Linear(10, 12), torch.nn.Linear(12, 10)
        split.load_state_dict(alone.state_dict())
        parallelize_module(split, mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
        torch.manual_seed(5)
        batch = torch.rand(8, 10)
        alone(batch).sum().backward()
        split(batch).sum().backward()
        self.assertEqual(split(batch), alone(batch))
        gradient = split.net1.weight.grad.full_tensor()
        self.assertEqual(gradient, alone.net1.weight.grad)


class FSDPClass(FSDPTest):
    @property
    def world_size(self):
        return number_of_ranks()

    @classmethod
    def _run(cls, *args, **kwargs):
        with mock.patch.object(torch.accelerator, "device_count", number_of_ranks):
            super()._run(*args, **kwargs)

    def test_fully_shard_equals_one_process(self):
        torch.manual_seed(42)
        alone = torch.nn.Sequential(*[MLP(8) for _ in range(3)])
        model = torch.nn.Sequential(*[MLP(8) for _ in range(3)])
        model.load_state_dict(alone.state_dict())
        mesh = dist.init_device_mesh("cpu", (self.world_size,))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (alone, model)]
        torch.manual_seed(43)
        for _ in range(4):
            batches = torch.randn(self.world_size, 4, 8)
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(batches[self.rank]).sum().backward()
            for batch in batches:
                (alone(batch).sum() / self.world_size).backward()
            for optimizer in optimizers:
                optimizer.step()
            check_sharded_parity(self, alone, model)


class PipelineClass(MultiProcessTestCase):
    @property
    def world_size(self):
        return number_of_ranks()

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_gpipe(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size
        )
        torch.manual_seed(1)
        layers = [torch.nn.Linear(6, 6) for _ in range(self.world_size)]
        stage = PipelineStage(
            layers[self.rank], self.rank, self.world_size, torch.device("cpu")
        )
        schedule = ScheduleGPipe(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        batch, target = torch.randn(8, 6), torch.randn(8, 6)
        alone = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in layers])
        for own, layer in zip(alone, layers):
            own.load_state_dict(layer.state_dict())
        arguments = (batch,) if self.rank == 0 else ()
        last = self.rank == self.world_size - 1
        schedule.step(*arguments, **({"target": target} if last else {}))
        for part, wanted in zip(batch.chunk(4), target.chunk(4)):
            (torch.nn.functional.mse_loss(alone(part), wanted) / 4).backward()
        self.assertEqual(layers[self.rank].weight.grad, alone[self.rank].weight.grad)


CLASSES = [DTensorClass, FSDPClass, PipelineClass]
