# SPDX-License-Identifier: Apache-2.0
"""Weir beside Gloo, and beside a backend that does nothing, in one run.

Each round times all of them one after the other, so that what else the machine does meets all; the
figures are medians over the rounds, in microseconds per operation as a Python program sees it.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from ._progress import Progress

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
# So long each measurement of a round lasts, about.
_SECONDS = 0.05


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m weir bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine [2]")
    parser.add_argument("--rounds", type=int, default=9, help="[9]")
    parser.add_argument(
        "--operations", default=",".join(_OPERATIONS), help=f"[{','.join(_OPERATIONS)}]"
    )
    parser.add_argument(
        "--sizes",
        default=",".join(map(str, _SIZES)),
        help="bytes of the larger of a rank's two tensors, multiples of 4 [8 to 16 MiB]",
    )
    parser.add_argument(
        "--start",
        action="store_true",
        help="instead: how long init_process_group takes, and importing the package",
    )
    parser.add_argument("--json", metavar="FILE", help="also write all figures there")
    # Of a rank: the port of the store, and the process that has started it.
    parser.add_argument("--store", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    for name in options.operations.split(","):
        if name not in _OPERATIONS:
            parser.error(f"--operations {name!r}: allowed are {', '.join(_OPERATIONS)}")
    if not 2 <= options.ranks <= 256:
        parser.error(f"--ranks {options.ranks}: 2 to 256")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: 1 at least")
    for size in options.sizes.split(","):
        # The tensors are of float32.
        if not size.isdecimal() or int(size) == 0 or int(size) % 4 != 0:
            parser.error(f"--sizes {size!r}: multiples of 4, with commas between them")
    if options.json is not None and options.store is None:
        try:
            with open(options.json, "a", encoding="utf-8"):
                pass
        except OSError as error:
            parser.error(f"--json: {error}")
    return options


def _calls(name: str, size_bytes: int, group, direct: bool):
    """A function that does the operation once, on tensors of its own."""
    import torch
    import torch.distributed as dist

    import weir

    ranks = dist.get_world_size()
    whole = torch.zeros(max(ranks, size_bytes // 4 // ranks * ranks))
    part = torch.zeros(whole.numel() // ranks)
    if direct:
        return lambda: weir.all_reduce(whole, group=group)
    if name == "all_reduce":
        few = torch.zeros(max(1, size_bytes // 4))
        return lambda: dist.all_reduce(few, group=group)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    other = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def _time(call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def _rank(options: argparse.Namespace) -> int:
    import warnings

    import torch
    import torch.distributed as dist
    import torch.testing._internal.distributed.fake_pg  # the backend that does nothing

    warnings.simplefilter("ignore", FutureWarning)
    import weir  # noqa: F401

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), options.ranks
    store = _store(options)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    groups = {
        "gloo": dist.group.WORLD,
        "weir": dist.new_group(backend="weir"),
        "nothing": dist.new_group(backend="fake"),
    }
    rows = []
    names, sizes = options.operations.split(","), list(map(int, options.sizes.split(",")))
    progress = _progress(options, rank, len(names) * len(sizes) * options.rounds)
    for name in names:
        for size in sizes:
            calls = {key: _calls(name, size, group, False) for key, group in groups.items()}
            if name == "all_reduce":
                calls["direct"] = _calls(name, size, groups["weir"], True)
            counts, times = {}, {key: [] for key in calls}
            for key, call in calls.items():
                # As many calls as rank 0 finds right, on all ranks.
                _time(call, 3)
                taken = torch.tensor([_time(call, 5)])
                dist.broadcast(taken, 0)
                counts[key] = min(10000, max(3, int(_SECONDS / max(float(taken), 1e-7))))
            for _ in range(options.rounds):
                progress.now(f"{name} of {size} bytes")
                for key, call in calls.items():
                    dist.barrier()
                    times[key].append(_time(call, counts[key]))
            medians = {key: statistics.median(values) * 1e6 for key, values in times.items()}
            rows.append({"operation": name, "bytes": size, "ranks": ranks, "us": medians})
            if rank == 0:
                progress.clear()
                _print_row(rows[-1], len(rows) == 1)
    if rank == 0 and options.json is not None:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    dist.destroy_process_group()
    return 0


def _progress(options: argparse.Namespace, rank: int, rounds: int) -> Progress:
    """In rounds; of rank 0, and nothing of the others."""
    return Progress("bench", rounds, None if rank == 0 else io.StringIO())


def _store(options: argparse.Namespace):
    """Of the process that has started the ranks, as torchrun's."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", options.store, None, is_master=False)


