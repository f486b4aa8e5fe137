# SPDX-License-Identifier: Apache-2.0
"""Programs with a time limit, of which nothing is left behind.

Each is the leader of a session. What it starts and leaves, in whatever process group, becomes a
child of this process (PR_SET_CHILD_SUBREAPER) and is killed when the program has ended.
"""

import contextlib
import ctypes
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WHY_MAX = 160
libc = ctypes.CDLL(None)


@dataclasses.dataclass
class Outcome:
    works: bool
    why: str
    log: str = ""
    seconds: float = 0
    output: str = ""


@contextlib.contextmanager
def ended_by_signals():
    """SIGTERM and SIGHUP end this process as Ctrl-C does, so that it cleans up."""

    def end(number, _):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    yield


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def own_children():
    """Processes whose parent is this one; the fields of /proc are those of proc(5)."""
    children = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            children.append(int(name))
    return children


def end_children():
    """Kills all descendants: the children of a child that ends become children of this process."""
    while children := own_children():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def why_of(output, status):
    """The line that tells most: the last error that Python or a program printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b", line)]
    # A rank that another one fails tells less than the first.
    line = told[0] if told else lines[-1] if lines else f"it ended with status {status}"
    return line if len(line) <= WHY_MAX else line[: WHY_MAX - 1] + "…"


class Processes:
    """Runs programs one after another; their output is kept in files of a folder."""

    def __init__(self, logs):
        self.logs = logs

    def __enter__(self):
        os.makedirs(self.logs, exist_ok=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    def __exit__(self, *_):
        end_children()

    def run(self, name, command, environment, seconds_max):
        log = os.path.join(self.logs, f"{name}.log")
        folder = tempfile.mkdtemp(prefix="weir-client-")
        places = {"TMPDIR": folder, "WEIR_RECORDER_DIR": folder, "WEIR_CACHE_DIR": folder}
        start = time.monotonic()
        try:
            with open(log, "wb") as file:
                try:
                    process = subprocess.Popen(
                        command,
                        env={**environment, **places},
                        cwd=folder,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                except OSError as error:
                    return Outcome(False, str(error), log)
                try:
                    status = process.wait(timeout=seconds_max)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    end_children()
                    process.wait()  # it is gone; its object learns of it
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - start
        with open(log, encoding="utf-8", errors="replace") as file:
            output = file.read()
        if status is None:
            return Outcome(False, f"not done after {seconds_max} s", log, seconds, output)
        why = "" if status == 0 else why_of(output, status)
        return Outcome(status == 0, why, log, seconds, output)
