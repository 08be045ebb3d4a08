"""By which way a holder of knowledge, a warp or a barrier, has learned of an operation."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.checker.clocks import Paths, members
from ptxgen.checker.operations import Observation, Operation

_NOW = 1 << 62

_Note = tuple[int, Sequence[object], int]
"""(order, sources, path): at that event a holder learned of something from one of the sources, along the path."""


class Provenance:
    """That knowledge is passed on is only noted; the way of one operation is worked out when something rests on it."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._new: dict[object, list[tuple[int, int, _Note]]] = {}
        """Holder -> what it was noted to learn, the operations `bits << low` each time, and is not sorted yet."""
        self._notes: dict[object, dict[int, list[_Note]]] = {}
        """Holder -> operation -> when it learned of that."""

    def note(self, order: int, bits: int, sources: Sequence[object], holder: object, path: int) -> None:
        """A holder learns of the operations `bits`."""
        low = (bits & -bits).bit_length() - 1
        self._new.setdefault(holder, []).append((low, bits >> low, (order, sources, path)))

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
        for order, sources, path in reversed(self._sorted(holder).get(fact.number, ())):
            if order < before:
                first = None
                for source in sources:
                    first = self._path(fact, source, order)
                    if first is not None:
                        break
                found = fact.paths[holder] = self._paths.join(first or 0, path) if path else first or 0
                return found
        return None

    def _sorted(self, holder: object) -> dict[int, list[_Note]]:
        notes = self._notes.setdefault(holder, {})
        for low, bits, note in self._new.pop(holder, ()):
            for number in members(bits):
                notes.setdefault(low + number, []).append(note)
        return notes
