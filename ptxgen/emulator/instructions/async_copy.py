"""cp.async: small asynchronous copies, tracked by groups or by an mbarrier (PTX ISA 9.1 §9.7.9.24)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.groups import groups_of
from ptxgen.emulator.instructions.access import Access, report_access
from ptxgen.emulator.instructions.mbarriers import BarrierAddress
from ptxgen.emulator.module import Negated, Register
from ptxgen.emulator.values import Registers, bits_of, lane_value, lanes_of


@instruction("cp.async")
def copy(d: Decode) -> Op:
    level = d.choice("ca", "cg")
    d.choice("shared", "shared::cta")
    d.require("global")
    hint = d.flag("L2::cache_hint")
    d.optional("L2::64B", "L2::128B", "L2::256B")
    size = _size(d)
    if size not in ((16,) if level == "cg" else (4, 8, 16)):
        d.fail(f"cp.async.{level} does not copy {size} bytes")
    target = Access(d, "shared", size, 1)
    source = Access(d, "global", size, 1)
    d.integer("the size")
    used, ignored, negated = None, None, False
    remaining = len(d.operands) - (1 if hint else 0)
    if remaining:
        operand = d.operands[0]
        if isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type == "pred"):
            ignored, negated = d.predicate()
        else:
            used = d.src("u32")
    if hint:
        d.src("b64")
    hooks, line = d.hooks, d.line

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        to, start = target.addresses(r), source.addresses(r)
        skip = 0
        if ignored is not None:
            p = r[ignored]
            skip = (0xFFFFFFFF if p else 0) if type(p) is bool else bits_of(p)
            skip ^= 0xFFFFFFFF if negated else 0
        jobs = []
        for lane in lanes_of(warp.bits):
            count = size if used is None else lane_value(r[used], lane)
            count = 0 if skip >> lane & 1 else count
            jobs.append((lane, lane_value(to, lane), lane_value(start, lane), count))
        first = jobs[0][0]
        pending = AsyncOp("cp-async", warp, first, line, lambda one: _perform(r, target, source, jobs, hooks, one))
        event = None
        if unit.observed:
            where = unit.where(warp, warp.bits, line)

            def event(async_id: int) -> events.Event:
                return events.AsyncIssue(*where, kind="cp-async", async_id=async_id, mechanism="cp-group")

        unit.engine.issue(pending, event)
        for lane, *_ in jobs:
            groups_of(warp.copies, lane).add(pending)

    return op


def _size(d: Decode) -> int:
    operand = d.operands[2] if len(d.operands) > 2 else None
    return int(getattr(operand, "value", 0) or 0)


def _perform(r: Registers, target: Access, source: Access, jobs: list[Any], hooks: bool, op: AsyncOp) -> None:
    unit = op.cta.unit
    for lane, to, start, count in jobs:
        block, offset, cta = target.where(r, to)
        assert isinstance(cta, Cta)
        cta.check_store(offset, offset + target.total)
        data = np.zeros(target.total, dtype=np.uint8)
        if count:
            origin, place, _ = source.where(r, start)
            data[:count] = origin.data[place : place + count]
            if hooks:
                report_access(source, r, "read", "weak", origin, place, None, 1 << lane, op.id)
            unit.log.span(False, op.line, start, count)
        block.data[offset : offset + target.total] = data
        if hooks:
            report_access(target, r, "write", "weak", block, offset, cta, 1 << lane, op.id)


@instruction("cp.async.commit_group")
def commit_group(d: Decode) -> Op:
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        for lane, groups in warp.copies.items():
            if warp.bits >> lane & 1:
                tracked = groups.commit()
                if hooks:
                    unit = warp.cta.unit
                    unit.emit(events.Commit(*unit.where(warp, 1 << lane, line), mechanism="cp-group", tracked=tracked))

    return op


@instruction("cp.async.wait_group", "cp.async.wait_all")
def wait_group(d: Decode) -> Op:
    every = d.opcode.endswith("wait_all")
    pending = 0 if every else d.integer("the number of groups")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        for lane, groups in warp.copies.items():
            if not warp.bits >> lane & 1:
                continue
            if every:
                groups.commit()
            covered = groups.wait(pending)
            for one in covered:
                unit.engine.complete(one)
                one.waited = True
            if hooks:
                unit.emit(
                    events.WaitGroup(
                        *unit.where(warp, 1 << lane, line), mechanism="cp-group", pending=pending,
                        covered=tuple(one.id for one in covered),
                    )
                )  # fmt: skip

    return op


@instruction("cp.async.mbarrier.arrive")
def mbarrier_arrive(d: Decode) -> Op:
    """An arrive once the thread's earlier cp.async are complete; without .noinc it adds itself to
    the pending count first."""
    no_increment = d.flag("noinc")
    d.optional("shared", "shared::cta")
    d.require("b64")
    barrier = BarrierAddress(d)
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        for address, lanes in barrier.each(r):
            for lane in lanes_of(lanes):
                cta, offset, state = warp.cta.barrier(address)
                if not no_increment:
                    state.pending += 1  # arrives with this op, so the phase cannot end before
                earlier = [one for one in groups_of(warp.copies, lane).all() if not one.done]
                pending = AsyncOp(
                    "commit", warp, lane, line, _arrival(cta, offset, earlier), barrier=(cta.rank, offset)
                )
                event = None
                if unit.observed:
                    where = unit.where(warp, 1 << lane, line)
                    tracked = tuple(one.id for one in earlier)
                    event = partial(_arrive_event, where, offset, cta.rank, tracked)
                unit.engine.issue(pending, event)

    return op


def _arrive_event(
    where: events.Place, offset: int, owner: int, tracked: tuple[int, ...], async_id: int
) -> events.Event:
    return events.AsyncIssue(
        *where, kind="copy-arrive", async_id=async_id, mechanism="mbarrier", barrier=offset, owner=owner,
        detail=tracked,
    )  # fmt: skip


def _arrival(cta: Cta, offset: int, earlier: list[AsyncOp]) -> Any:
    def perform(op: AsyncOp) -> None:
        unit = cta.unit
        for one in earlier:
            unit.engine.complete(one)
        _, _, state = cta.barrier(offset | cta.rank << 24)
        phase = state.phase
        done = state.arrive(1)
        if unit.observed:
            unit.emit(
                events.MbarrierArrive(
                    *unit.place(op), barrier=offset, owner=cta.rank, count=1, phase=phase, completed=done,
                    async_id=op.id,
                )
            )  # fmt: skip
        if done:
            cta.phase_completed(offset)

    return perform
