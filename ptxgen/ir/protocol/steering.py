"""What of a Program decides who waits for whom: the part of it that the protocol check executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Register
from ptxgen.ir.program import Program, role_ops
from ptxgen.ir.protocol.knowledge import Place

_MUTE = frozenset[type[ir.Op]](
    (
        ir.Section,
        ir.SharedBase,
        ir.SmemAddress,
        ir.TensorMapAddress,
        ir.PrefetchTensorMap,
        ir.CachePolicy,
        ir.RelinquishTmem,
        ir.ConvertPair,
        ir.LoadGlobal,
        ir.StoreGlobal,
        ir.StorePartial,
        ir.LoadPartial,
        ir.AddPartial,
        ir.RaiseFlag,
        ir.WaitFlag,
        ir.SyncWarp,
        ir.SetMaxRegisters,
        ir.WaitForGrids,
        ir.LaunchDependents,
    )
)
"""Ops that neither wait nor are waited for, and steer nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every warp executes, one part after the other, and the addresses that never change."""

    blocks: tuple[tuple[ir.Op, ...], ...]
    places: dict[str, Place]


def parts_of(program: Program) -> Parts:
    """Set-up, role bodies behind their tests, teardown, without what decides nothing here: most of
    the epilogue's arithmetic."""
    needed = _needed(program)
    places = _fixed_places(program)

    def keep(ops: tuple[ir.Op, ...]) -> Iterator[ir.Op]:
        staged: Register | None = None
        for op in ops:
            if type(op) in _MUTE:
                continue
            if isinstance(op, (ir.Integer, ir.Compare, ir.ReadSpecial, ir.LoadParameter, ir.SetConstant)):
                if op.dst.name in needed and op.dst.name not in places:
                    yield op
                continue
            if isinstance(op, (ir.StoreShared, ir.StoreMatrix)):
                if op.address.base != staged:
                    yield op
                staged = op.address.base
                continue
            staged = None
            if isinstance(op, (ir.Guard, ir.DoWhile)):
                yield dataclasses.replace(op, body=tuple(keep(op.body)))
            elif isinstance(op, ir.While):
                yield dataclasses.replace(op, head=tuple(keep(op.head)), body=tuple(keep(op.body)))
            else:
                yield op

    bodies = (role_ops(role) for role in program.roles)
    blocks = (program.setup, *bodies, program.teardown)
    return Parts(blocks=tuple(tuple(keep(block)) for block in blocks), places=places)


def _fixed_places(program: Program) -> dict[str, Place]:
    """Registers that are only ever addresses of one place, whatever integers are added to them."""
    found: dict[str, Place | None] = {}
    for op in program.ops():
        if isinstance(op, ir.SmemAddress):
            place: Place | None = Place(op.place.name, 0)
        elif isinstance(op, ir.Integer):
            bases = [found.get(s.name) for s in op.sources if isinstance(s, Register)]
            place = next((base for base in bases if base), None)
        elif isinstance(op, (ir.MapAddress, ir.StageAddress, ir.StageDescriptor, ir.DescriptorBase)):
            place = None
        else:
            continue
        known = found.setdefault(op.dst.name, place)
        if known != place:
            found[op.dst.name] = None
    return {name: place for name, place in found.items() if place}


def _needed(program: Program) -> frozenset[str]:
    """Registers that steer: predicates, stages, parities, addresses, and what they come from."""
    sources: dict[str, set[str]] = {}
    roots: set[str] = set()

    def names(*operands: object) -> set[str]:
        return {item.name for item in operands if isinstance(item, Register)}

    def visit(block: tuple[ir.Op, ...]) -> None:
        for op in block:
            if isinstance(op, ir.Guard):
                roots.add(op.predicate.name)
                visit(op.body)
            elif isinstance(op, ir.While):
                roots.add(op.leave.name)
                visit(op.head)
                visit(op.body)
            elif isinstance(op, ir.DoWhile):
                roots.add(op.again.name)
                visit(op.body)
            elif isinstance(op, ir.Integer):
                sources.setdefault(op.dst.name, set()).update(names(*op.sources))
            elif isinstance(op, ir.Compare):
                sources.setdefault(op.dst.name, set()).update(names(op.left, op.right))
            elif isinstance(op, (ir.StageAddress, ir.StageDescriptor)):
                roots.update(names(op.base, op.stage, op.stride))
            elif isinstance(op, ir.AdvanceCursor):
                roots.update(names(op.cursor.stage_count))
            elif isinstance(op, ir.SkipStages):
                roots.update(names(op.cursor.stage_count, op.count))
            elif isinstance(op, ir.WaitBarrier):
                roots.update(names(op.parity, op.address.base))
            elif isinstance(op, ir.ArriveExpect):
                roots.update(names(op.transaction_bytes, op.address.base))
            elif isinstance(op, ir.MapAddress):
                roots.update(names(op.address, op.rank))
            elif isinstance(op, ir.CommitMma):
                roots.update(names(op.mask))
            elif isinstance(op, ir.TmaLoad):
                roots.update(names(op.mask, op.dst.base, op.barrier.base))
            elif isinstance(op, ir.SyncNamedBarrier):
                roots.update(names(op.id))
            elif isinstance(op, ir.Mma):
                roots.update(names(op.tmem, op.a, op.b, op.instruction))
            elif isinstance(op, ir.Wgmma):
                roots.update(names(op.a, op.b))
            elif isinstance(op, (ir.StoreShared, ir.StoreMatrix, ir.LoadTmem)):
                roots.add(op.address.base.name)

    visit(program.setup)
    for role in program.roles:
        visit(role_ops(role))
    visit(program.teardown)
    needed: set[str] = set()
    while roots:
        name = roots.pop()
        if name not in needed:
            needed.add(name)
            roots |= sources.get(name, set())
    return frozenset(needed)
