"""CTA and cluster barriers (PTX ISA 9.1 §9.7.13.1 to 3)."""

from __future__ import annotations

from typing import Any

from ptxgen.emulator import events
from ptxgen.emulator.cta import NamedBarrierState
from ptxgen.emulator.decode import Decode, Ends, instruction
from ptxgen.emulator.values import ALL_LANES, Registers, bits_of, lane_value
from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError

_BARRIERS = 16


@instruction(
    "bar.sync", "bar.arrive", "bar.red", "bar.cta.sync", "bar.cta.arrive", "bar.cta.red",
    "barrier.sync", "barrier.arrive", "barrier.red",
    "barrier.cta.sync", "barrier.cta.arrive", "barrier.cta.red",
)  # fmt: skip
def bar(d: Decode) -> Ends:
    action = d.opcode.rpartition(".")[2]
    aligned = d.flag("aligned") or d.opcode.startswith("bar.")
    reduction, out, negated, source = "", 0, False, 0
    if action == "red":
        reduction = d.choice("popc", "and", "or")
        kind = d.type(("u32", "pred"))
        if (kind == "u32") != (reduction == "popc"):
            d.fail(f"bar.red.{reduction} has no type .{kind}")
        out = d.dst(kind)
    barrier = d.src("u32")
    count = None
    if len(d.operands) == (2 if action == "red" else 1):
        count = d.src("u32")
    if action == "red":
        source, negated = d.predicate()
    if action == "arrive" and count is None:
        d.fail("bar.arrive needs a thread count")
    line, hooks, name = d.line, d.hooks, d.item.name

    def op(r: Registers) -> bool:
        warp = r[0]
        if aligned:
            warp.require_converged(name)
        number = _agreed(warp, r[barrier], "barrier")
        threads = 0 if count is None else _agreed(warp, r[count], "thread count")
        if number >= _BARRIERS:
            raise MachineError("named-barrier-mismatch", f"barrier {number}: a CTA has {_BARRIERS}")
        if threads % 32 or (count is not None and threads == 0):
            raise MachineError("named-barrier-mismatch", f"{threads} threads at a barrier: a positive multiple of 32")
        cta = warp.cta
        state = cta.named.get(number)
        if state is None:
            state = cta.named[number] = NamedBarrierState()
        if state.arrived and state.expected != threads:
            raise MachineError(
                "named-barrier-mismatch",
                f"barrier {number} counts {state.expected or 'all'} threads, this warp says {threads or 'all'}",
            )
        state.expected = threads
        state.arrived += 32 if warp.bits == warp.live else warp.bits.bit_count()
        if reduction:
            state.reduction.append((warp.current, out, _votes(r[source], negated) & warp.bits))
        cta.unit.activity += 1
        generation = state.generation
        results = state.reduction
        done = cta.settle(number, state)
        if hooks:
            where = cta.unit.where(warp, warp.bits, line)
            cta.unit.emit(
                events.NamedBarrier(
                    *where, barrier=number, action=action, threads=threads, generation=generation, completed=done
                )
            )
        if done:
            if results:
                state.reduction = []
                _deliver(r, results, reduction)
            return True
        if action == "arrive":
            return True
        state.waiting.append(warp.current)
        return bool(warp.wait(Wait("barrier", line, target=number)))

    return Ends(kind="blocking", op=op)


def _agreed(warp: Any, value: Any, what: str) -> int:
    if type(value) is int:
        return value
    lane = (warp.bits & -warp.bits).bit_length() - 1
    first = lane_value(value, lane)
    mine = value if warp.active is None else value[warp.active]
    if (mine != first).any():
        raise MachineError("named-barrier-mismatch", f"lanes of one warp name different {what}s")
    return int(first)


def _votes(p: Any, negated: bool) -> int:
    if p is None:
        raise MachineError("uninitialised-read", "bar.red reads a predicate that was never written")
    votes = (ALL_LANES if p else 0) if type(p) is bool else bits_of(p)
    return votes ^ (ALL_LANES if negated else 0)


def _deliver(r: Registers, results: list[Any], reduction: str) -> None:
    """The reduction's value into every participant's destination."""
    count = sum(votes.bit_count() for _, _, votes in results)
    total = sum(fragment.bits.bit_count() for fragment, _, _ in results)
    value: Any = count if reduction == "popc" else count == total if reduction == "and" else count > 0
    current = r[0].current
    for fragment, slot, _ in results:
        if fragment is current:
            r[slot] = value
        else:
            fragment.warp.write(fragment, slot, value)


@instruction("barrier.cluster.arrive")
def cluster_arrive(d: Decode) -> Ends:
    order = d.choice("release", "relaxed", default="release")
    aligned = d.flag("aligned")
    line, hooks, name = d.line, d.hooks, d.item.name

    def op(r: Registers) -> bool:
        warp = r[0]
        if aligned:
            warp.require_converged(name)
        unit = warp.cta.unit
        generation = unit.cluster_barrier.generation
        unit.cluster_barrier.arrive(warp)
        unit.activity += 1
        if hooks:
            where = unit.where(warp, warp.bits, line)
            unit.emit(events.ClusterBarrier(*where, action="arrive", generation=generation, order=order))
        return True

    return Ends(kind="blocking", op=op)


@instruction("barrier.cluster.wait")
def cluster_wait(d: Decode) -> Ends:
    order = d.choice("acquire", default="acquire")
    aligned = d.flag("aligned")
    line, hooks, name = d.line, d.hooks, d.item.name

    def op(r: Registers) -> bool:
        warp = r[0]
        if aligned:
            warp.require_converged(name)
        unit = warp.cta.unit
        if not unit.cluster_barrier.passed(warp):
            unit.cluster_barrier.waiting.append(warp.current)
            return bool(warp.wait(Wait("cluster-barrier", line)))
        if hooks:
            where = unit.where(warp, warp.bits, line)
            generation = unit.cluster_barrier.generation - 1
            unit.emit(events.ClusterBarrier(*where, action="wait", generation=generation, order=order))
        return True

    return Ends(kind="blocking", op=op, repeats=True)
