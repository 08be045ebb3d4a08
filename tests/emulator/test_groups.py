"""Asynchronous groups: which operations a wait covers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ptxgen.emulator.groups import AsyncGroups


def groups_of(count: int) -> AsyncGroups:
    """Groups 0 … count-1 of one operation each."""
    groups = AsyncGroups()
    for number in range(count):
        operation: Any = SimpleNamespace(id=number, read=None, waited=False)
        groups.add(operation)
        assert groups.commit() == (number,)
    return groups


def ids(operations: list[Any]) -> list[int]:
    return [operation.id for operation in operations]


def test_a_wait_leaves_the_most_recent_groups() -> None:
    groups = groups_of(3)
    assert ids(groups.wait(1)) == [0, 1]
    assert ids(groups.wait(1)) == []
    assert ids(groups.wait(0)) == [2]


def test_a_full_wait_covers_what_only_a_read_wait_has() -> None:
    groups = groups_of(3)
    assert ids(groups.wait(1, read_only=True)) == [0, 1]
    assert ids(groups.wait(1, read_only=True)) == []
    assert ids(groups.wait(2)) == [0]
    assert ids(groups.wait(0)) == [1, 2]
    assert list(groups.all()) == []


def test_more_pending_than_there_are() -> None:
    groups = groups_of(2)
    assert groups.wait(5) == groups.wait(5, read_only=True) == []
    assert ids(list(groups.all())) == [0, 1]
