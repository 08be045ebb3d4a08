"""Labels, branches, and the three ops that have a structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ptxgen.ir.declarations import Register
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Section(Op):
    """A heading in the text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Label(Op):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class KeepRolled(Op):
    """Tell ptxas not to unroll the loop whose first block this is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Branch(Op):
    """Jump to a label, always or where the predicate has the wanted value."""

    target: str
    predicate: Register | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Return(Op):
    """End the thread."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Guard(Op):
    """Run the body only where the predicate is true (negate: false); else go on at the label."""

    label: str
    predicate: Register
    body: tuple[Op, ...]
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class While(Op):
    """Loop tested at the top: the head computes `leave`, which ends the loop at `done`.

    rolled: ptxas must keep the loop, so that its registers are those of one turn (ptxas 13.0
    heeds the pragma in loops tested at the top only).
    """

    label: str
    done: str
    head: tuple[Op, ...]
    leave: Register
    body: tuple[Op, ...]
    rolled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DoWhile(Op):
    """Loop tested at the bottom: the body computes `again`; it runs at least once."""

    label: str
    body: tuple[Op, ...]
    again: Register


def flatten(ops: Iterable[Op]) -> Iterator[Op]:
    """Replace Guard, While and DoWhile by Branch and Label, in text order."""
    for op in ops:
        if isinstance(op, Guard):
            yield Branch(target=op.label, predicate=op.predicate, negate=not op.negate, comment=op.comment)
            yield from flatten(op.body)
            yield Label(name=op.label)
        elif isinstance(op, While):
            yield Label(name=op.label)
            if op.rolled:
                yield KeepRolled(comment="registers of one turn only")
            yield from flatten(op.head)
            yield Branch(target=op.done, predicate=op.leave)
            yield from flatten(op.body)
            yield Branch(target=op.label)
            yield Label(name=op.done)
        elif isinstance(op, DoWhile):
            yield Label(name=op.label)
            yield from flatten(op.body)
            yield Branch(target=op.label, predicate=op.again)
        else:
            yield op
