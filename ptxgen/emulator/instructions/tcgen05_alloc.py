"""tcgen05.alloc, .dealloc and .relinquish_alloc_permit (PTX ISA 9.1 §9.7.16.7).

Under cta_group::2 a warp of each CTA of the pair runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ptxgen.emulator import events
from ptxgen.emulator.cluster import Pair, Perform
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.instructions.access import Access
from ptxgen.emulator.instructions.tcgen05 import group, uniform
from ptxgen.emulator.values import Registers
from ptxgen.emulator.warp import Wait, Warp
from ptxgen.errors import MachineError


class _Columns(NamedTuple):
    """What has to be the same in both CTAs of a pair; the address when it is to be freed."""

    columns: int = 0
    address: int | None = None
    destination: int | None = None
    """Offset in shared memory: of an allocation one CTA writes the address to both."""

    def __str__(self) -> str:
        where = "" if self.address is None else f" at {self.address:#010x}"
        to = "" if self.destination is None else f" to shared address {self.destination:#x}"
        return f"{self.columns} columns{where}{to}"


@instruction("tcgen05.alloc")
def alloc(d: Decode) -> Ends:
    pair = group(d) == 2
    d.require("sync", "aligned", "b32")
    space = d.optional("shared", "shared::cta")
    target = Access(d, space, 4, 1)
    count = d.src("u32")
    line, hooks = d.line, d.hooks

    def destination(warp: Warp) -> tuple[Any, int]:
        """Where the warp wants the address."""
        block, offset, owner = target.where(warp.r, uniform(warp, target.addresses(warp.r), "the destination"))
        if owner is not warp.cta:
            raise MachineError("out-of-bounds", "tcgen05.alloc writes its result to shared memory of its CTA")
        return block, offset

    def give(warp: Warp, columns: int, address: int) -> None:
        block, offset = destination(warp)
        cta: Cta = warp.cta
        cta.check_store(offset, offset + 4)
        block.store_word(offset, 4, address)
        cta.unit.activity += 1
        if hooks:
            _tell(warp, line, "alloc", pair, address, columns)
            where, spans = cta.unit.where(warp, warp.live, line), ((offset, offset + 4),)
            cta.unit.emit(
                events.Access(*where, space="shared", kind="write", proxy="generic", ranges=spans, owner=cta.rank)
            )

    def half(warp: Warp, column: int | None) -> int | None:
        """One CTA's part. The first to run finds columns that are free in both CTAs."""
        cta: Cta = warp.cta
        columns = uniform(warp, warp.r[count], "the column count")
        if column is None:
            other = cta.unit.ctas[cta.rank ^ 1]
            rooms = cta.tmem.room(columns), other.tmem.room(columns)
            if None in rooms or rooms[0] != rooms[1]:
                _wait_for_columns(warp, [cta, other], columns, line)
                return None
            address = cta.tmem.alloc(columns)
            assert address is not None
            column = address & 0xFFFF
            other.tmem.reserve(column, columns)
        else:
            address = cta.tmem.alloc_reserved(column)
        give(warp, columns, address)
        return column

    def op(r: Registers) -> bool:
        warp = r[0]
        warp.require_converged("tcgen05.alloc")
        columns = uniform(warp, r[count], "the column count")
        if pair:
            return _by_pair("tcgen05.alloc", warp, line, _Columns(columns, destination=destination(warp)[1]), half)
        address = warp.cta.tmem.alloc(columns)
        if address is None:
            return _wait_for_columns(warp, [warp.cta], columns, line)
        give(warp, columns, address)
        return True

    return Ends(kind="blocking", op=op, repeats=True)


def _wait_for_columns(warp: Warp, ctas: list[Cta], columns: int, line: int) -> bool:
    for cta in ctas:
        cta.tmem_users.append(warp.current)
    return warp.wait(Wait("tensor memory", line, detail=columns))


def _by_pair(what: str, warp: Warp, line: int, operands: _Columns, perform: Perform) -> bool:
    """Whether the warp goes on: its half has been run."""
    pair: Pair = warp.cta.unit.pairs[warp.cta.rank >> 1]
    return pair.together(what, warp, line, operands, perform)


@instruction("tcgen05.dealloc")
def dealloc(d: Decode) -> Op | Ends:
    pair = group(d) == 2
    d.require("sync", "aligned", "b32")
    address, count = d.src("b32"), d.src("u32")
    line, hooks = d.line, d.hooks

    def request(r: Registers) -> _Columns:
        warp = r[0]
        warp.require_converged("tcgen05.dealloc")
        place, columns = uniform(warp, r[address], "the TMEM address"), uniform(warp, r[count], "the column count")
        return _Columns(columns, place)

    def free(warp: Warp, what: _Columns) -> None:
        cta: Cta = warp.cta
        assert what.address is not None
        cta.tmem.dealloc(what.address, what.columns)
        for fragment in cta.tmem_users:
            fragment.wait = None
        cta.tmem_users.clear()
        cta.unit.activity += 1
        if hooks:
            _tell(warp, line, "dealloc", pair, what.address, what.columns)

    def op(r: Registers) -> None:
        free(r[0], request(r))

    return _alone_or_together("tcgen05.dealloc", pair, line, op, request, free)


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(d: Decode) -> Op | Ends:
    pair = group(d) == 2
    d.require("sync", "aligned")
    line, hooks = d.line, d.hooks

    def request(r: Registers) -> _Columns:
        r[0].require_converged("tcgen05.relinquish_alloc_permit")
        return _Columns()

    def give_up(warp: Warp, what: _Columns) -> None:
        warp.cta.tmem.relinquish()
        if hooks:
            _tell(warp, line, "relinquish", pair)

    def op(r: Registers) -> None:
        give_up(r[0], request(r))

    return _alone_or_together("tcgen05.relinquish_alloc_permit", pair, line, op, request, give_up)


def _alone_or_together(
    what: str,
    pair: bool,
    line: int,
    alone: Op,
    request: Callable[[Registers], _Columns],
    effect: Callable[[Warp, _Columns], None],
) -> Op | Ends:
    if not pair:
        return alone

    def half(warp: Warp, settled: bool | None) -> bool:
        effect(warp, request(warp.r))
        return True

    def op(r: Registers) -> bool:
        return _by_pair(what, r[0], line, request(r), half)

    return Ends(kind="blocking", op=op, repeats=True)


def _tell(warp: Warp, line: int, action: str, pair: bool, address: int = 0, columns: int = 0) -> None:
    unit: Any = warp.cta.unit
    where = unit.where(warp, warp.live, line)
    unit.emit(events.TmemAllocation(*where, action=action, column=address & 0xFFFF, columns=columns, pair=pair))
