"""Asynchronous groups of one thread: bulk copies, and cp.async (PTX ISA 9.1 §9.7.9.24.3, §9.7.9.25.4)."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.emulator.asynchrony import AsyncOp


class AsyncGroups:
    """Operations since the last commit, and the committed groups, oldest first."""

    __slots__ = ("_groups", "_open")

    def __init__(self) -> None:
        self._open: list[AsyncOp] = []
        self._groups: list[list[AsyncOp]] = []

    def add(self, op: AsyncOp) -> None:
        self._open.append(op)

    def commit(self) -> tuple[int, ...]:
        """Closes the open group; returns its operations' ids."""
        group, self._open = self._open, []
        self._groups.append(group)
        return tuple(op.id for op in group)

    def older_than(self, pending: int) -> list[AsyncOp]:
        """The operations of all groups but the `pending` most recent ones."""
        covered = self._groups[: max(0, len(self._groups) - pending)]
        return [op for group in covered for op in group]

    def forget(self) -> None:
        """Drops the oldest groups whose operations are all complete and waited for."""
        while self._groups and all(op.done and op.waited for op in self._groups[0]):
            self._groups.pop(0)

    def all(self) -> Iterator[AsyncOp]:
        yield from self._open
        for group in self._groups:
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
