#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs each case of a test program in a process of its own, so that none inherits the streams of
another, and says which of them fail or hang.

    one_by_one.py PROGRAM [SECONDS]
"""

import concurrent.futures
import subprocess
import sys

AT_A_TIME = 2


def cases_of(program):
    listed = subprocess.run(
        [program, "--gtest_list_tests"], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    cases = []
    suite = ""
    for line in listed.stdout.splitlines():
        if line.startswith("  "):
            cases.append(suite + line.split()[0])
        elif line.rstrip().endswith("."):
            suite = line.strip()
    return cases


def run(program, case, seconds):
    """The case, and what is wrong with it; empty: nothing."""
    try:
        ended = subprocess.run(
            [program, f"--gtest_filter={case}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return case, f"hangs: not done after {seconds} s"
    return case, "" if ended.returncode == 0 else f"fails\n{ended.stdout}"


def main():
    program = sys.argv[1]
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    cases = cases_of(program)
    assert cases, f"{program} lists no cases"
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda case: run(program, case, seconds), cases))
    wrong = [(case, what) for case, what in results if what]
    for case, what in wrong:
        print(f"{case} {what}")
    print(f"{len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
