"""Asynchronous groups of one thread: bulk copies, and cp.async (PTX ISA 9.1 §9.7.9.24.3, §9.7.9.25.4)."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.emulator.asynchrony import AsyncOp


class AsyncGroups:
    """Operations since the last commit, and the committed groups, oldest first: those whose sources
    a wait_group.read has covered, then those that no wait has."""

    __slots__ = ("_groups", "_open", "_read")

    def __init__(self) -> None:
        self._open: list[AsyncOp] = []
        self._read: list[list[AsyncOp]] = []
        self._groups: list[list[AsyncOp]] = []

    def add(self, op: AsyncOp) -> None:
        self._open.append(op)

    def commit(self) -> tuple[int, ...]:
        """Closes the open group; returns its operations' ids."""
        group, self._open = self._open, []
        self._groups.append(group)
        return tuple(op.id for op in group)

    def wait(self, pending: int, read_only: bool = False) -> list[AsyncOp]:
        """The operations of all groups but the `pending` most recent ones, without those that a wait of
        this kind has had before."""
        count = max(0, len(self._read) + len(self._groups) - pending)
        fresh = max(0, count - len(self._read))
        covered = self._groups[:fresh]
        del self._groups[:fresh]
        if read_only:
            self._read += covered
        else:
            covered = self._read[:count] + covered
            del self._read[:count]
        return [op for group in covered for op in group]

    def all(self) -> Iterator[AsyncOp]:
        yield from self._open
        for group in (*self._read, *self._groups):
            yield from group

    def unwaited(self) -> list[AsyncOp]:
        """Operations that read a source which no wait has covered."""
        return [op for op in self.all() if op.read is not None and not op.waited]


def groups_of(by_lane: dict[int, AsyncGroups], lane: int) -> AsyncGroups:
    """A thread's groups, made at first use."""
    groups = by_lane.get(lane)
    if groups is None:
        groups = by_lane[lane] = AsyncGroups()
    return groups
