# SPDX-License-Identifier: Apache-2.0
"""Tensor, sequence and context parallel, and redistributions of DTensors, against one process."""

import collections

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH = 32
HEADS = 4
LENGTH = 8
BATCH = 2
# PyTorch 2.11 has no name of its own for it.
COALESCED_REDUCE_SCATTER = (
    "REDUCE_SCATTER_TENSOR_COALESCED" if torch.__version__ >= "2.12" else "_REDUCE_SCATTER_BASE"
)


class Block(nn.Module):
    """Attention and two layers, with norms, as transformers have them."""

    def __init__(self, width=WIDTH, heads=HEADS, inner=2 * WIDTH):
        super().__init__()
        self.head_width = width // heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def attend(self, x):
        # As many heads as there are columns here.
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def block(**options):
    torch.manual_seed(3)
    return Block(**options).double()


def inputs(width=WIDTH):
    generator = torch.Generator().manual_seed(11)
    return torch.randn(BATCH, LENGTH, width, generator=generator, dtype=torch.float64)


def expect_gradients(net, reference, what):
    for (name, found), expected in zip(net.named_parameters(), reference.parameters()):
        schemes.expect_close([found.grad], [expected.grad], f"{what}: gradient of {name}")


def test_tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    reference, x = block(), inputs()
    expected = reference(x)
    expected.square().mean().backward()
    net = parallelize_module(
        block(),
        mesh,
        {
            **{name: ColwiseParallel() for name in ("q", "k", "v", "up")},
            **{name: RowwiseParallel() for name in ("out", "down")},
        },
    )
    schemes.forget_served()
    found = net(x)
    found.square().mean().backward()
    # One sum after each of the two row-wise layers, and in the backward pass one before each
    # column-wise layer.
    ranks.served({"ALLREDUCE": x.nbytes * (2 + 4)})
    schemes.expect_close([found], [expected], "tensor parallel")
    expect_gradients(net, reference, "tensor parallel")


def test_sequence_parallel(rank, size):
    """Each rank has a part of the sequence outside of the layers that are cut."""
    mesh = init_device_mesh("cpu", (size,))
    reference, x = block(), inputs()
    expected = reference(x)
    expected.square().sum().backward()
    net = parallelize_module(
        block(),
        mesh,
        {
            **{name: SequenceParallel() for name in ("norm", "norm2")},
            **{name: ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")},
            **{name: RowwiseParallel(output_layouts=Shard(1)) for name in ("out", "down")},
        },
    )
    schemes.forget_served()
    found = net(x.chunk(size, 1)[rank])
    found.square().sum().backward()
    # Forward the four column-wise layers gather and the two row-wise ones scatter their sums;
    # backward it is the other way round.
    part = x.nbytes // size
    ranks.served(
        {"COALESCED": (4 + 2) * part, COALESCED_REDUCE_SCATTER: (2 + 4) * x.nbytes}
    )
    schemes.expect_close([found], [expected.chunk(size, 1)[rank]], "sequence parallel")
    expect_gradients(net, reference, "sequence parallel")
    schemes.forget_served()


def test_uneven_columns_and_rows(rank, size):
    """Widths that the number of ranks does not divide: 33 columns."""
    mesh = init_device_mesh("cpu", (size,))

    def layers():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(10, 33), nn.ReLU(), nn.Linear(33, 7)).double()

    reference, net = layers(), layers()
    x = inputs(10)
    expected = reference(x)
    expected.square().sum().backward()
    # As DTensors the columns know how they are cut.
    columns = ColwiseParallel(use_local_output=False)
    net = parallelize_module(net, mesh, {"0": columns, "2": RowwiseParallel()})
    schemes.forget_served()
    found = net(x)
    found.square().sum().backward()
    ranks.served({"ALLREDUCE": found.nbytes})
    schemes.expect_close([found], [expected], "uneven tensor parallel")
    expect_gradients(net, reference, "uneven tensor parallel")
    schemes.forget_served()


