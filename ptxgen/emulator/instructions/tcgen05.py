"""tcgen05 instructions that allocate tensor memory or give work to the tensor core
(PTX ISA 9.1 §9.7.16)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp, MmaKey, MmaRequest
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.instructions.access import Access
from ptxgen.emulator.module import Address, Immediate, Vector
from ptxgen.emulator.values import POISON32, Registers, lane_value, lanes_of
from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError, NotSupportedError


def unsupported(d: Decode, what: str) -> NotSupportedError:
    return NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} {what} is not modelled")


def group(d: Decode) -> int:
    """cta_group; a pair of CTAs is not modelled."""
    chosen = d.choice("cta_group::1", "cta_group::2")
    if chosen == "cta_group::2":
        raise unsupported(d, "with .cta_group::2")
    return 1


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


# -- allocation ---------------------------------------------------------------------------------


@instruction("tcgen05.alloc")
def alloc(d: Decode) -> Ends:
    group(d)
    d.require("sync", "aligned", "b32")
    space = d.optional("shared", "shared::cta")
    target = Access(d, space, 4, 1)
    count = d.src("u32")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> bool:
        warp = r[0]
        warp.require_converged("tcgen05.alloc")
        cta: Cta = warp.cta
        columns = uniform(warp, r[count], "the column count")
        block, offset, owner = target.where(r, uniform(warp, target.addresses(r), "the destination"))
        if owner is None:
            raise MachineError("out-of-bounds", "tcgen05.alloc writes its result to shared memory")
        address = cta.tmem.alloc(columns)
        if address is None:
            cta.tmem_users.append(warp.current)
            return bool(warp.wait(Wait("tensor memory", line, detail=columns)))
        owner.check_store(offset, offset + 4)
        block.store_word(offset, 4, address)
        cta.unit.activity += 1
        if hooks:
            unit = cta.unit
            where = unit.where(warp, warp.bits, line)
            unit.emit(events.TmemAllocation(**where, action="alloc", column=address & 0xFFFF, columns=columns))
            spans = ((offset, offset + 4),)
            unit.emit(
                events.Access(
                    **where, space="shared", kind="write", proxy="generic", ranges=spans, owner=owner.rank
                )
            )
        return True

    return Ends(kind="blocking", op=op, repeats=True)


@instruction("tcgen05.dealloc")
def dealloc(d: Decode) -> Op:
    group(d)
    d.require("sync", "aligned", "b32")
    address, count = d.src("b32"), d.src("u32")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        warp.require_converged("tcgen05.dealloc")
        cta: Cta = warp.cta
        place, columns = uniform(warp, r[address], "the TMEM address"), uniform(warp, r[count], "the column count")
        cta.tmem.dealloc(place, columns)
        for fragment in cta.tmem_users:
            fragment.wait = None
        cta.tmem_users.clear()
        cta.unit.activity += 1
        if hooks:
            where = cta.unit.where(warp, warp.bits, line)
            event = events.TmemAllocation(**where, action="dealloc", column=place & 0xFFFF, columns=columns)
            cta.unit.emit(event)

    return op


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(d: Decode) -> Op:
    group(d)
    d.require("sync", "aligned")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        warp.require_converged("tcgen05.relinquish_alloc_permit")
        warp.cta.tmem.relinquish()
        if hooks:
            unit = warp.cta.unit
            unit.emit(events.TmemAllocation(**unit.where(warp, warp.bits, line), action="relinquish"))

    return op


# -- the tensor core ----------------------------------------------------------------------------


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
        if len(mask) != 4:
            d.fail(f"the lane mask has 4 registers, not {len(mask)}")
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
            accumulate = (p if type(p) is bool else p.item(lane)) is not negated
            warp.tensor_queue.append(MmaRequest(key, x, y, accumulate, line))

    return op


def _enable(d: Decode) -> tuple[int, bool]:
    """enable-input-d: a predicate or the literal 0 or 1."""
    operand = d.operands[0] if d.operands else None
    if isinstance(operand, Immediate):
        d.operands.pop(0)
        return d.slots.constant(operand.value != 0, 1), False
    return d.predicate()


@instruction(
    "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp", "tcgen05.cp", "tcgen05.shift", "tcgen05.ld.red",
)  # fmt: skip
def not_modelled(d: Decode) -> Op:
    raise unsupported(d, "")


@instruction("tcgen05.commit")
def commit(d: Decode) -> Op:
    group(d)
    d.require("mbarrier::arrive::one", "b64")
    d.flag("shared::cluster")
    if d.flag("multicast::cluster"):
        raise unsupported(d, "with .multicast::cluster")
    barrier, shift, _ = d.address()
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        if warp.tensor_queue:
            warp.flush_tensor()
        engine = warp.cta.unit.engine
        bits = warp.bits
        for lane in (bits.bit_length() - 1,) if bits & (bits - 1) == 0 else lanes_of(bits):
            address = r[barrier]
            cta, offset, _ = warp.cta.barrier((address if type(address) is int else address.item(lane)) + shift)
            if engine.fast:
                _arrive(None, cta, offset)
                continue
            pipe = (warp.cta.rank, warp.index, lane)
            one = AsyncOp(
                "commit", warp, lane, line, partial(_arrive, cta=cta, offset=offset),
                barrier=(cta.rank, offset), pipe=pipe,
            )  # fmt: skip
            event = None
            if cta.unit.observed:
                unit = cta.unit
                tracked = tuple(o.id for o in engine.pending if o.pipe == pipe)
                where = unit.where(warp, 1 << lane, line)
                unit.emit(events.Commit(**where, mechanism="mbarrier", tracked=tracked))
                event = _commit_event(where, offset, cta.rank)
            engine.issue(one, event)

    return op


def _commit_event(where: dict[str, Any], offset: int, owner: int) -> Any:
    def event(async_id: int) -> events.Event:
        return events.AsyncIssue(
            **where, kind="commit", async_id=async_id, mechanism="mbarrier", barrier=offset, owner=owner
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
                **unit.place(op), barrier=offset, owner=cta.rank, count=1, phase=phase, completed=done, async_id=op.id,
                order="release.cluster",
            )
        )  # fmt: skip
    if done:
        cta.phase_completed(offset)
