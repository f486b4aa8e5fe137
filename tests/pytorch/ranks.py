# SPDX-License-Identifier: Apache-2.0
"""Runs the functions of a test program on several ranks.

A test program holds functions ``test_*(rank, size)`` and ends with ``ranks.main(__name__)``.
Started without RANK it runs once per rank, for each number of ranks, and fails when a rank fails or
does not end in time; a rank runs the functions in order, in one process group. Ranks are forked
from the first process, which has imported PyTorch and nothing of Weir's; in Gloo's place each is
started anew by ``python -m weir.run``. Each function ends with a check that Weir served what it
called, to the byte: ``served()``.

    backend_test.py [--ranks 2,4] [--only NAME] [--in-place]
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

TIMEOUT_S = 240


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, such as 2,4")
    parser.add_argument("--only", default="", help="only functions whose name has this in it")
    parser.add_argument(
        "--in-place", action="store_true", help='with backend="gloo" and Weir in its place'
    )
    return parser.parse_args()


def environment_of(rank: int, size: int, folder: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "WEIR_TEST_FOLDER": folder,
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def start(size: int, options: argparse.Namespace, folder: str) -> list[subprocess.Popen]:
    command = [sys.executable, os.path.abspath(sys.argv[0]), "--only", options.only]
    if options.in_place:
        command = [sys.executable, "-m", "weir.run", *command[1:], "--in-place"]
    ranks = []
    for rank in range(size):
        ranks.append(
            subprocess.Popen(
                command,
                env={**os.environ, **environment_of(rank, size, folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        )
    return ranks


class Forked:
    """A forked process, with what ``wait`` and ``finish`` use of subprocess.Popen."""

    def __init__(self, pid: int, output: str):
        self.returncode: int | None = None
        self._pid = pid
        self._output = output
        self._ended = os.pidfd_open(pid)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self._pid), timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            os.close(self._ended)
        with open(self._output, encoding="utf-8", errors="replace") as file:
            return file.read(), None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(size: int, folder: str) -> list[Forked] | None:
    """None: this process is a rank now."""
    ranks = []
    for rank in range(size):
        output = os.path.join(folder, f"output_{rank}")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment_of(rank, size, folder))
            file = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            return None
        ranks.append(Forked(pid, output))
    return ranks


def wait(ranks: list[subprocess.Popen] | list[Forked], seconds: float) -> list[str]:
    """The outputs; a rank that does not end in time is killed, with the stacks of its threads."""
    end = time.monotonic() + seconds
    outputs = []
    for rank in ranks:
        try:
            output, _ = rank.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.send_signal(6)  # faulthandler prints its stacks
            output, _ = rank.communicate()
            output += "\nDID NOT END IN TIME\n"
        outputs.append(output)
    return outputs


def finish(ranks: list[subprocess.Popen] | list[Forked], folder: str) -> bool:
    size = len(ranks)
    try:
        outputs = wait(ranks, TIMEOUT_S)
    finally:
        for rank in ranks:
            rank.kill()
        shutil.rmtree(folder, ignore_errors=True)
    codes = [rank.returncode for rank in ranks]
    if any(codes):
        for rank, (code, output) in enumerate(zip(codes, outputs)):
            print(f"---- rank {rank} of {size}, exit status {code}\n{output}", flush=True)
        return False
    passed = [line for line in outputs[0].splitlines() if line.endswith(" functions passed")]
    print(f"{size} ranks: {passed[-1]}", flush=True)
    return True


def run_functions(options: argparse.Namespace) -> int:
    import faulthandler

    faulthandler.enable()
    import tally
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1234)
    if not options.in_place:
        import weir  # noqa: F401  (registers the backend)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.path.join(os.environ["WEIR_TEST_FOLDER"], "store"), size)
    backend = "gloo" if options.in_place else "weir"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    tally.install()
    names = [name for name in vars(sys.modules["__main__"]) if name.startswith("test_")]
    names = [name for name in names if options.only in name]
    for name in names:
        try:
            getattr(sys.modules["__main__"], name)(rank, size)
        except BaseException:
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            # The others are told by the loss of this rank, not by its orderly end.
            os._exit(1)
    dist.destroy_process_group()
    print(f"{len(names)} functions passed")
    return 0 if names else 1


def served(expected: dict | None = None) -> dict:
    """What Weir has served since the last call: these operations and no others.

    ``expected`` gives the bytes of each, or the least and the most that they may be. None: what the
    program has passed to torch.distributed (tally).
    """
    import tally
    import weir

    counts = weir.operation_counts()
    found = {name: count.bytes for name, count in counts.items()}
    if expected is None:
        expected = tally.passed()
    forget_served()
    assert counts, "Weir served no operation"
    right = set(found) == set(expected)
    for name in found if right else ():
        wanted = expected[name]
        least, most = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        right = right and least <= found[name] <= most
    if not right:
        raise AssertionError(f"Weir served {found} bytes instead of {expected}; calls: {counts}")
    return counts


def forget_served() -> None:
    """What came before, such as gathering the results to compare, is not counted."""
    import tally
    import weir

    tally.forget()
    weir.reset_operation_counts()


def refused(kind, text: str, call) -> None:
    """`call` must raise an error of `kind` whose words hold `text`."""
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error with {text!r}")


def main(name: str) -> None:
    if name != "__main__":
        return
    options = arguments()
    if "RANK" in os.environ:
        sys.exit(run_functions(options))
    passed = []
    for size in map(int, options.ranks.split(",")):
        folder = tempfile.mkdtemp(prefix="weir_pytorch_")
        ranks = start(size, options, folder) if options.in_place else fork(size, folder)
        if ranks is None:
            # From here this is the end of the program, as in a process that was started.
            sys.exit(run_functions(options))
        passed.append(finish(ranks, folder))
    sys.exit(0 if all(passed) else 1)
