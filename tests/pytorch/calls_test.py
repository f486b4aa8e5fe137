# SPDX-License-Identifier: Apache-2.0
"""What a single call may say: types of reductions, deadlines, the ends of groups, groups from
groups, titles of profiles."""

import datetime
import os
import time

import ranks
import tally
import torch
import torch.distributed as dist

OP = dist.ReduceOp
SECOND = datetime.timedelta(seconds=1)
CPU = torch.device("cpu")


def rows(size, count, largest, dtype):
    """The tensors of all ranks, of small whole numbers."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, largest + 1, (size, count), generator=generator).to(dtype)


def all_reduce(tensor, op):
    """As PyTorch's, which gives complex numbers to a backend as pairs of real ones."""
    options = dist.AllreduceOptions()
    options.reduceOp = op if isinstance(op, OP) else OP(op)
    work = dist.group.WORLD.allreduce([tensor], options)
    if work is not None:
        work.wait()
    tally.add("ALLREDUCE", tensor.nbytes)


def expect_reduced(rank, inputs, op, expected, what):
    tensor = inputs[rank].clone()
    all_reduce(tensor, op)
    found, expected = tensor.to(expected.dtype), expected
    assert torch.equal(found, expected), f"{what}: {found[:8]} is not {expected[:8]}"


def test_reductions_of_8_bit_floats(rank, size):
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for count in (1, 1000, 40001):
            # Sums up to 4 are exact in both.
            inputs = rows(size, count, 1, dtype)
            wide = inputs.float()
            for op, expected in (
                (OP.SUM, wide.sum(0)),
                (OP.MIN, wide.amin(0)),
                (OP.MAX, wide.amax(0)),
                (OP.AVG, wide.sum(0) / size),
            ):
                expect_reduced(rank, inputs, op, expected, f"{dtype} {op} of {count}")
    assert ranks.served()["ALLREDUCE"].calls == 24


