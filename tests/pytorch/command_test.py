# SPDX-License-Identifier: Apache-2.0
"""python -m weir: info, bench, and what it and weir.run say of wrong words."""

import ast
import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


def run(*words):
    done = subprocess.run(
        [sys.executable, "-m", "weir", *words], capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout, done.stderr


def check(holds, text):
    if not holds:
        sys.exit(f"FAILED: {text}")


def own_names(thing):
    names = {name for name in vars(thing) if not name.startswith(("__", "_pybind11"))}
    return names | ({"__init__"} if "__init__" in vars(thing) else set())


def declared_names(body):
    """Of the statements of a stub, and of its classes by their path."""
    names, classes = set(), {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names, classes


def check_stub(thing, body, path="_C"):
    names, classes = declared_names(body)
    found = own_names(thing)
    check(names == found, f"{path}: _C.pyi has {names - found} more and {found - names} less")
    for name, node in classes.items():
        check_stub(getattr(thing, name), node.body, f"{path}.{name}")


def check_types_and_words():
    import weir

    stub = os.path.join(os.path.dirname(weir.__file__), "_C.pyi")
    with open(stub, encoding="utf-8") as file:
        check_stub(weir._C, ast.parse(file.read()).body)
    for name in weir.__all__:
        value = getattr(weir, name)
        documented = isinstance(value, str) or bool((value.__doc__ or "").strip())
        check(documented, f"weir.{name} has no docstring")
        # What is written in Python; the docstring of a class from C++ describes its fields.
        for method, member in vars(value).items() if isinstance(value, type) else ():
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and not method.startswith("_"):
                check(bool((member.__doc__ or "").strip()), f"weir.{name}.{method}: no docstring")
    for field in weir.ArenaUsage._fields:
        check(f"``{field}``" in weir.ArenaUsage.__doc__, f"weir.ArenaUsage: {field} is not told of")


def run_refuses(words):
    """In this process: to import PyTorch for each takes too long."""
    from unittest import mock

    from weir import run

    told = io.StringIO()
    with mock.patch.object(sys, "argv", ["weir.run", *words]), mock.patch.object(
        os, "execvpe"
    ) as started, contextlib.redirect_stderr(told):
        code = run.main()
    check(code == (None if started.called else 2), f"{words}: {code}")
    return told.getvalue()


def check_options_that_would_mean_gloo():
    for options, letter in (
        (["-I"], "I"),
        (["-E"], "E"),
        (["-S"], "S"),
        (["-sE"], "E"),
        (["-u", "-bbI"], "I"),
        (["-X", "faulthandler", "-S"], "S"),
        (["-W", "ignore", "-Wdefault", "-E"], "E"),
        (["python3", "-I"], "I"),
        ([sys.executable, "-sS"], "S"),
    ):
        for rest in (["-c", "pass"], ["-m", "train"], ["train.py"]):
            err = run_refuses([*options, *rest])
            check(f"with -{letter} " in err and "on Gloo" in err and "leave it out" in err, err)
            check(("--install-hook" in err) == (letter == "E"), err)
    for words in (
        ["-cI=1"],
        ["-c", "-I"],
        ["-m", "train", "-E"],
        ["train.py", "-I"],
        ["-X", "importtime", "train.py", "-S"],
        ["-WError", "train.py"],
        ["-XE", "train.py"],
        ["-", "-I"],
        ["python3", "train.py", "-I"],
        ["sh", "-E"],
        ["--report", "-u", "train.py", "-E"],
    ):
        check(run_refuses(words) == "", words)


def check_options_of_bench():
    from weir import bench

    for words, text in (
        (["--sizes", "abc"], "--sizes 'abc': multiples of 4"),
        (["--sizes=-8"], "--sizes '-8': multiples of 4"),
        (["--sizes", "8,3"], "--sizes '3': multiples of 4"),
        (["--sizes", "8,,16"], "--sizes '': multiples of 4"),
        (["--sizes", "0"], "--sizes '0': multiples of 4"),
        (["--rounds", "-1"], "--rounds -1: 1 at least"),
        (["--rounds", "0"], "--rounds 0: 1 at least"),
        (["--json", "/dev/null/out.json"], "--json: "),
        (["--json", ""], "--json: "),
    ):
        told = io.StringIO()
        code = None
        try:
            with contextlib.redirect_stderr(told):
                bench.arguments(words)
        except SystemExit as error:
            code = error.code
        check(code == 2 and text in told.getvalue(), f"{words}: {code}, {told.getvalue()}")
    check(bench.arguments(["--sizes", "8,1024"]).sizes == "8,1024", "sizes")


def ranks_of(process):
    """Processes that a measurement has started."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
            if f"\0--parent\0{process}\0".encode() in file.read():
                found.append(int(entry))
    return found


def check_that_bench_leaves_nothing(number):
    words = [sys.executable, "-m", "weir", "bench", "--rounds", "1000"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        end = time.monotonic() + 60
        while len(ranks_of(bench.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        check(len(ranks_of(bench.pid)) == 2, "bench starts two ranks")
        time.sleep(1)
        bench.send_signal(number)
        bench.wait(30)
    end = time.monotonic() + 30
    while ranks_of(bench.pid) and time.monotonic() < end:
        time.sleep(0.05)
    check(not ranks_of(bench.pid), f"after signal {number}: {ranks_of(bench.pid)}")


def main():
    check_types_and_words()
    check_options_of_bench()
    check_options_that_would_mean_gloo()
    code, out, err = run("info")
    check(code == 0 and "libweir.so" in out and "gloo" in out, out + err)
    code, out, err = run()
    check(code == 2 and "usage" in err, err)
    for words, text in ((["nosuch"], "no command 'nosuch'"), (["info", "more"], "no 'more'")):
        code, out, err = run(*words)
        check(code == 2 and "usage" in err and text in err, err)
    code, out, err = run("bench", "--operations", "sort")
    check(code == 2 and "all_reduce" in err, err)
    with tempfile.TemporaryDirectory(prefix="weir_command_") as folder:
        path = os.path.join(folder, "out.json")
        code, out, err = run(
            "bench", "--rounds", "1", "--sizes", "8,65536", "--ranks", "3", "--json", path
        )
        check(code == 0, out + err)
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
        check(len(rows) == 8 and all(row["us"]["weir"] > 0 for row in rows), out)
        check(out.count("\n") == 10, out)
        code, out, err = run("bench", "--start", "--rounds", "1", "--ranks", "4", "--json", path)
        check(code == 0 and "| 4 |" in out, out + err)
    for number in (signal.SIGTERM, signal.SIGKILL):
        check_that_bench_leaves_nothing(number)
    print("the commands do what they say")


if __name__ == "__main__":
    main()
