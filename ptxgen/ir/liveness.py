"""What nothing uses does not become text: dead operations, and registers that no operation names.

Verbs of the steps say what every caller may need: a tile's place, an address in the other CTA, a barrier's
second mbarrier. A role that needs only some of it has only that in its text.
"""

from __future__ import annotations

import dataclasses

from ptxgen.ir import ops as ir
from ptxgen.ir.effects import effects
from ptxgen.ir.program import Program, Role

_COMPUTING = frozenset[type[ir.Op]](
    (
        ir.ReadSpecial,
        ir.SharedBase,
        ir.LoadParameter,
        ir.TensorMapAddress,
        ir.SetConstant,
        ir.Integer,
        ir.Compare,
        ir.SmemAddress,
        ir.StageAddress,
        ir.MapAddress,
        ir.StartCursor,
        ir.AdvanceCursor,
        ir.SkipStages,
        ir.CachePolicy,
        ir.ClaimedCta,
        ir.DescriptorBase,
        ir.StageDescriptor,
        ir.ConvertPair,
        ir.RowMajorTile,
        ir.GroupedTile,
    )
)
"""Ops that do nothing but write registers: of no use where none of these is read afterwards."""


def without_unused(program: Program) -> Program:
    """The Program without operations whose results nothing reads, and without registers that then stand nowhere."""
    return _Liveness().without_unused(program)


class _Liveness:
    """Walks the text from its end, with the names of the registers that are read afterwards."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[list[str], list[str]]] = {}
        """What an op reads and writes, by its `id`: loops are walked until nothing more becomes live."""

    def without_unused(self, program: Program) -> Program:
        live: set[str] = set()
        teardown = self._needed(program.teardown, live)
        roles: list[Role] = []
        for role in reversed(program.roles):
            past = live.copy()
            body = self._needed(role.body, live)
            live |= past
            if role.skip:
                live.add(role.skip.name)
            test = self._needed(role.test, live)
            roles.append(dataclasses.replace(role, body=body, test=test))
        setup = self._needed(program.setup, live)
        found = dataclasses.replace(program, setup=setup, roles=tuple(reversed(roles)), teardown=teardown)
        named = {register.declared_name for op in found.ops() for some in effects(op) for register in some}
        return dataclasses.replace(found, registers=tuple(r for r in program.registers if r.name in named))

    def _needed(self, ops: tuple[ir.Op, ...], live: set[str]) -> tuple[ir.Op, ...]:
        """The ops of use where the `live` registers are read afterwards; `live` becomes what is live before them.

        A register that is read only to compute itself anew is not live: loops begin with what is live after them.
        """
        kept: list[ir.Op] = []
        for op in reversed(ops):
            if isinstance(op, ir.Return):
                live.clear()
            elif isinstance(op, ir.Guard):
                inside = live.copy()
                body = self._needed(op.body, inside)
                if not body:
                    continue
                op = dataclasses.replace(op, body=body)
                live |= inside
                live.add(op.predicate.name)
            elif isinstance(op, ir.While):
                op = self._needed_while(op, live)
            elif isinstance(op, ir.DoWhile):
                op = self._needed_do_while(op, live)
            else:
                reads, writes = self._names.get(id(op)) or self._names_of(op)
                if type(op) in _COMPUTING:
                    if live.isdisjoint(writes):
                        continue
                    if not isinstance(op, ir.ClaimedCta):  # which writes under a predicate
                        live.difference_update(writes)
                live.update(reads)
            kept.append(op)
        kept.reverse()
        return tuple(kept)

    def _needed_while(self, op: ir.While, live: set[str]) -> ir.While:
        past = live | {op.leave.name}
        at_head: set[str] = set()
        while True:
            live.clear()
            live |= at_head
            body = self._needed(op.body, live)
            live |= past
            head = self._needed(op.head, live)
            if live == at_head:
                return dataclasses.replace(op, head=head, body=body)
            at_head = live.copy()

    def _needed_do_while(self, op: ir.DoWhile, live: set[str]) -> ir.DoWhile:
        past = live | {op.again.name}
        at_head: set[str] = set()
        while True:
            live.clear()
            live |= past | at_head
            body = self._needed(op.body, live)
            if live == at_head:
                return dataclasses.replace(op, body=body)
            at_head = live.copy()

    def _names_of(self, op: ir.Op) -> tuple[list[str], list[str]]:
        reads, writes = effects(op)
        names = self._names[id(op)] = [register.name for register in reads], [register.name for register in writes]
        return names
