#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The acceptance run for GPUs, on Weir's stand-in for CUDA.

    acceptance_test.py BUILD

Packs the archive of the build folder, runs it elsewhere, and checks what the run says of tests that
hang, fail, or list nothing.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/gpu_acceptance")
ARCHIVE_BYTES_MAX = 32 << 20
LOGS_MAX = 8


def run(folder, *arguments):
    """The run's exit status, its output, and its seconds."""
    # As on a machine that has nothing of the build's.
    environment = {"PATH": os.environ["PATH"], "HOME": folder}
    begin = time.monotonic()
    ended = subprocess.run(
        [os.path.join(folder, "gpu_acceptance"), "run", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    return ended.returncode, ended.stdout, time.monotonic() - begin


def state_of(output, item):
    found = re.search(rf"^{re.escape(item)} +(passed|FAILED|skipped) ", output, re.MULTILINE)
    return found.group(1) if found else f"no line for '{item}'"


def check_run(folder):
    status, output, seconds = run(folder, "--stand-in", "--short")
    print(output)
    assert status == 0, f"exit status {status}"
    for item in ("driver_probe", "kernels", "staged, 8 connections", "direct, 8 connections"):
        assert state_of(output, item) == "passed", state_of(output, item)
    assert re.search(r"^staged, 8 connections .* (\d\d) passed", output, re.MULTILINE), output
    logs = os.listdir(os.path.join(folder, "logs"))
    assert 4 <= len(logs) <= LOGS_MAX, logs
    print(f"the whole run: {seconds:.0f} s")


def write_program(path, text):
    os.remove(path)
    with open(path, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def check_failures(folder):
    """Tests that fail, end by a signal, or never end; the last one has children in its group."""
    mark = f"1{os.getpid()}"
    write_program(
        os.path.join(folder, "bin/nccl_direct_test"),
        f"""case $1 in
  --gtest_list_tests) printf 'NcclDirect.\\n  Passes\\n  Fails\\n  Dies\\n  Hangs\\n'; exit ;;
  *Fails) echo 'a wrong result'; exit 1 ;;
  *Dies) kill -SEGV $$ ;;
  *Hangs) sleep {mark} & sleep {mark} ;;
esac
""",
    )
    status, output, seconds = run(folder, "--stand-in", "--short", "--only", "direct, 8", "-j", "4")
    assert status == 1, (status, output)
    line = next(line for line in output.splitlines() if line.startswith("direct, 8 connections"))
    for words in (
        "1 passed, 3 failed",
        "NcclDirect.Fails (exit status 1)",
        "NcclDirect.Dies (ended by signal 11)",
        "NcclDirect.Hangs (did not end in time)",
    ):
        assert words in line, line
    assert seconds < 60, seconds
    left = subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, text=True).stdout
    assert left == "", f"processes are left: {left}"
    with open(os.path.join(folder, "logs/tests_8.log"), encoding="ascii") as log:
        assert "a wrong result" in log.read()

    write_program(os.path.join(folder, "bin/nccl_direct_test"), "exit 0\n")
    status, output, _ = run(folder, "--stand-in", "--short", "--only", "direct, 8")
    assert status == 1 and "the program lists no test" in output, output
    status, output, _ = run(folder, "--stand-in", "--short", "--only", "no such item")
    assert status == 1 and "0 passed" in output, output


def main():
    with tempfile.TemporaryDirectory(prefix="weir_acceptance_") as scratch:
        archive = os.path.join(scratch, "archive.tar.gz")
        subprocess.run([TOOL, "pack", "--build", sys.argv[1], "--output", archive], check=True)
        assert os.path.getsize(archive) <= ARCHIVE_BYTES_MAX, os.path.getsize(archive)
        with tarfile.open(archive) as opened:
            opened.extractall(scratch)
        folder = os.path.join(scratch, "gpu_acceptance")
        check_run(folder)
        check_failures(folder)


main()
