# SPDX-License-Identifier: Apache-2.0
"""Runs a program with Weir in Gloo's place.

    python -m weir.run train.py --epochs 3
    python -m weir.run torchrun --nproc-per-node 4 train.py
    python -m weir.run -m torch.distributed.run --nproc-per-node 4 train.py

``backend="gloo"``, and the part for processors of ``cpu:gloo,cuda:nccl``, are Weir in the program
and in every Python process that it starts, unless an option keeps that from reading its environment
or from importing site (-E, -I, -S). An operation that Weir cannot serve is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import sys

_HOOK_FILE = "weir_in_place.pth"
_HOOK_LINE = (
    "import sys; __import__('os').environ.get('WEIR_IN_PLACE_OF') == 'gloo' and not "
    "sys.flags.isolated and __import__('importlib.util').util.find_spec('weir_in_place') and "
    "__import__('weir_in_place').install()\n"
)
# Those of Python that may stand before a script.
_PYTHONS_OPTIONS = "bBcdEiImOPqsSuvVWxX"
# Those that keep sitecustomize away, and what helps.
_INSTEAD_OF = {
    "E": "leave it out, or call python -m weir.run --install-hook once and then "
    "WEIR_IN_PLACE_OF=gloo python -E",
    "I": "leave it out, or say what it does in parts: -P -s",
    "S": "leave it out",
}
_WITH_VALUE = "WX"
_ENDS_OPTIONS = "cm"
_OPTIONS = ("--report", "--install-hook", "--remove-hook", "-h", "--help")


def _hook_path() -> str:
    import weir_in_place

    return os.path.join(os.path.dirname(os.path.abspath(weir_in_place.__file__)), _HOOK_FILE)


def _record_of_distribution() -> str | None:
    """The list of files that goes with the package when pip removes it."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        found = files("weir") or []
    except PackageNotFoundError:
        return None
    for file in found:
        if file.name == "RECORD":
            return str(file.locate())
    return None


def _install_hook() -> int:
    path = _hook_path()
    record = _record_of_distribution()
    if record is None:
        print(
            "weir.run: --install-hook needs an installed package (pip install), so that it goes "
            "with the package; from a build folder use python -m weir.run",
            file=sys.stderr,
        )
        return 2
    with open(path, "w", encoding="utf-8") as file:
        file.write(_HOOK_LINE)
    with open(record, "r+", encoding="utf-8") as file:
        if not any(line.startswith(_HOOK_FILE + ",") for line in file):
            file.write(f"{_HOOK_FILE},,\n")
    print(f"wrote {path}: with WEIR_IN_PLACE_OF=gloo every Python here puts Weir in Gloo's place")
    return 0


def _remove_hook() -> int:
    path = _hook_path()
    if not os.path.exists(path):
        print(f"there is no {path}")
        return 0
    os.remove(path)
    record = _record_of_distribution()
    if record is not None:
        with open(record, encoding="utf-8") as file:
            lines = [line for line in file if not line.startswith(_HOOK_FILE + ",")]
        with open(record, "w", encoding="utf-8") as file:
            file.writelines(lines)
    print(f"removed {path}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m weir.run",
        usage="%(prog)s [--report] PROGRAM [ARGUMENT ...]\n"
        "       %(prog)s --install-hook | --remove-hook | --help",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="at its end each process prints which operations Weir served, and their bytes",
    )
    parser.add_argument(
        "--install-hook",
        action="store_true",
        help="write a .pth file, so that WEIR_IN_PLACE_OF=gloo alone does this, also where "
        "PYTHONPATH is not passed on; it is removed with the package",
    )
    parser.add_argument("--remove-hook", action="store_true", help="remove that file")
    parser.add_argument(
        "program",
        nargs="*",
        help="a script, -m MODULE, or a program on PATH or beside this Python, and its arguments",
    )
    # What follows the first word that is not an option of ours is the program's, options included.
    own = 1
    while own < len(sys.argv) and sys.argv[own] in _OPTIONS:
        own += 1
    arguments = parser.parse_args(sys.argv[1:own])
    arguments.program = sys.argv[own:]
    word = sys.argv[own] if own < len(sys.argv) else ""
    if word.startswith("-") and word[1:2] not in ("", "-", *_PYTHONS_OPTIONS):
        parser.error(f"there is no option {word!r}")
    if word.startswith("--") and word != "--":
        parser.error(f"there is no option {word!r}")
    return arguments


def _option_without_hook(words: list[str]) -> str | None:
    """The first option of Python's in ``words`` with which it would run no sitecustomize."""
    words = iter(words)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return None
        for i, letter in enumerate(word[1:], 1):
            if letter in _INSTEAD_OF:
                return letter
            if letter in _ENDS_OPTIONS:
                return None
            if letter in _WITH_VALUE:
                if i + 1 == len(word):
                    next(words, None)
                break
    return None


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python[0-9.]*", os.path.basename(program)) is not None


def _find_program(name: str) -> str | None:
    """On PATH, or where the programs of this Python's packages are: a Python of a virtual
    environment may be called by its path."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


def main() -> int:
    arguments = _arguments()
    if arguments.install_hook:
        return _install_hook()
    if arguments.remove_hook:
        return _remove_hook()
    program = arguments.program
    if program and program[0] == "--":
        program = program[1:]
    if not program:
        print("weir.run: no program is given (see --help)", file=sys.stderr)
        return 2
    option = _option_without_hook(program[1:] if _is_python(program[0]) else program)
    if option is not None:
        print(
            f"weir.run: with -{option} Python does not read what puts Weir in Gloo's place, and "
            f"the program would run on Gloo: {_INSTEAD_OF[option]}",
            file=sys.stderr,
        )
        return 2
    package = os.path.dirname(os.path.abspath(__file__))
    hook = os.path.join(package, "hook")
    paths = [hook]
    # Where it is installed, every Python of this kind finds it.
    if os.path.dirname(package) not in [*site.getsitepackages(), site.getusersitepackages()]:
        paths.append(os.path.dirname(package))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment = dict(os.environ, WEIR_IN_PLACE_OF="gloo", PYTHONPATH=os.pathsep.join(paths))
    if arguments.report:
        environment["WEIR_IN_PLACE_REPORT"] = "1"
    if program[0].startswith("-") or program[0].endswith(".py") or os.path.isdir(program[0]):
        program = [sys.executable, *program]
    else:
        found = _find_program(program[0])
        if found is None and not os.path.exists(program[0]):
            print(f"weir.run: there is no program {program[0]!r}", file=sys.stderr)
            return 127
        program = [sys.executable, *program] if found is None else [found, *program[1:]]
    os.execvpe(program[0], program, environment)


if __name__ == "__main__":
    sys.exit(main())
