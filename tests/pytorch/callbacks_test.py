# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Futures that wait: for operations of their own, for earlier ones, and for other
threads; also in PyTorch's communication hooks, and where the process ends meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import ranks
import schemes
import tally
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def start(value=1.0):
    return dist.all_reduce(torch.full((10,), value), async_op=True)


def future_of_late_peers(rank, callback):
    """The operation completes after `then`, so that the callback runs in a thread of Weir's."""
    if rank != 0:
        time.sleep(0.3)
    return start().get_future().then(callback)


def wait_elsewhere(gate):
    """False in the program's own thread, which calls a callback where the Future is complete."""
    if threading.current_thread() is threading.main_thread():
        return False
    return gate.wait(60)


def test_a_callback_waits_for_an_operation_that_it_starts(rank, size):
    ways = [
        lambda f: start(2.0).get_future().wait()[0],
        lambda f: start(1.0).get_future().then(lambda g: g.value()[0] * 2).wait(),
        lambda f: (lambda w, t: (w.wait(), t)[1])(*begin_with_tensor()),
    ]

    def begin_with_tensor():
        tensor = torch.full((10,), 2.0)
        return dist.all_reduce(tensor, async_op=True), tensor

    for way in ways:
        assert future_of_late_peers(rank, way).wait()[0] == 2 * size
    ranks.served()


def test_callbacks_that_wait_within_callbacks(rank, size):
    def nested(depth):
        def callback(f):
            if depth == 0:
                return f.value()[0]
            return future_of_late_peers(rank, nested(depth - 1)).wait()

        return callback

    assert future_of_late_peers(rank, nested(6)).wait()[0] == size
    ranks.served()


def test_a_callback_waits_for_an_operation_that_has_started_before(rank, size):
    if rank != 0:
        time.sleep(0.3)
    first, second = start(), start(3.0)
    later = second.get_future()
    assert first.get_future().then(lambda f: later.wait()[0]).wait()[0] == 3 * size
    ranks.served()


def test_a_callback_that_waits_for_a_thread_delays_nobody(rank, size):
    gate = threading.Event()
    held = future_of_late_peers(rank, lambda f: wait_elsewhere(gate))
    for _ in range(20):
        start().get_future().wait()
    called_here = held.done()
    gate.set()
    # Rank 0 is first, unless the machine is busy.
    assert held.wait() is not called_here
    ranks.served()


def test_many_callbacks_wait_at_the_same_time(rank, size):
    """Those that are too many for the threads are called later; all have been called then."""
    gate = threading.Event()
    called = []
    held = [
        future.get_future().then(lambda f, n=i: (wait_elsewhere(gate), called.append(n)))
        for i, future in enumerate([start() for _ in range(100)])
    ]
    time.sleep(1)
    gate.set()
    for future in held:
        future.wait()
    assert sorted(called) == list(range(100)), called
    ranks.served()


def test_one_callback_too_many_is_told(rank, size):
    """One thread of 64 is left to serve; what asks for a Future in it gets an error."""
    count, waiting = 70, 63

    def callback_of(number):
        def callback(f):
            dist.irecv(torch.ones(1), 1, tag=1000 + number).get_future().wait()
            return number

        return callback

    if rank == 0:
        futures = [
            dist.irecv(torch.ones(1), 1, tag=i).get_future().then(callback_of(i))
            for i in range(count)
        ]
        dist.send(torch.ones(1), 1, tag=5000)
        end = time.monotonic() + 60
        while sum(f.done() for f in futures) < count - waiting and time.monotonic() < end:
            time.sleep(0.01)
        dist.send(torch.ones(1), 1, tag=5001)
        called = 0
        for number, future in enumerate(futures):
            try:
                assert future.wait() == number
                called += 1
            except RuntimeError as error:
                assert "64 callbacks" in str(error), error
        assert called == waiting, called
    if rank == 1:
        dist.recv(torch.ones(1), 0, tag=5000)
        for i in range(count):
            dist.send(torch.ones(1), 0, tag=i)
        dist.recv(torch.ones(1), 0, tag=5001)
        for i in range(count):
            dist.send(torch.ones(1), 0, tag=1000 + i)
    dist.barrier()
    ranks.served()


def test_power_sgd(rank, size):
    """PyTorch's hook starts collectives in callbacks and waits for them there. With several buckets
    each is waited for before the next one begins: otherwise ranks call in different orders, with
    Gloo too. (The batched hook of PyTorch 2.13 refuses its own matrices.)"""

    def one_after_the_other(state, bucket):
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        future.wait()
        return future

    for hook, megabytes in ((powerSGD_hook.powerSGD_hook, 25), (one_after_the_other, 0.02)):
        torch.manual_seed(1)
        model = DistributedDataParallel(
            torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(5)]),
            bucket_cap_mb=megabytes,
        )
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 64, generator=generator)).square().mean().backward()
            optimizer.step()
        assert state.iter > 2, state.iter
        for name, moved in schemes.ddp_setup(model).items():
            tally.add(name, moved)
        for parameter in model.parameters():
            of_ranks = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(of_ranks, parameter.detach())
            assert torch.isfinite(parameter).all()
            assert all(torch.equal(of_ranks[0], other) for other in of_ranks)
    ranks.served()


PROGRAM = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
import weir
rank = int(os.environ["RANK"])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("weir", store=store, rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=600))
start = lambda: dist.all_reduce(torch.ones(4), async_op=True)
if rank == 1:
    store.wait(["attached"])
    start().wait()
    time.sleep(600)
inside = threading.Event()
def callback(f):
    inside.set()
    WAY
CALL
future = start().get_future().then(callback)
# Not before: the main thread itself calls a callback of an operation that is done.
store.set("attached", "1")
assert inside.wait(60)
time.sleep(0.2)
sys.exit(5)
"""

# Rank 1 answers none of what these wait for.
STUCK = {
    "the Future of an operation of its own": ("start().get_future().wait()", "pass"),
    "an operation of its own": ("start().wait()", "pass"),
    "an operation of its own within its call": ("dist.barrier()", "pass"),
    "the Future of another thread's operation": (
        "made.wait(); futures[0].wait()",
        """
        made, futures = threading.Event(), []
        def other():
            inside.wait()
            futures.append(start().get_future()); made.set()
        threading.Thread(target=other).start()
        """,
    ),
}


def test_the_end_of_a_process_while_a_callback_waits(rank, size):
    # Its processes are two of its own, whatever the number of ranks.
    if rank != 0 or size > 2:
        return
    folder = os.environ["WEIR_TEST_FOLDER"]
    for number, (name, (way, call)) in enumerate(STUCK.items()):
        program = PROGRAM.replace("WAY", way).replace("CALL", textwrap.dedent(call))
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, os.path.join(folder, f"stuck_{number}")],
                env=dict(os.environ, RANK=str(r)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for r in range(2)
        ]
        try:
            (output,) = ranks.wait(processes[:1], 100)
        finally:
            processes[1].kill()
            processes[1].communicate()
        assert processes[0].returncode == 5, f"{name}: {processes[0].returncode}\n{output}"
        assert "Fatal" not in output and "terminate called" not in output, f"{name}\n{output}"


if __name__ == "__main__":
    ranks.main(__name__)
