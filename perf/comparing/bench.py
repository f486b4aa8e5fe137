# SPDX-License-Identifier: Apache-2.0
"""Building and running perf/compare_mpi/mpi_perf.c; the common parts of the tables of results."""

import argparse
import ctypes
import datetime
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCHMARK = os.path.join(SOURCE, "perf", "compare_mpi", "mpi_perf.c")
CFLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra"]
RUN_SECONDS_MAX = 300
POLL_SECONDS = 0.02
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip().upper()
    unit = units.get(text[-1:], 1)
    digits = text[:-1] if text[-1:] in units else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; give a number, K, M or G")
    return int(digits) * unit


def format_size(size):
    for unit, text in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def format_us(us):
    if us is None:
        return ""
    if us >= 1000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.2f} us" if us < 100 else f"{us:.0f} us"


def comma_list(convert):
    return lambda text: [convert(item) for item in text.split(",") if item.strip()]


# ---- Building ----------------------------------------------------------------------------------


def find_library(folder):
    """The newest libweir.so below the folder: tests install copies, which become outdated."""
    found = [
        os.path.join(place, "libweir.so")
        for place, _, files in os.walk(os.path.abspath(folder))
        if "libweir.so" in files
    ]
    return max(found, key=os.path.getmtime, default=None)


def weir_library(build):
    """The library to measure; the default build folder is made where it is missing."""
    if build:
        library = find_library(build)
        if library is None:
            sys.exit(f"no libweir.so under {build}; build it there, or leave --build out")
        return library
    folder = os.path.join(SOURCE, "build")
    library = find_library(folder) if os.path.isdir(folder) else None
    if library is None:
        folder = os.path.join(SOURCE, "build", "compare-weir")
        say(f"building libweir in {folder}")
        run = lambda *command: subprocess.run(command, check=True, stdout=sys.stderr)
        run(
            "cmake",
            "-S",
            SOURCE,
            "-B",
            folder,
            "-DCMAKE_BUILD_TYPE=Release",
            "-DWEIR_BUILD_TESTS=OFF",
        )
        run("cmake", "--build", folder, "--target", "weir", "--parallel", str(os.cpu_count()))
        library = find_library(folder)
    return library


def compile_benchmark(folder, name, compiler, extra):
    program = os.path.join(folder, name)
    done = subprocess.run(
        [compiler, *CFLAGS, BENCHMARK, "-o", program, *extra], capture_output=True, text=True
    )
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return program, None


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return (done.stdout + done.stderr).splitlines()[0].strip()
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown version"


# ---- Running -----------------------------------------------------------------------------------


def parse_results(text):
    results = {}
    for line in text.splitlines():
        fields = line.strip().split(",")
        if len(fields) == 6 and fields[0] == "result":
            results[(fields[1], int(fields[2]))] = {
                "iterations": int(fields[3]),
                "us": float(fields[4]),
                "wrong": int(fields[5]),
            }
    return results


