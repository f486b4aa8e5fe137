# SPDX-License-Identifier: Apache-2.0
"""Groups that a program made for Gloo (see weir_in_place)."""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta

from ._library import _C
from ._register import create_backend

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_reports = False


def create(
    store,
    rank: int,
    size: int,
    options=None,
    *,
    timeout=None,
    pg_options=None,
    enable_reconfigure: bool = False,
):
    """What ``ProcessGroupGloo(store, rank, size, timeout | options)`` returns. PyTorch passes
    ``enable_reconfigure`` from 2.14 on."""
    options = options if pg_options is None else pg_options
    if timeout is None and isinstance(options, timedelta):
        timeout = options
    elif timeout is None and options is not None:
        timeout = options._timeout
    if timeout is None:
        timeout = _DEFAULT_TIMEOUT
    _report_at_exit()
    return create_backend(
        store, rank, size, timeout, name="gloo", enable_reconfigure=enable_reconfigure
    )


def _report_at_exit() -> None:
    global _reports
    if _reports or os.environ.get("WEIR_IN_PLACE_REPORT", "0") == "0":
        return
    _reports = True
    process = os.getpid()

    def report() -> None:
        if os.getpid() != process:
            return
        who = f"weir: rank {os.environ.get('RANK', '?')} (process {process})"
        lines = [
            f"{who}: {name.lower()} {calls} calls, {size} bytes"
            for name, (calls, size) in sorted(_C.operation_counts().items())
        ] or [f"{who}: no calls"]
        # In one write, as other processes may write there at the same time.
        sys.stderr.write("\n".join(lines) + "\n")

    atexit.register(report)
