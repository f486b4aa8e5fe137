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

import atexit
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from ._library import _C
from ._register import create_backend, register

Options = _C.Backend.Options
"""Options of ``init_process_group("weir", pg_options=...)``: ``deterministic``, so that results do
not depend on algorithm, chunk size or transport."""

__all__ = [
    "OperationCount",
    "Options",
    "all_reduce",
    "create_backend",
    "lost_ranks",
    "operation_counts",
    "reset_operation_counts",
    "version",
]


class OperationCount(NamedTuple):
    """What one kind of operation did in this process."""

    calls: int
    bytes: int  #: of the tensors that this rank passed as input, or received into


def _number_of_version() -> str:
    number = _C.weir_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


version: str = _number_of_version()


def operation_counts() -> dict[str, OperationCount]:
    """Operations that Weir has served in this process, by PyTorch's name (``ALLREDUCE``)."""
    return {name: OperationCount(*pair) for name, pair in _C.operation_counts().items()}


def reset_operation_counts() -> None:
    """Begins to count anew."""
    _C.reset_operation_counts()


def _backend_of(group: dist.ProcessGroup | None) -> _C.Backend:
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _C.Backend):
        raise ValueError(
            f"the CPU backend of this group is {backend.name()}, not Weir: "
            'init_process_group("weir"), or start the program with python -m weir.run'
        )
    return backend


def all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduces ``tensor`` (any shape, on the CPU) over the ranks of ``group``, in place.

    As ``torch.distributed.all_reduce`` without its way through PyTorch's dispatcher: for small
    tensors, where that takes most of the time. Collective; returns when it is done. The tensors of
    all ranks have the same number of elements and type.
    """
    group = group or _world._default_pg
    if group is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    _C.all_reduce(tensor, op, group)


def lost_ranks(group: dist.ProcessGroup | None = None) -> list[int]:
    """Ranks of ``group`` whose process has ended or that were too slow, after an error."""
    return _backend_of(group).lost_ranks()


register()
# Threads of Weir's that would call Python must have ended before Python does.
atexit.register(_C.stop_completions)
