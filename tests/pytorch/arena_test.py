# SPDX-License-Identifier: Apache-2.0
"""Tensors that a group allocates: each rank by itself, also as the memory of fully_shard."""

import gc
import os
import resource
import tempfile

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

ROWS = 8
STEPS = 3
WIDTH = 384
CPU = torch.device("cpu")
# As between hosts: allocated tensors are ordinary memory over TCP.
IS_SHARED = os.environ.get("WEIR_TRANSPORT") != "tcp"


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


def allocate(count, dtype=torch.float32, group=None):
    return backend_of(group).allocate_tensor(count, dtype=dtype, device=CPU)


def new_group(**options):
    import weir

    chosen = weir.Options()
    for name, value in options.items():
        setattr(chosen, name, value)
    return dist.new_group(backend="weir", pg_options=chosen)


def standard_error_of(call):
    """What libraries write there, too."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode()


def test_each_rank_allocates_by_itself(rank, size):
    import weir

    assert backend_of().supports_tensor_alloc(CPU)
    assert weir.arena_usage() is None
    # Of other lengths and numbers on each rank, so that the tensors lie at other offsets.
    others = [allocate(1000 * (rank + 1), torch.float64) for _ in range(rank + 1)]
    before = weir.arena_usage()
    assert before.is_shared == IS_SHARED, before
    assert before.tensor_count == (rank + 1 if IS_SHARED else 0), before
    assert not IS_SHARED or before.used_bytes >= sum(it.nbytes for it in others)
    for count in (1, 7, 5000, 300_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            whole = allocate(count * size, dtype)
            assert whole.shape == (count * size,) and whole.dtype == dtype
            assert whole.data_ptr() % 64 == 0
            own = whole.view(size, count)[rank]
            own.fill_(rank + 1)
            dist.all_gather_into_tensor(whole, own)
            for r, part in enumerate(whole.view(size, count)):
                assert (part == r + 1).all(), (count, dtype, r)
            dist.barrier()  # the others have read
            reduced = allocate(count, dtype)
            whole.fill_(rank + 1)
            work = dist.reduce_scatter_tensor(reduced, whole, async_op=True)
            work.wait()
            assert (reduced == sum(range(1, size + 1))).all(), (count, dtype)
            dist.all_reduce(reduced)
            assert (reduced == size * sum(range(1, size + 1))).all(), (count, dtype)
    # A call in which only one rank's tensors are of the group's memory.
    sent = torch.full((300_000,), rank + 1.0)
    received = allocate(300_000 * size) if rank == 0 else torch.empty(300_000 * size)
    dist.all_gather_into_tensor(received, sent)
    assert (received.view(size, -1) == torch.arange(1.0, size + 1)[:, None]).all()
    del others, whole, own, part, reduced, received, work
    gc.collect()
    after = weir.arena_usage()
    assert after.tensor_count == 0 and after.used_bytes == 0, after
    assert (after.touched_bytes > before.touched_bytes) == IS_SHARED, after
    assert allocate(0).shape == (0,)
    ranks.refused(ValueError, "-1 elements", lambda: allocate(-1))
    ranks.served()


def test_empty_is_memory_of_the_group(rank, size):
    import weir

    tensor = weir.empty(3, 5, dtype=torch.int16)
    assert tensor.shape == (3, 5) and tensor.dtype == torch.int16 and tensor.device == CPU
    assert weir.empty((2, 4)).shape == weir.empty([2, 4]).shape == (2, 4)
    assert weir.empty(4).dtype == torch.get_default_dtype() and weir.empty().shape == ()
    ranks.refused(ValueError, "size", lambda: weir.empty(-1))
    ranks.refused(ValueError, "overflow", lambda: weir.empty(1 << 62))
    for wrong in (2.5, (2, 2.5), "2", None, True):
        ranks.refused(TypeError, "'size'", lambda: weir.empty(wrong))
    ranks.refused(TypeError, "'dtype'", lambda: weir.empty(2, dtype="float32"))
    for dtype in (torch.qint8, torch.quint8, torch.qint32):
        ranks.refused(ValueError, "quantizer", lambda: weir.empty(3, dtype=dtype))
    before = weir.arena_usage().tensor_count
    assert (before >= 1) == IS_SHARED
    more = weir.empty(1000)
    assert weir.arena_usage().tensor_count == before + IS_SHARED
    del more
    # Alone, and where it is switched off: ordinary memory.
    alone = [dist.new_group([r]) for r in range(size)][rank]
    assert weir.empty(7, group=alone).shape == (7,)
    assert weir.empty(7, group=new_group(arena_bytes=0)).shape == (7,)
    dist.all_reduce(tensor.fill_(rank))
    assert (tensor == sum(range(size))).all()
    ranks.served()


def test_tensors_outlive_their_group(rank, size):
    group = new_group()
    tensor = allocate(100_000, group=group)
    tensor.fill_(rank)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert (tensor == rank).all()
    tensor.add_(1)
    pid = os.fork()
    if pid == 0:
        # The child reads, and ends its own copies.
        good = bool((tensor == rank + 1).all())
        del tensor
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tensor == rank + 1).all()
    schemes.forget_served()


def test_one_comes_later(rank, size):
    """The first allocation, while operations are in flight that one rank waits for before it."""
    group = new_group()
    for step in range(3):
        tensor = torch.full((1_000_000,), 1.0)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        if rank == 0:
            allocate(10, group=group)
            work.wait()
        else:
            work.wait()
            allocate(10, group=group)
        assert (tensor == size).all()
    dist.destroy_process_group(group)
    ranks.served()


def test_little_or_none(rank, size):
    import weir

    group = new_group(arena_bytes=1 << 20)
    tensors = [allocate(100_000, group=group) for _ in range(2)]
    told = standard_error_of(
        lambda: tensors.extend(allocate(100_000, group=group) for _ in range(2))
    )
    counts = told.count("arena_alloc of 400000 bytes"), told.count("arena_bytes")
    assert counts == (IS_SHARED, IS_SHARED), told
    assert weir.arena_usage(group).tensor_count == 2 * IS_SHARED
    for tensor in tensors:
        tensor.fill_(1)
        dist.all_reduce(tensor, group=group)
        assert (tensor == size).all()
    dist.destroy_process_group(group)

    group = new_group(arena_bytes=0)
    assert not backend_of(group).supports_tensor_alloc(CPU)
    ranks.refused(RuntimeError, "arena_bytes is 0", lambda: allocate(10, group=group))
    dist.destroy_process_group(group)
    ranks.served()


def address_space():
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_too_little_address_space(rank, size):
    """On all ranks or one: the tensors are ordinary memory, and the group goes on."""
    import weir

    for is_limited in (True, rank == size - 1):
        group = new_group()
        dist.barrier(group)
        made = []
        before = resource.getrlimit(resource.RLIMIT_AS)
        if is_limited:
            resource.setrlimit(resource.RLIMIT_AS, (address_space() + (400 << 20), before[1]))
        allocate_both = lambda: made.extend(allocate(1000, group=group) for _ in range(2))
        told = standard_error_of(allocate_both)
        resource.setrlimit(resource.RLIMIT_AS, before)
        if is_limited or IS_SHARED:
            assert told.count("a smaller arena_bytes") == 1, told
            assert weir.arena_usage(group) == (0, 0, 0, False, 0)
        for tensor in made:
            dist.all_reduce(tensor.fill_(rank), group=group)
            assert (tensor == sum(range(size))).all()
        dist.destroy_process_group(group)
    ranks.served()


def wide_model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(schemes.INPUTS, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, schemes.OUTPUTS),
    ).to(torch.float64)


def test_fully_shard(rank, size):
    """What crosses between ranks is touched as often as it has to be, and the result is right."""
    import weir

    batches = [schemes.batch(step, ROWS) for step in range(STEPS)]
    net = wide_model()
    for layer in (net[2], net[4]):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(net, reshard_after_forward=True)
    for module in (net, net[2], net[4]):
        module.set_allocate_memory_from_process_group_for_comm(True)
    shard_bytes = sum(it.to_local().nbytes for it in net.parameters())
    own = [schemes.share(whole, rank, size) for whole in batches]
    schemes.train(net, schemes.optimizer_of(net), own[:1])
    dist.barrier()
    before = weir.arena_usage()
    schemes.forget_served()
    schemes.train(net, schemes.optimizer_of(net), own[1:])
    dist.barrier()
    after = weir.arena_usage()
    whole = schemes.bytes_of(wide_model())
    steps = STEPS - 1
    counts = ranks.served(
        {
            "_ALLGATHER_BASE": 2 * steps * whole // size,
            "_REDUCE_SCATTER_BASE": steps * whole,
            "BARRIER": 0,
        }
    )
    # Gathered in place, the parts of the others are read and written. Reduced, a part of each rank
    # is read and the sum is written.
    gathers = counts["_ALLGATHER_BASE"].bytes
    scatters = counts["_REDUCE_SCATTER_BASE"].bytes / size
    least = 2 * (size - 1) * gathers + (size + 1) * scatters
    touched = after.touched_bytes - before.touched_bytes
    if IS_SHARED:
        assert 0.5 * least <= touched <= 1.1 * least, (touched, least, counts)
    else:
        assert touched == 0, touched
    assert after.used_bytes <= 4 * size * shard_bytes, (after, shard_bytes)

    alone = wide_model()
    optimizer = schemes.optimizer_of(alone)
    schemes.train(alone, optimizer, batches[:1])
    schemes.train(alone, schemes.optimizer_of(alone), batches[1:])
    schemes.expect_close(net.parameters(), alone.parameters(), "memory of the group")
    schemes.forget_served()


ranks.main(__name__)
