# SPDX-License-Identifier: Apache-2.0
"""Runs a trial of a client as ranks: processes of the same program, which meet in a folder.

A client program calls `run` with its trials. `program.py TRIAL` then starts the ranks and waits for
them; its exit status is 0 when all of them ended with 0. The caller sets the time limit and ends
the process group.
"""

import os
import subprocess
import sys
import tempfile
import time

RANK, FOLDER, RANKS = "CLIENT_RANK", "CLIENT_FOLDER", "CLIENT_RANKS"
MEETING_S = 60
AFTER_A_FAILURE_S = 10


class Rank:
    """What a rank knows of itself and how it tells the others something."""

    def __init__(self):
        self.rank = int(os.environ[RANK])
        self.count = int(os.environ[RANKS])
        self.folder = os.environ[FOLDER]

    def tell(self, name, data):
        """Gives all ranks the bytes `data` under a name that is used once."""
        path = os.path.join(self.folder, name)
        with open(path + ".part", "wb") as file:
            file.write(data)
        os.rename(path + ".part", path)

    def hear(self, name):
        """The bytes that a rank told under this name."""
        path = os.path.join(self.folder, name)
        end = time.monotonic() + MEETING_S
        while not os.path.exists(path):
            if time.monotonic() > end:
                raise TimeoutError(f"rank {self.rank}: no rank told '{name}' in {MEETING_S} s")
            time.sleep(0.01)
        with open(path, "rb") as file:
            return file.read()

    def agree(self, name, make):
        """What rank 0 makes, on every rank."""
        if self.rank == 0:
            self.tell(name, make())
        return self.hear(name)

    def barrier(self, name):
        """Returns when all ranks have called it with this name."""
        self.tell(f"{name}.{self.rank}", b"")
        for peer in range(self.count):
            self.hear(f"{name}.{peer}")


def expect(what, got, wanted):
    """Ends the program unless the two are equal; arrays are compared element by element."""
    equal = got == wanted
    if not (equal if isinstance(equal, bool) else bool(equal.all())):
        sys.exit(f"{what}: got {shown(got)}, wanted {shown(wanted)}")


def shown(value):
    """One line; the beginning of an array."""
    try:
        return str([float(element) for element in value.flatten()[:8]])
    except AttributeError:
        return str(value)


def devices():
    """The number of devices that the stand-in for CUDA shows."""
    return int(os.environ["WEIR_HOSTCUDA_DEVICES"])


def unharmed_by_children(once_more, children):
    """Runs each child, and after each that the parent's communicator still works: `once_more`."""
    for name, child in children.items():
        child()
        try:
            once_more()
        except Exception as error:
            sys.exit(f"the parent's communicator is damaged by {name}: {error}")


def fork_and(action):
    """A child that does `action` and exits as Python does, with its exit handlers."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            sys.stderr.flush()
            # Not os._exit: exit handlers, and what they do to the parent's objects, are the point.
            sys.exit(status)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"a forked child ended with status {status:#x}")


def start(trial, count):
    """Starts the ranks of a trial and returns the exit status of the first that failed, or 0."""
    with tempfile.TemporaryDirectory(prefix="weir-client-") as folder:
        ranks = []
        for rank in range(count):
            environment = {**os.environ, RANK: str(rank), RANKS: str(count), FOLDER: folder}
            command = [sys.executable, "-B", os.path.abspath(sys.argv[0]), trial]
            ranks.append(subprocess.Popen(command, env=environment))
        failed, end = 0, None
        while any(process.poll() is None for process in ranks):
            for process in ranks:
                failed = failed or process.poll() or 0
            if failed and end is None:
                end = time.monotonic() + AFTER_A_FAILURE_S
            if end is not None and time.monotonic() > end:
                for process in ranks:
                    process.kill()
            time.sleep(0.02)
        return failed or next((p.returncode for p in ranks if p.returncode), 0)


def weirs_nccl_is_used():
    """Ends the program where libnccl.so.2 is not Weir's.

    NVIDIA's may be loaded as well: Weir's library opens it to see whether it can do the work.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {line.split(None, 5)[-1].strip() for line in maps if "libnccl.so" in line}
    if files and os.path.realpath(os.environ["CLIENT_NCCL"]) not in files:
        sys.exit(f"the program loaded {', '.join(files)}")


def run(trials, count=2, counts=None):
    """The main function of a client program: trials are functions of a Rank.

    `counts` has the number of ranks of the trials where it is not `count`.
    """
    if len(sys.argv) != 2 or sys.argv[1] not in trials:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(trials)}")
    name = sys.argv[1]
    if RANK in os.environ:
        trials[name](Rank())
        weirs_nccl_is_used()
        return
    sys.exit(1 if start(name, (counts or {}).get(name, count)) else 0)
