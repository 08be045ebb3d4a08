"""mbarrier instructions (PTX ISA 9.1 §9.7.13.15)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.mbarrier import Mbarrier
from ptxgen.emulator.memory import SHARED_RESERVED_BYTES
from ptxgen.emulator.module import Address, Sink
from ptxgen.emulator.values import MASK, POISON, POISON32, Registers, Value, lane_value, lanes_of, mask_of
from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError

_PENDING = (1 << 32) - 1
_SPACES = ("shared", "shared::cta", "shared::cluster")


def _order(d: Decode, options: tuple[str, ...]) -> str:
    sem = d.optional(*options, "relaxed")
    scope = d.optional("cta", "cluster")
    if bool(sem) != bool(scope):
        d.fail("semantics and scope of an mbarrier instruction go together")
    return f"{sem or options[0]}.{scope or 'cta'}"


class BarrierAddress:
    """The `[addr]` operand of an mbarrier instruction."""

    def __init__(self, d: Decode) -> None:
        self.slot, self.offset, _ = d.address()

    def each(self, r: Registers) -> list[tuple[int, int]]:
        """(address, lanes) of the active lanes: one entry when they all share an address."""
        warp = r[0]
        address = r[self.slot]
        if type(address) is int:
            return [(address + self.offset, warp.bits)]
        found: dict[int, int] = {}
        for lane in lanes_of(warp.bits):
            one = address.item(lane) + self.offset
            found[one] = found.get(one, 0) | 1 << lane
        return list(found.items())


@instruction("mbarrier.init")
def init(d: Decode) -> Op:
    d.optional("shared", "shared::cta")
    d.require("b64")
    barrier = BarrierAddress(d)
    count = d.src("u32")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        for address, lanes in barrier.each(r):
            cta, offset = _place(warp.cta, address)
            state = cta.new_barrier(offset)
            cta.smem.store_word(offset, 8, POISON[64])  # opaque from now on
            for lane in lanes_of(lanes):
                value = lane_value(r[count], lane)
                state.init(value)
                if hooks:
                    where = cta.unit.where(warp, 1 << lane, line)
                    cta.unit.emit(events.MbarrierInit(*where, barrier=offset, count=value, owner=cta.rank))
            cta.bound_barriers()
            cta.unit.activity += 1

    return op


def _place(cta: Cta, address: int) -> tuple[Cta, int]:
    owner, offset = cta.owner(address)
    if owner is not cta:
        raise MachineError("out-of-bounds", f"mbarrier address {address:#x} is not in this CTA's shared memory")
    if offset % 8:
        raise MachineError("misaligned-address", f"mbarrier address {offset:#x} is not a multiple of 8")
    if not SHARED_RESERVED_BYTES <= offset <= cta.smem_end - 8:
        raise MachineError("out-of-bounds", f"mbarrier address {offset:#x} is outside shared memory")
    return cta, offset


@instruction("mbarrier.inval")
def inval(d: Decode) -> Op:
    d.optional("shared", "shared::cta")
    d.require("b64")
    barrier = BarrierAddress(d)
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        for address, lanes in barrier.each(r):
            cta, offset, state = warp.cta.barrier(address)
            state.inval()
            cta.bound_barriers()
            cta.unit.activity += 1
            if hooks:
                where = cta.unit.where(warp, lanes, line)
                cta.unit.emit(events.MbarrierInval(*where, barrier=offset, owner=cta.rank))

    return op


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(d: Decode) -> Op:
    drop = d.opcode == "mbarrier.arrive_drop"
    expects = d.flag("expect_tx")
    incomplete = d.flag("noComplete")
    order = _order(d, ("release",))
    space = d.optional(*_SPACES)
    d.require("b64")
    out = None
    if incomplete and len(d.operands) != 3:
        d.fail("mbarrier.arrive.noComplete needs a state and a count")
    if not isinstance(d.operands[0] if d.operands else None, Address):
        sink = isinstance(d.operands[0], Sink)
        if space == "shared::cluster" and not sink:
            d.fail("an arrive on .shared::cluster returns no state; use _ as destination")
        slot = d.dst("b64")
        out = None if sink else slot
    barrier = BarrierAddress(d)
    amount = d.src("u32") if d.operands else None
    if expects and amount is None:
        d.fail("mbarrier.arrive.expect_tx needs the number of bytes")
    line, hooks = d.line, d.hooks
    remote = space == "shared::cluster" or space == ""

    def op(r: Registers) -> None:
        warp = r[0]
        for address, lanes in barrier.each(r):
            cta, offset, state = warp.cta.barrier(address)
            if cta is not warp.cta and not remote:
                raise MachineError("out-of-bounds", f"mbarrier {address:#x} is not in this CTA; use .shared::cluster")
            before = state.state()
            value = 1 if amount is None else r[amount]
            if type(value) is int and lanes.bit_count() * (1 if expects else value) <= state.pending:
                n = lanes.bit_count()
                counts = [(lanes, n if expects else n * value, n * value if expects else 0)]
            else:
                counts = [
                    (1 << lane, 1 if expects else lane_value(value, lane), lane_value(value, lane) if expects else 0)
                    for lane in lanes_of(lanes)
                ]
            for mine, count, tx in counts:
                first = mine & -mine == lanes & -lanes
                _arrive(warp, cta, offset, state, mine, count, tx, drop, hooks, line, order, continued=not first)
            if out is not None:
                r[out] = before

    return op


def _arrive(
    warp: Any, cta: Cta, offset: int, state: Mbarrier, lanes: int, count: int, tx: int, drop: bool, hooks: bool,
    line: int, order: str, *, continued: bool,
) -> None:  # fmt: skip
    phase = state.phase
    done = state.arrive_drop(count, tx=tx) if drop else state.arrive(count, tx=tx)
    cta.unit.activity += 1
    if done:
        cta.phase_completed(offset)
    if hooks:
        cta.unit.emit(
            events.MbarrierArrive(
                *cta.unit.where(warp, lanes, line), barrier=offset, owner=cta.rank, count=count, expect_bytes=tx,
                dropped=count if drop else 0, phase=phase, completed=done, order=order, continued=continued,
            )
        )  # fmt: skip


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def transaction(d: Decode) -> Op:
    expects = d.opcode == "mbarrier.expect_tx"
    if d.flag("relaxed"):
        d.optional("cta", "cluster")
    d.optional(*_SPACES)
    d.require("b64")
    barrier = BarrierAddress(d)
    amount = d.src("u32")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        for address, lanes in barrier.each(r):
            cta, offset, state = warp.cta.barrier(address)
            for lane in lanes_of(lanes):
                tx, phase = lane_value(r[amount], lane), state.phase
                done = state.expect_tx(tx) if expects else state.complete_tx(tx)
                cta.unit.activity += 1
                if done:
                    cta.phase_completed(offset)
                if hooks:
                    where = cta.unit.where(warp, 1 << lane, line)
                    event: events.Event
                    if expects:
                        event = events.MbarrierArrive(
                            *where, barrier=offset, owner=cta.rank, expect_bytes=tx, phase=phase, completed=done,
                            order="relaxed.cta",
                        )  # fmt: skip
                    else:
                        event = events.MbarrierComplete(
                            *where, barrier=offset, owner=cta.rank, tx_bytes=tx, phase=phase, completed=done
                        )
                    cta.unit.emit(event)

    return op


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def wait(d: Decode) -> Ends:
    """A failed test gives false and lets others run before the program can ask again."""
    by_parity = d.flag("parity")
    order = _order(d, ("acquire",))
    d.optional("shared", "shared::cta")
    d.require("b64")
    out = d.dst("pred")
    barrier = BarrierAddress(d)
    asked = d.src("b32" if by_parity else "b64")
    if d.operands:
        if d.opcode == "mbarrier.test_wait":
            d.fail("mbarrier.test_wait takes no time hint")
        d.src("u32")
    line, hooks = d.line, d.hooks
    slot, shift = barrier.slot, barrier.offset

    def ask(warp: Any, cta: Cta, offset: int, state: Mbarrier, lanes: int, value: int) -> bool:
        if by_parity and value >> 1 == POISON32 >> 1:  # also after a flip
            raise MachineError("uninitialised-read", "the phase that is waited for was never written")
        passed = state.test(value) if by_parity else state.test_state(value)
        if cta is not warp.cta:
            raise MachineError("out-of-bounds", "a wait on an mbarrier of another CTA")
        if hooks:
            parity = value & 1 if by_parity else value >> 32 & 1
            cta.unit.emit(
                events.MbarrierWait(
                    *cta.unit.where(warp, lanes, line), barrier=offset, owner=cta.rank, parity=parity,
                    phase=state.phase, success=passed, order=order,
                )
            )  # fmt: skip
        return passed

    def op(r: Registers) -> bool:
        warp = r[0]
        address, value = r[slot], r[asked]
        if type(address) is int and type(value) is int:
            cta, offset, state = warp.cta.barrier(address + shift)
            passed = ask(warp, cta, offset, state, warp.bits, value)
            r[out] = passed
            if passed:
                return True
            return _park(warp, cta, offset, state, value, by_parity, line)
        return by_lane(r)

    def by_lane(r: Registers) -> bool:
        warp = r[0]
        failed: tuple[Cta, int, Mbarrier, int] | None = None
        passed = 0
        for address, lanes in barrier.each(r):
            cta, offset, state = warp.cta.barrier(address)
            for lane in lanes_of(lanes):
                value = lane_value(r[asked], lane)
                if ask(warp, cta, offset, state, 1 << lane, value):
                    passed |= 1 << lane
                elif failed is None:
                    failed = cta, offset, state, value
        r[out] = passed == warp.bits if passed in (0, warp.bits) else mask_of(passed)
        if failed is None:
            return True
        return _park(warp, *failed, by_parity, line)

    return Ends(kind="blocking", op=op)


def _park(warp: Any, cta: Cta, offset: int, state: Mbarrier, value: int, by_parity: bool, line: int) -> bool:
    if cta.unit.policy.gives_up():
        return True
    parity = value & 1 if by_parity else value >> 32 & 1
    cta.waiters.setdefault(offset, []).append(warp.current)
    detail = f"phase of parity {parity} wanted, current phase {state.phase}"
    return bool(warp.wait(Wait("mbarrier", line, spins=True, target=(cta.rank, offset), detail=detail)))


@instruction("mbarrier.pending_count")
def pending_count(d: Decode) -> Op:
    d.require("b64")
    out, a = d.dst("u32"), d.src("b64")

    def op(r: Registers) -> None:
        x: Value = r[a]
        r[out] = x & _PENDING if type(x) is int else (x & np.uint64(MASK[32])).astype(np.uint32)

    return op
