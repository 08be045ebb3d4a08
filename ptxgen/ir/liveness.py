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

Names = frozenset[str]
_NONE: Names = frozenset()


def without_unused(program: Program) -> Program:
    """The Program without operations whose results nothing reads, and without registers that then stand nowhere."""
    teardown, live = _needed(program.teardown, _NONE)
    roles: list[Role] = []
    for role in reversed(program.roles):
        body, in_body = _needed(role.body, live)
        skip = frozenset([role.skip.name]) if role.skip else _NONE
        test, live = _needed(role.test, live | in_body | skip)
        roles.append(dataclasses.replace(role, body=body, test=test))
    setup, _ = _needed(program.setup, live)
    found = dataclasses.replace(program, setup=setup, roles=tuple(reversed(roles)), teardown=teardown)
    named = {register.declared_name for op in found.ops() for some in effects(op) for register in some}
    return dataclasses.replace(found, registers=tuple(r for r in program.registers if r.name in named))


def _needed(ops: tuple[ir.Op, ...], live: Names) -> tuple[tuple[ir.Op, ...], Names]:
    """The ops of use where the `live` registers are read afterwards, and what is live before them.

    A register that is read only to compute itself anew is not live: loops begin with what is live after them.
    """
    kept: list[ir.Op] = []
    for op in reversed(ops):
        if isinstance(op, ir.Return):
            live = _NONE
        elif isinstance(op, ir.Guard):
            body, inside = _needed(op.body, live)
            if not body:
                continue
            op = dataclasses.replace(op, body=body)
            live |= inside | {op.predicate.name}
        elif isinstance(op, ir.While):
            op, live = _needed_while(op, live)
        elif isinstance(op, ir.DoWhile):
            op, live = _needed_do_while(op, live)
        else:
            reads, writes = effects(op)
            if type(op) in _COMPUTING:
                if not any(register.name in live for register in writes):
                    continue
                if not isinstance(op, ir.ClaimedCta):  # which writes under a predicate
                    live -= {register.name for register in writes}
            live |= {register.name for register in reads}
        kept.append(op)
    return tuple(reversed(kept)), live


def _needed_while(op: ir.While, after: Names) -> tuple[ir.While, Names]:
    at_head = _NONE
    while True:
        body, in_body = _needed(op.body, at_head)
        head, live = _needed(op.head, after | in_body | {op.leave.name})
        if live == at_head:
            return dataclasses.replace(op, head=head, body=body), live
        at_head = live


def _needed_do_while(op: ir.DoWhile, after: Names) -> tuple[ir.DoWhile, Names]:
    at_head = _NONE
    while True:
        body, live = _needed(op.body, after | at_head | {op.again.name})
        if live == at_head:
            return dataclasses.replace(op, body=body), live
        at_head = live
