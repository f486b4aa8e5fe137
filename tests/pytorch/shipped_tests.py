# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that PyTorch ships in its own install, on Gloo and with Weir in Gloo's place.

    shipped_tests.py [--ranks 2,3,4] [--on gloo,weir] [--only WORDS] [--part] [--results DIR]

The tests are those of ``torch.testing._internal.distributed.distributed_test``, as PyTorch's own
test_distributed_spawn.py runs them, and stock_base_classes.py, on the base classes for DTensor,
FSDP and pipelines. Each test starts its ranks anew; here they are forked from one process that has
imported PyTorch (``--spawn``: started as PyTorch's runner does, some seconds each).

Prints a table, each test whose result on Weir is not that on Gloo, and each that passes on Weir
without an operation that Weir has served; one of PART fails then. Fails where a test passes
on Gloo and not on Weir, unless DIFFERENCES has it with the reason. ``--part``: the tests of PART
alone, on Weir alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# Tests that pass on Gloo and not on Weir: reason.
DIFFERENCES: dict[str, str] = {}

# Tests of PART in which no operation succeeds: reason.
WITHOUT_OPERATIONS = {
    "test_barrier_timeout_full_group": "its one barrier is to fail",
}

# For --part.
PART = [
    "test_DistributedDataParallelCPU*",
    "test_accumulate_gradients_no_sync*",
    "test_all_gather_coalesced_*",
    "test_all_gather_object_subgroup",
    "test_all_reduce_sum_async",
    "test_all_reduce_coalesced_full_group_sum",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo*",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_dtensor_*",
    "test_fully_shard_*",
    "test_gather_checks",
    "test_get_future",
    "test_gpipe",
    "test_isend*",
    "test_monitored_barrier_gloo*",
    "test_scatter_object_list",
    "test_send_recv*",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks")
    parser.add_argument("--on", default="gloo,weir", help="gloo, weir or both")
    parser.add_argument("--only", default="", help="patterns, by commas (test_all_gather*)")
    parser.add_argument("--share", default="1/1", help="of the tests, such as 2/5")
    parser.add_argument("--part", action="store_true", help="the tests of PART, on Weir")
    parser.add_argument("--spawn", action="store_true", help="ranks are new processes, not forks")
    parser.add_argument("--results", help="a folder for a file per run, with the text of errors")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- The table --------------------------------------------------------------------------------


def run(on: str, size: int, options: argparse.Namespace, folder: str) -> dict:
    """The results by test: passed, skipped or failed, and why."""
    path = os.path.join(folder, f"{on}_{size}.jsonl")
    command = [sys.executable]
    if on == "weir":
        command += ["-m", "weir.run"]
    command += [os.path.abspath(__file__), "--inside", path, "--only", options.only]
    command += ["--share", options.share]
    command += ["--part"] if options.part else []
    command += ["--spawn"] if options.spawn else []
    environment = dict(
        os.environ,
        BACKEND="gloo",
        WORLD_SIZE=str(size),
        WEIR_TEST_ON=on,
        OMP_NUM_THREADS="1",
        # Some tests wait for as long as they may.
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="120",
        WEIR_TEST_SERVED=os.path.join(folder, f"served_{on}_{size}"),
        PYTHONDONTWRITEBYTECODE="1",
    )
    os.makedirs(environment["WEIR_TEST_SERVED"], exist_ok=True)
    with open(os.path.join(folder, f"{on}_{size}.log"), "w", encoding="utf-8") as log:
        progress = os.dup(2)
        environment["WEIR_TEST_PROGRESS"] = str(progress)
        code = subprocess.run(
            command,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[progress],
            check=False,
        ).returncode
        os.close(progress)
    results = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                result = json.loads(line)
                results[result["test"]] = result
    if code != 0 or not results:
        with open(log.name, encoding="utf-8") as file:
            print("".join(file.readlines()[-30:]))
        print(f"{on}, {size} ranks: the run ended with {code} after {len(results)} tests")
        sys.exit(1)
    return results


def counts(results: dict) -> str:
    kinds = [result["result"] for result in results.values()]
    return " | ".join(str(kinds.count(kind)) for kind in ("passed", "skipped", "failed"))


def compare(size: int, gloo: dict, weir: dict) -> int:
    """Prints what differs; the number of tests that differ without a known reason."""
    unknown = 0
    for test in sorted({*gloo, *weir}):
        before, after = gloo.get(test), weir.get(test)
        if before is None or after is None or before["result"] == after["result"]:
            continue
        name = test.rsplit(".", 1)[-1]
        reason = DIFFERENCES.get(name)
        if after["result"] != "passed" and reason is None:
            unknown += 1
        print(f"{size} ranks: {name}: {before['result']} on Gloo, {after['result']} on Weir")
        print(f"    {reason or after['why'].strip().splitlines()[-1:]}", flush=True)
    return unknown


def main(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("expecttest") is None:
        print("skipped: PyTorch's tests need the package expecttest (pip install expecttest)")
        return 77
    backends = ["weir"] if options.part else options.on.split(",")
    unknown = 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="weir_shipped_") as own:
        folder = options.results or own
        os.makedirs(folder, exist_ok=True)
        for size in map(int, options.ranks.split(",")):
            found = {}
            for on in backends:
                begin = time.monotonic()
                found[on] = run(on, size, options, folder)
                seconds = time.monotonic() - begin
                rows.append(f"| {size} | {on} | {counts(found[on])} | {seconds:.0f} |")
                print(rows[-1], flush=True)
            if len(found) == 2:
                unknown += compare(size, found["gloo"], found["weir"])
            for test, result in found.get("weir", {}).items():
                name = test.rsplit(".", 1)[-1]
                if result["result"] == "passed" and "served by Weir" in result["why"]:
                    print(f"{size} ranks: {name} passed: {result['why']}", flush=True)
                if "gloo" in found or result["result"] != "failed" or name in DIFFERENCES:
                    continue
                unknown += 1
                print(f"{size} ranks: {name} failed on Weir:\n{result['why']}", flush=True)
    print("| ranks | on | passed | skipped | failed | s |")
    print("\n".join(rows))
    return 1 if unknown else 0


# ---- Inside: one run --------------------------------------------------------------------------


def note_what_is_served(test_class: type) -> None:
    """Each rank leaves a file that says how many operations Weir has served there."""
    original = test_class.run_test

    def run_test(self, test_name, parent_pipe):
        try:
            original(self, test_name, parent_pipe)
        finally:
            weir = sys.modules.get("weir")
            calls = sum(n.calls for n in weir.operation_counts().values()) if weir else 0
            path = os.path.join(os.environ["WEIR_TEST_SERVED"], f"{test_name}.{self.rank}")
            with open(path, "w", encoding="utf-8") as file:
                file.write(str(calls))

    test_class.run_test = run_test


def calls_served(test_name: str) -> list[int]:
    """By the ranks of a test that has ended."""
    counts = []
    for path in glob.glob(os.path.join(os.environ["WEIR_TEST_SERVED"], f"{test_name}.*")):
        with open(path, encoding="utf-8") as file:
            counts.append(int(file.read()))
    return counts


def tests_of_pytorch() -> list:
    """The test classes, whose ranks tell which operations Weir has served."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    on_weir = os.environ["WEIR_TEST_ON"] == "weir"
    assert getattr(dist.ProcessGroupGloo, "is_weir", False) == on_weir
    if on_weir:
        note_what_is_served(common_distributed.MultiProcessTestCase)

    class Stock(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

    if os.environ.get("WEIR_TEST_START") == "fork":

        def fork_processes(self):
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        common_distributed.MultiProcessTestCase._spawn_processes = fork_processes
    Stock.__name__ = Stock.__qualname__ = "DistributedTest"
    import stock_base_classes

    return [Stock, *stock_base_classes.CLASSES]


# Processes that are started by multiprocessing's "spawn" look here for the first class.
CLASSES = tests_of_pytorch() if "WEIR_TEST_ON" in os.environ else []
if CLASSES:
    CLASSES[0].__module__ = __name__
    DistributedTest = CLASSES[0]


def inside(options: argparse.Namespace) -> int:
    import unittest

    class Result(unittest.TestResult):
        def note(self, test, result: str, why: str = "") -> None:
            seconds = round(time.monotonic() - self.begin, 1)
            line = {"test": test.id(), "result": result, "why": why, "seconds": seconds}
            with open(options.inside, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

        def startTest(self, test):
            self.begin = time.monotonic()
            print(f"==== {test.id()}", flush=True)
            super().startTest(test)

        def addSuccess(self, test):
            if os.environ["WEIR_TEST_ON"] != "weir":
                return self.note(test, "passed")
            calls = calls_served(test._testMethodName)
            # A rank that stays away on purpose has none.
            is_served = any(calls) or test._testMethodName in WITHOUT_OPERATIONS
            if len(calls) == int(os.environ["WORLD_SIZE"]) and is_served:
                return self.note(test, "passed")
            result = "failed" if options.part else "passed"
            return self.note(test, result, f"operations served by Weir, by rank: {calls}")

        def addSkip(self, test, reason):
            self.note(test, "skipped", reason)

        def addFailure(self, test, err):
            self.note(test, "failed", self._exc_info_to_string(err, test))

        addError = addFailure

        def addExpectedFailure(self, test, err):
            self.note(test, "passed", "as expected it fails")

        def addUnexpectedSuccess(self, test):
            self.note(test, "failed", "it passes, and PyTorch expects that it fails")

    open(options.inside, "w", encoding="utf-8").close()
    # The log of this run takes stdout and stderr.
    progress = os.fdopen(int(os.environ["WEIR_TEST_PROGRESS"]), "w")
    wanted = [pattern for pattern in options.only.split(",") if pattern]
    if options.part and not wanted:
        wanted = PART
    loader = unittest.TestLoader()
    result = Result()
    chosen = [
        (test_class, name)
        for test_class in CLASSES
        for name in loader.getTestCaseNames(test_class)
        if not wanted or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    ]
    share, shares = map(int, options.share.split("/"))
    chosen = chosen[share - 1 :: shares]
    for number, (test_class, name) in enumerate(chosen):
        if number % 10 == 0:
            print(f"{number} of {len(chosen)} tests", file=progress, flush=True)
        unittest.TestSuite([test_class(name)]).run(result)
    return 0


if __name__ == "__main__":
    parsed = arguments()
    if parsed.inside:
        sys.exit(inside(parsed))
    os.environ["WEIR_TEST_START"] = "spawn" if parsed.spawn else "fork"
    sys.exit(main(parsed))