def test_reductions_of_unsigned_integers(rank, size):
    """Those of 16 bits have no type in weir.h."""
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        inputs = rows(size, 1000, 3, dtype)
        wide = inputs.to(torch.int64)
        for op, expected in (
            (OP.SUM, wide.sum(0)),
            (OP.AVG, wide.sum(0) // size),
            (OP.PRODUCT, wide.prod(0)),
            (OP.MIN, wide.amin(0)),
            (OP.MAX, wide.amax(0)),
        ):
            expect_reduced(rank, inputs, op, expected, f"{dtype} {op}")
        expected = inputs[0].clone()
        for other in inputs[1:]:
            expected = expected ^ other
        expect_reduced(rank, inputs, OP.BXOR, expected, f"{dtype} BXOR")
    ranks.served()


def test_the_direct_call_takes_what_all_reduce_takes(rank, size):
    import weir

    total = sum(range(1, size + 1))
    for op, expected in (
        (OP.SUM, total),
        (dist.ReduceOp(OP.SUM), total),
        (dist.ReduceOp(OP.MAX), size),
        (dist._make_nccl_premul_sum(2.0), 2 * total),
    ):
        tensor = torch.full((5,), rank + 1.0)
        weir.all_reduce(tensor, op)
        tally.add("ALLREDUCE", tensor.nbytes)
        assert (tensor == expected).all(), (op, tensor)
    zeros = torch._efficientzerotensor(3)
    ranks.refused(ValueError, "no memory for the result", lambda: weir.all_reduce(zeros))
    ranks.served()


def test_tensors_whose_elements_share_memory(rank, size):
    """Expanded ones, and zero tensors, which PyTorch passes as such."""
    total = sum(range(size))
    for dtype in (torch.float32, torch.int16, torch.bool):
        expanded = torch.full((1, 3), rank, dtype=dtype).expand(4, 3)
        dist.all_reduce(expanded)
        assert (expanded == torch.full((4, 3), total, dtype=dtype)).all(), expanded
    zeros = torch._efficientzerotensor(3)
    dist.all_reduce(zeros)
    dist.broadcast(zeros, 0)
    gathered = [torch.ones(3) for _ in range(size)]
    dist.all_gather(gathered, zeros)
    assert not torch.stack(gathered).any()
    tensor = torch.arange(3.0) if rank == 0 else torch.ones(1).expand(3)
    if rank == 0:
        dist.broadcast(tensor, 0)
    else:
        ranks.refused(ValueError, "clone() it", lambda: dist.broadcast(tensor, 0))
    ranks.served()


def test_averages_and_factors_of_complex_numbers(rank, size):
    for dtype in (torch.complex64, torch.complex128):
        inputs = rows(size, 1000, 3, dtype) + 1j * rows(size, 1001, 3, dtype)[:, :1000]
        expect_reduced(rank, inputs, OP.SUM, inputs.sum(0), f"sum of {dtype}")
        expect_reduced(rank, inputs, OP.AVG, inputs.sum(0) / size, f"average of {dtype}")
        factor = dist._make_nccl_premul_sum(0.5)
        expect_reduced(rank, inputs, factor, 0.5 * inputs.sum(0), f"factor of {dtype}")
        for op in (OP.MIN, OP.MAX, OP.PRODUCT):
            call = lambda: all_reduce(inputs[rank].clone(), op)
            ranks.refused(ValueError, "only sums and averages of complex", call)
    call = lambda: all_reduce(torch.zeros(3, dtype=torch.complex32), OP.SUM)
    ranks.refused(NotImplementedError, "use complex64", call)
    ranks.served()


def new_group(size, seconds=60):
    group = dist.new_group(list(range(size)), timeout=seconds * SECOND)
    return group, group._get_backend(CPU)


def fails(call, text):
    """The seconds that it took to fail with an error that holds `text`."""
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error with {text!r}")
    return time.monotonic() - begin


def test_the_deadline_of_one_call(rank, size):
    group, _ = new_group(size)
    dist.all_reduce(torch.ones(1), group=group)
    options = dist.AllreduceOptions()
    options.timeout = 2 * SECOND
    if rank == 0:
        for is_async in (False, True):
            options.asyncOp = is_async
            call = lambda: group.allreduce([torch.ones(1)], options).wait()
            # The second time the group is of no use any more.
            seconds = fails(call, "" if is_async else "all_reduce")
            assert is_async or 1.5 < seconds < 50, f"{seconds} s with a deadline of 2 s, not of 60"
        tally.add("ALLREDUCE", 4)  # the first had been started when it failed
    dist.barrier()
    ranks.served()


def test_a_wait_that_is_given_up(rank, size):
    """The operation goes on, and completes when the others have come."""
    group, _ = new_group(size)
    tensor = torch.ones(5)
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        seconds = fails(lambda: work.wait(timeout=0.3 * SECOND), "not complete after 300 ms")
        assert seconds > 0.25
        assert not work.is_completed()
    dist.barrier()
    if rank == 0:
        work.wait()
    else:
        dist.all_reduce(tensor, group=group)
    assert (tensor == size).all()
    ranks.served()


def test_the_abort_of_a_group(rank, size):
    """The one that aborts, and those that wait for it, get an error, in time."""
    group, backend = new_group(size)
    dist.all_reduce(torch.ones(1), group=group)
    called = []
    if rank == 0:
        backend.register_abort_hook(1, lambda: called.append(1))
        backend.register_abort_hook(2, lambda: called.append(2))
        backend.unregister_abort_hook(2)
        backend.register_abort_hook(3, lambda: 1 // 0)  # its error is a warning
        work = dist.irecv(torch.ones(1), 1, group=group)
        time.sleep(0.2)
        backend.abort()
        assert called == [1], called
        fails(work.wait, "abort")
    else:
        backend.register_abort_hook(7, lambda: called.append(7))
        fails(lambda: dist.all_reduce(torch.ones(1), group=group), "abort")
        assert called == [7], called
    fails(lambda: dist.all_reduce(torch.ones(1), group=group), "")
    assert len(called) == 1, called
    dist.barrier()
    ranks.served()


def test_groups_from_groups(rank, size):
    own, _ = new_group(size)
    halves = [list(range(0, size, 2)), list(range(1, size, 2))]
    mine = halves[rank % 2]
    half = own.split_group(mine, group_name=f"half {rank % 2}", group_desc="half")
    assert half.size() == len(mine) and half.rank() == mine.index(rank)
    tensor = torch.full((3,), float(rank))
    half.allreduce([tensor]).wait()
    tally.add("ALLREDUCE", tensor.nbytes)
    assert (tensor == sum(mine)).all(), tensor
    # Of the two halves one again.
    folder = os.environ["WEIR_TEST_FOLDER"]
    store = dist.FileStore(os.path.join(folder, f"merged_{size}"), size)
    merged = half.merge_remote_group(store, size, 60 * SECOND, "merged", "merged")
    assert merged.size() == size
    gathered = [torch.zeros(1) for _ in range(size)]
    merged.allgather([gathered], [torch.full((1,), float(rank))]).wait()
    tally.add("ALLGATHER", 4)
    assert sorted(int(t) for t in gathered) == list(range(size)), gathered
    ranks.served()


def test_memory_of_the_group(rank, size):
    group, backend = new_group(size)
    assert backend.supports_tensor_alloc(CPU)
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=CPU)
    tensor.fill_(rank)
    dist.all_reduce(tensor, group=group)
    assert (tensor == sum(range(size))).all()
    ranks.served()


def test_numbers_and_states_of_groups(rank, size):
    """The number of a group counts its collectives, alike on all ranks, and no messages."""
    group, backend = new_group(size)
    assert backend._get_sequence_number_for_group() == 0
    tensor = torch.ones(size)
    dist.all_reduce(tensor, group=group)
    dist.broadcast(tensor, 0, group=group, async_op=True).wait()
    if rank < 2:
        send = dist.isend(tensor, 1 - rank, group=group)
        dist.recv(torch.ones(size), 1 - rank, group=group)
        send.wait()
    dist.all_gather([torch.ones(size) for _ in range(size)], tensor, group=group)
    with dist._coalescing_manager(group=group):
        for _ in range(3):
            dist.all_gather_into_tensor(torch.ones(size * size), tensor, group=group)
    dist.barrier(group)
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    own = torch.tensor([backend._get_sequence_number_for_group()])
    dist.all_gather(numbers, own)
    assert [int(number) for number in numbers] == [5] * size, numbers
    kinds = torch._C._distributed_c10d.ErrorType
    if hasattr(backend, "get_error"):
        assert backend.get_error() == kinds.SUCCESS
        dist.barrier()
        if rank == 0:
            backend.abort()
            assert backend.get_error() == kinds.COMM_ERROR, backend.get_error()
        else:
            fails(lambda: dist.all_reduce(tensor, group=group), "abort")
            assert backend.get_error() != kinds.SUCCESS
    dist.barrier()
    ranks.served()


def test_titles_of_profiles(rank, size):
    name = dist.get_backend()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(3), 0, async_op=True).wait()
        dist.all_gather([torch.ones(3) for _ in range(size)], torch.ones(3))
        dist.barrier()
    found = {event.name for event in profile.events()}
    for operation in ("all_reduce", "broadcast", "all_gather", "barrier"):
        assert f"{name}:{operation}" in found, sorted(found)
    ranks.served()


