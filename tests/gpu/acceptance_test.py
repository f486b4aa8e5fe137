#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The acceptance run for GPUs, on Weir's stand-in for CUDA.

    acceptance_test.py BUILD [--bare] [--python PYTHON]

Packs the archive of the build folder, runs it elsewhere, and checks what the run says of tests that
hang, fail, list nothing, or have no time. PYTHON is one that has PyTorch. With --bare (as root) it
runs in a root folder with glibc, bash and the common tools alone.
"""

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/gpu_acceptance")
ARCHIVE_BYTES_MAX = 32 << 20
LOGS_MAX = 8
ONLY_DIRECT = "direct, 8 connections"
# What the script calls.
TOOLS = (
    "bash awk cat cp cut date dirname env getconf grep head ls mkdir mktemp nproc rm sed setsid "
    "sleep sort tail tee timeout tr uname"
).split()


def run(folder, *arguments):
    """The run's exit status, its output, and its seconds."""
    # As on a machine that has nothing of the build's.
    path = os.path.join(folder, "..", "path") + ":" + os.environ["PATH"]
    environment = {"PATH": path, "HOME": folder}
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
    found = re.search(
        rf"^{re.escape(item)} +(passed|FAILED|skipped|no time|slow|met|missed|differs) ",
        output,
        re.MULTILINE,
    )
    return found.group(1) if found else f"no line for '{item}'"


def check_run(folder, has_pytorch):
    status, output, seconds = run(folder, "--stand-in", "--short")
    print(output)
    assert status == 0, f"exit status {status}"
    for item in (
        "driver facts",
        "driver two processes by descriptor",
        "kernels",
        "weir-info",
        "nccl_program threads 8",
        "staged, 8 connections",
        "direct, 8 connections",
        "streams direct, 8 connections",
        "processes, 8 connections",
        "mixed, 8 connections",
        "launch queue, 8 connections",
        "stream ending, 8 connections",
        "weir.h between processes, 8 connections",
        "weir.h messages of processes, 8 connections",
        "weir.h between threads, 8 connections",
        "mixed threads, 8 connections",
        "few queues",
        "choice of the way",
        "default streams",
        "reach between processes",
        "exit handlers",
        "random, 32 connections",
        "figures of the device",
        "figures, 2 threads, windows",
        "figures, 8 processes, staged",
        "figures, 8 threads, windows",
    ):
        assert state_of(output, item) == "passed", (item, state_of(output, item))
    for item in ("bar: 256KB of 2 threads, windows", "bar: 8 B of 2 threads, windows"):
        assert state_of(output, item) in ("met", "missed"), (item, state_of(output, item))
    item = "pytorch on the processor, 2 ranks"
    assert state_of(output, item) == ("passed" if has_pytorch else "skipped"), output
    assert state_of(output, "figures, 2 GPUs, real NCCL") == "skipped", output
    assert re.search(r"^staged, 8 connections .* (\d\d) passed", output, re.MULTILINE), output
    assert "needs a driver that fails as a test says" in output, output
    # The table stands at the end.
    assert output.count("\nkernels ") == 2, output
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
    status, output, seconds = run(folder, "--stand-in", "--short", "--only", ONLY_DIRECT, "-j", "4")
    assert status == 1, (status, output)
    line = next(line for line in output.splitlines() if line.startswith("direct, 8 connections"))
    for words in (
        "1 passed",
        "3 failed",
        "NcclDirect.Fails (exit status 1)",
        "NcclDirect.Dies (ended by signal 11)",
        "NcclDirect.Hangs (did not end in time)",
    ):
        assert words in line, line
    assert "1 tried again alone" in line, line
    # The case that hangs has its 20 s twice.
    assert seconds < 60 + 20, seconds
    left = subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, text=True).stdout
    assert left == "", f"processes are left: {left}"
    with open(os.path.join(folder, "logs/tests_8.log"), encoding="ascii") as log:
        assert "a wrong result" in log.read()

    write_program(os.path.join(folder, "bin/nccl_direct_test"), "exit 0\n")
    status, output, _ = run(folder, "--stand-in", "--short", "--only", ONLY_DIRECT)
    assert status == 1 and "the program lists no test" in output, output
    status, output, _ = run(folder, "--stand-in", "--short", "--only", "no such item")
    assert status == 1 and "0 passed" in output, output


def check_time(folder):
    """A run without time says so of every item."""
    status, output, _ = run(folder, "--stand-in", "--short", "--minutes", "0", "--only", "kernels")
    assert status == 1, (status, output)
    assert state_of(output, "kernels") == "no time", output
    assert "0 minutes are over" in output, output