def test_the_loss_over_a_vocabulary_in_shards(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(9)
    logits = torch.randn(6, 20, dtype=torch.float64)
    targets = torch.randint(0, 20, (6,))
    alone = logits.clone().requires_grad_()
    expected = functional.cross_entropy(alone, targets)
    expected.backward()
    parts = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    schemes.forget_served()
    with loss_parallel():
        found = functional.cross_entropy(parts, targets)
        found.backward()
    # Of each row the greatest logit, the sum of the exponentials, and the logit of the target.
    ranks.served({"ALLREDUCE": 3 * 6 * 8})
    schemes.expect_close([found], [expected], "loss")
    schemes.expect_close([parts.grad], [alone.grad], "gradient of the loss")
    schemes.forget_served()


def redistribute(mesh, layouts, shape, moved):
    """Every pair of ``layouts``, and a sum to each. ``moved(origin, target)`` is told of each step
    that may move bytes; None: from rank 0's tensor, "sum": from a partial sum."""
    generator = torch.Generator().manual_seed(shape[0])
    tensor = torch.randn(*shape, generator=generator, dtype=torch.float64)
    for origin in layouts:
        for target in layouts:
            placed = distribute_tensor(tensor, mesh, origin)
            redistributed = placed.redistribute(placements=target)
            what = f"{shape} from {origin} to {target}"
            schemes.expect_close([redistributed], [tensor], what, 0, 0)
            assert redistributed.placements == tuple(target), what
            moved(None, origin)
            moved(origin, target)
            moved(target, [Replicate()])
    partial = DTensor.from_local(tensor * (dist.get_rank() + 1), mesh, [Partial()] * mesh.ndim)
    for target in layouts:
        total = partial.redistribute(placements=target)
        factor = dist.get_world_size() * (dist.get_world_size() + 1) // 2
        schemes.expect_close([total], [tensor * factor], f"a sum to {target}")
        moved("sum", target)
        moved(target, [Replicate()])


def test_redistributions(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    schemes.forget_served()
    expected = collections.Counter()
    for shape in ((8, 12), (7, 5), (1, 3)):
        whole = shape[0] * shape[1] * 8
        # A rank passes as many rows or columns as the one with most.
        most = [-(-length // size) for length in shape]
        shard = [most[0] * shape[1] * 8, shape[0] * most[1] * 8]
        between_shards = size * most[0] * most[1] * 8

        def moved(origin, target):
            (target,) = target
            if origin is None:
                shards = isinstance(target, Shard)
                expected["SCATTER" if shards else "BROADCAST"] += (
                    shard[target.dim] if shards else whole
                )
            elif origin == "sum":
                if isinstance(target, Shard):
                    expected[COALESCED_REDUCE_SCATTER] += size * shard[target.dim]
                else:
                    expected["ALLREDUCE"] += whole
            elif isinstance(origin[0], Shard) and origin[0] != target:
                # From one dimension's shards to the other's DTensor gathers, too, on processors
                # with any backend.
                to_shards = isinstance(target, Shard)
                expected["COALESCED"] += between_shards if to_shards else shard[origin[0].dim]

        redistribute(mesh, [[Replicate()], [Shard(0)], [Shard(1)]], shape, moved)
    ranks.served(dict(expected))
    if size == 4:
        mesh = init_device_mesh("cpu", (2, 2))
        layouts = [[Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)]]
        schemes.forget_served()
        redistribute(mesh, layouts, (7, 5), lambda *_: None)
        # In which dimension of the mesh first is DTensor's choice: at least once the tensor in all.
        names = "SCATTER", "BROADCAST", "ALLREDUCE", COALESCED_REDUCE_SCATTER, "COALESCED"
        ranks.served({name: (7 * 5 * 8 / size, float("inf")) for name in names})


def causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_inputs(heads, length):
    generator = torch.Generator().manual_seed(heads)
    return [
        torch.randn(BATCH, heads, length, 8, generator=generator, dtype=torch.float64)
        for _ in range(3)
    ]


class HeadsToSequence(torch.autograd.Function):
    """Each rank has all heads of its part of the sequence; it gets the whole sequence of its heads.

    The heads may be uneven: rank r has heads[r]. Tensors are [batch, heads, length, width].
    """

    @staticmethod
    def forward(ctx, tensor, heads, lengths, rank):
        ctx.sizes = heads, lengths, rank
        return exchange(tensor, heads, lengths, rank, to_sequence=True)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, *ctx.sizes, to_sequence=False), None, None, None


class SequenceToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, heads, lengths, rank):
        ctx.sizes = heads, lengths, rank
        return exchange(tensor, heads, lengths, rank, to_sequence=False)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, *ctx.sizes, to_sequence=True), None, None, None


