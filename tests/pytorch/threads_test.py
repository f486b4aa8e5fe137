# SPDX-License-Identifier: Apache-2.0
"""Threads, Python's lock, forks and the end of processes, with operations in flight."""

from __future__ import annotations

import datetime
import json
import os
import random
import resource
import signal
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


def test_works_that_many_threads_ask_at_once(rank, size):
    """Each completes once, whether it is asked, waited for, given up or has a future."""
    seed = int(os.environ.get("WEIR_TEST_SEED", "0")) or int(time.time())
    print(f"WEIR_TEST_SEED={seed}", flush=True)
    generator = random.Random(seed * 100 + rank)
    called = []

    def ask(work, future):
        kind = generator.randrange(5)
        if kind == 0:
            while not work.is_completed():
                time.sleep(0)
        elif kind == 1:
            work.wait()
        elif kind == 2:
            work.wait(timeout=datetime.timedelta(seconds=100))
        elif kind == 3:
            future.wait()
        else:
            work.is_completed()
            work.get_future().wait()

    for i in range(300):
        tensor = torch.full((1 << (i % 14),), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        # One thread asks while the other wants to be told.
        poll = threading.Thread(target=lambda w=work: [w.is_completed() for _ in range(20)])
        poll.start()
        future = work.get_future().then(lambda f, n=i: called.append(n))
        threads = [threading.Thread(target=ask, args=(work, future)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in [poll, *threads]:
            thread.join()
        future.wait()
        assert (tensor == sum(range(size))).all()
    assert sorted(called) == list(range(300)), called
    ranks.served()


def test_futures_of_works_that_nobody_holds(rank, size):
    done = [threading.Event() for _ in range(200)]
    for i, event in enumerate(done):
        future = dist.all_reduce(torch.ones(1000 + i), async_op=True).get_future()
        future.add_done_callback(lambda f, e=event: e.set())
        del future
    for event in done:
        assert event.wait(100)
    ranks.served()


def test_a_python_communication_hook(rank, size):
    """Its callback runs Python in the thread of completions, in the middle of the backward pass."""
    threads = set()

    def hook(state, bucket):
        tensor = bucket.buffer().div_(size)
        future = dist.all_reduce(tensor, async_op=True).get_future()

        def finish(f):
            threads.add(threading.get_ident())
            return f.value()[0]

        return future.then(finish)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    alone = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    alone.load_state_dict(model.state_dict())
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    ddp.register_comm_hook(None, hook)
    batches = [torch.randn(8, 64, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    for _ in range(3):
        ddp.zero_grad()
        ddp(batches[rank]).square().mean().backward()
    for batch in batches:
        (alone(batch).square().mean() / size).backward()
    for found, expected in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(found.grad, expected.grad)
    assert threads
    ranks.served({**tally.passed(), **schemes.ddp_setup(ddp)})


def test_functional_collectives_in_compiled_functions(rank, size):
    import torch.distributed._functional_collectives as functional

    def step(tensor):
        summed = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(summed[:2] + rank, 0, dist.group.WORLD)
        return gathered + 1

    tensor = torch.arange(8.0) + rank
    expected = step(tensor)
    # The graph alone is traced and run, unless a compiler is named (pytorch_threads_inductor).
    compiled = torch.compile(step, backend=os.environ.get("WEIR_TEST_COMPILE", "aot_eager"))
    for _ in range(3):
        assert torch.equal(compiled(tensor), expected)
    # A call by itself and three compiled ones.
    ranks.served({"ALLREDUCE": 4 * tensor.nbytes, "COALESCED": 4 * 2 * 4})


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index * index)])


def test_workers_of_a_data_loader_by_fork(rank, size):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    in_flight = dist.all_reduce(torch.ones(100000), async_op=True)
    total = torch.zeros(1)
    for batch in loader:
        part = batch.sum().reshape(1)
        dist.all_reduce(part)
        total += part
    in_flight.wait()
    assert total == size * sum(i * i for i in range(40))
    ranks.served()


def test_a_child_by_fork(rank, size):
    """It is told that the group is its parent's, makes one of its own, and ends without harm."""
    for i in range(10):
        work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
        late = dist.all_reduce(torch.ones(10), async_op=True)
        future = work.get_future()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = in_child(late, i)
            finally:
                os._exit(code)
        work.wait()
        late.wait()
        future.wait()
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    dist.barrier()
    ranks.served()


def in_child(work, number):
    try:
        dist.all_reduce(torch.ones(3))
        return 3
    except RuntimeError as error:
        if "process" not in str(error):
            return 4
    try:
        if not work.is_completed():
            work.wait()
    except RuntimeError as error:
        if "parent" not in str(error):
            return 5
    del work
    if number == 0:
        from weir import create_backend

        own = create_backend(
            dist.HashStore(), 0, 1, datetime.timedelta(seconds=60)
        )
        tensor = torch.ones(4)
        future = own.allreduce([tensor]).get_future()
        future.wait()
    return 0


def test_threads_sleep_when_nothing_is_in_flight(rank, size):
    """Also the progress thread, after operations that it has moved."""
    for _ in range(3):
        future = dist.all_reduce(torch.ones(1 << 16), async_op=True).get_future()
        future.wait()
    dist.barrier()
    # A busy machine delays nothing here: what counts is the time of processors that is used.
    least = 1.0
    for _ in range(3):
        time.sleep(0.5)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(1)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        least = min(least, used)
    assert least < 0.05, f"{least:.3f} s of a processor in a second without operations"
    dist.barrier()
    ranks.served()


# ---- The end of a process ---------------------------------------------------------------------

ENDINGS = {
    "sys.exit with operations in flight": ("sys.exit(3)", 3),
    "os._exit with operations in flight": ("os._exit(4)", 4),
    "an exception": ("raise ValueError('wrong')", 1),
    "the end of the program without destroy_process_group": ("pass", 0),
    "a thread in a collective": (
        """
        # Rank 1 waits for a message: its collective would be another than rank 0's first.
        data = torch.ones(9)
        call = lambda: dist.recv(data, 0, tag=8) if both else dist.all_reduce(data)
        t = threading.Thread(target=call, daemon=True)
        t.start(); time.sleep(0.2)
        """,
        0,
    ),
    "a thread whose collective fails while Python ends": (
        """
        class Slow:
            sleep = staticmethod(time.sleep)
            def __del__(self):
                self.sleep(2)
        data = torch.ones(9)
        call = lambda: dist.recv(data, 0, tag=8) if both else dist.all_reduce(data)
        threading.Thread(target=call, daemon=True).start()
        # Rank 0 waits for rank 1 in its thread, ends at once, and takes long to do so.
        kept = None if both else Slow()
        time.sleep(1 if both else 0.2)
        """,
        0,
    ),
    "threads whose calls on groups and windows return while Python ends": (
        """
        class Slow:
            sleep = staticmethod(time.sleep)
            def __del__(self):
                self.sleep(2)
        groups = [dist.new_group() for _ in range(5)]
        window = weir.Window(torch.ones(3), 0, groups[0])
        # Rank 1 comes once rank 0 has begun to end.
        if both: time.sleep(1)
        for call in (dist.new_group, window.close, lambda: weir.Window(torch.ones(3), 0, groups[1]),
                     lambda: weir.empty(3, group=groups[2]),
                     lambda: dist.monitored_barrier(groups[3]), lambda: dist.barrier(groups[4])):
            threading.Thread(target=call, daemon=True).start()
        kept = None if both else Slow()
        time.sleep(1 if both else 0.3)
        """,
        0,
    ),
    "a handler of atexit that waits": (
        """
        import atexit
        late = dist.all_reduce(torch.ones(1), async_op=True) if both else None
        if late is not None:
            atexit.register(lambda: late.get_future().wait())
        """,
        0,
    ),
    "works, futures and callbacks that outlive their modules": (
        """
        import types
        module = types.ModuleType("kept"); sys.modules["kept"] = module
        module.works = []
        try:
            for _ in range(50):
                module.works.append(dist.all_reduce(torch.ones(1000), async_op=True))
        except dist.DistBackendError as error:
            # Rank 0 has made other calls before, which may have been noticed already.
            assert "made different calls" in str(error), error
        module.futures = [w.get_future().then(lambda f: f.value()) for w in module.works]
        module.me = module
        """,
        0,
    ),
}

IMPORTS = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
import weir
"""
PROGRAM = """
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(sys.argv[1], size)
dist.init_process_group(sys.argv[2], store=store, rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=100))
both = True
dist.all_reduce(torch.ones(3))
def slow(f):
    time.sleep(0.01)
    return f.value()
"""
# Rank 1's calls are others, which would fail those that rank 0 has still to begin.
UNANSWERED = """
if rank == 0:
    # Nobody answers these.
    works = [dist.all_reduce(torch.ones(1 << i), async_op=True) for i in range(0, 18, 3)]
    futures = [w.get_future().then(slow) for w in works[::2]]
    both = False
    more = dist.irecv(torch.ones(5), 1, tag=9)
    store.set("begun", "")
else:
    store.wait(["begun"])
"""


# Forks a process for each rank of several programs, so that PyTorch is imported once.
FORKS = IMPORTS + """
import json, signal
jobs, children, text = json.loads(sys.argv[1]), [], ""
for text, path, backend, rank, output in jobs:
    child = os.fork()
    if child == 0:
        signal.alarm(150)
        sys.argv[1:] = [path, backend]
        os.environ["RANK"] = rank
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1), os.dup2(file, 2)
        break
    children.append(child)
