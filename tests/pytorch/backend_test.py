# SPDX-License-Identifier: Apache-2.0
"""Every operation of c10d on the backend weir, against what each rank computes alone."""

import datetime
import itertools

import ranks
import tally
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx

OP = dist.ReduceOp

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
FP8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
ALL = [*FLOATS, *INTEGERS, *COMPLEX, torch.complex32, torch.bool]
ALL += [torch.uint16, torch.uint32, torch.uint64, *FP8]
SIZES = [0, 1, 7, 1000, 40001]


def of_rank(rank, size, dtype, salt=0):
    """The tensor of a rank, which every rank can make: small whole numbers, so that sums of them
    are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * rank + salt)
    values = torch.randint(0, 4, (size,), generator=generator)
    if dtype.is_complex:
        other = torch.randint(0, 4, (size,), generator=generator)
        return torch.complex(values.double(), other.double()).to(dtype)
    return values.to(dtype)


def expect_equal(found, expected, what):
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    if found.dtype in FP8 or found.dtype == torch.complex32:  # equal is not for them
        found, expected = (t.contiguous().view(-1).view(torch.uint8) for t in (found, expected))
    if not torch.equal(found, expected):
        raise AssertionError(f"{what}: {found.flatten()[:8]} is not {expected.flatten()[:8]}")


def joined(tensors):
    """One behind the other; cat is not for all types."""
    shape = tensors[0].shape[1:]
    joint = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    return joint.view(tensors[0].dtype).reshape(-1, *shape)


def reference(tensors, op):
    dtype = tensors[0].dtype
    wide = [t.to(torch.int64 if dtype in INTEGERS else torch.float64) for t in tensors] if (
        not dtype.is_complex and dtype != torch.bool
    ) else tensors
    stacked = torch.stack([t.clone() for t in wide])
    if dtype == torch.bool:
        any_of = op in (OP.SUM, OP.MAX, OP.BOR)
        return stacked.any(0) if any_of else stacked.all(0)
    if op == OP.SUM:
        return stacked.sum(0).to(dtype)
    if op == OP.AVG:
        total = stacked.sum(0)
        if dtype in INTEGERS:
            return torch.div(total, len(tensors), rounding_mode="trunc").to(dtype)
        return (total / len(tensors)).to(dtype)
    if op == OP.PRODUCT:
        return stacked.prod(0).to(dtype)
    if op == OP.MIN:
        return stacked.amin(0).to(dtype)
    if op == OP.MAX:
        return stacked.amax(0).to(dtype)
    folded = tensors[0].clone()
    for tensor in tensors[1:]:
        if op == OP.BAND:
            folded &= tensor
        elif op == OP.BOR:
            folded |= tensor
        else:
            folded ^= tensor
    return folded


def test_all_reduce_of_every_type_and_operation(rank, size):
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        if dtype.is_complex:
            ops = [OP.SUM]
        elif dtype == torch.bool:
            ops = [OP.SUM, OP.MAX, OP.MIN, OP.PRODUCT, OP.BAND, OP.BOR]
        elif dtype in INTEGERS:
            ops = [OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX, OP.BAND, OP.BOR, OP.BXOR]
        else:
            ops = [OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX]
        for op, count in itertools.product(ops, SIZES):
            inputs = [of_rank(r, count, dtype) for r in range(size)]
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op)
            expect_equal(tensor, reference(inputs, op), f"{dtype} {op} of {count}")
    assert ranks.served()["ALLREDUCE"].calls > 100


def test_sums_with_a_factor(rank, size):
    for dtype in FLOATS:
        inputs = [of_rank(r, 100, dtype) for r in range(size)]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        expected = sum((t.double() * 0.5 for t in inputs)).to(dtype)
        expect_equal(tensor, expected, f"factor of {dtype}")
    ranks.served()


def test_reduce_and_broadcast_from_every_root(rank, size):
    for root, dtype, count in itertools.product(range(size), [*FLOATS, *INTEGERS], SIZES):
        inputs = [of_rank(r, count, dtype) for r in range(size)]
        tensor = inputs[rank].clone()
        dist.reduce(tensor, root)
        expect_equal(
            tensor, reference(inputs, OP.SUM) if rank == root else inputs[rank], f"reduce {dtype}"
        )
    for root, dtype, count in itertools.product(range(size), ALL, SIZES):
        tensor = of_rank(rank, count, dtype)
        dist.broadcast(tensor, root)
        expect_equal(tensor, of_rank(root, count, dtype), f"broadcast {dtype}")
    counts = ranks.served()
    assert counts["REDUCE"].calls == size * len([*FLOATS, *INTEGERS]) * len(SIZES)
    assert counts["BROADCAST"].calls == size * len(ALL) * len(SIZES)


def test_gathers_of_every_type(rank, size):
    for dtype, count in itertools.product(ALL, SIZES):
        inputs = [of_rank(r, count, dtype) for r in range(size)]
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, inputs[rank])
        for r in range(size):
            expect_equal(outputs[r], inputs[r], f"all_gather {dtype} {count}")
        whole = torch.zeros(size * count, dtype=dtype)
        dist.all_gather_into_tensor(whole, inputs[rank])
        expect_equal(whole, joined(inputs), f"all_gather_into_tensor {dtype} {count}")
        for root in range(size):
            outputs = [torch.zeros(count, dtype=dtype) for _ in range(size)]
            dist.gather(inputs[rank], outputs if rank == root else None, root)
            if rank == root:
                for r in range(size):
                    expect_equal(outputs[r], inputs[r], f"gather {dtype} {count}")
            sent = [of_rank(root, count, dtype, salt=r) for r in range(size)]
            received = torch.zeros(count, dtype=dtype)
            dist.scatter(received, sent if rank == root else None, root)
            expect_equal(received, sent[rank], f"scatter {dtype} {count}")
    ranks.served()


def test_lists_of_different_sizes(rank, size):
    for base in (1, 30000):
        inputs = [of_rank(r, base * (r + 1), torch.float32) for r in range(size)]
        outputs = [torch.zeros(base * (r + 1)) for r in range(size)]
        dist.all_gather(outputs, inputs[rank])
        for r in range(size):
            expect_equal(outputs[r], inputs[r], "all_gather of different sizes")
        lists = [
            [of_rank(r, base * (to + 1), torch.float32, salt=to) for to in range(size)]
            for r in range(size)
        ]
        output = torch.zeros(base * (rank + 1))
        dist.reduce_scatter(output, lists[rank])
        expect_equal(
            output,
            reference([lists[r][rank] for r in range(size)], OP.SUM),
            "reduce_scatter of different sizes",
        )
    ranks.served()


def apart_and_together(parts):
    """Copies of `parts`, one behind the other in memory, each with a storage of its own."""
    whole = torch.cat(parts).view(torch.uint8).numpy().copy()
    begin, copies = 0, []
    for part in parts:
        piece = whole[begin : begin + part.nbytes]
        begin += part.nbytes
        copies.append(torch.from_numpy(piece).view(part.dtype))
    return copies


def test_lists_whose_tensors_lie_one_behind_the_other(rank, size):
    """Rows of an array have a storage each: none of them has a view of all."""
    factor = dist._make_nccl_premul_sum(2.0)
    cases = [
        (torch.float32, OP.SUM),
        (torch.complex64, OP.SUM),
        (torch.uint8, OP.BXOR),
        (torch.int16, OP.SUM),
        (torch.float32, factor),
    ]
    for dtype, op in cases:
        for counts in ([300] * size, [0] + [300] * (size - 1), list(range(7, 7 + size))):
            inputs = [[of_rank(r, n, dtype, salt=i) for i, n in enumerate(counts)]
                      for r in range(size)]  # fmt: skip
            of_this = [inputs[r][rank] for r in range(size)]
            if op is factor:
                expected = sum(2 * part for part in of_this)
            else:
                expected = reference(of_this, op)
            for is_async in (False, True):
                output = torch.zeros(counts[rank], dtype=dtype)
                rows = apart_and_together(inputs[rank])
                work = dist.reduce_scatter(output, rows, op, async_op=is_async)
                del rows
                if is_async:
                    work.wait()
                expect_equal(output, expected, f"rows of {dtype} {op} {counts}")
    ranks.served()


def test_reduce_scatter_of_every_type(rank, size):
    for dtype, count in itertools.product([*FLOATS, *INTEGERS], SIZES):
        inputs = [of_rank(r, size * count, dtype) for r in range(size)]
        output = torch.zeros(count, dtype=dtype)
        dist.reduce_scatter_tensor(output, inputs[rank].clone())
        expected = reference(inputs, OP.SUM)[rank * count : (rank + 1) * count]
        expect_equal(output, expected, f"reduce_scatter_tensor {dtype} {count}")
        output = torch.zeros(count, dtype=dtype)
        dist.reduce_scatter(output, [part.clone() for part in inputs[rank].split(max(1, count))]
                            if count else [output.clone() for _ in range(size)])
        expect_equal(output, expected, f"reduce_scatter {dtype} {count}")
    output = torch.zeros(5, dtype=torch.int32)
    inputs = [of_rank(r, size * 5, torch.int32) for r in range(size)]
    dist.reduce_scatter_tensor(output, inputs[rank].clone(), OP.BXOR)
    expect_equal(output, reference(inputs, OP.BXOR)[rank * 5 : rank * 5 + 5], "BXOR")
    ranks.served()


def test_all_to_all(rank, size):
    for dtype, rows in itertools.product(ALL, [0, 1, 5, 3000]):
        sent = [of_rank(r, size * rows, dtype) for r in range(size)]
        output = torch.zeros(size * rows, dtype=dtype)
        dist.all_to_all_single(output, sent[rank])
        expected = joined([sent[r][rank * rows : (rank + 1) * rows] for r in range(size)])
        expect_equal(output, expected, f"all_to_all_single {dtype} {rows}")
        # Rank r sends rows * (r + to) rows to rank `to`.
        splits = [[rows * (r + to) for to in range(size)] for r in range(size)]
        sent = [of_rank(r, 2 * sum(splits[r]), dtype).reshape(-1, 2) for r in range(size)]
        received = [splits[r][rank] for r in range(size)]
        output = torch.zeros(sum(received), 2, dtype=dtype)
        dist.all_to_all_single(output, sent[rank], received, splits[rank])
        parts = [sent[r].split(splits[r])[rank] for r in range(size)]
        expect_equal(output, joined(parts), f"all_to_all_single with splits {dtype} {rows}")
        outputs = [torch.zeros_like(part) for part in parts]
        dist.all_to_all(outputs, list(sent[rank].split(splits[rank])))
        for r in range(size):
            expect_equal(outputs[r], parts[r], f"all_to_all {dtype} {rows}")
    ranks.served()


def test_tensors_that_are_not_flat(rank, size):
    def transposed(r):
        return of_rank(r, 60, torch.float32).reshape(6, 10).t()

    tensor = transposed(rank).clone(memory_format=torch.preserve_format)
    tensor = torch.empty(6, 10).t().copy_(tensor)
    assert not tensor.is_contiguous()
    dist.all_reduce(tensor)
    expect_equal(tensor, reference([transposed(r) for r in range(size)], OP.SUM), "all_reduce")
    work = dist.all_reduce(tensor, op=OP.MAX, async_op=True)
    work.wait()
    whole = torch.zeros(10, 12)
    column = whole[:, 3]
    column.copy_(of_rank(rank, 10, torch.float32))
    dist.broadcast(column, 0)
    expect_equal(column, of_rank(0, 10, torch.float32), "broadcast")
    assert whole.sum() == column.sum()
    outputs = [torch.zeros(10, 2)[:, 0] for _ in range(size)]
    dist.all_gather(outputs, of_rank(rank, 10, torch.float32))
    for r in range(size):
        expect_equal(outputs[r], of_rank(r, 10, torch.float32), "all_gather")
    if rank == 0:
        dist.send(transposed(0), 1)
    if rank == 1:
        received = torch.empty(6, 10).t()
        dist.recv(received, 0)
        expect_equal(received, transposed(0), "recv")
    ranks.served()


def test_coalesced_operations(rank, size):
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [of_rank(rank, 10 * i, torch.float32) for i in range(5)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(tensors):
        expected = reference([of_rank(r, 10 * i, torch.float32) for r in range(size)], OP.SUM)
        expect_equal(tensor, expected, "all_reduce in a coalescing manager")
    with dist._coalescing_manager(group=dist.group.WORLD):
        outputs = [torch.zeros(size * 3) for _ in range(3)]
        for output in outputs:
            dist.all_gather_into_tensor(output, of_rank(rank, 3, torch.float32))
    for output in outputs:
        expected = torch.cat([of_rank(r, 3, torch.float32) for r in range(size)])
        expect_equal(output, expected, "all_gather_into_tensor in a coalescing manager")
    received = torch.zeros(100)
    operations = [
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
        dist.P2POp(dist.isend, of_rank(rank, 100, torch.float32), (rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect_equal(received, of_rank((rank - 1) % size, 100, torch.float32), "batch_isend_irecv")
    ranks.served()


def test_messages(rank, size):
    # Tags in another order than they were sent in, and any source.
    for count in (1, 100, 100000):
        if rank == 0:
            works = [
                dist.isend(of_rank(tag, count, torch.float32), 1, tag=tag) for tag in range(4)
            ]
            for work in works:
                work.wait()
        elif rank == 1:
            for tag in (3, 1, 0, 2):
                received = torch.zeros(count)
                assert dist.recv(received, 0, tag=tag) == 0
                expect_equal(received, of_rank(tag, count, torch.float32), "recv with a tag")
    dist.barrier()
    if rank == 0:
        found = set()
        for _ in range(size - 1):
            received = torch.zeros(3)
            source = dist.recv(received)
            expect_equal(received, of_rank(source, 3, torch.float32), "recv from any source")
            found.add(source)
        assert found == set(range(1, size))
    else:
        dist.send(of_rank(rank, 3, torch.float32), 0)
    # What a rank sends next would match a receive from any source, too.
    dist.barrier()
    # Both send first: neither waits for the other's receive.
    work = dist.isend(torch.full((200000,), float(rank)), rank ^ 1) if size % 2 == 0 else None
    if work is not None:
        received = torch.zeros(200000)
        dist.recv(received, rank ^ 1)
        work.wait()
        assert (received == rank ^ 1).all()
    ranks.served()


def test_messages_shorter_than_their_tensor(rank, size):
    """They fill its front, and the rest stays, as with Gloo and MPI."""
    for count in (0, 3, 5000, 50000):
        if rank == 0:
            for peer in range(1, size):
                for _ in range(3):
                    dist.send(torch.full((count,), 5.0), peer)
        else:
            expected = torch.full((count + 4,), 7.0)
            expected[:count] = 5
            for source in (0, None):
                received = torch.full((count + 4,), 7.0)
                assert dist.recv(received, source) == 0
                expect_equal(received, expected, "a message shorter than its tensor")
            received = torch.full((count // 2 + 2, 2), 7.0).t()
            dist.recv(received, 0)
            assert (received.flatten()[:count] == 5).all(), "likewise, not flat"
            assert (received.flatten()[count:] == 7).all()
    dist.barrier()
    ranks.served()


def test_a_message_longer_than_its_tensor(rank, size):
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(5), 1, group=group)
    elif rank == 1:
        text = "rank 0 sent 20 bytes with tag 0"
        receive = lambda: dist.recv(torch.zeros(3), 0, group=group)
        ranks.refused(dist.DistBackendError, text, receive)
    dist.barrier()
    ranks.served()


def test_many_messages_before_the_first_is_received(rank, size):
    """Every second one is empty."""
    count = 700
    lengths = [i % 2 for i in range(count)]
    if rank == 0:
        works = [dist.isend(torch.full((n,), 3.0), 1, tag=i) for i, n in enumerate(lengths)]
        for work in works:
            work.wait()
    elif rank == 1:
        for i in reversed(range(count)):
            received = torch.zeros(lengths[i])
            dist.recv(received, 0, tag=i)
            assert (received == 3).all()
    peer = rank ^ 1
    operations = [dist.P2POp(dist.isend, torch.full((n,), 1.0 + rank), peer) for n in lengths]
    received = [torch.zeros(n) for n in lengths]
    operations += [dist.P2POp(dist.irecv, tensor, peer) for tensor in received]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all((tensor == 1 + peer).all() for tensor in received)
    ranks.served()


def test_futures_and_callbacks_in_python(rank, size):
    works, values = [], []
    for i in range(20):
        tensor = torch.full((1000,), float(rank + i))
        work = dist.all_reduce(tensor, async_op=True)
        works.append(work.get_future().then(lambda f: f.value()[0] / size))
    for i, future in enumerate(works):
        values.append(future.wait())
        expected = sum(r + i for r in range(size)) / size
        assert (values[-1] == expected).all()
    # Nobody waits, and the tensors are not held by the program.
    for i in range(50):
        dist.all_reduce(torch.ones(10000), async_op=True)
    dist.barrier()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and (work.result()[0] == size).all()
    outputs = [torch.zeros(2) for _ in range(size)]
    future = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True).get_future()
    assert [float(t[0]) for t in future.wait()] == [float(r) for r in range(size)]
    ranks.served()


def test_objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
    assert [g["rank"] for g in gathered] == list(range(size))
    objects = [("a", 1), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, 0)
    assert objects == [("a", 1), None]
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(size)] if rank == 0 else None)
    assert received == [f"for {rank}"]
    gathered = [None] * size if rank == size - 1 else None
    dist.gather_object(rank * 2, gathered, size - 1)
    assert gathered is None or gathered == [2 * r for r in range(size)]
    ranks.served()


def test_sparse_sums(rank, size):
    def of(r):
        indices = torch.tensor([[0, r, 5], [1, 2, 0]])
        return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, float(r)]), (8, 3))

    tensor = of(rank)
    dist.all_reduce(tensor)
    expected = sum(of(r).to_dense() for r in range(size))
    assert torch.equal(tensor.to_dense(), expected)
    ranks.served()


def test_groups(rank, size):
    groups = [dist.new_group(list(range(i + 1))) for i in range(size)]
    for i, group in enumerate(groups):
        if rank > i:
            continue
        tensor = torch.ones(4)
        dist.all_reduce(tensor, group=group)
        assert (tensor == i + 1).all()
        dist.barrier(group)
    own, _ = dist.new_subgroups(2)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=own)
    assert (tensor == 4 * (rank // 2) + 1).all()
    ranks.served()


def test_deadlines(rank, size):
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=60))
    backend = group._get_backend(torch.device("cpu"))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), group)
    assert backend.options._timeout == datetime.timedelta(seconds=2)
    dist.monitored_barrier(group)
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except dist.DistBackendError as error:
            text = str(error)
            assert "rank" in text and "all_reduce" in text, text
        else:
            raise AssertionError("an all_reduce that nobody joins came to an end")
        tally.add("ALLREDUCE", 4)  # it had been started when it failed
    ranks.served()


def test_the_direct_call(rank, size):
    import weir

    tensor = of_rank(rank, 1000, torch.float32)
    weir.all_reduce(tensor)
    expected = reference([of_rank(r, 1000, torch.float32) for r in range(size)], OP.SUM)
    expect_equal(tensor, expected, "weir.all_reduce")
    weir.all_reduce(tensor, OP.MAX)
    tally.add("ALLREDUCE", 2 * tensor.nbytes)
    # As with PyTorch's, ranks outside of the group pass by.
    first = dist.new_group([0])
    own = torch.ones(3)
    weir.all_reduce(own, group=first)
    if rank == 0:
        tally.add("ALLREDUCE", own.nbytes)
    expect_equal(own, torch.ones(3), "weir.all_reduce of a group of one")
    if rank > 0:
        for call in (weir.empty, weir.Window, weir.lost_ranks, weir.arena_usage):
            arguments = (torch.ones(3),) if call is weir.Window else ()
            refused = lambda: call(*arguments, group=first)
            ranks.refused(ValueError, "this rank is not in the group", refused)
    ranks.served()


def test_only_calls_that_go_on_have_a_work(rank, size):
    group = dist.new_group(list(range(size)))
    backend = group._get_backend(torch.device("cpu"))
    tensor = of_rank(rank, 1000, torch.float32)
    expected = reference([of_rank(r, 1000, torch.float32) for r in range(size)], OP.SUM)
    options = dist.AllreduceOptions()
    for is_async in (False, True):
        options.asyncOp = is_async
        for taker in (group, backend):
            summed = tensor.clone()
            work = taker.allreduce([summed], options)
            tally.add("ALLREDUCE", summed.nbytes)
            assert (work is not None) == is_async
            if is_async:
                work.wait()
            expect_equal(summed, expected, "allreduce")
    # Where c10d takes a Work for given, there is one.
    options.asyncOp = False
    with allow_inflight_collective_as_graph_input_ctx():
        summed = tensor.clone()
        work = group.allreduce([summed], options)
        tally.add("ALLREDUCE", summed.nbytes)
        assert work is not None
        torch.ops._c10d_functional.wait_tensor(summed)
        expect_equal(summed, expected, "allreduce in a graph")
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (size,))
    work = dist.all_reduce(sparse, group=group, async_op=True)
    work.wait()
    assert torch.equal(sparse.to_dense(), torch.ones(size))
    ranks.served()


def test_hooks_and_durations(rank, size):
    group = dist.new_group(list(range(size)))
    seen = []
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.seq)))
    for _ in range(3):
        dist.all_reduce(torch.ones(5), group=group)
    dist.broadcast(torch.ones(5), 0, group=group, async_op=True)
    group._wait_for_pending_works()
    assert [seq for _, seq in seen] == [1, 2, 3, 4], seen
    timed = dist.new_group(list(range(size)))
    timed._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(100000), group=timed, async_op=True)
    work.wait()
    assert work._get_duration() > 0
    ranks.served()


def test_wrong_calls_are_told_and_harm_nothing(rank, size):
    ranks.refused(ValueError, "needs integers", lambda: dist.all_reduce(torch.ones(2), OP.BAND))
    ranks.refused(
        (ValueError, RuntimeError),
        "world",
        lambda: dist.all_gather_into_tensor(torch.zeros(size + 1), torch.ones(1)),
    )
    ranks.refused(
        ValueError,
        "dim 0",
        lambda: dist.all_to_all_single(torch.zeros(size), torch.ones(size), [1] * size, [2] * size),
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor == size
    ranks.served()


ranks.main(__name__)