def exchange(tensor, heads, lengths, rank, to_sequence):
    size = len(heads)
    rows = tensor.shape[0] * tensor.shape[3]
    of_heads = [h * lengths[rank] * rows for h in heads]
    of_parts = [heads[rank] * part * rows for part in lengths]
    cut = heads if to_sequence else lengths
    sent = torch.cat([p.reshape(-1) for p in tensor.split(cut, dim=1 if to_sequence else 2)])
    splits = (of_heads, of_parts) if to_sequence else (of_parts, of_heads)
    received = sent.new_empty(sum(splits[1]))
    dist.all_to_all_single(received, sent, splits[1], splits[0])
    parts = received.split(splits[1])
    batch, _, _, width = tensor.shape
    if to_sequence:
        shaped = [parts[r].view(batch, heads[rank], lengths[r], width) for r in range(size)]
        return torch.cat(shaped, dim=2)
    shaped = [parts[r].view(batch, heads[r], lengths[rank], width) for r in range(size)]
    return torch.cat(shaped, dim=1)


def test_ulysses(rank, size):
    for heads, length in ((4, 16), (7, 13)):
        whole = [t.requires_grad_() for t in attention_inputs(heads, length)]
        expected = causal(*whole)
        expected.square().sum().backward()
        of_ranks = [len(part) for part in torch.arange(heads).tensor_split(size)]
        lengths = [len(part) for part in torch.arange(length).tensor_split(size)]
        own = [t.detach().split(lengths, 2)[rank].clone().requires_grad_() for t in whole]
        schemes.forget_served()
        gathered = [HeadsToSequence.apply(t, of_ranks, lengths, rank) for t in own]
        found = SequenceToHeads.apply(causal(*gathered), of_ranks, lengths, rank)
        found.square().sum().backward()
        # Three tensors there and one back; their gradients the other way.
        moved = own[0].nbytes + gathered[0].nbytes
        counts = ranks.served({"ALLTOALL_BASE": 4 * moved})
        assert counts["ALLTOALL_BASE"].calls == 8, counts
        schemes.expect_close([found], [expected.split(lengths, 2)[rank]], "Ulysses")
        for a, b in zip(own, whole):
            schemes.expect_close([a.grad], [b.grad.split(lengths, 2)[rank]], "Ulysses' gradient")


