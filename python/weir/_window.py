# SPDX-License-Identifier: Apache-2.0
"""One-sided operations: put, get, signals and atomic counters (docs/one_sided.md)."""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.distributed as dist

from ._library import _C

_WORD = 1 << 64


def _memory(data: torch.Tensor, of: str) -> torch.Tensor:
    """The elements of ``data``, without its history."""
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"{of}: a tensor is needed, not {type(data).__name__}")
    return data.detach()


class Window:
    """A tensor of each rank that all ranks of a group read and write, and counters beside it.

    Creating one is collective over ``group``: each rank passes a contiguous CPU tensor of any
    shape and size (also of 0 elements), all of one type, and the same number of ``signals``: words
    of 64 bits that begin as 0 (else ``ValueError`` on all ranks, which says who differs). The
    tensor is not copied and belongs to the window until its end.

    An operation names the *target*, a rank in the group, which need not call anything. Offsets
    count elements of the target's tensor, as if it were flat. ``put``, ``put_signal`` and
    ``signal`` are complete when their tensor may be reused; its elements may still be on their way.
    They have arrived

    * when a rank has waited for the signal of a ``put_signal``: its elements, and those of what
      this rank has called before and ordered by ``fence`` or ``flush``;
    * when ``flush`` has returned.

    With ``async_op=True`` an operation returns a ``Work`` and its tensor is in use until that is
    complete; without, it returns when it is complete, without the GIL meanwhile. Errors are those
    of the group's other operations: ``ValueError`` for a wrong target, offset, signal or tensor
    (``TypeError`` for what is no tensor or no number), ``DistBackendError`` where a rank is lost or
    the group's timeout passes. Any thread may call.

        with weir.Window(torch.zeros(1000), signals=1) as window:
            if dist.get_rank() == 1:
                window.put_signal(torch.ones(10), target=0, signal=0, offset=100)
            if dist.get_rank() == 0:
                window.wait_signal(0, 1)
                assert window.tensor[100:110].sum() == 10
    """

    def __init__(
        self, tensor: torch.Tensor, signals: int = 0, group: dist.ProcessGroup | None = None
    ) -> None:
        from ._api import _backend_of

        memory = _memory(tensor, "Window")
        self._tensor = tensor
        self._signals = signals
        self._window = _C.Window(_backend_of(group), memory, signals)

    @property
    def tensor(self) -> torch.Tensor:
        """This rank's tensor."""
        return self._tensor

    @property
    def signals(self) -> int:
        """How many words each rank has."""
        return self._signals

    def elements_of(self, rank: int) -> int:
        """How many elements the tensor of ``rank`` has."""
        return self._window.bytes_of(rank) // self._tensor.element_size()

    def _elements(self, data: torch.Tensor, offset: int, of: str) -> tuple[torch.Tensor, int]:
        """``data`` and the offset in bytes."""
        memory = _memory(data, of)
        if data.dtype != self._tensor.dtype:
            raise ValueError(f"a tensor of {data.dtype} for a window of {self._tensor.dtype}")
        if offset < 0:
            raise ValueError(f"an offset of {offset} elements")
        return memory, offset * self._tensor.element_size()

    @overload
    def put(
        self, data: torch.Tensor, target: int, offset: int = 0, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def put(
        self, data: torch.Tensor, target: int, offset: int = 0, *, async_op: Literal[True]
    ) -> dist.Work: ...
    def put(self, data, target, offset=0, *, async_op=False):
        """Copies ``data`` (any shape) to elements ``offset`` and following of the target."""
        memory, at = self._elements(data, offset, "Window.put")
        return self._window.put(memory, target, at, async_op)

    @overload
    def put_signal(
        self,
        data: torch.Tensor,
        target: int,
        signal: int,
        offset: int = 0,
        value: int = 1,
        *,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def put_signal(
        self,
        data: torch.Tensor,
        target: int,
        signal: int,
        offset: int = 0,
        value: int = 1,
        *,
        async_op: Literal[True],
    ) -> dist.Work: ...
    def put_signal(self, data, target, signal, offset=0, value=1, *, async_op=False):
        """As ``put``; then, once the elements are there, as ``signal``."""
        memory, at = self._elements(data, offset, "Window.put_signal")
        return self._window.put_signal(memory, target, at, signal, value % _WORD, async_op)

    @overload
    def get(
        self, data: torch.Tensor, target: int, offset: int = 0, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def get(
        self, data: torch.Tensor, target: int, offset: int = 0, *, async_op: Literal[True]
    ) -> dist.Work: ...
    def get(self, data, target, offset=0, *, async_op=False):
        """Fills ``data`` (contiguous) with elements ``offset`` and following of the target."""
        memory, at = self._elements(data, offset, "Window.get")
        return self._window.get(memory, target, at, async_op)

    @overload
    def signal(
        self, target: int, signal: int, value: int = 1, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def signal(
        self, target: int, signal: int, value: int = 1, *, async_op: Literal[True]
    ) -> dist.Work: ...
    def signal(self, target, signal, value=1, *, async_op=False):
        """Adds ``value`` to the target's word ``signal``."""
        return self._window.signal(target, signal, value % _WORD, async_op)

    @overload
    def wait_signal(self, signal: int, value: int, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def wait_signal(self, signal: int, value: int, *, async_op: Literal[True]) -> dist.Work: ...
    def wait_signal(self, signal, value, *, async_op=False):
        """Waits until this rank's own word ``signal`` has reached ``value``; it keeps its value.

        It has where it is less than 2^63 beyond ``value``, modulo 2^64.
        """
        return self._window.wait_signal(signal, value % _WORD, async_op)

    def signal_value(self, signal: int) -> int:
        """This rank's own word ``signal``, now; what the signals in it cover can be read."""
        return self._window.signal_value(signal)

    def fetch_add(self, target: int, signal: int, value: int = 1) -> int:
        """Adds ``value`` to the target's word, modulo 2^64; returns what it was before."""
        return self._window.fetch_add(target, signal, value % _WORD)

    def compare_swap(self, target: int, signal: int, expected: int, desired: int) -> int:
        """Sets the target's word to ``desired`` if it is ``expected``; returns what it was."""
        return self._window.compare_swap(target, signal, expected % _WORD, desired % _WORD)

    def fence(self, target: int | None = None) -> None:
        """This rank's earlier operations on ``target`` (None: on each rank) are done there before
        its later ones. Does not wait."""
        self._window.fence(-1 if target is None else target)

    @overload
    def flush(self, target: int | None = None, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def flush(self, target: int | None = None, *, async_op: Literal[True]) -> dist.Work: ...
    def flush(self, target=None, *, async_op=False):
        """Complete when this rank's earlier operations on ``target`` (None: on all) are done."""
        return self._window.flush(-1 if target is None else target, async_op)

    def close(self) -> None:
        """Collective: ends the window when the operations of all ranks in it are done.

        ``ValueError`` where it has been closed or retired already, also at the end of ``with``.
        """
        self._window.close()

    def retire(self) -> None:
        """Ends this rank's part; the others need not call anything, also after an error.

        Returns when nobody reads or writes this rank's tensor any more. A window that is neither
        closed nor retired ends like this when it is garbage.
        """
        self._window.retire()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
        else:
            self.retire()
