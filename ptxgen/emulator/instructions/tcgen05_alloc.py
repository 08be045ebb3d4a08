"""tcgen05.alloc, .dealloc and .relinquish_alloc_permit (PTX ISA 9.1 §9.7.16.7).

Under cta_group::2 a warp of each CTA of the pair runs them, and they take effect in both at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ptxgen.emulator import events
from ptxgen.emulator.cluster import Half, Pair
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.instructions.access import Access
from ptxgen.emulator.instructions.tcgen05 import group, uniform
from ptxgen.emulator.memory import Block
from ptxgen.emulator.values import Registers
from ptxgen.emulator.warp import Wait, Warp
from ptxgen.errors import MachineError


class _Request(NamedTuple):
    """One warp's operands: columns, and the TMEM address to free or where the new one is stored."""

    columns: int = 0
    address: int = 0
    block: Block | None = None
    offset: int = 0


@instruction("tcgen05.alloc")
def alloc(d: Decode) -> Ends:
    pair = group(d) == 2
    d.require("sync", "aligned", "b32")
    space = d.optional("shared", "shared::cta")
    target = Access(d, space, 4, 1)
    count = d.src("u32")
    line, hooks = d.line, d.hooks

    def request(r: Registers) -> _Request:
        columns = uniform(r[0], r[count], "the column count")
        block, offset, owner = target.where(r, uniform(r[0], target.addresses(r), "the destination"))
        if owner is not r[0].cta:
            raise MachineError("out-of-bounds", "tcgen05.alloc writes its result to shared memory of its CTA")
        return _Request(columns, block=block, offset=offset)

    def give(warp: Warp, wanted: _Request, address: int) -> None:
        cta = warp.cta
        cta.check_store(wanted.offset, wanted.offset + 4)
        assert wanted.block is not None
        wanted.block.store_word(wanted.offset, 4, address)
        cta.unit.activity += 1
        if hooks:
            _tell(warp, line, "alloc", address, wanted.columns)
            where, spans = cta.unit.where(warp, warp.live, line), ((wanted.offset, wanted.offset + 4),)
            cta.unit.emit(
                events.Access(**where, space="shared", kind="write", proxy="generic", ranges=spans, owner=cta.rank)
            )

    def both(halves: tuple[Half, Half], warp: Warp) -> bool:
        ctas = [half.fragment.warp.cta for half in halves]
        if any(cta.tmem.room(half.operands.columns) is None for cta, half in zip(ctas, halves, strict=True)):
            return _wait_for_columns(warp, ctas, halves[0].operands.columns, line)
        for half in halves:
            mine = half.fragment.warp
            address = mine.cta.tmem.alloc(half.operands.columns)
            assert address is not None
            give(mine, half.operands, address)
        return True

    def op(r: Registers) -> bool:
        warp = r[0]
        warp.require_converged("tcgen05.alloc")
        wanted = request(r)
        if pair:
            return _by_pair("tcgen05.alloc", warp, line, wanted, both)
        address = warp.cta.tmem.alloc(wanted.columns)
        if address is None:
            return _wait_for_columns(warp, [warp.cta], wanted.columns, line)
        give(warp, wanted, address)
        return True

    return Ends(kind="blocking", op=op, repeats=True)


def _wait_for_columns(warp: Warp, ctas: list[Cta], columns: int, line: int) -> bool:
    for cta in ctas:
        cta.tmem_users.append(warp.current)
    return warp.wait(Wait("tensor memory", line, detail=columns))


def _by_pair(
    what: str, warp: Warp, line: int, operands: _Request, perform: Callable[[tuple[Half, Half], Warp], bool]
) -> bool:
    """Whether the operation has taken effect in both CTAs of the warp's pair."""

    def checked(even: Half, odd: Half) -> bool:
        if even.operands.columns != odd.operands.columns or even.operands.address != odd.operands.address:
            lines = f"line {even.line}" if even.line == odd.line else f"lines {even.line} and {odd.line}"
            raise MachineError(
                "illegal-tmem-allocation",
                f"the two CTAs of a pair run {what} ({lines}) with different operands: "
                f"{_operands(even.operands)} and {_operands(odd.operands)}",
            )
        return perform((even, odd), warp)

    pair: Pair = warp.cta.unit.pairs[warp.cta.rank >> 1]
    return pair.together(what, warp, line, operands, checked)


def _operands(request: _Request) -> str:
    where = "" if request.block is not None else f" at {request.address:#010x}"
    return f"{request.columns} columns{where}"


@instruction("tcgen05.dealloc")
def dealloc(d: Decode) -> Op | Ends:
    pair = group(d) == 2
    d.require("sync", "aligned", "b32")
    address, count = d.src("b32"), d.src("u32")
    line, hooks = d.line, d.hooks

    def request(r: Registers) -> _Request:
        warp = r[0]
        warp.require_converged("tcgen05.dealloc")
        place, columns = uniform(warp, r[address], "the TMEM address"), uniform(warp, r[count], "the column count")
        return _Request(columns, place)

    def free(warp: Warp, what: _Request) -> None:
        cta: Cta = warp.cta
        cta.tmem.dealloc(what.address, what.columns)
        for fragment in cta.tmem_users:
            fragment.wait = None
        cta.tmem_users.clear()
        cta.unit.activity += 1
        if hooks:
            _tell(warp, line, "dealloc", what.address, what.columns)

    def op(r: Registers) -> None:
        free(r[0], request(r))

    return _alone_or_together("tcgen05.dealloc", pair, line, op, request, free)


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(d: Decode) -> Op | Ends:
    pair = group(d) == 2
    d.require("sync", "aligned")
    line, hooks = d.line, d.hooks

    def request(r: Registers) -> _Request:
        r[0].require_converged("tcgen05.relinquish_alloc_permit")
        return _Request()

    def give_up(warp: Warp, what: _Request) -> None:
        warp.cta.tmem.relinquish()
        if hooks:
            _tell(warp, line, "relinquish")

    def op(r: Registers) -> None:
        give_up(r[0], request(r))

    return _alone_or_together("tcgen05.relinquish_alloc_permit", pair, line, op, request, give_up)


def _alone_or_together(
    what: str,
    pair: bool,
    line: int,
    alone: Op,
    request: Callable[[Registers], _Request],
    effect: Callable[[Warp, _Request], None],
) -> Op | Ends:
    if not pair:
        return alone

    def both(halves: tuple[Half, Half], warp: Warp) -> bool:
        for half in halves:
            effect(half.fragment.warp, half.operands)
        return True

    def op(r: Registers) -> bool:
        return _by_pair(what, r[0], line, request(r), both)

    return Ends(kind="blocking", op=op, repeats=True)


def _tell(warp: Warp, line: int, action: str, address: int = 0, columns: int = 0) -> None:
    unit: Any = warp.cta.unit
    where = unit.where(warp, warp.live, line)
    unit.emit(events.TmemAllocation(**where, action=action, column=address & 0xFFFF, columns=columns))
