# SPDX-License-Identifier: Apache-2.0
"""tools/clients itself: limits, what is left behind, verdicts, and PyPI that does not answer."""

import argparse
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(SOURCE, "tools", "clients")
sys.path.insert(0, os.path.join(SOURCE, "tests"))
from clients.catalog import CLIENTS, Known, Trial  # noqa: E402
from clients.processes import Outcome, Processes, own_children, why_of  # noqa: E402

# A program that starts one in a session of its own, tells its number, and hangs.
HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, os.environ["TMPDIR"], flush=True)
time.sleep(1000)
"""


def tool():
    loader = importlib.machinery.SourceFileLoader("clients_tool", TOOL)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("clients_tool", loader)
    )
    loader.exec_module(module)
    return module


class ProcessesTest(unittest.TestCase):
    def run_python(self, code, seconds_max):
        with tempfile.TemporaryDirectory() as logs, Processes(logs) as processes:
            return processes.run(
                "test", [sys.executable, "-c", code], dict(os.environ), seconds_max
            )

    def test_a_program_over_its_limit_is_ended_with_all_that_it_started(self):
        start = time.monotonic()
        outcome = self.run_python(HANGS, 2)
        self.assertLess(time.monotonic() - start, 30)
        self.assertFalse(outcome.works)
        self.assertIn("not done after 2 s", outcome.why)
        child, folder = outcome.output.split()
        self.assertFalse(os.path.exists(f"/proc/{child}"))
        self.assertFalse(os.path.exists(folder))
        self.assertEqual(own_children(), [])

    def test_what_a_program_leaves_when_it_succeeds_is_ended_too(self):
        outcome = self.run_python(HANGS.replace("time.sleep(1000)", ""), 30)
        self.assertTrue(outcome.works)
        self.assertFalse(os.path.exists(f"/proc/{outcome.output.split()[0]}"))

    def test_the_exit_status_decides_and_the_first_error_says_why(self):
        outcome = self.run_python("raise ValueError('this is why')", 30)
        self.assertFalse(outcome.works)
        self.assertEqual(outcome.why, "ValueError: this is why")
        self.assertEqual(
            why_of("one\n[rank1]: torch.AcceleratorError: two\nx.yError: three", 1),
            "[rank1]: torch.AcceleratorError: two",
        )
        self.assertEqual(why_of("", -6), "it ended with status -6")


class VerdictTest(unittest.TestCase):
    def test_only_what_is_expected_to_work_and_does_not_is_bad(self):
        judged, works = tool().judged, Outcome(True, "")
        fails = Outcome(False, "broken", "a.log", output="it is broken, as ever")
        known = Trial("a", Known("known fault", "as ever"))
        self.assertEqual(judged(Trial("a"), works), ("works", ""))
        self.assertEqual(judged(Trial("a"), fails)[0], "BAD")
        self.assertIn("broken", judged(Trial("a"), fails)[1])
        self.assertEqual(judged(known, fails), ("known", "known fault (broken)"))
        self.assertEqual(judged(known, works)[0], "works now")
        until = Trial("a", Known("known fault", "as ever", works_from="2.15"))
        self.assertEqual(judged(until, works, "2.15.0+cpu"), ("works", ""))
        self.assertEqual(judged(until, fails, "2.14.1"), ("known", "known fault (broken)"))
        self.assertEqual(judged(until, fails, "2.15.0")[0], "BAD")
        # What fails for another reason than the known one is bad.
        self.assertEqual(judged(known, Outcome(False, "new", output="a new fault"))[0], "BAD")
        self.assertEqual(judged(known, Outcome(False, "not installed"))[0], "BAD")

    def test_a_name_that_there_is_not_is_an_error_and_each_client_has_its_program(self):
        with self.assertRaises(SystemExit) as raised:
            tool().chosen(["nccl4py.nothing"], False)
        self.assertIn("nccl4py.nothing", str(raised.exception))
        for client in CLIENTS:
            self.assertTrue(os.path.exists(client.program_path), client.name)
            self.assertEqual(tool().chosen([client.name], False), [(client, list(client.trials))])


class CommandTest(unittest.TestCase):
    build = None

    def run_tool(self, cache, *arguments, **variables):
        command = [TOOL, "--build", self.build, "--cache", cache, *arguments]
        return subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240
        )

    def test_a_table_and_the_status_tell_what_works(self):
        with tempfile.TemporaryDirectory() as cache:
            result = self.run_tool(cache, "debian")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertRegex(result.stdout, r"debian +\S+ +open_mpi +(known|works)")

    def test_a_client_without_a_program_that_it_needs_is_not_run(self):
        with tempfile.TemporaryDirectory() as cache:
            os.symlink(sys.executable, os.path.join(cache, "python3"))
            result = self.run_tool(cache, "debian", PATH=cache)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertRegex(result.stdout, "not run .*there is no ompi_info, ucx_info")

    def test_where_pypi_does_not_answer_ci_is_skipped_and_the_rest_is_bad(self):
        nowhere = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_RETRIES": "1",
            "PIP_NO_CACHE_DIR": "1",
        }
        with tempfile.TemporaryDirectory() as cache:
            result = self.run_tool(cache, "--ci", "mpi4py", **nowhere)
            self.assertEqual(result.returncode, 77, result.stdout + result.stderr)
            self.assertIn("PyPI cannot be reached", result.stdout)
            result = self.run_tool(cache, "mpi4py", **nowhere)
            self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
            self.assertIn("not installed", result.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    arguments, rest = parser.parse_known_args()
    CommandTest.build = arguments.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