def check_figures(folder):
    """Figures that do not end fail nothing; a wrong value does."""
    item = "figures, 2 processes, windows"
    path = os.path.join(folder, "bin/device_perf")
    write_program(path, "exit 1\n")
    status, output, _ = run(folder, "--stand-in", "--short", "--only", item)
    assert status == 1 and state_of(output, item) == "FAILED", output
    write_program(path, 'echo "| 8 | 20.00 |"; echo "a value is wrong"; exit 1\n')
    status, output, _ = run(folder, "--stand-in", "--short", "--only", item)
    assert state_of(output, item) == "FAILED", output
    write_program(path, "sleep 100\n")
    status, output, _ = run(
        folder, "--stand-in", "--short", "--only", item, "--figure-seconds", "2"
    )
    assert state_of(output, item) == "slow", output


def check_glibc(folder):
    """What is too old is told at once; with C++'s libraries too new for it the system's serve."""
    path = os.path.join(folder, "needs")
    with open(path, encoding="ascii") as file:
        needs = file.read()
    glibc, _, glibcxx = needs.split()
    for lines, words, status_wanted in (
        (["2.998", "2.999", glibcxx], "2.998 or later is needed", 1),
        ([glibc, "2.999", "9.9.9"], "needs a libstdc++.so.6 with GLIBCXX_9.9.9", 1),
        ([glibc, "2.999", glibcxx], "kernels ", 0),
    ):
        with open(path, "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        status, output, _ = run(folder, "--stand-in", "--short", "--only", "kernels")
        assert status == status_wanted and words in output, output
    with open(path, "w", encoding="ascii") as file:
        file.write(needs)


def check_architectures(folder, build, scratch):
    """The archive has them all, and none is packed that lacks one."""
    with open(os.path.join(folder, "architectures"), encoding="ascii") as file:
        has = file.read().split()
    assert {"sm_80", "sm_90", "sm_100"} <= set(has), has
    assert any(it.startswith("compute_") for it in has), has
    lacking = os.path.join(scratch, "lacking")
    os.makedirs(os.path.join(lacking, "src/cuda"))
    for part in ("bin", "lib", "tests"):
        os.symlink(os.path.join(os.path.abspath(build), part), os.path.join(lacking, part))
    part = struct.pack("<HHIQ8xII", 2, 257, 64, 0, 0, 80).ljust(64, b"\0")
    with open(os.path.join(lacking, "src/cuda/kernels.fatbin"), "wb") as file:
        file.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(part)) + part)
    ended = subprocess.run([TOOL, "pack", "--build", lacking], capture_output=True, text=True)
    assert ended.returncode == 1, ended
    assert "no code for sm_90" in ended.stderr, ended.stderr


def check_bare(folder, scratch):
    """The archive needs nothing of this system but glibc and the tools."""
    root = os.path.join(scratch, "root")
    for part in ("proc", "dev", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64"):
        os.makedirs(os.path.join(root, part))
    for part in ("bin", "lib", "lib64"):
        os.symlink(f"usr/{part}", os.path.join(root, part))
    files = {"/bin/sh": os.path.join(root, "usr/bin/sh")}
    for tool in TOOLS:
        files[shutil.which(tool)] = os.path.join(root, "usr/bin", tool)
    for path in list(files):
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            files[library] = root + os.path.normpath(library)
    for library in ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libresolv.so.2"):
        for place in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"):
            if os.path.exists(f"{place}/{library}"):
                files[f"{place}/{library}"] = f"{root}{place}/{library}"
                break
    for path, copy in files.items():
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy(path, copy)
    assert not [name for _, _, names in os.walk(root) for name in names if "stdc++" in name]
    os.rename(folder, os.path.join(root, "gpu_acceptance"))
    mounts = "".join(f"mount --rbind /{it} {root}/{it} && " for it in ("proc", "dev", "sys"))
    for item in ("kernels", "nccl_program processes 2", "figures of the device", "weir.h messages"):
        ended = subprocess.run(
            ["unshare", "-m", "bash", "-c", f'{mounts} exec chroot {root} "$@"', "bash"]
            + ["/usr/bin/bash", "/gpu_acceptance/gpu_acceptance"]
            + ["run", "--stand-in", "--short", "--only", item],
            env={"PATH": "/usr/bin:/usr/sbin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        print(ended.stdout)
        assert ended.returncode == 0, ended.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--python")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir_acceptance_") as scratch:
        archive = os.path.join(scratch, "archive.tar.gz")
        subprocess.run([TOOL, "pack", "--build", arguments.build, "--output", archive], check=True)
        assert os.path.getsize(archive) <= ARCHIVE_BYTES_MAX, os.path.getsize(archive)
        with tarfile.open(archive) as opened:
            opened.extractall(scratch)
        folder = os.path.join(scratch, "gpu_acceptance")
        if arguments.bare:
            check_bare(folder, scratch)
            return
        os.mkdir(os.path.join(scratch, "path"))
        python = arguments.python or sys.executable
        with open(os.path.join(scratch, "path/python3"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{python}" "$@"\n')
        os.chmod(os.path.join(scratch, "path/python3"), 0o755)
        check_architectures(folder, arguments.build, scratch)
        check_run(folder, arguments.python is not None)
        check_time(folder)
        check_glibc(folder)
        check_figures(folder)
        check_failures(folder)


main()
