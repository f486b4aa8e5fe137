# SPDX-License-Identifier: Apache-2.0
"""fully_shard (FSDP2) against one process: precision, resharding, divide factors, two-dimensional
meshes, and its state in checkpoints."""

import copy
import os

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS = 3
ROWS = 8


def batches(dtype=torch.float64):
    return [schemes.batch(step, ROWS, dtype) for step in range(STEPS)]


def own_batches(rank, size, dtype=torch.float64):
    return [schemes.share(whole, rank, size) for whole in batches(dtype)]


def sharded(net, **options):
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(net, **options)


def expected_bytes(size, steps, gathers, dtype=torch.float64, reduced=torch.float64):
    """Each rank passes its part of the parameters ``gathers`` times a step (twice where they are
    gathered anew for the backward pass), and the whole gradients once. Every shard of this model
    has as many rows as the others."""
    return {
        "_ALLGATHER_BASE": steps * gathers * schemes.bytes_of(schemes.model(dtype)) // size,
        "_REDUCE_SCATTER_BASE": steps * schemes.bytes_of(schemes.model(reduced)),
    }


def test_reshard_or_not(rank, size):
    for reshard in (True, False):
        schemes.forget_served()
        net = sharded(schemes.model(), reshard_after_forward=reshard)
        schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size))
        ranks.served(expected_bytes(size, STEPS, 2 if reshard else 1))
        schemes.expect_close(
            net.parameters(), schemes.trained_alone(batches()), f"fully_shard, {reshard}"
        )
        schemes.forget_served()


def test_mixed_precision(rank, size):
    """Parameters compute as bfloat16; gradients are summed as float32."""
    schemes.forget_served()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = sharded(schemes.model(torch.float32), mp_policy=policy)
    schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size, torch.bfloat16))
    ranks.served(expected_bytes(size, STEPS, 2, torch.bfloat16, torch.float32))

    reference = schemes.model(torch.float32)
    optimizer = schemes.optimizer_of(reference)
    for step in range(STEPS):
        optimizer.zero_grad()
        for parameter in reference.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for r in range(size):
            computing = copy.deepcopy(reference).to(torch.bfloat16)
            computing.zero_grad()
            inputs, targets = own_batches(r, size, torch.bfloat16)[step]
            schemes.loss_of(computing, inputs, targets).backward()
            for parameter, computed in zip(reference.parameters(), computing.parameters()):
                parameter.grad += computed.grad.float() / size
        optimizer.step()
    schemes.expect_close(net.parameters(), reference.parameters(), "mixed precision", 1e-5, 1e-6)
    schemes.forget_served()


def test_gradient_divide_factor(rank, size):
    """The reduction multiplies by the factor's inverse: PREMUL_SUM, which Gloo refuses."""
    for dtype, factor in ((torch.float32, 3.0), (torch.float64, 5.0), (torch.float32, float(size))):
        schemes.forget_served()
        net = sharded(schemes.model(dtype))
        for module in [*net, net]:
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(factor)
        inputs, targets = own_batches(rank, size, dtype)[0]
        schemes.loss_of(net, inputs, targets).backward()
        reference = schemes.model(dtype)
        for r in range(size):
            (schemes.loss_of(reference, *own_batches(r, size, dtype)[0]) / factor).backward()
        ranks.served(expected_bytes(size, 1, 2, dtype, dtype))
        schemes.expect_close(
            [p.grad for p in net.parameters()],
            [p.grad for p in reference.parameters()],
            f"a factor of {factor}",
            *((1e-5, 1e-6) if dtype == torch.float32 else (1e-9, 1e-11)),
        )
        schemes.forget_served()


def hybrid_mesh(size):
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))


def test_hybrid_sharding(rank, size):
    """Shards within a row of the mesh, copies between rows."""
    schemes.forget_served()
    net = sharded(schemes.model(), mesh=hybrid_mesh(size))
    schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size))
    shards = size // 2
    expected = {"ALLREDUCE": STEPS * schemes.bytes_of(schemes.model()) // shards}  # of the copies
    if shards > 1:
        expected.update(expected_bytes(shards, STEPS, 2))
    ranks.served(expected)
    schemes.expect_close(net.parameters(), schemes.trained_alone(batches()), "hybrid sharding")
    schemes.forget_served()


def test_no_gradient_sum_between_steps(rank, size):
    schemes.forget_served()
    net = sharded(schemes.model())
    optimizer = schemes.optimizer_of(net)
    own = own_batches(rank, size)
    net.set_requires_gradient_sync(False)
    (schemes.loss_of(net, *own[0]) / 2).backward()
    once = expected_bytes(size, 1, 2)
    ranks.served({"_ALLGATHER_BASE": once["_ALLGATHER_BASE"]})
    net.set_requires_gradient_sync(True)
    (schemes.loss_of(net, *own[1]) / 2).backward()
    ranks.served(once)
    optimizer.step()
    together = [[torch.cat(pair) for pair in zip(*batches()[:2])]]
    schemes.expect_close(net.parameters(), schemes.trained_alone(together), "without a sum")
    schemes.forget_served()


def test_state_in_a_checkpoint(rank, size):
    """Saved from shards, loaded to shards, to another mesh, and to one process."""
    folder = os.path.join(os.environ["WEIR_TEST_FOLDER"], "fsdp")
    net = sharded(schemes.model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    own = own_batches(rank, size)
    schemes.train(net, optimizer, own[:2])
    model_state, optimizer_state = get_state_dict(net, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    schemes.train(net, optimizer, own[2:])
    expected = [schemes.whole(p).clone() for p in net.parameters()]

    for mesh in (None, hybrid_mesh(size)):
        options = {} if mesh is None else {"mesh": mesh}
        net = sharded(schemes.model(), **options)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        # Other values and other momenta than those of the checkpoint.
        schemes.train(net, optimizer, own[1:2])
        model_state, optimizer_state = get_state_dict(net, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            net,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        schemes.train(net, optimizer, own[2:])
        found = [schemes.whole(p) for p in net.parameters()]
        if mesh is None:
            for a, b in zip(found, expected):
                assert torch.equal(a, b), "not the bits that it would have had"
        schemes.expect_close(found, expected, "loaded to another mesh")

    dist.barrier()
    alone = schemes.model()
    state = {"model": {name: torch.zeros_like(p) for name, p in alone.named_parameters()}}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    alone.load_state_dict(state["model"])
    reference = schemes.model()
    schemes.train(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), batches()[:2])
    schemes.expect_close(alone.parameters(), reference.parameters(), "loaded to one process")
    schemes.forget_served()


ranks.main(__name__)
