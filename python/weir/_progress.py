# SPDX-License-Identifier: Apache-2.0
"""Says on stderr how far long work is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

#: Between lines where stderr is no terminal, so that a log stays short.
INTERVAL_S = 10.0
#: Between changes of the line on a terminal.
CHANGE_S = 0.1


class Progress:
    """``title: 3 of 20, what is done now``.

    On a terminal it is one line, which is overwritten, and gone at the end; else a line every
    INTERVAL_S seconds, and none of work that takes less. One thread at a time uses it.
    """

    def __init__(
        self,
        title: str,
        total: int,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._is_terminal = self._file.isatty()
        self._done = 0
        # On a terminal the first step is shown at once.
        self._next_at = clock() if self._is_terminal else clock() + INTERVAL_S
        self._is_shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def now(self, what: str) -> None:
        """The next of the ``total`` steps begins: ``what``."""
        self._done += 1
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = now + (CHANGE_S if self._is_terminal else INTERVAL_S)
        text = f"{self._title}: {self._done} of {self._total}, {what}"
        if self._is_terminal:
            self._file.write(f"\r\x1b[K{text}")
            self._is_shown = True
        else:
            self._file.write(text + "\n")
        self._file.flush()

    def clear(self) -> None:
        """Before other output: takes the line from the terminal."""
        if self._is_shown:
            self._file.write("\r\x1b[K")
            self._file.flush()
            self._is_shown = False
