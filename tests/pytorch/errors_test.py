# SPDX-License-Identifier: Apache-2.0
"""When a deadline begins, and what errors say: in the package's words, with its names."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time

import ranks
import torch
import torch.distributed as dist
import torch.distributed.tensor
import weir

DEADLINE_S = 2.0


def short_group():
    group = dist.new_group(timeout=datetime.timedelta(seconds=DEADLINE_S))
    dist.barrier(group)
    return group


def test_a_deadline_begins_when_the_program_waits(rank, size):
    group = short_group()
    if rank == 0:
        start = time.monotonic()
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        time.sleep(DEADLINE_S + 1)
        ranks.refused(dist.DistBackendError, "Timed out", work.wait)
        remedy = "give the group or the call a longer timeout"
        ranks.refused(dist.DistBackendError, remedy, lambda: dist.barrier(group))
        assert time.monotonic() - start >= 2 * DEADLINE_S + 1 - 0.1
    dist.barrier()
    ranks.served()


def test_a_deadline_begins_with_the_future(rank, size):
    """Without a thread that waits."""
    group = short_group()
    if rank == 0:
        start = time.monotonic()
        future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
        while not future.done() and time.monotonic() - start < 30:
            time.sleep(0.05)
        seconds = time.monotonic() - start
        # Half as much again, and what a busy machine adds.
        assert DEADLINE_S - 0.1 <= seconds < 10, seconds
        ranks.refused(RuntimeError, "Timed out", future.wait)
    dist.barrier()
    ranks.served()


def test_a_rank_that_destroyed_its_group(rank, size):
    group = dist.new_group()
    dist.barrier(group)
    if rank == 1:
        dist.destroy_process_group(group)
        del group
    dist.barrier()
    if rank == 0:
        # The last user of the communicator may take a moment to let it go.
        call = lambda: dist.all_reduce(torch.ones(3), group=group)
        ranks.refused(dist.DistBackendError, "rank 1 ended, or destroyed the group", call)
        ranks.refused(dist.DistBackendError, "weir.shrink", call)
    dist.barrier()
    ranks.served()


def test_a_rank_that_the_others_gave_up(rank, size):
    group = short_group()
    call = lambda: dist.all_reduce(torch.ones(3), group=group)
    if rank == 0:
        ranks.refused(dist.DistBackendError, "Timed out", call)
        assert weir.lost_ranks(group) == [1], weir.lost_ranks(group)
    dist.barrier()
    if rank == 1:
        with contextlib.suppress(dist.DistBackendError):
            call()  # what it needs of the others may have come
        ranks.refused(dist.DistBackendError, "rank 1", call)
        text = "shrink: the others have given up rank 1, this one"
        ranks.refused(dist.DistBackendError, text, lambda: weir.shrink(group))
    dist.barrier()
    ranks.served()


def test_calls_after_the_one_that_ended_the_group(rank, size):
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(5), 1, group=group)
    else:
        receive = lambda: dist.recv(torch.zeros(3), 0, group=group)
        ranks.refused(dist.DistBackendError, "recv: rank 0 sent 20 bytes", receive)
        text = "all_reduce: the group ended earlier, in recv; abort it, and make another one"
        ranks.refused(
            dist.DistBackendError, text, lambda: dist.all_reduce(torch.ones(3), group=group)
        )
        ranks.refused(dist.DistBackendError, "in recv; abort it", receive)
    dist.barrier()
    other = dist.new_group()
    other._get_backend(torch.device("cpu")).abort()
    call = lambda: dist.barrier(other)
    ranks.refused(dist.DistBackendError, "barrier: the group ended earlier, in abort;", call)
    dist.barrier()
    ranks.served()


def test_timeouts_of_groups(rank, size):
    """0 and less are refused before anything is sent."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for timeout in (datetime.timedelta(0), datetime.timedelta(seconds=-1)):
        for call in (
            lambda: dist.new_group(timeout=timeout),
            lambda: backend._set_default_timeout(timeout),
        ):
            ranks.refused(ValueError, "the timeout of a group is 1 ms at least", call)
    dist.all_reduce(torch.ones(3))
    ranks.served()


def test_a_group_that_a_rank_does_not_make(rank, size):
    if rank == 0:
        make = lambda: dist.new_group(timeout=datetime.timedelta(seconds=1))
        ranks.refused(dist.DistBackendError, "new_group: rank 1 of 2 has not joined", make)
    dist.barrier()
    ranks.served()


def test_sparse_tensors_of_other_forms(rank, size):
    """Indices of one rank outside the tensor of another would be wrong memory."""

    def make(sizes, dtype=torch.float32, sparse_dimensions=1):
        full = torch.zeros(sizes, dtype=dtype)
        full[-1] = 1
        return full.to_sparse(sparse_dimensions)

    wrong = {
        "rank 1 has sizes [4], and rank 0 [3]": (make([3]), make([4])),
        "rank 1 has sizes [1000000], and rank 0 [3]": (make([3]), make([1000000])),
        "rank 1 has sizes [3, 2], and rank 0 [2, 3]": (make([2, 3]), make([3, 2])),
        "rank 1 has 2 sparse": (make([3]), make([3, 3], sparse_dimensions=2)),
        "rank 1 has 1 sparse and 1 dense": (make([3]), make([3, 3])),
        "of type Double, and rank 0 1 and 0 of type Float": (make([3]), make([3], torch.float64)),
    }
    for text, tensors in wrong.items():
        mine = tensors[min(rank, 1)]
        before = mine.to_dense()
        ranks.refused(ValueError, text, lambda: dist.all_reduce(mine))
        assert torch.equal(mine.to_dense(), before)
    mine = make([3])
    dist.all_reduce(mine)
    assert mine.to_dense().tolist() == [0.0, 0.0, float(size)]


def test_ranks_that_are_not_in_the_world(rank, size):
    second = datetime.timedelta(seconds=1)
    for wrong in (-1, 3, 7):
        make = lambda: weir.create_backend(dist.HashStore(), wrong, 3, second)
        ranks.refused(ValueError, f"rank {wrong} is not one of 0 to 2", make)
    ranks.served()


def test_a_tensor_without_memory_of_its_own(rank, size):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    placed = torch.distributed.tensor.distribute_tensor(
        torch.ones(4), mesh, [torch.distributed.tensor.Replicate()]
    )
    ranks.refused(ValueError, "pass its local tensor", lambda: weir.all_reduce(placed))
    weir.all_reduce(placed.to_local())
    assert placed.to_local().tolist() == [float(size)] * 4
    weir.reset_operation_counts()


def test_shrink_waits_for_the_news(rank, size):
    """The error of another group may come before this one knows of the rank that is lost."""
    api = sys.modules["weir._api"]
    lost_ranks = api.lost_ranks
    begin = time.monotonic()
    api.lost_ranks = lambda group=None: [rank] if time.monotonic() - begin > 0.3 else []
    try:
        ranks.refused(dist.DistBackendError, f"given up rank {rank}, this one", weir.shrink)
        api.lost_ranks = lambda group=None: []
        ranks.refused(ValueError, "no rank of the group is lost", weir.shrink)
    finally:
        api.lost_ranks = lost_ranks
    dist.barrier()
    ranks.served()


if __name__ == "__main__":
    ranks.main(__name__)
