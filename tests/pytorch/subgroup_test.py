# SPDX-License-Identifier: Apache-2.0
"""A rank of a group that is not the default one is lost: the others are told which rank of the
default group it was, and go on in a smaller group, whose members PyTorch knows right."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import weir

RANKS = 4
TIMEOUT = datetime.timedelta(seconds=60)


def end_here():
    os.kill(os.getpid(), signal.SIGKILL)


def lose(group, rank, victim):
    """The error that the ranks of `group` get as `victim`, a rank of the default group, dies."""
    dist.all_reduce(torch.ones(3), group=group)
    if rank == victim:
        end_here()
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("a group works on without one of its ranks")


def works(group, members):
    """Each member once as the source, by its rank in the default group, as PyTorch counts them."""
    assert dist.get_process_group_ranks(group) == members, dist.get_process_group_ranks(group)
    own = dist.get_rank()
    assert dist.get_rank(group) == members.index(own), dist.get_rank(group)
    assert dist.get_world_size(group) == len(members)
    for source in members:
        tensor = torch.full((2,), float(own))
        dist.broadcast(tensor, source, group=group)
        assert tensor.tolist() == [float(source)] * 2, (source, tensor)
    total = torch.tensor([float(own)])
    dist.all_reduce(total, group=group)
    assert total.item() == sum(members), total
    if own == members[0]:
        dist.send(total, members[-1], group=group)
    elif own == members[-1]:
        received = torch.zeros(1)
        assert dist.recv(received, members[0], group=group) == members[0]
        assert received.item() == sum(members)


def a_group_goes_on_without(rank, victim):
    group = dist.new_group([1, 2, 3], timeout=TIMEOUT)
    if rank == 0:
        return
    error = lose(group, rank, victim)
    assert f"rank {victim - 1} died" in error, error
    assert f"rank {victim - 1} is rank {victim}" in error, error
    works(weir.shrink(group), [member for member in (1, 2, 3) if member != victim])


def the_first_of_a_group_is_lost(rank):
    a_group_goes_on_without(rank, 1)


def the_last_of_a_group_is_lost(rank):
    a_group_goes_on_without(rank, 3)


def the_default_group_is_numbered_anew_twice(rank):
    error = lose(None, rank, 1)
    assert "rank 1 died" in error and "default group" not in error, error
    works(weir.shrink(), [0, 1, 2])
    some = dist.new_group([1, 2], timeout=TIMEOUT)
    if dist.get_rank() != 0:
        works(some, [1, 2])
    lose(None, dist.get_rank(), 2)
    works(weir.shrink(), [0, 1])
    works(dist.new_group([0, 1], timeout=TIMEOUT), [0, 1])


def a_member_of_a_new_group_is_dead(rank):
    dist.barrier()
    if rank == 3:
        end_here()
    if rank == 0:
        time.sleep(0.1)
        dist.new_group([1, 2, 3], timeout=TIMEOUT)
        return
    begin = time.monotonic()
    try:
        dist.new_group([1, 2, 3], timeout=TIMEOUT)
    except dist.DistBackendError as error:
        # The other living member may have been told earlier, and have ended.
        assert "rank 2 of the new group cannot join" in str(error), error
        assert str(error).endswith("rank 2 is rank 3"), error
        assert time.monotonic() - begin < TIMEOUT.total_seconds() / 2
    else:
        raise AssertionError("a group was made with a rank that is dead")


KILLED = {
    the_first_of_a_group_is_lost: [1],
    the_last_of_a_group_is_lost: [3],
    the_default_group_is_numbered_anew_twice: [1, 3],
    a_member_of_a_new_group_is_dead: [3],
}


def run_rank(body, rank, path):
    store = dist.FileStore(path, RANKS)
    dist.init_process_group("weir", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
    body(rank)
    dist.destroy_process_group()


def main():
    for body, killed in KILLED.items():
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(RANKS):
                child = os.fork()
                if child == 0:
                    try:
                        run_rank(body, rank, os.path.join(folder, "store"))
                    except BaseException as error:  # told, and the process ends
                        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
                        os._exit(1)
                    os._exit(0)
                children.append(child)
            statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        wanted = [-signal.SIGKILL if rank in killed else 0 for rank in range(RANKS)]
        assert statuses == wanted, f"{body.__name__}: exit statuses {statuses}, not {wanted}"
        print(f"ok {body.__name__}", flush=True)
    print("passed", len(KILLED), weir.__name__)


if __name__ == "__main__":
    main()
