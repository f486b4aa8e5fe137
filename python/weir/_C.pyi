# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend

built_for_torch: str

class Backend(C10dBackend):
    class Options(C10dBackend.Options):
        def __init__(self, timeout: timedelta = ...) -> None: ...
        deterministic: bool

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        group_name: str = "",
        description: str = "",
        deterministic: bool = False,
    ) -> None: ...
    @property
    def options(self) -> Backend.Options: ...
    def lost_ranks(self) -> list[int]: ...

def all_reduce(
    tensor: torch.Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup
) -> None: ...
def operation_counts() -> dict[str, tuple[int, int]]: ...
def reset_operation_counts() -> None: ...
def stop_completions() -> None: ...
def weir_version() -> int: ...
