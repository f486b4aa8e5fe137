# SPDX-License-Identifier: Apache-2.0
"""What the package says of long work: on a terminal one line, else a line now and then."""

import importlib.util
import io
import os
import pty
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "python", "weir", "_progress.py")


def load():
    """The module alone: the package imports PyTorch."""
    spec = importlib.util.spec_from_file_location("progress", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    def isatty(self):
        return True


def steps(file, seconds_of_each, count=6):
    module = load()
    now = [100.0]
    with module.Progress("sorting", count, file, lambda: now[0]) as progress:
        for number in range(count):
            progress.now(f"part {number}")
            now[0] += seconds_of_each
    return file.getvalue()


def test_a_terminal_has_one_line_that_is_gone_at_the_end():
    text = steps(Terminal(), 1.0)
    assert "\n" not in text
    lines = text.split("\r\x1b[K")
    assert lines[1] == "sorting: 1 of 6, part 0" and lines[6] == "sorting: 6 of 6, part 5", lines
    assert lines[-1] == "", lines


def test_a_terminal_is_not_written_more_often_than_can_be_read():
    assert steps(Terminal(), 0.001, 1000).count("\r\x1b[K") < 15


def test_a_log_has_a_line_every_ten_seconds():
    text = steps(io.StringIO(), 4.0, 10)
    assert text.splitlines() == [
        "sorting: 4 of 10, part 3",
        "sorting: 7 of 10, part 6",
        "sorting: 10 of 10, part 9",
    ], text


def test_a_log_has_nothing_of_short_work():
    assert steps(io.StringIO(), 1.0) == ""


def test_the_bench_shows_it_on_a_terminal():
    ours, theirs = pty.openpty()
    words = ["bench", "--rounds", "3", "--sizes", "8", "--operations", "all_reduce"]
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the end of a terminal
            break
        if not more:
            break
        shown += more
    table, _ = process.communicate(timeout=200)
    assert process.returncode == 0, shown
    assert b"of 3, all_reduce of 8 bytes" in shown, shown
    assert table.count("\n") == 3 and "\r" not in table, table


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        test()
        print(f"{name} passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
