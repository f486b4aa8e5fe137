# SPDX-License-Identifier: Apache-2.0
"""Groups whose members change: torch.distributed._reconfigure, which PyTorch has from 2.14 on."""

import datetime
import os
import signal
import subprocess
import sys
import time

import ranks
import torch
import torch.distributed as dist

CPU = torch.device("cpu")
SECOND = datetime.timedelta(seconds=1)
COUNT = 5
JOINER = "WEIR_TEST_JOINER"  # the name of the store, where this process is one that joins


def new_default_group(name, rank, size, enable_reconfigure=True):
    """The default group anew; its store, in which it may have more members than `size`."""
    backend = dist.get_backend() if dist.is_initialized() else os.environ["WEIR_TEST_BACKEND"]
    os.environ["WEIR_TEST_BACKEND"] = backend
    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.FileStore(os.path.join(os.environ["WEIR_TEST_FOLDER"], f"{name}_{size}"))
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=60 * SECOND,
        enable_reconfigure=enable_reconfigure,
    )
    ranks.forget_served()
    return store


def exchange(store, name, rank, members):
    """The handles of `members`, which all call it."""
    store.set(f"{name}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{name}/{member}").decode() for member in members]


def meet(store, name, size):
    """As a barrier, of processes that are in different groups."""
    number = store.add(f"{name}/meet", 1)
    if number == size:
        store.set(f"{name}/met", "1")
    store.wait([f"{name}/met"], 60 * SECOND)


def reconfigure(uuid, handles, seconds=60):
    begin = time.monotonic()
    assert dist._reconfigure(uuid, handles, timeout=seconds * SECOND).wait()
    return time.monotonic() - begin


def expect_members(members, rank):
    """`members` are in the group, in this order; two operations, counted."""
    size = len(members)
    assert (dist.get_rank(), dist.get_world_size()) == (members.index(rank), size)
    ranks.forget_served()
    tensor = torch.full((COUNT,), 2.0**rank)
    dist.all_reduce(tensor)
    assert (tensor == sum(2.0**member for member in members)).all(), (tensor, members)
    parts = [torch.zeros(1) for _ in members]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    assert [int(part) for part in parts] == list(members), parts
    counts = ranks.served({"ALLREDUCE": COUNT * 4, "ALLGATHER": 4})
    assert all(count.calls == 1 for count in counts.values()), counts


def fails(call, *texts):
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in: {error}"
    else:
        raise AssertionError(f"no error with {texts}")
    return time.monotonic() - begin


def test_nothing_before_the_first_members(rank, size):
    store = new_default_group("first", rank, size)
    assert dist._supports_reconfigure()
    group = dist.group.WORLD
    backend = group._get_backend(CPU)
    text = "_reconfigure comes first"
    fails(lambda: dist.all_reduce(torch.ones(1)), text)
    fails(lambda: dist.isend(torch.ones(1), (rank + 1) % size), text)
    fails(lambda: dist._new_window(torch.ones(1)), text)
    fails(lambda: dist.shrink_group([size - 1]), text) if rank != size - 1 else None
    fails(lambda: backend.allocate_tensor(1, dtype=torch.float32, device=CPU), text)
    backend.abort()  # there is nothing to end
    reconfigure(1, exchange(store, "all", rank, range(size)))
    expect_members(list(range(size)), rank)


