"""cp.async.bulk and cp.reduce.async.bulk: contiguous bytes (PTX ISA 9.1 §9.7.9.25.4)."""

from __future__ import annotations

from typing import Any

from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.groups import groups_of
from ptxgen.emulator.instructions.bulk_copy import (
    REDUCTIONS,
    complete_tx,
    issue_event,
    other_barrier,
    poisoned,
    report,
    shared_span,
)
from ptxgen.emulator.reductions import reduce_elements
from ptxgen.emulator.values import Registers, lane_value, lanes_of
from ptxgen.errors import MachineError, NotSupportedError

_REDUCED_TYPES = ("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")


@instruction("cp.async.bulk", "cp.reduce.async.bulk")
def plain_copy(d: Decode) -> Op:
    reduces = d.opcode.startswith("cp.reduce")
    kind = d.type(_REDUCED_TYPES) if reduces else ""
    target = d.choice("shared::cta", "shared::cluster", "global")
    source = d.choice("global", "shared::cta")
    if (target, source) == ("global", "global"):
        d.fail("a bulk copy has a side in shared memory")
    operation = ""
    if reduces:
        operation = d.choice(*REDUCTIONS)
        d.flag("noftz")
    to_group = target == "global"
    d.require("bulk_group" if to_group else "mbarrier::complete_tx::bytes")
    multicast = (target, source) == ("shared::cluster", "global") and d.flag("multicast::cluster")
    if d.flag("cp_mask"):
        raise NotSupportedError(f"{d.module.file}:{d.line}: this form of {d.opcode} is not modelled")
    if reduces and not to_group:
        raise NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} into shared memory is not modelled")
    hint = d.flag("L2::cache_hint")
    destination, shift, _ = d.address()
    origin, origin_shift, _ = d.address()
    size = d.src("u32")
    barrier, barrier_shift = (0, 0) if to_group else d.address()[:2]
    mask = d.src("b16") if multicast else None
    if hint:
        d.src("b64")
    if reduces:
        d.shares_global = True
    line = d.line
    element = {"b32": "u32", "b64": "u64"}.get(kind, kind)

    def op(r: Registers) -> None:
        warp = r[0]
        for lane in lanes_of(warp.bits):
            to = lane_value(r[destination], lane) + shift
            start = lane_value(r[origin], lane) + origin_shift
            count = lane_value(r[size], lane)
            if count % 16 or to % 16 or start % 16:
                raise MachineError(
                    "misaligned-address", f"bulk copy of {count} bytes from {start:#x} to {to:#x}: not multiples of 16"
                )
            if to_group:
                _issue_plain_store(warp, lane, line, to, start, count, operation, element)
            else:
                cta, offset = warp.cta.owner(to)
                holder, signal = warp.cta.owner(lane_value(r[barrier], lane) + barrier_shift)
                targets = [cta]
                if mask is not None:
                    targets = warp.cta.multicast(lane_value(r[mask], lane))
                elif holder is not cta:
                    raise MachineError("illegal-tensor-copy", other_barrier(cta, holder))
                for one in targets:
                    one.barrier_at(signal)
                    _issue_plain_load(warp, lane, line, one, offset, start, count, signal, source)

    return op


def _issue_plain_load(
    warp: Any, lane: int, line: int, cta: Cta, offset: int, start: int, count: int, signal: int, source: str
) -> None:
    unit = cta.unit

    def perform(op: AsyncOp) -> None:
        shared_span(cta, offset, count, write=True)
        if source == "global":
            data = unit.launch.memory.read(start, count)
            if unit.observed:
                report(op, "global", "read", ((start, start + count),))
            unit.log.span(False, line, start, count)
        else:
            owner, place = warp.cta.owner(start)
            shared_span(owner, place, count, write=False)
            data = owner.smem.data[place : place + count]
            if unit.observed:
                report(op, "shared", "read", ((place, place + count),), owner.rank)
        if unit.observed:
            report(op, "shared", "write", ((offset, offset + count),), cta.rank)
        cta.smem.data[offset : offset + count] = data
        complete_tx(op, cta, signal, count)

    reaches = (cta.rank,) if source == "global" else (cta.rank, warp.cta.rank)
    op = AsyncOp("bulk-load", warp, lane, line, perform, barrier=(cta.rank, signal), reaches=reaches)
    unit.engine.issue(op, issue_event(op, "mbarrier", signal, cta.rank) if unit.observed else None)


def _issue_plain_store(
    warp: Any, lane: int, line: int, to: int, start: int, count: int, operation: str, element: str
) -> None:
    unit = warp.cta.unit
    cta, offset = warp.cta.owner(start)
    held: list[Any] = []

    def read(op: AsyncOp) -> None:
        shared_span(cta, offset, count, write=False)
        if unit.observed:
            report(op, "shared", "read", ((offset, offset + count),), cta.rank)
        held.append(cta.smem.data[offset : offset + count].copy())
        if poisoned(held[0]):
            unit.note("uninitialised-read", "a bulk store copies shared memory that was never written", warp, line)

    def perform(op: AsyncOp) -> None:
        target = unit.launch.memory.read(to, count)
        if unit.observed:
            report(op, "global", "atomic" if operation else "write", ((to, to + count),))
        if not unit.launch.one_process:
            unit.log.span(True, line, to, count)
        new = held.pop()
        target[:] = reduce_elements(operation, element, target.copy(), new) if operation else new

    op = AsyncOp("bulk-reduce" if operation else "bulk-store", warp, lane, line, perform, read=read)
    unit.engine.issue(op, issue_event(op, "bulk-group") if unit.observed else None)
    groups_of(warp.bulk, lane).add(op)