class Pass(torch.autograd.Function):
    """What the rank before has; gradients go the other way."""

    @staticmethod
    def forward(ctx, tensor, rank, size):
        ctx.place = rank, size
        return Pass.shift(tensor, (rank + 1) % size, (rank - 1) % size)

    @staticmethod
    def backward(ctx, gradient):
        rank, size = ctx.place
        return Pass.shift(gradient, (rank - 1) % size, (rank + 1) % size), None, None

    @staticmethod
    def shift(tensor, to, source):
        tensor = tensor.contiguous()
        received = torch.empty_like(tensor)
        operations = [
            dist.P2POp(dist.isend, tensor, to),
            dist.P2POp(dist.irecv, received, source),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received


def ring_attention(q, k, v, rank, size):
    """Causal; each rank has a part of the sequence, in order, as long as those of the others."""
    length = q.shape[2]
    own = torch.arange(length)
    out = weight = None
    for step in range(size):
        source = (rank - step) % size
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        late = (source * length + own)[None, :] > (rank * length + own)[:, None]
        scores = scores.masked_fill(late, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        if source <= rank:
            part = (scores - total).exp() @ v
            if out is None:
                out, weight = part, total
            else:
                both = torch.logaddexp(weight, total)
                out = out * (weight - both).exp() + part * (total - both).exp()
                weight = both
        if step < size - 1:
            k, v = Pass.apply(torch.stack([k, v]), rank, size)
    # Every rank takes part in all exchanges of the backward pass.
    return out + 0 * (k.sum() + v.sum())


def test_ring_attention(rank, size):
    for heads in (2, 3):
        whole = [t.requires_grad_() for t in attention_inputs(heads, 4 * size)]
        expected = causal(*whole)
        expected.square().sum().backward()
        own = [t.detach().chunk(size, 2)[rank].clone().requires_grad_() for t in whole]
        schemes.forget_served()
        found = ring_attention(*own, rank, size)
        found.square().sum().backward()
        # Keys and values go around, and their gradients back.
        around = 2 * (size - 1) * 2 * own[0].nbytes
        ranks.served({"SEND": around, "RECV": around})
        schemes.expect_close([found], [expected.chunk(size, 2)[rank]], "ring attention")
        for a, b in zip(own, whole):
            schemes.expect_close([a.grad], [b.grad.chunk(size, 2)[rank]], "ring's gradient")


def test_context_parallel_of_pytorch(rank, size):
    """PyTorch's ring attention. Its context_parallel() does not replace the attention of
    processors, so the ring is called with that."""
    aten = torch.ops.aten
    length = 4 * size

    def backward(grad_out, query, key, value, out, logsumexp, is_causal, **_):
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, logsumexp, 0.0, is_causal
        )

    options = _attention._cp_options
    before = options.rotate_method, options.enable_load_balance, options.convert_to_f32
    options.convert_to_f32 = False
    options.enable_load_balance = False
    try:
        for method in _attention._RotateMethod:
            options.rotate_method = method
            for is_causal in (True, False):
                whole = [t.requires_grad_() for t in attention_inputs(3, length)]
                expected = functional.scaled_dot_product_attention(*whole, is_causal=is_causal)
                expected.square().sum().backward()
                own = [t.detach().chunk(size, 2)[rank].contiguous() for t in whole]
                schemes.forget_served()
                out, weight = _attention._templated_ring_attention(
                    dist.group.WORLD,
                    2,
                    aten._scaled_dot_product_flash_attention_for_cpu,
                    *own,
                    is_causal=is_causal,
                )
                gradients = _attention._templated_ring_attention_backward(
                    dist.group.WORLD, 2, backward, 2 * out, "grad_out", *own, out, weight, is_causal
                )
                # Their gradients go around; keys and values do so forward and backward, or are
                # gathered once in each.
                around = own[1].nbytes + own[2].nbytes
                expected_bytes = {"ALLTOALL_BASE": size * around}
                if method == _attention._RotateMethod.ALL_GATHER:
                    expected_bytes["COALESCED"] = 2 * around
                else:
                    expected_bytes["ALLTOALL_BASE"] += 2 * (size - 1) * around
                ranks.served(expected_bytes)
                schemes.expect_close([out], [expected.chunk(size, 2)[rank]], f"{method}")
                for a, b in zip(gradients, whole):
                    schemes.expect_close([a], [b.grad.chunk(size, 2)[rank]], f"{method}")
    finally:
        options.rotate_method, options.enable_load_balance, options.convert_to_f32 = before
    schemes.forget_served()


ranks.main(__name__)
