"""By which way a holder of knowledge, a warp or a barrier, has learned of an operation."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.checker.clocks import Paths
from ptxgen.checker.operations import Observation, Operation

_NOW = 1 << 62

_Note = tuple[int, int, int, Sequence[object], int]
"""(order, low, bits, sources, path): at that event a holder learned of the operations `bits << low` from one of the
sources, along the path."""

_BLOCK = 6
"""Notes are kept by blocks of 2 ** 6 operations, so that few are looked at for one."""


class Provenance:
    """That knowledge is passed on is only noted; the way of one operation is worked out when something rests on it."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._notes: dict[tuple[object, int], list[_Note]] = {}
        """(Holder, block) -> when it learned of operations in that block."""

    def note(self, order: int, bits: int, sources: Sequence[object], holder: object, path: int) -> None:
        """A holder learns of the operations `bits`."""
        low = (bits & -bits).bit_length() - 1
        note = (order, low, bits >> low, sources, path)
        for block in range(low >> _BLOCK, (bits.bit_length() - 1 >> _BLOCK) + 1):
            self._notes.setdefault((holder, block), []).append(note)

    def need(self, fact: Operation | Observation, holder: object) -> None:
        """Something rests on a holder's knowledge of the operation. Once all lines have been needed there is nothing
        to find out."""
        fact.needed = True
        if not self._paths.open_lines:
            return
        path = fact.paths.get(holder)
        if path is None:
            path = self._path(fact, holder, _NOW)
        self._paths.need(path or 0)

    def _path(self, fact: Operation | Observation, holder: object, before: int) -> int | None:
        """The way by which it had learned of it before an event; None if it had not."""
        known = fact.paths.get(holder)
        if known is not None:
            return known
        number = fact.number
        for order, low, bits, sources, path in reversed(self._notes.get((holder, number >> _BLOCK), ())):
            if order < before and number >= low and bits >> number - low & 1:
                first = None
                for source in sources:
                    first = self._path(fact, source, order)
                    if first is not None:
                        break
                found = fact.paths[holder] = self._paths.join(first or 0, path) if path else first or 0
                return found
        return None
