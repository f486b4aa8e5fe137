# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by torch.distributed.checkpoint, collectives of objects, and the uneven exchange of
tokens between experts, against one process."""

import os

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

TOKENS = 40
WIDTH = 8


def folder(name):
    return os.path.join(os.environ["WEIR_TEST_FOLDER"], name)


def tensor_of(rows, columns):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator)


def expect_objects(call, **more):
    """`call` moves nothing but objects and `more`, and each byte of them is counted."""
    schemes.forget_served()
    with schemes.Objects() as objects:
        call()
    # What PyTorch passes to its own functions, barriers included, and a second time in closed form.
    counts = ranks.served()
    counts.pop("BARRIER", None)
    assert objects.own, "no object was moved"
    expected = {**objects.expected(), **more}
    assert {name: count.bytes for name, count in counts.items()} == expected, (counts, expected)


def test_checkpoints_are_loaded_in_other_shards(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    tensors = {"even": tensor_of(8, 4), "uneven": tensor_of(7, 5), "few": tensor_of(1, 3)}

    def placed(how):
        return {name: distribute_tensor(t, mesh, [how]) for name, t in tensors.items()}

    state = {**placed(Shard(0)), "step": 17, "text": f"of rank {rank}", "plain": tensor_of(3, 3)}
    expect_objects(lambda: dcp.save(state, checkpoint_id=folder("shards")))
    for how in (Shard(0), Shard(1), Replicate()):
        loaded = {
            **{
                name: DTensor.from_local(
                    torch.zeros_like(t.to_local()), mesh, [how], shape=t.shape, stride=t.stride()
                )
                for name, t in placed(how).items()
            },
            "step": 0,
            "plain": torch.zeros(3, 3),
        }
        expect_objects(lambda: dcp.load(loaded, checkpoint_id=folder("shards")))
        assert loaded["step"] == 17
        assert torch.equal(loaded["plain"], tensor_of(3, 3))
        schemes.forget_served()
        for name, tensor in tensors.items():
            assert torch.equal(loaded[name].full_tensor(), tensor), (name, how)
        if how != Replicate():
            # Each rank passes its part of every tensor, as long as the longest.
            parts = [-(-t.shape[how.dim] // size) * t.numel() // t.shape[how.dim]
                     for t in tensors.values()]  # fmt: skip
            ranks.served({"COALESCED": 4 * sum(parts)})


def test_a_checkpoint_in_the_background(rank, size):
    group = dist.new_group(list(range(size)))
    tensor = tensor_of(100, 10)
    state = {"tensor": tensor.clone()}

    def save_and_go_on():
        saved = dcp.async_save(state, checkpoint_id=folder("background"), process_group=group)
        # Training goes on, and changes what has been staged.
        for _ in range(5):
            dist.all_reduce(state["tensor"])
        saved.result()

    expect_objects(save_and_go_on, ALLREDUCE=5 * tensor.nbytes)
    loaded = {"tensor": torch.zeros(100, 10)}
    dcp.load(loaded, checkpoint_id=folder("background"))
    assert torch.equal(loaded["tensor"], tensor)
    ranks.served()


def test_objects_of_different_sizes(rank, size):
    def of(r):
        return {"rank": r, "bytes": b"x" * (10 + 50000 * r), "tensor": torch.arange(r)}

    gathered = [None] * size
    schemes.forget_served()
    dist.all_gather_object(gathered, of(rank))
    for r, found in enumerate(gathered):
        assert found["rank"] == r and len(found["bytes"]) == 10 + 50000 * r
        assert torch.equal(found["tensor"], torch.arange(r))
    for root in range(size):
        objects = [of(root), None if rank != root else "second"]
        objects = objects if rank == root else [None, None]
        dist.broadcast_object_list(objects, root)
        assert objects[0]["rank"] == root and objects[1] == "second"
        received = [None]
        dist.scatter_object_list(
            received, [of(r) for r in range(size)] if rank == root else None, root
        )
        assert received[0]["rank"] == rank
        gathered = [None] * size if rank == root else None
        dist.gather_object(of(rank), gathered, root)
        if rank == root:
            assert [g["rank"] for g in gathered] == list(range(size))
    if rank == 0:
        dist.send_object_list([of(3), "to 1"], 1)
    if rank == 1:
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects[0]["rank"] == 3 and objects[1] == "to 1"
    # First the lengths, of 8 bytes each, then the objects, each as long as the longest.
    lengths = [schemes.bytes_of_object(of(r)) for r in range(size)]
    longest, second = max(lengths), schemes.bytes_of_object("second")
    sent = 16 + schemes.bytes_of_object(of(3)) + schemes.bytes_of_object("to 1")
    expected = {
        "ALLGATHER": (8 + longest) + 8 * size,
        "BROADCAST": sum(lengths) + size * (16 + second + 8),
        "SCATTER": size * (longest + 8),
        "GATHER": size * longest,
        **({0: {"SEND": sent}, 1: {"RECV": sent}}.get(rank, {})),
    }
    ranks.served(expected)


def experts(size):
    torch.manual_seed(23)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(size)]


def tokens_of(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def route_of(rank, size, skew):
    """The expert of each token. With `skew` one expert gets all, and the others none."""
    if skew:
        return torch.full((TOKENS,), size - 1)
    generator = torch.Generator().manual_seed(50 + rank)
    return torch.randint(0, size, (TOKENS,), generator=generator)


def test_tokens_to_experts_and_back(rank, size):
    for skew in (False, True):
        x = [tokens_of(r).requires_grad_() for r in range(size)]
        alone = experts(size)
        expected = []
        for r in range(size):
            route = route_of(r, size, skew)
            outputs = torch.stack([alone[int(e)](t) for e, t in zip(route, x[r])])
            expected.append(outputs)
        sum(o.square().sum() for o in expected).backward()

        own = tokens_of(rank).requires_grad_()
        expert = experts(size)[rank]
        route = route_of(rank, size, skew)
        order = route.argsort(stable=True)
        sent = torch.bincount(route, minlength=size)
        schemes.forget_served()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        splits = received.tolist(), sent.tolist()
        arrived = all_to_all_single_autograd(own[order], *splits, dist.group.WORLD)
        returned = all_to_all_single_autograd(expert(arrived), *splits[::-1], dist.group.WORLD)
        outputs = torch.zeros_like(returned).index_copy(0, order, returned)
        outputs.square().sum().backward()
        moved = own.nbytes + sum(splits[0]) * WIDTH * 8
        ranks.served({"ALLTOALL_BASE": 2 * moved + 8 * size})
        schemes.expect_close([outputs], [expected[rank]], "outputs of the experts")
        schemes.expect_close([own.grad], [x[rank].grad], "gradients of the tokens")
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in expert.parameters()]
        wanted = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in alone[rank].parameters()
        ]
        schemes.expect_close(found, wanted, "gradients of the experts")


ranks.main(__name__)
