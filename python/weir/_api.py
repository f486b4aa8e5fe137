# SPDX-License-Identifier: Apache-2.0
"""What the package offers; importing this registers the backend (see __init__.py)."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from ._library import _C
from ._register import backend_of, create_backend, register
from ._window import Window

Options = _C.Backend.Options
Options.__doc__ = """Options of ``init_process_group("weir", pg_options=...)``: ``deterministic``,
so that results do not depend on algorithm, chunk size or transport; ``arena_bytes``, how much
address space the first ``allocate_tensor`` of the group reserves on each rank (as much as the host
has memory; 0: the group allocates no tensors), the same on all ranks of a host."""

# In which the death of a rank is noticed by every group that it was in.
_NOTICE_SECONDS = 1.0

__all__ = [
    "ArenaUsage",
    "OperationCount",
    "Options",
    "Window",
    "all_reduce",
    "arena_usage",
    "create_backend",
    "empty",
    "lost_ranks",
    "operation_counts",
    "reset_operation_counts",
    "shrink",
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
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in the group: only its members may call this")
    backend = backend_of(group, torch.device("cpu"))
    if not isinstance(backend, _C.Backend):
        raise ValueError(
            f"the CPU backend of this group is {backend.name()}, not Weir: "
            'init_process_group("weir"), or start the program with python -m weir.run'
        )
    return backend


class ArenaUsage(NamedTuple):
    """Of the memory from which a group allocates tensors, on this rank.

    ``bytes``: of address space; 0 where there was no room for it.
    ``used_bytes``: of it, in tensors that exist now, each rounded up to 64 bytes.
    ``tensor_count``: how many these are; of no elements: none.
    ``is_shared``: whether other ranks reach the memory; if not, tensors are ordinary memory, and
    none of these figures counts them.
    ``touched_bytes``: what this rank has read and written, since the memory was made, in
    collectives in which the ranks told where their tensors lie: 2 for a byte that is copied, n + 1
    for one that is reduced from n. It grows with each such collective, beyond ``bytes``, too.
    """

    bytes: int
    used_bytes: int
    tensor_count: int
    is_shared: bool
    touched_bytes: int


def arena_usage(group: dist.ProcessGroup | None = None) -> ArenaUsage | None:
    """How much of ``group``'s memory for tensors is in use; None before the first allocation.

    Tensors that ``group`` allocates (``weir.empty``, PyTorch's ``backend.allocate_tensor(count,
    dtype=..., device=torch.device("cpu"))``, FSDP2's
    ``set_allocate_memory_from_process_group_for_comm(True)``) are read by the other ranks of the
    host where they lie.
    """
    usage = _backend_of(group).arena_usage()
    return None if usage is None else ArenaUsage(*usage)


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """A tensor on the CPU, not initialized, that the other ranks of the host read where it lies.

    As ``torch.empty(*size, dtype=dtype)``. The first allocation of a group is collective, in order
    with its collectives; from then on each rank allocates by itself. It is ordinary memory in a
    group of one rank, where ranks share no memory, and where ``Options.arena_bytes`` are used up,
    more than a rank's address space, or 0. Quantized types (``torch.qint8``) are refused in a
    group of several ranks.
    """
    backend = _backend_of(group)
    cpu = torch.device("cpu")
    try:
        # Without memory: it refuses what torch.empty refuses.
        like = torch.empty(*(size or ((),)), dtype=dtype, device="meta")
    except RuntimeError as error:
        raise ValueError(f"weir.empty: a size of {size}: {error}") from None
    if not backend.supports_tensor_alloc(cpu):
        return torch.empty(like.shape, dtype=like.dtype, device=cpu)
    return backend.allocate_tensor(like.numel(), dtype=like.dtype, device=cpu).view(like.shape)


def all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduces ``tensor`` (any shape, on the CPU) over the ranks of ``group``, in place.

    As ``torch.distributed.all_reduce`` without its way through PyTorch's dispatcher: for small
    tensors, where that takes most of the time. Collective; returns when it is done. The tensors of
    all ranks have the same number of elements and type. Does nothing on a rank that is not in
    ``group``.
    """
    group = group or _world._default_pg
    if group is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    _C.all_reduce(tensor, op, group)


def lost_ranks(group: dist.ProcessGroup | None = None) -> list[int]:
    """Ranks of ``group`` whose process has ended or that were too slow, after an error."""
    return _backend_of(group).lost_ranks()


def _shrink(lost: list[int], group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """As ``torch.distributed.shrink_group``, and the new group knows its members.

    PyTorch takes ranks of ``group`` there, and leaves those out of the ranks of the default group.
    """
    is_default = group is None or group == _world._default_pg
    members = dist.get_process_group_ranks(group)
    left = [member for rank, member in enumerate(members) if rank not in lost]
    new_group = dist.shrink_group(lost, group)
    ranks = range(len(left))
    _world.pg_group_ranks[new_group] = dict(zip(ranks if is_default else left, ranks))
    return new_group


def shrink(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """A new group of the ranks of ``group`` that are alive, in their order; after an error.

    Collective over them. ``group`` has ended then; where it was the default group, the new one is,
    and all other groups have ended: ranks are numbered anew. It is
    ``torch.distributed.shrink_group(weir.lost_ranks(group), group)``, and PyTorch knows the
    members of the new group right. Operations in flight fail.
    A rank that the others have given up gets a ``DistBackendError`` that says so.
    The store of ``group`` must have outlived the lost ranks: a TCPStore in the process of rank 0
    does not outlive rank 0, torchrun's and a FileStore do.
    """
    noticed = time.monotonic() + _NOTICE_SECONDS
    while True:
        lost = lost_ranks(group)
        if not lost and time.monotonic() < noticed:
            # The error of another group may come before this one notices.
            time.sleep(0.01)
            continue
        if not lost:
            raise ValueError("no rank of the group is lost: see torch.distributed.shrink_group")
        if dist.get_rank(group) in lost:
            raise dist.DistBackendError(
                f"shrink: the others have given up rank {dist.get_rank(group)}, this one, which "
                "was stopped or slower than their deadline, and go on without it: end this "
                "process, or start it anew"
            )
        try:
            return _shrink(lost, group)
        except dist.DistBackendError:
            # Another rank may have been lost meanwhile.
            if lost_ranks(group) == lost:
                raise


register()
# Threads of Weir's that would call Python must have ended before Python does. In Gloo's place
# weir_in_place sees to that.
if "weir_in_place" not in sys.modules:
    atexit.register(_C.stop_completions)
