# SPDX-License-Identifier: Apache-2.0
"""python -m weir info | bench | flight-recorder"""

from __future__ import annotations

import os
import sys

_USAGE = """usage: python -m weir COMMAND

  info     versions, where the library lies, what PyTorch knows of it
  bench    Weir beside Gloo in one run (python -m weir bench --help)
  flight-recorder
           writes Weir's records for torchfrtrace (python -m weir flight-recorder --help)

To run a program with Weir in Gloo's place: python -m weir.run PROGRAM"""


def _info() -> int:
    import torch
    import torch.distributed as dist

    import weir
    from weir._built_for import TORCH_VERSION
    from weir._library import _C

    rows = [
        ("Weir", weir.version),
        ("package", os.path.dirname(os.path.abspath(weir.__file__))),
        ("module", os.path.basename(_C.__file__)),
        ("library", _library()),
        ("PyTorch", torch.__version__),
        ("built for PyTorch", TORCH_VERSION),
        ("Python", sys.version.split()[0]),
        ("backends of torch.distributed", ", ".join(dist.Backend.backend_list)),
        ("in Gloo's place here", "yes" if _is_in_place() else "no (python -m weir.run PROGRAM)"),
    ]
    settings = {name: value for name, value in os.environ.items() if name.startswith("WEIR_")}
    rows.append(("settings", ", ".join(f"{k}={v}" for k, v in sorted(settings.items()))))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


def _library() -> str:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "/libweir.so" in line:
                return line[line.index("/") :].strip()
    return "not loaded"


def _is_in_place() -> bool:
    import torch.distributed.distributed_c10d as c10d

    return getattr(getattr(c10d, "ProcessGroupGloo", None), "is_weir", False)


def main() -> int:
    words = sys.argv[1:]
    wrong = ""
    if words[:1] == ["info"]:
        if len(words) == 1:
            return _info()
        wrong = f"info takes no {words[1]!r}"
    if words[:1] == ["bench"]:
        from weir import bench

        return bench.main(words[1:])
    if words[:1] == ["flight-recorder"]:
        from weir import flight_recorder

        return flight_recorder.main(words[1:])
    if words[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if words and not wrong:
        wrong = f"there is no command {words[0]!r}"
    print(_USAGE, file=sys.stderr)
    if wrong:
        print(f"\nweir: {wrong}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
