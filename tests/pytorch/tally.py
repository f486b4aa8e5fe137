# SPDX-License-Identifier: Apache-2.0
"""What a program passes to the functions of torch.distributed, counted in Python from their
arguments: the operations and bytes that Weir must have served.

What goes past these functions, such as functional collectives, the gradients of
DistributedDataParallel and the methods of a group, a test adds itself (``add``).
"""

import collections
import functools
import inspect
import threading

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

# The operation, and the argument whose bytes count: what a rank passes, or receives into. Functions
# that call another one of these, such as send and all_gather_object, are not here.
_COUNTED = {
    "broadcast": ("BROADCAST", "tensor"),
    "all_reduce": ("ALLREDUCE", "tensor"),
    "reduce": ("REDUCE", "tensor"),
    "all_gather": ("ALLGATHER", "tensor"),
    "all_gather_into_tensor": ("_ALLGATHER_BASE", "input_tensor"),
    "gather": ("GATHER", "tensor"),
    "scatter": ("SCATTER", "tensor"),
    "reduce_scatter": ("REDUCE_SCATTER", "input_list"),
    "reduce_scatter_tensor": ("_REDUCE_SCATTER_BASE", "input"),
    "all_to_all_single": ("ALLTOALL_BASE", "input"),
    "all_to_all": ("ALLTOALL", "input_tensor_list"),
    "isend": ("SEND", "tensor"),
    "irecv": ("RECV", "tensor"),
    "barrier": ("BARRIER", None),
    "monitored_barrier": ("BARRIER", None),
}
# Where a coalescing manager makes one operation of several.
_COALESCED = {
    "ALLREDUCE": "ALLREDUCE_COALESCED",
    "_ALLGATHER_BASE": "COALESCED",
    "_REDUCE_SCATTER_BASE": "REDUCE_SCATTER_TENSOR_COALESCED",
}

_lock = threading.Lock()
_passed: collections.Counter = collections.Counter()


def add(operation: str, byte_count: int = 0) -> None:
    """By PyTorch's name (ALLREDUCE)."""
    with _lock:
        _passed[operation] += byte_count


def passed() -> dict[str, int]:
    """The bytes of each operation since ``forget``."""
    with _lock:
        return dict(_passed)


def forget() -> None:
    with _lock:
        _passed.clear()


def _bytes_of(value) -> int:
    if isinstance(value, torch.Tensor):
        return (value.coalesce().values() if value.is_sparse else value).nbytes
    return sum(tensor.nbytes for tensor in value or ())


def _count(function, operation, counted):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def with_count(*arguments, **named):
        given = signature.bind(*arguments, **named).arguments
        group = given.get("group") or c10d._get_default_group()
        value = given[counted] if counted else None
        name = operation
        if name == "ALLREDUCE" and value.is_sparse:
            name = "_ALLREDUCE_SPARSE"
        elif name == "RECV" and given.get("src") is None and given.get("group_src") is None:
            name = "RECVANYSOURCE"
        elif group in c10d._world.pg_coalesce_state:
            name = _COALESCED.get(name, name)
        byte_count = _bytes_of(value)
        result = function(*arguments, **named)
        if not c10d._rank_not_in_group(group):
            add(name, byte_count)
        return result

    return with_count


def install() -> None:
    """Once per process, after the backend has been registered."""
    for name, (operation, counted) in _COUNTED.items():
        function = _count(getattr(c10d, name), operation, counted)
        for module in (c10d, dist):
            setattr(module, name, function)
