"""tcgen05.ld, .st and their waits: warps read and write tensor memory (PTX ISA 9.1 §9.7.16.8).

They are asynchronous. Unless the policy is eager, a load delivers its registers at wait::ld, and a
store takes effect at wait::st.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.tcgen05 import uniform
from ptxgen.emulator.values import POISON, Registers, mask_of, merge, to_lanes
from ptxgen.hardware.tmem import access_shape

_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")


class _Form:
    """Shape, repeats, address and the 16-bit packing of a tcgen05.ld or .st."""

    def __init__(self, d: Decode) -> None:
        d.require("sync")
        d.flag("aligned")
        self.shape = d.choice(*_SHAPES)
        self.repeats = int(d.choice(*(f"x{1 << i}" for i in range(8)))[1:])
        self.pack = d.flag("pack::16b" if d.opcode == "tcgen05.ld" else "unpack::16b")
        d.type(("b32", "f32"))
        self.registers = access_shape(self.shape).registers(self.repeats)
        self.half_split = 0
        self.line, self.name = d.line, d.opcode
        self.address = self.shift = 0

    def take_address(self, d: Decode) -> None:
        self.address, self.shift, _ = d.address()

    def take_half_split(self, d: Decode) -> None:
        if self.shape == "16x32bx2":
            self.half_split = d.integer("the half split offset")

    def check(self, d: Decode, slots: list[int]) -> None:
        if len(slots) != self.registers:
            d.fail(f"{d.opcode}.{self.shape}.x{self.repeats} takes {self.registers} registers, not {len(slots)}")

    def place(self, r: Registers) -> int:
        warp = r[0]
        warp.require_converged(self.name)
        return uniform(warp, r[self.address], "the TMEM address") + self.shift

    def report(self, op: AsyncOp, kind: str, address: int) -> None:
        unit, cta = op.cta.unit, op.cta
        packing = {"pack": self.pack, "half_split": self.half_split}
        region = cta.tmem.access_region(self.shape, self.repeats, op.warp.index, address, **packing)  # type: ignore[arg-type]
        unit.emit_tmem(unit.where(op.warp, op.warp.live, op.line), kind, region, cta.rank, op.id)

    def issue(self, warp: Any, kind: str, perform: Any) -> AsyncOp:
        unit = warp.cta.unit
        op = AsyncOp(kind, warp, (warp.bits & -warp.bits).bit_length() - 1, self.line, perform)
        op.pipe = (warp.cta.rank, warp.index, -1)  # ld and st of a warp keep their order
        event = partial(_issue_event, unit.where(warp, warp.bits, self.line), kind) if unit.observed else None
        unit.engine.issue(op, event)
        return op


def _issue_event(where: events.Place, kind: str, async_id: int) -> events.Event:
    return events.AsyncIssue(*where, kind=kind, async_id=async_id, mechanism="wait")


@instruction("tcgen05.ld")
def ld(d: Decode) -> Op:
    form = _Form(d)
    slots = d.vector("b32", write=True)
    form.check(d, slots)
    form.take_address(d)
    form.take_half_split(d)
    shape, repeats, pack, half_split = form.shape, form.repeats, form.pack, form.half_split
    first = slots[0]
    in_order = slots == list(range(first, first + len(slots)))
    last = first + len(slots)
    poison = POISON[32]

    def deliver(r: Registers, address: int, bits: int, op: AsyncOp) -> None:
        warp = r[0]
        if warp.cta.unit.observed:
            form.report(op, "read", address)
        block = warp.cta.tmem.load(shape, repeats, warp.index, address, pack=pack, half_split=half_split)
        rows = list(block)
        if bits != warp.live:
            active = mask_of(bits)
            rows = [merge(active, row, r[slot], 32) for row, slot in zip(rows, slots, strict=True)]
        if in_order:
            r[first:last] = rows
        else:
            for slot, row in zip(slots, rows, strict=True):
                r[slot] = row

    def op(r: Registers) -> None:
        warp = r[0]
        address = form.place(r)
        bits = warp.bits
        engine = warp.cta.unit.engine
        if not engine.eager:
            for slot in slots:
                r[slot] = poison
        one = form.issue(warp, "tmem-load", lambda op: deliver(r, address, bits, op))
        if not engine.eager or warp.cta.unit.observed:
            warp.tmem_loads.append(one)

    d.tmem_load = True
    return op


@instruction("tcgen05.st")
def st(d: Decode) -> Op:
    form = _Form(d)
    form.take_address(d)
    form.take_half_split(d)
    slots = d.vector("b32", write=False)
    form.check(d, slots)
    shape, repeats, unpack, half_split = form.shape, form.repeats, form.pack, form.half_split

    def store(values: Any, address: int, op: AsyncOp) -> None:
        warp = op.warp
        if warp.cta.unit.observed:
            form.report(op, "write", address)
        warp.cta.tmem.store(shape, repeats, warp.index, address, values, unpack=unpack, half_split=half_split)

    def op(r: Registers) -> None:
        warp = r[0]
        address = form.place(r)
        values = np.stack([to_lanes(r[slot], 32) for slot in slots])
        one = form.issue(warp, "tmem-store", lambda op: store(values, address, op))
        if not warp.cta.unit.engine.eager or warp.cta.unit.observed:
            warp.tmem_stores.append(one)

    return op


@instruction("tcgen05.wait::ld", "tcgen05.wait::st")
def wait(d: Decode) -> Op:
    d.require("sync", "aligned")
    loads = d.opcode.endswith("ld")
    line, hooks, name = d.line, d.hooks, d.opcode
    d.tmem_wait = loads

    def op(r: Registers) -> None:
        warp = r[0]
        warp.require_converged(name)
        pending = warp.tmem_loads if loads else warp.tmem_stores
        if pending:
            engine = warp.cta.unit.engine
            for one in pending:
                engine.complete(one)
        if hooks:
            unit = warp.cta.unit
            unit.emit(
                events.WaitGroup(
                    *unit.where(warp, warp.bits, line), mechanism="tmem-load" if loads else "tmem-store", pending=0,
                    covered=tuple(one.id for one in pending),
                )
            )  # fmt: skip
        pending.clear()

    return op