else:
    text = ""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes))
exec(text)
"""


def program_of(ending):
    return PROGRAM + UNANSWERED + textwrap.dedent(ending)


def check_ending(name, outputs, codes):
    expected = ENDINGS[name][1]
    assert codes == [expected, expected], f"{name}: {codes}\n" + "\n".join(outputs)
    for output in outputs:
        assert "Fatal" not in output and "terminate called" not in output, f"{name}\n{output}"


def run_endings(backend, *before):
    """All of them, forked from one process of Python; ``before``: its first options."""
    folder = os.environ["WEIR_TEST_FOLDER"]
    jobs = []
    for number, (ending, _) in enumerate(ENDINGS.values()):
        path = os.path.join(folder, f"{backend}_{number}")
        for r in "01":
            jobs.append([program_of(ending), path, backend, r, f"{path}_output_{r}"])
    words = ["-X", "faulthandler", "-c", FORKS, json.dumps(jobs)]
    done = subprocess.run(
        [sys.executable, *before, *words],
        env=dict(os.environ, WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    for number, name in enumerate(ENDINGS):
        outputs = []
        for job in jobs[2 * number : 2 * number + 2]:
            with open(job[-1], encoding="utf-8", errors="replace") as file:
                outputs.append(file.read())
        check_ending(name, outputs, codes[2 * number : 2 * number + 2])


def test_every_way_to_end_a_process(rank, size):
    if rank == 0:
        run_endings("weir")


def test_every_way_to_end_a_process_in_gloos_place(rank, size):
    if rank == 0:
        run_endings("gloo", "-m", "weir.run")


def test_signals_end_a_rank_in_a_collective(rank, size):
    """SIGTERM at once, as with Gloo; after SIGINT as soon as the collective ends, here with its
    peer's."""
    if rank != 0:
        return
    ending = """
    dist.barrier()
    print("in", flush=True)
    dist.all_reduce(torch.ones(1)) if rank == 0 else time.sleep(1000)
    """
    for number, sent in enumerate([signal.SIGTERM, signal.SIGINT]):
        program = IMPORTS + PROGRAM + textwrap.dedent(ending)
        path = os.path.join(os.environ["WEIR_TEST_FOLDER"], f"signal_{number}")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, path, "weir"],
                env=dict(os.environ, RANK=str(r), WORLD_SIZE="2"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for r in range(2)
        ]
        for process in processes:
            assert process.stdout.readline() == "in\n"
        time.sleep(0.5)
        for process in processes:
            process.send_signal(sent)
        ranks.wait(processes, 60)
        codes = [p.returncode for p in processes]
        assert all(code in (-sent, 1, 130) for code in codes), codes


if __name__ == "__main__":
    ranks.main(__name__)
