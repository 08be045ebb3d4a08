"""tcgen05.mma and tcgen05.commit: work for the tensor core of a CTA or a pair (PTX ISA 9.1 §9.7.16)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp, MmaKey, MmaRequest
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.module import Address, Immediate, Vector
from ptxgen.emulator.values import POISON32, Registers, lane_value, lanes_of
from ptxgen.errors import MachineError, NotSupportedError


def unsupported(d: Decode, what: str) -> NotSupportedError:
    return NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} {what} is not modelled")


def group(d: Decode) -> int:
    """cta_group: 1, or 2 for the pair of CTAs whose ranks differ in bit 0."""
    d.cta_group = int(d.choice("cta_group::1", "cta_group::2")[-1])
    return d.cta_group


def uniform(warp: Any, value: Any, what: str) -> int:
    """A warp-uniform operand of an aligned tcgen05 instruction."""
    if type(value) is not int:
        mine = value if warp.active is None else value[warp.active]
        if (mine != mine[0]).any():
            raise MachineError("divergent-aligned-instruction", f"{what} differs between the lanes of the warp")
        value = mine.item(0)
    if value == POISON32:
        raise MachineError("uninitialised-read", f"{what} comes from uninitialised memory or registers")
    return int(value)


@instruction("tcgen05.mma")
def mma(d: Decode) -> Op:
    cta_group = group(d)
    kinds = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
    kind = d.choice(*(f"kind::{name}" for name in kinds))
    if kind != "kind::f16":
        raise unsupported(d, f"with .{kind}")
    if d.flag("ashift"):
        raise unsupported(d, "with .ashift")
    d.optional("collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard")
    target, shift, _ = d.address()
    a_in_tmem = bool(d.operands) and isinstance(d.operands[0], Address)
    a, a_shift = d.address()[:2] if a_in_tmem else (d.src("b64"), 0)
    b, idesc = d.src("b64"), d.src("b32")
    mask: list[int] = []
    if d.operands and isinstance(d.operands[0], Vector):
        mask = d.vector("b32", write=False)
        if len(mask) != 4 * cta_group:
            d.fail(f"the lane mask has {4 * cta_group} registers under cta_group::{cta_group}, not {len(mask)}")
    enable, negated = _enable(d)
    scale = 0
    if d.operands:
        scale = d.integer("scale-input-d")
        if not 0 <= scale <= 15:
            d.fail(f"scale-input-d is 0..15, not {scale}")
    d.tensor = True
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        bits = warp.bits
        if cta_group == 2:
            warp.cta.require_peer()
        for lane in (bits.bit_length() - 1,) if bits & (bits - 1) == 0 else lanes_of(bits):
            d_address, p = r[target], r[enable]
            d_address = (d_address if type(d_address) is int else d_address.item(lane)) + shift
            if d_address == POISON32:
                raise MachineError("uninitialised-read", "the TMEM address of D was never written")
            x, y, described = r[a], r[b], r[idesc]
            if p is None:
                raise MachineError("uninitialised-read", "enable-input-d was never written")
            described = described if type(described) is int else described.item(lane)
            lanes_off = tuple([lane_value(r[s], lane) for s in mask]) if mask else ()
            key = MmaKey(d_address, described, "f16", a_in_tmem, lanes_off, scale, lane, cta_group)
            x = (x if type(x) is int else x.item(lane)) + a_shift
            y = y if type(y) is int else y.item(lane)
            if not (y if a_in_tmem else x & y) & _DESCRIPTOR_CONSTANT:
                warp.cta.unit.note("descriptor-constant", _NO_CONSTANT, warp, line, "warning")
                x, y = x if a_in_tmem else x | _DESCRIPTOR_CONSTANT, y | _DESCRIPTOR_CONSTANT
            accumulate = (p if type(p) is bool else p.item(lane)) is not negated
            warp.tensor_queue.append(MmaRequest(key, x, y, accumulate, line))

    return op


_DESCRIPTOR_CONSTANT = 1 << 46
_NO_CONSTANT = "bits 46-48 of a matrix descriptor are 0b000; the manual wants the constant 0b001 there"


def _enable(d: Decode) -> tuple[int, bool]:
    """enable-input-d: a predicate or the literal 0 or 1."""
    operand = d.operands[0] if d.operands else None
    if isinstance(operand, Immediate):
        d.operands.pop(0)
        return d.slots.constant(operand.value != 0, 1), False
    return d.predicate()


@instruction(
    "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp", "tcgen05.shift", "tcgen05.ld.red",
)  # fmt: skip
def not_modelled(d: Decode) -> Op:
    raise unsupported(d, "")


@instruction("tcgen05.commit")
def commit(d: Decode) -> Op:
    pair = group(d) == 2
    d.require("mbarrier::arrive::one", "b64")
    d.flag("shared::cluster")
    multicast = d.flag("multicast::cluster")
    barrier, shift, _ = d.address()
    mask = d.src("b16") if multicast else None
    line = d.line

    def targets(r: Registers, lane: int) -> list[tuple[Cta, int]]:
        """CTA and offset of every mbarrier that is to be arrived on."""
        mine: Cta = r[0].cta
        address = r[barrier]
        address = (address if type(address) is int else address.item(lane)) + shift
        if mask is None:
            return [mine.barrier(address)[:2]]
        _, offset = mine.owner(address)
        ctas = mine.multicast(lane_value(r[mask], lane))
        for cta in ctas:
            cta.barrier_at(offset)
        return [(cta, offset) for cta in ctas]

    def op(r: Registers) -> None:
        warp = r[0]
        if warp.tensor_queue:
            warp.flush_tensor()
        if pair:
            warp.cta.require_peer()
        unit = warp.cta.unit
        bits = warp.bits
        for lane in (bits.bit_length() - 1,) if bits & (bits - 1) == 0 else lanes_of(bits):
            signalled = targets(r, lane)
            if unit.engine.fast:
                for cta, offset in signalled:
                    _arrive(None, cta, offset)
                continue
            pipe = (warp.cta.rank, warp.index, lane)
            where = unit.where(warp, 1 << lane, line)
            if unit.observed:
                tracked = tuple(o.id for o in unit.engine.pending if o.pipe == pipe and o.kind != "commit")
                unit.emit(events.Commit(*where, mechanism="mbarrier", tracked=tracked))
            ops = [
                AsyncOp(
                    "commit", warp, lane, line, partial(_arrive, cta=cta, offset=offset), barrier=(cta.rank, offset),
                    pipe=pipe, reaches=(cta.rank,), lags=cta is not warp.cta,
                )
                for cta, offset in signalled
            ]  # fmt: skip
            for one, (cta, offset) in zip(ops, signalled, strict=True):
                unit.engine.issue(one, _commit_event(where, offset, cta.rank) if unit.observed else None)

    return op


def _commit_event(where: events.Place, offset: int, owner: int) -> Any:
    def event(async_id: int) -> events.Event:
        return events.AsyncIssue(
            *where, kind="commit", async_id=async_id, mechanism="mbarrier", barrier=offset, owner=owner
        )

    return event


def _arrive(op: AsyncOp | None, cta: Cta, offset: int) -> None:
    """All tensor work that the commit tracks is done: one arrival."""
    state = cta.barriers[offset]
    phase = state.phase
    done = state.arrive(1)
    unit = cta.unit
    unit.activity += 1
    if op is not None and unit.observed:
        unit.emit(
            events.MbarrierArrive(
                *unit.place(op), barrier=offset, owner=cta.rank, count=1, phase=phase, completed=done, async_id=op.id,
                order="release.cluster",
            )
        )  # fmt: skip
    if done:
        cta.phase_completed(offset)
