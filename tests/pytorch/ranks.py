# SPDX-License-Identifier: Apache-2.0
"""Runs the functions of a test program on several ranks.

A test program holds functions ``test_*(rank, size)`` and ends with ``ranks.main(__name__)``.
Started without RANK it starts itself once per rank, for each number of ranks, and fails when a rank
fails or does not end in time; a rank runs the functions in order, in one process group. Each
function ends with a check that Weir served what it called, to the byte: ``served()``.

    backend_test.py [--ranks 2,4] [--only NAME] [--in-place]
"""

from __future__ import annotations

import argparse
import os
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


def start(size: int, options: argparse.Namespace, folder: str) -> list[subprocess.Popen]:
    command = [sys.executable, os.path.abspath(sys.argv[0]), "--only", options.only]
    if options.in_place:
        command = [sys.executable, "-m", "weir.run", *command[1:], "--in-place"]
    ranks = []
    for rank in range(size):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            WEIR_TEST_FOLDER=folder,
            TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "inductor"),
            OMP_NUM_THREADS="1",
            PYTHONDONTWRITEBYTECODE="1",
        )
        ranks.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        )
    return ranks


def wait(ranks: list[subprocess.Popen], seconds: float) -> list[str]:
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


def run(size: int, options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="weir_pytorch_") as folder:
        ranks = start(size, options, folder)
        try:
            outputs = wait(ranks, TIMEOUT_S)
        finally:
            for rank in ranks:
                rank.kill()
    codes = [rank.returncode for rank in ranks]
    if any(codes):
        for rank, (code, output) in enumerate(zip(codes, outputs)):
            print(f"---- rank {rank} of {size}, exit status {code}\n{output}", flush=True)
        return False
    passed = [line for line in outputs[0].splitlines() if line.endswith(" functions passed")]
    print(f"{size} ranks: {passed[-1]}", flush=True)
    return True


def run_functions(options: argparse.Namespace, exact: bool) -> int:
    import faulthandler

    faulthandler.enable()
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
    if exact:
        import tally

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
    program has passed to torch.distributed (tally), or any, in a program that is not ``exact``.
    """
    import tally
    import weir

    counts = weir.operation_counts()
    found = {name: count.bytes for name, count in counts.items()}
    if expected is None:
        expected = tally.passed() if tally.is_installed else found
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


def main(name: str, exact: bool = True) -> None:
    """``exact``: ``served()`` compares with what the program passes to torch.distributed."""
    if name != "__main__":
        return
    options = arguments()
    if "RANK" in os.environ:
        sys.exit(run_functions(options, exact))
    passed = [run(int(size), options) for size in options.ranks.split(",")]
    sys.exit(0 if all(passed) else 1)
