# SPDX-License-Identifier: Apache-2.0
"""A store that outlives the ranks, as torchrun's does over all restarts of a job: what ranks that
have died have left in it leads no other start astray."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import weir

RANKS = 3
SECONDS = 60


def start(port, rank, timeout_s=SECONDS, store_s=300.0, size=RANKS):
    store_timeout = datetime.timedelta(seconds=store_s)
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=store_timeout)
    dist.init_process_group(
        "weir",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def attempt(port, body):
    """Runs body(port, rank) in a process for each rank; their exit statuses."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = body(port, rank)
            except Exception as error:  # told, and the process ends
                print(f"rank {rank}: {error}", file=sys.stderr)
            os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def works_and_leaves(port, rank, store_s=300.0):
    """As after a crash: nothing is destroyed."""
    start(port, rank, store_s=store_s)
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor)
    # What an earlier start has left of its barrier lets nobody pass before rank 0 comes.
    dist.barrier()
    begin = time.monotonic()
    time.sleep(0.2 if rank == 0 else 0)
    dist.monitored_barrier()
    assert time.monotonic() - begin > 0.1
    return 0 if tensor.tolist() == [float(sum(range(RANKS)))] * 5 else 1


def one_does_not_come(port, rank):
    if rank == 1:
        return 0
    begin = time.monotonic()
    try:
        start(port, rank, 2)
    except dist.DistBackendError as error:
        text = str(error)
    else:
        return 1
    seconds = time.monotonic() - begin
    expected = f"rank 1 of {RANKS} has not joined within 2000 ms"
    assert "rank 0" in text if rank else expected in text, text
    assert seconds < 40, seconds
    return 0


def one_comes_late(port, rank):
    time.sleep(1 if rank == 0 else 0)  # the others see what an earlier rank 0 has left
    return works_and_leaves(port, rank)


def one_comes_later_than_the_store_waits(port, rank):
    """The group's timeout counts, as with Gloo, and not the store's."""
    time.sleep(2 if rank == 0 else 0)
    return works_and_leaves(port, rank, store_s=0.5)


def one_has_another_size(port, rank):
    """Every rank is told at once, not when the time is over."""
    begin = time.monotonic()
    try:
        start(port, rank, 20, size=RANKS + 1 if rank == 1 else RANKS)
    except ValueError as error:
        expected = f"rank 1 was given a world size of {RANKS + 1}, and rank 0 {RANKS}"
        assert expected in str(error), error
        assert time.monotonic() - begin < 10, error
        return 0
    return 1


def the_first_has_another_size(port, rank):
    try:
        start(port, rank, 2, size=RANKS + 1 if rank == 0 else RANKS)
    except dist.DistBackendError as error:
        if rank == 0:
            assert f"rank {RANKS} of {RANKS + 1} has not joined" in str(error), error
            assert f"rank 1 was given a world size of {RANKS}, and rank 0 {RANKS + 1}" in str(error)
        return 0
    return 1


def ends_before_a_monitored_barrier(port, rank, killed, text):
    """It is named at once, by every rank, and not when the time is over."""
    start(port, rank)
    dist.monitored_barrier()
    if rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=SECONDS), wait_all_ranks=True)
    except dist.DistBackendError as error:
        assert text in str(error), error
        assert time.monotonic() - begin < SECONDS / 2
        return 0
    return 1


def one_ends_before_a_monitored_barrier(port, rank):
    text = f"Rank {RANKS - 1} failed to pass monitoredBarrier since its process has ended"
    return ends_before_a_monitored_barrier(port, rank, RANKS - 1, text)


def the_first_ends_before_a_monitored_barrier(port, rank):
    return ends_before_a_monitored_barrier(port, rank, 0, "The process of rank 0 has ended")


def one_ends_before_a_new_group(port, rank):
    """Which would else wait for half an hour."""
    start(port, rank)
    dist.monitored_barrier()
    if rank == RANKS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.new_group()
    except dist.DistBackendError as error:
        assert f"rank {RANKS - 1} of the new group cannot join" in str(error), error
        assert time.monotonic() - begin < SECONDS / 2
    else:
        return 1
    # The others can go on.
    others = dist.new_group(list(range(RANKS - 1)), use_local_synchronization=True)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=others)
    return 0 if tensor.tolist() == [RANKS - 1.0] * 3 else 1


def one_was_too_slow_and_joins_a_new_group(port, rank):
    """It lives: it passes a monitored barrier of the group that gave it up, too."""
    start(port, rank, 1)
    if rank == RANKS - 1:
        time.sleep(4)
    else:
        try:
            dist.all_reduce(torch.ones(3))
        except dist.DistBackendError:
            assert weir.lost_ranks() == [RANKS - 1], weir.lost_ranks()
        else:
            return 1
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=SECONDS))
    if rank == RANKS - 1:
        time.sleep(3)
    group = dist.new_group(timeout=datetime.timedelta(seconds=SECONDS))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return 0 if tensor.tolist() == [float(RANKS)] * 3 else 1


def one_dies_while_it_waits(port, rank):
    if rank == RANKS - 1:
        time.sleep(0.5)
        return 0
    try:
        start(port, rank, 2)
    except dist.DistBackendError:
        return 0
    return 1


def serve():
    """The store's process and its port. Not in this process, which forks: a thread of the store
    may hold a lock of the C library's resolver then."""
    read, write = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        os.close(write)
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(0)
    os.close(write)
    return child, int(os.read(read, 16))


def main():
    server, port = serve()
    try:
        run(port)
    finally:
        os.kill(server, signal.SIGKILL)


def run(port):
    attempts = [one_comes_later_than_the_store_waits] * 2  # the store: empty, then used
    attempts += [works_and_leaves] * 6
    attempts += [one_does_not_come, works_and_leaves, one_comes_late, one_dies_while_it_waits]
    attempts += [works_and_leaves] * 3
    attempts += [one_has_another_size, the_first_has_another_size, works_and_leaves]
    attempts += [one_ends_before_a_monitored_barrier, the_first_ends_before_a_monitored_barrier]
    attempts += [one_ends_before_a_new_group, one_was_too_slow_and_joins_a_new_group]
    killed = {
        one_ends_before_a_new_group: RANKS - 1,
        one_ends_before_a_monitored_barrier: RANKS - 1,
        the_first_ends_before_a_monitored_barrier: 0,
    }
    for number, body in enumerate(attempts):
        statuses = attempt(port, body)
        if body in killed:
            assert statuses[killed[body]] == -signal.SIGKILL, statuses
            statuses[killed[body]] = 0
        assert statuses == [0] * RANKS, f"attempt {number}, {body.__name__}: {statuses}"
        print(f"ok {number} {body.__name__}", flush=True)
    print("passed", len(attempts), weir.__name__)


if __name__ == "__main__":
    main()