def kill_session(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def clean_up_when_told_to_end():
    """Makes SIGTERM run the finally clauses, as ctrl-c does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def run_together(processes, seconds_max=RUN_SECONDS_MAX):
    """Runs (command, environment) of each rank or launcher side by side: all that was printed, and
    what went wrong or None. Nothing of them is left when this returns."""
    running, error, out = [], None, ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for i, (command, environment) in enumerate(processes):
                files = [
                    open(
                        os.path.join(folder, f"{name}{i}"), "w+", encoding="utf-8", errors="replace"
                    )
                    for name in ("out", "err")
                ]
                running.append(
                    (
                        subprocess.Popen(
                            command,
                            env=dict(os.environ, **environment),
                            stdin=subprocess.DEVNULL,
                            stdout=files[0],
                            stderr=files[1],
                            start_new_session=True,
                            preexec_fn=die_with_parent,
                        ),
                        *files,
                    )
                )
            end = time.monotonic() + seconds_max
            while error is None:
                states = [process.poll() for process, _, _ in running]
                failed = [state for state in states if state not in (None, 0)]
                if failed:
                    error = f"exit status {failed[0]}"
                    time.sleep(1)  # for the other ranks' messages about it
                elif None not in states:
                    break
                elif time.monotonic() > end:
                    error = f"took longer than {seconds_max} s"
                else:
                    time.sleep(POLL_SECONDS)
        finally:
            for process, _, _ in running:
                kill_session(process)  # ranks that outlive their launcher or hang
                process.wait()
        for process, printed, messages in running:
            printed.seek(0)
            out += printed.read()
            messages.seek(0)
            text = messages.read().strip()
            if error and text and process.returncode not in (0, -signal.SIGKILL):
                error += ": " + text[-300:]
            printed.close()
            messages.close()
    return out, error


def checked(out, error):
    """The rows of `out`, by (operation, bytes), and what went wrong or None."""
    results = parse_results(out)
    if error is None and not results:
        error = "printed no result"
    for (op, size), result in results.items():
        if result["wrong"]:
            error = f"{op} of {size} bytes: {result['wrong']} wrong elements"
    return results, error


class Progress:
    def __init__(self, total):
        self.total, self.done, self.began = total, 0, time.monotonic()

    def step(self, text):
        spent = time.monotonic() - self.began
        left = (
            f", about {spent / self.done * (self.total - self.done) / 60:.0f} min left"
            if self.done
            else ""
        )
        say(f"[{self.done + 1}/{self.total}{left}] {text}")
        self.done += 1


# ---- The machine -------------------------------------------------------------------------------


def processor():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def cache_bytes():
    """The total size of the last-level caches of the allowed cpus."""
    found = {}
    for cpu in os.sched_getaffinity(0):
        best = None
        for index in range(8):
            folder = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/"
            try:
                level = int(open(folder + "level").read())
                size = open(folder + "size").read().strip()
                shared = open(folder + "shared_cpu_list").read().strip()
            except (OSError, ValueError):
                break
            if best is None or level > best[0]:
                best = (level, shared, int(size.rstrip("KM")) << (20 if size.endswith("M") else 10))
        if best:
            found[best[:2]] = best[2]
    return sum(found.values()) or 32 << 20


def when_and_where(cores):
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{datetime.date.today()}, {processor()}, {cores} cores, {platform.system()} {kernel}"


PATH_OPTIONS = ("--build", "--work", "--output", "--sched")


def shown_command():
    """The command line without options that only name paths."""
    words, skip = ["perf/" + os.path.basename(sys.argv[0])], False
    for word in sys.argv[1:]:
        name = word.split("=")[0]
        if not skip and name not in PATH_OPTIONS and name != "--publish":
            words.append(word)
        skip = not skip and name in PATH_OPTIONS and "=" not in word
    return " ".join(words)


# ---- The table ---------------------------------------------------------------------------------


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def median_interval(values):
    """The median of the values and an interval that holds the true median with a probability of at
    least 0.9, by order statistics; of fewer than five values, their extremes. None without values.
    """
    if not values:
        return None
    ordered = sorted(values)
    n, left_out, outside = len(ordered), 0, 0.0
    while left_out < n // 2:
        outside += math.comb(n, left_out) / 2**n
        if 2 * outside > 0.1:
            break
        left_out += 1
    k = max(0, left_out - 1)
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


def interval_text(found):
    return f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})" if found else ""


def mark(ratio, wanted, most=False):
    """A cell; bold, with the goal behind it, where the goal is missed. `most`: an upper bound."""
    if ratio is None:
        return ""
    text = f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"
    if wanted and (ratio > wanted + 0.005 if most else ratio < wanted - 0.005):
        return f"**{text}** ({'>' if most else '<'} {wanted:g})"
    return text


def write(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def publish_between(path, name, text):
    """Replaces the text between <!-- name:begin --> and <!-- name:end --> in a file."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = page.split(begin)
    write(path, f"{before}{begin}\n{text.strip()}\n{end}{rest.split(end)[1]}")
