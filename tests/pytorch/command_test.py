# SPDX-License-Identifier: Apache-2.0
"""python -m weir: info, bench, and what it says of wrong words."""

import json
import os
import subprocess
import sys
import tempfile


def run(*words):
    done = subprocess.run(
        [sys.executable, "-m", "weir", *words], capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout, done.stderr


def check(holds, text):
    if not holds:
        sys.exit(f"FAILED: {text}")


def main():
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
    print("the commands do what they say")


if __name__ == "__main__":
    main()