def test_members_leave_and_return(rank, size):
    store = new_default_group("return", rank, size, enable_reconfigure=False)
    everyone = list(range(size))
    expect_members(everyone, rank)
    uuid = 10
    for gone in {0, size // 2, size - 1}:
        handles = exchange(store, f"without{gone}", rank, everyone)
        rest = [member for member in everyone if member != gone]
        if rank != gone:
            reconfigure(uuid, [handles[member] for member in rest])
            expect_members(rest, rank)
        meet(store, f"left{gone}", size)
        if rank == gone:
            # The others have gone on without it: what it calls on the group as it was fails.
            fails(lambda: dist.all_reduce(torch.ones(1)), "rank")
            assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        reconfigure(uuid + 1, exchange(store, f"with{gone}", rank, everyone))
        expect_members(everyone, rank)
        uuid += 2
    # Each alone, and all again.
    reconfigure(100 + rank, [dist._get_reconfigure_handle()])
    expect_members([rank], rank)
    reconfigure(200, exchange(store, "again", rank, everyone))
    expect_members(everyone, rank)


def test_the_order_of_ranks(rank, size):
    store = new_default_group("order", rank, size)
    order = list(range(size))[::-1]
    reconfigure(1, exchange(store, "backward", rank, order))
    expect_members(order, rank)
    # A set has no order: ranks are as at first.
    reconfigure(2, set(exchange(store, "set", rank, order)))
    expect_members(order[::-1], rank)


def test_one_that_does_not_come(rank, size):
    store = new_default_group("missing", rank, size, enable_reconfigure=False)
    everyone = list(range(size))
    for missing in (size - 1, 0):
        handles = exchange(store, f"missing{missing}", rank, everyone)
        process = handles[missing].split(":")[3].split("@")[0]
        if rank != missing:
            seconds = fails(
                lambda: reconfigure(missing, handles, 2),
                f"after 2000 ms rank {missing} (process {process} on ",
                "reconfigure it with another uuid",
            )
            assert 1.9 < seconds < 20, seconds
        meet(store, f"failed{missing}", size)
        # The group is as it was.
        expect_members(everyone, rank)
    reconfigure(77, exchange(store, "all", rank, everyone))
    expect_members(everyone, rank)


def test_what_is_in_flight_ends_and_hooks_stay(rank, size):
    store = new_default_group("flight", rank, size, enable_reconfigure=False)
    backend = dist.group.WORLD._get_backend(CPU)
    called = []
    backend.register_abort_hook(1, lambda: called.append(1))
    work = dist.irecv(torch.ones(1), (rank + 1) % size)
    late = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    reconfigure(1, exchange(store, "all", rank, range(size)))
    fails(work.wait, "")
    if late is not None:
        fails(late.wait, "")
    assert not called, "the group has not ended"
    expect_members(list(range(size)), rank)
    backend.abort()
    assert called == [1], called
    fails(lambda: dist.all_reduce(torch.ones(1)), "abort")
    # A group that has failed gets members again.
    reconfigure(2, exchange(store, "again", rank, range(size)))
    expect_members(list(range(size)), rank)


def test_what_belongs_to_the_members(rank, size):
    """Memory, windows, and the numbers of monitored barriers."""
    store = new_default_group("memory", rank, size)
    reconfigure(10 + rank, [dist._get_reconfigure_handle()])
    for _ in range(rank):
        dist.monitored_barrier()
    everyone = list(range(size))
    for turn in range(2):
        reconfigure(turn, exchange(store, f"all{turn}", rank, everyone))
        dist.monitored_barrier(timeout=30 * SECOND)
        backend = dist.group.WORLD._get_backend(CPU)
        tensor = backend.allocate_tensor(COUNT, dtype=torch.float32, device=CPU)
        tensor.fill_(rank)
        dist.all_reduce(tensor)
        assert (tensor == sum(everyone)).all(), tensor
        memory = torch.zeros(size)
        window = dist._new_window(memory)
        following, previous = (rank + 1) % size, (rank - 1) % size
        window.put(torch.full((1,), rank + 1.0), following, rank, False)
        window.signal(following, False)
        window.wait_signal(previous, False)
        assert memory[previous] == previous + 1, memory
        dist.barrier()
        half = dist.new_group(everyone[: (size + 1) // 2])
        if rank < (size + 1) // 2:
            assert half.size() == (size + 1) // 2
            dist.all_reduce(torch.ones(1), group=half)
        window.tensor_deregister()
    # Rank 0 does not come to a barrier; nothing of the one before lets the others pass.
    if rank != 0:
        fails(lambda: dist.monitored_barrier(timeout=SECOND), "rank 0")
    meet(store, "barrier", size)


def test_uuids_are_used_once(rank, size):
    store = new_default_group("uuids", rank, size)
    everyone = range(size)
    reconfigure(1, exchange(store, "all", rank, everyone))
    again = exchange(store, "again", rank, everyone)
    seconds = fails(lambda: reconfigure(1, again), "already used")
    # One that this process has not had, but others.
    reconfigure(10 + rank, [dist._get_reconfigure_handle()])
    everyone = exchange(store, "third", rank, everyone)
    meet(store, "third", size)
    seconds += fails(lambda: reconfigure(1, everyone), "rank 0 says that the uuid 1 was already")
    assert seconds < 20, seconds
    reconfigure(2, everyone)
    expect_members(list(range(size)), rank)


def test_wrong_handles(rank, size):
    new_default_group("wrong", rank, size)
    own = dist._get_reconfigure_handle()
    refused = lambda text, handles: ranks.refused(
        ValueError, text, lambda: dist._reconfigure(3 + rank, handles)
    )
    refused("no handles", [])
    refused("is there twice", [own, own])
    refused("is not among those given", [own + "1"])
    of_others = ("", "gloo:0:-1:0:", "weir:a:new:1@h:1", "weir::new:1@h:1", "weir:0:new:1:1")
    for wrong in (*of_others, own + ":", "x" * 5000):
        refused("is no handle of Weir's", [own, wrong])
    reconfigure(3 + rank, [own])  # no uuid was used
    expect_members([rank], rank)


def test_a_process_joins_and_is_killed(rank, size):
    store = new_default_group("join", rank, size, enable_reconfigure=False)
    everyone = list(range(size))
    expect_members(everyone, rank)
    if rank == 0:
        joins = subprocess.Popen(
            [sys.executable, *sys.argv],
            env=dict(os.environ, RANK=str(size), WORLD_SIZE=str(size + 1), **{JOINER: f"{size}"}),
        )
    handles = exchange(store, "join", rank, [*everyone, size])
    reconfigure(1, handles)
    expect_members([*everyone, size], rank)
    # It is killed instead of its second operation.
    seconds = fails(lambda: dist.all_reduce(torch.ones(1)), f"rank {size}")
    assert seconds < 20, seconds
    reconfigure(2, exchange(store, "without", rank, everyone))
    expect_members(everyone, rank)
    if rank == 0:
        assert joins.wait() == -signal.SIGKILL, joins.returncode


def join():
    """The process that joins a group which is there."""
    if dist.is_initialized():
        raise AssertionError("a process that joins has no group")
    import weir  # noqa: F401

    rank, size = int(os.environ["RANK"]), int(os.environ[JOINER])
    store = dist.FileStore(os.path.join(os.environ["WEIR_TEST_FOLDER"], f"join_{size}"))
    dist.init_process_group(
        os.environ["WEIR_TEST_BACKEND"],
        store=store,
        rank=rank,
        world_size=size + 1,
        timeout=60 * SECOND,
        enable_reconfigure=True,
    )
    reconfigure(1, exchange(store, "join", rank, range(size + 1)))
    expect_members(list(range(size + 1)), rank)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__" and not hasattr(dist, "_reconfigure"):
    print(f"SKIPPED: PyTorch has reconfigure from 2.14 on, and this is {torch.__version__}")
    sys.exit(77)
if JOINER in os.environ:
    join()
ranks.main(__name__)
