"""Wrappers of ops (guards, deliveries) and the terminators of segments.

A terminator returns the number of the next segment, STOP when the warp cannot go on by itself, or
SWITCH when it changed the warp's fragment (see warp.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxgen.emulator.decode import Blocking, Op
from ptxgen.emulator.values import POISON, Registers, bits_of, merge
from ptxgen.errors import MachineError

STOP = -1
SWITCH = -2

Terminator = Callable[[Registers], int]


def _unset_predicate(negated: bool) -> MachineError:
    return MachineError("uninitialised-read", "a predicate that was never written decides here")


def guarded(op: Op, guard: tuple[int, bool], writes: tuple[tuple[int, int], ...]) -> Op:
    slot, negated = guard

    def run(r: Registers) -> None:
        p = r[slot]
        if type(p) is bool:
            if p is not negated:
                if r[0].kept:
                    _merged(op, r, writes)
                else:
                    op(r)
            return
        if p is None:
            raise _unset_predicate(negated)
        warp = r[0]
        bits = (bits_of(p) ^ (-negated)) & warp.bits
        if bits == warp.bits:
            if warp.kept:
                _merged(op, r, writes)
            else:
                op(r)
        elif bits:
            saved = warp.narrow(bits)
            try:
                _merged(op, r, writes)
            finally:
                warp.widen(saved)

    return run


def _merged(op: Op, r: Registers, writes: tuple[tuple[int, int], ...]) -> None:
    """Runs an op of which only the active lanes may change registers."""
    old = [r[slot] for slot, _ in writes]
    op(r)
    active = r[0].active
    if active is not None:
        for (slot, width), before in zip(writes, old, strict=True):
            r[slot] = merge(active, r[slot], before, width)


COMPUTING = frozenset(
    {
        "add", "sub", "mul", "mad", "mul24", "mad24", "div", "rem", "min", "max", "abs", "neg", "and", "or", "xor",
        "not", "shl", "shr", "bfe", "cvt", "setp",
    }
)  # fmt: skip
COPYING = frozenset({"mov", "selp"})


def spoiled(op: Op, sources: tuple[tuple[int, int], ...], results: tuple[tuple[int, int], ...]) -> Op:
    """Integer arithmetic on registers that may never have been written: of poison it makes poison, and compares it
    with nothing."""

    def run(r: Registers) -> None:
        hits = False
        for slot, width in sources:
            value = r[slot]
            if value is not None:
                hits = hits | (value == POISON[width])
        op(r)
        if hits is False:
            return
        warp = r[0]
        decides = hits is True or bool(hits.any() if warp.active is None else hits[warp.active].any())
        for slot, width in results:
            if width > 1:
                poison = POISON[width]
                r[slot] = poison if hits is True else merge(hits, poison, r[slot], width)
            elif decides:
                raise MachineError("uninitialised-read", "a register that was never written decides here")

    return run


def delivered(op: Op, line: int) -> Op:
    def run(r: Registers) -> None:
        warp = r[0]
        if warp.tmem_loads:
            warp.deliver_loads(line)
        op(r)

    return run


def watched(op: Callable[[Registers], Any], reads: int, writes: int, line: int) -> Callable[[Registers], Any]:
    """An op on registers that some wgmma works on (`reads` and `writes`)."""

    def run(r: Registers) -> Any:
        member = r[0].wgmma
        if member is not None:
            member.touch(reads, writes, line)
        return op(r)

    return run


def merging(op: Op, written: int, writes: tuple[tuple[int, int], ...]) -> Op:
    """An op that keeps the other lanes' values by itself, where they are still needed."""

    def run(r: Registers) -> None:
        if r[0].kept & written:
            _merged(op, r, writes)
        else:
            op(r)

    return run


def settled(run: Callable[[Registers], Any], bits: int) -> Callable[[Registers], Any]:
    """Finished results of wgmma come into those of their registers that are in `bits` first."""

    def settle(r: Registers) -> Any:
        member = r[0].wgmma
        if member is not None:
            member.settle(bits)
        return run(r)

    return settle


def then_flush(op: Op) -> Op:
    """The last tensor op of a segment starts what the segment queued."""

    def run(r: Registers) -> None:
        op(r)
        r[0].flush_tensor()

    return run


def jump(target: int) -> Terminator:
    return lambda r: target


def branch(guard: tuple[int, bool], target: int, following: int, meet: int) -> Terminator:
    slot, negated = guard

    def run(r: Registers) -> int:
        p = r[slot]
        if type(p) is bool:
            return target if p is not negated else following
        if p is None:
            raise _unset_predicate(negated)
        warp = r[0]
        taken = (bits_of(p) ^ (-negated)) & warp.bits
        if taken == 0:
            return following
        if taken == warp.bits:
            return target
        warp.diverge(((following, warp.bits & ~taken), (target, taken)), meet)
        return SWITCH

    return run


def indexed(slot: int, targets: list[int], meet: int) -> Terminator:
    def pick(index: int) -> int:
        if index >= len(targets):
            raise MachineError("out-of-bounds", f"brx.idx with index {index} of {len(targets)} targets")
        return targets[index]

    def run(r: Registers) -> int:
        index = r[slot]
        if type(index) is int:
            return pick(index)
        warp = r[0]
        paths: dict[int, int] = {}
        for lane in range(32):
            if warp.bits >> lane & 1:
                target = pick(index.item(lane))
                paths[target] = paths.get(target, 0) | 1 << lane
        if len(paths) == 1:
            return next(iter(paths))
        warp.diverge(tuple(paths.items()), meet)
        return SWITCH

    return run


def leave(r: Registers) -> int:
    return int(r[0].exit_lanes())


def blocking(
    op: Blocking, following: int, resume: int, written: int, writes: tuple[tuple[int, int], ...]
) -> Terminator:
    def run(r: Registers) -> int:
        warp: Any = r[0]
        if warp.kept & written:
            old = [r[slot] for slot, _ in writes]
            go_on = op(r)
            for (slot, width), before in zip(writes, old, strict=True):
                r[slot] = merge(warp.active, r[slot], before, width)
        else:
            go_on = op(r)
        if go_on:
            return following
        warp.pc = resume
        return STOP

    return run
