# SPDX-License-Identifier: Apache-2.0
"""Makes PyTorch know the backend ``weir``."""

from __future__ import annotations

import functools
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ._library import _C

NAME = "weir"

_new_group = threading.local()  # .members: ranks of the default group, while PyTorch makes one


def create_backend(
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    name: str = NAME,
    group_name: str = "",
    description: str = "",
    deterministic: bool = False,
    arena_bytes: int | None = None,
    enable_reconfigure: bool = False,
) -> _C.Backend:
    """A backend of ``size`` ranks that meet in ``store``; collective over them.

    ``name`` stands in profiles; ``group_name`` and ``description`` in Weir's errors and records.
    ``deterministic`` and ``arena_bytes``: see ``weir.Options``. With ``enable_reconfigure`` it is
    local, and the backend has no members before its first ``reconfigure`` (PyTorch 2.14).
    """
    members = getattr(_new_group, "members", ())
    known = _backends(None) if members and dist.is_initialized() else []
    return _C.Backend(
        store,
        rank,
        size,
        timeout,
        name,
        parent=known[0] if known else None,
        members=list(members),
        group_name=group_name,
        description=description,
        deterministic=deterministic,
        arena_bytes=arena_bytes,
        enable_reconfigure=enable_reconfigure,
    )


def _create(options, backend_options):
    chosen = {}
    if backend_options is not None:
        if not isinstance(backend_options, _C.Backend.Options):
            raise TypeError(
                f"pg_options of the backend weir are weir.Options, not {type(backend_options)}"
            )
        chosen = {
            "deterministic": backend_options.deterministic,
            "arena_bytes": backend_options.arena_bytes,
        }
    timeout = options.timeout
    return create_backend(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        group_name=options.group_id,
        enable_reconfigure=getattr(options, "enable_reconfigure", False),  # from 2.14 on
        **chosen,
    )


def backend_of(group: dist.ProcessGroup, device: torch.device):
    """The backend for the device, which may not be Weir's.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL PyTorch puts a wrapper around it.
    """
    backend = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def _backends(group: dist.ProcessGroup | None) -> list[_C.Backend]:
    group = group or c10d._get_default_group()
    if c10d._rank_not_in_group(group):
        return []
    found = (backend_of(group, device) for device in group._device_types)
    return [backend for backend in found if isinstance(backend, _C.Backend)]


def _extend_set_timeout() -> None:
    """PyTorch's own knows Gloo and NCCL only."""
    original = c10d._set_pg_timeout

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        own = _backends(group)
        for backend in own:
            backend._set_default_timeout(timeout)
        if not own or len(own) < len((group or c10d._get_default_group())._device_types):
            original(timeout, group)

    c10d._set_pg_timeout = set_pg_timeout
    if getattr(dist, "_set_pg_timeout", None) is original:
        dist._set_pg_timeout = set_pg_timeout


def _extend_monitored_barrier() -> None:
    """PyTorch's own refuses every backend that is not called gloo."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: dist.ProcessGroup | None = c10d.GroupMember.WORLD,
        timeout: timedelta | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        if not _backends(group):
            return original(group, timeout, wait_all_ranks)
        used = group or c10d._get_default_group()
        backend = backend_of(used, torch.device("cpu"))
        used_timeout = c10d.default_pg_timeout if timeout is None else timeout
        return backend.monitored_barrier(used_timeout, wait_all_ranks)

    dist.monitored_barrier = monitored_barrier
    c10d.monitored_barrier = monitored_barrier


def _extend_new_groups() -> None:
    """Tells create_backend who the members are, which a backend in Gloo's place is not told."""
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def new_process_group_helper(group_size, group_rank, global_ranks_in_group, *args, **kwargs):
        _new_group.members = tuple(global_ranks_in_group)
        try:
            return original(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        finally:
            _new_group.members = ()

    c10d._new_process_group_helper = new_process_group_helper


def register() -> None:
    """Once per process; importing ``weir`` does it."""
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    _extend_set_timeout()
    _extend_monitored_barrier()
    _extend_new_groups()
