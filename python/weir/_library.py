# SPDX-License-Identifier: Apache-2.0
"""Loads the module that was built for the PyTorch that is here."""

from __future__ import annotations

import os

# Futures of operations must be ready without a thread that waits for them (DDP overlaps on that).
os.environ.setdefault("WEIR_PROGRESS_THREAD", "1")

import torch  # noqa: E402  (its libraries are what the module is linked with)

from ._built_for import TORCH_VERSION  # noqa: E402


def _series(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


if _series(torch.__version__) != _series(TORCH_VERSION):
    raise ImportError(
        f"this package weir was built for PyTorch {TORCH_VERSION}, and PyTorch {torch.__version__} "
        "is installed. A backend has no stable interface between PyTorch's versions: install the "
        f"wheel for {'.'.join(_series(torch.__version__))}, or build it: pip install "
        "--no-build-isolation --force-reinstall <Weir's source>/python"
    )

from . import _C  # noqa: E402

__all__ = ["_C"]
