"""Progress of long work, on stderr."""

from __future__ import annotations

import sys
import time

_FIRST_AFTER_SECONDS = 2.0


class Progress:
    """A callable(done, total) that says nothing about work of less than two seconds.

    On a terminal one line is rewritten twice a second; elsewhere a line is written every ten seconds.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _FIRST_AFTER_SECONDS
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._terminal else 10.0)
        text = f"{self._what}: {done} of {total} ({100 * done // max(total, 1)} %)"
        if self._terminal:
            self._shown = True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
