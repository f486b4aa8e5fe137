# SPDX-License-Identifier: Apache-2.0
"""Weir's collectives for PyTorch on processors.

Importing this package registers the backend ``weir`` for CPU tensors::

    import torch.distributed as dist
    import weir

    dist.init_process_group("weir")              # or "cpu:weir,cuda:nccl"

A program that says ``backend="gloo"`` runs on Weir unchanged with ``python -m weir.run`` before
its own command line. See docs/pytorch.md.
"""

from __future__ import annotations

import re
import sys


def _is_located_for_run() -> bool:
    """Whether Python imports this package only on its way to ``python -m weir.run``, which starts
    another program: PyTorch, which takes seconds, is for that one to import."""
    # argv[0] is -m while Python looks for the module of that option, which is the last word before
    # the module's own arguments.
    words, own = getattr(sys, "argv", []), sys.orig_argv
    if words[:1] != ["-m"] or len(words) > len(own):
        return False
    return re.fullmatch(r"(-[a-zA-Z]*m)?weir\.run", own[-len(words)]) is not None


if not _is_located_for_run():
    from ._api import *  # noqa: F403
    from ._api import __all__  # noqa: F401
