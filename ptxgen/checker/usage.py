"""Synchronisation that ordered nothing: executed, and no pair of accesses needed it."""

from __future__ import annotations


class Usage:
    """Lines of synchronising instructions that ran, and those on which an order rested; collected
    over any number of launches of one text."""

    def __init__(self) -> None:
        self._ran: set[int] = set()
        self._needed: set[int] = set()

    def ran(self, lines: set[int]) -> None:
        """Notes synchronising instructions."""
        self._ran |= lines

    def need(self, lines: set[int]) -> None:
        """Some order rested on these lines."""
        self._needed |= lines

    def add(self, other: Usage) -> None:
        """Takes over what another one has collected."""
        self._ran |= other._ran
        self._needed |= other._needed

    def idle_lines(self) -> tuple[int, ...]:
        """The lines that ordered nothing in any launch so far."""
        return tuple(sorted(self._ran - self._needed))