def _end_with(parent: int) -> None:
    """Nothing is left of a measurement that is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _rank_of_start(options: argparse.Namespace) -> int:
    """Times the slowest rank's init_process_group, backend by backend, in turns."""
    import torch.distributed as dist

    import weir  # noqa: F401

    rank, ranks = int(os.environ["RANK"]), options.ranks
    store = _store(options)

    def meet(name: str) -> None:
        store.add(name, 1)
        while store.add(name, 0) < ranks:
            time.sleep(0.001)

    times: dict[str, list[float]] = {"gloo": [], "weir": []}
    progress = _progress(options, rank, (options.rounds + 1) * len(times))
    for number in range(options.rounds + 1):
        for backend in times:
            progress.now(f"init_process_group of {backend}")
            name = f"{backend}/{number}"
            meet(name + "/begin")
            begin = time.perf_counter()
            dist.init_process_group(
                backend, store=dist.PrefixStore(name, store), rank=rank, world_size=ranks
            )
            taken = time.perf_counter() - begin
            store.set(f"{name}/{rank}", str(taken))
            meet(name + "/end")
            slowest = max(float(store.get(f"{name}/{r}")) for r in range(ranks))
            if number > 0:  # the first measures the machine and fills caches
                times[backend].append(slowest)
            dist.destroy_process_group()
            meet(name + "/over")
    progress.clear()
    if rank == 0:
        medians = {key: statistics.median(values) * 1e3 for key, values in times.items()}
        print("| init_process_group, ranks | Gloo, ms | Weir, ms | Gloo / Weir |")
        print("| ---: | ---: | ---: | ---: |")
        print(
            f"| {ranks} | {medians['gloo']:.1f} | {medians['weir']:.1f} | "
            f"{medians['gloo'] / medians['weir']:.2f} |"
        )
        if options.json is not None:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"ranks": ranks, "ms": medians}, file, indent=1)
    return 0


def _seconds_of_import() -> float:
    """Of the package, in a process of its own that has imported torch.distributed."""
    program = (
        "import time, torch.distributed; begin = time.perf_counter(); import weir; "
        "print(time.perf_counter() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"python -m weir bench: the package cannot be imported:\n{done.stderr}")
    return float(done.stdout)


def _print_row(row: dict, first: bool) -> None:
    if first:
        names = ("operation", "bytes", "Gloo, us", "Weir, us", "Gloo / Weir")
        print(f"| {' | '.join(names)} | nothing, us | direct, us |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    us = row["us"]
    direct = f"{us['direct']:.1f}" if "direct" in us else ""
    print(
        f"| {row['operation']} | {row['bytes']} | {us['gloo']:.1f} | {us['weir']:.1f} | "
        f"{us['gloo'] / us['weir']:.1f} | {us['nothing']:.1f} | {direct} |",
        flush=True,
    )


def main(words: list[str]) -> int:
    options = arguments(words)
    if options.store is not None:
        _end_with(options.parent)
        return _rank_of_start(options) if options.start else _rank(options)
    if options.start:
        with Progress("bench", options.rounds) as progress:
            times = []
            for _ in range(options.rounds):
                progress.now("importing the package")
                times.append(_seconds_of_import())
        print(f"importing weir after torch.distributed: {statistics.median(times) * 1e3:.1f} ms")
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    words = [*words, "--store", str(store.port), "--parent", str(os.getpid())]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "weir", "bench", *words], env=dict(os.environ, RANK=str(rank))
        )
        for rank in range(options.ranks)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return max(codes, key=abs)