def test_what_pytorch_asks_of_gloo(rank, size):
    if dist.get_backend() == "gloo":  # Weir in its place
        gloo = dist.distributed_c10d.ProcessGroupGloo
        own = gloo(dist.HashStore(), 0, 1, timeout=30 * SECOND, enable_reconfigure=False)
        assert own.size() == 1
        if not hasattr(dist, "_reconfigure"):  # before PyTorch 2.14
            again = lambda: gloo(dist.HashStore(), 0, 1, enable_reconfigure=True)
            ranks.refused(NotImplementedError, "from 2.14 on", again)
    dist.barrier()
    ranks.served()


if hasattr(dist, "_new_window"):  # from PyTorch 2.14 on

    def test_windows_of_pytorch(rank, size):
        group, _ = new_group(size)
        assert group.supports_window and group.supports_reconfigure
        memory = torch.zeros(size * 100)
        window = dist._new_window(memory, group)
        following, previous = (rank + 1) % size, (rank - 1) % size
        for turn in range(3):
            part = torch.full((100,), 10.0 * turn + rank)
            window.put(part, following, rank * 100, True).wait()
            window.signal(following, True).wait()
            window.wait_signal(previous, False)
            own = memory[previous * 100 : previous * 100 + 100]
            assert (own == 10 * turn + previous).all(), own
            dist.barrier(group)
        call = lambda: window.map_remote_tensor(following)
        ranks.refused(NotImplementedError, "cannot be mapped", call)
        window.tensor_deregister()
        ranks.refused(ValueError, "no tensor is registered", call)
        ranks.served({"BARRIER": 0, "PUT": 3 * 400, "SIGNAL": 3 * 8, "WAIT_SIGNAL": 3 * 8})

    def test_gather_of_a_single_tensor(rank, size):
        whole = torch.zeros(size * 5)
        dist.gather_single(torch.full((5,), float(rank)), whole if rank == 1 else None, dst=1)
        wanted = torch.arange(size).repeat_interleave(5).float()
        assert torch.equal(whole, wanted if rank == 1 else torch.zeros(size * 5)), whole
        assert ranks.served({"GATHER": 20})["GATHER"].calls == 1


# The last: PyTorch numbers groups on each rank, and those that have shrunk one have made one more.
def test_the_barriers_of_a_group_that_has_shrunk(rank, size):
    """Nothing in the store of those before it lets a rank pass."""
    group, _ = new_group(size)
    dist.monitored_barrier(group)
    if rank < size - 1:
        smaller = dist.shrink_group([size - 1], group)
        if smaller.rank() != 0:
            fails(lambda: dist.monitored_barrier(smaller, timeout=SECOND), "rank 0")
    dist.barrier()
    ranks.served()


ranks.main(__name__)
