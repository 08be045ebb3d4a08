"""Instructions in which the lanes of a warp meet (PTX ISA 9.1 §9.7.9.6, §9.7.13.7 to 13).

All live lanes that a member mask names must run the instruction together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.instructions.control import emit_warp_sync
from ptxgen.emulator.instructions.floats import round_bits, to_floats
from ptxgen.emulator.values import (
    ALL_LANES,
    LANE_INDEX,
    LANES,
    MASK,
    Registers,
    Value,
    bits_of,
    from_lanes,
    lane_value,
    lanes_of,
    mask_of,
    to_lanes,
    to_signed,
)
from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError

_ELECTED = [mask_of(1 << lane) for lane in range(LANES)]


def _members(warp: Any, mask: Value, what: str) -> int:
    """The lanes of a member mask that take part; all live ones must be running."""
    if type(mask) is not int:
        masks = {int(m) for m in mask[mask_of(warp.bits)]}
        if len(masks) > 1:
            return int(warp.bits & reduce(int.__or__, masks))  # disjoint groups run side by side
        mask = masks.pop()
    absent = mask & warp.live & ~warp.bits
    if absent:
        raise MachineError(
            "divergent-aligned-instruction",
            f"{what} names lanes {mask:#010x}, but {absent:#010x} of them are elsewhere (running: {warp.bits:#010x})",
        )
    _require_named(warp, mask, what)
    return int(mask & warp.bits)


def _require_named(warp: Any, mask: int, what: str) -> None:
    """Who runs the instruction must be in its mask (PTX ISA 9.1 §9.7.13.3, §9.7.13.11)."""
    if warp.bits & ~mask:
        raise MachineError(
            "divergent-aligned-instruction",
            f"{what} is run by lanes {warp.bits & ~mask:#010x} that its mask {mask:#010x} does not name",
        )


def _wrap(d: Decode, op: Op) -> Op:
    return emit_warp_sync(d, op, d.item.name) if d.hooks else op


@instruction("shfl.sync")
def shfl(d: Decode) -> Op:
    mode = d.choice("up", "down", "bfly", "idx")
    d.require("b32")
    out, valid = d.dst_pair("b32", "pred")
    a, b, c, mask = d.src("b32"), d.src("b32"), d.src("b32"), d.src("b32")
    lane = LANE_INDEX.astype(np.int64)

    def op(r: Registers) -> None:
        warp = r[0]
        _members(warp, r[mask], "shfl.sync")
        x, y, z = r[a], r[b], r[c]
        if type(x) is int and valid is None and (warp.bits == warp.live or mode == "idx"):
            r[out] = x
            return
        step = y & 31 if type(y) is int else y.astype(np.int64) & 31
        limits = z if type(z) is int else z.astype(np.int64)
        clamp, segment = limits & 31, limits >> 8 & 31
        high = (lane & segment) | (clamp & ~segment)
        if mode == "up":
            source = lane - step
            inside = source >= high
        elif mode == "down":
            source = lane + step
            inside = source <= high
        elif mode == "bfly":
            source = lane ^ step
            inside = source <= high
        else:
            source = (lane & segment) | (step & ~segment)
            inside = source <= high
        source = np.where(inside, source, lane)
        r[out] = from_lanes(to_lanes(x, 32)[source & 31])
        if valid is not None:
            r[valid] = inside

    return _wrap(d, op)


@instruction("vote.sync")
def vote(d: Decode) -> Op:
    mode = d.choice("all", "any", "uni", "ballot")
    d.require("b32" if mode == "ballot" else "pred")
    out = d.dst("b32" if mode == "ballot" else "pred")
    a, negated = d.predicate()
    mask = d.src("b32")

    def op(r: Registers) -> None:
        warp = r[0]
        members = _members(warp, r[mask], "vote.sync")
        p = r[a]
        if p is None:
            raise MachineError("uninitialised-read", "vote reads a predicate that was never written")
        votes = ((ALL_LANES if p else 0) if type(p) is bool else bits_of(p)) ^ (ALL_LANES if negated else 0)
        votes &= members
        if mode == "ballot":
            r[out] = votes
        elif mode == "all":
            r[out] = votes == members
        elif mode == "any":
            r[out] = votes != 0
        else:
            r[out] = votes in (0, members)

    return _wrap(d, op)


@instruction("match.any.sync", "match.all.sync")
def match(d: Decode) -> Op:
    kind = d.type(("b32", "b64"))
    every = ".all." in d.opcode
    out, same = d.dst_pair("b32", "pred")
    if same is not None and not every:
        d.fail("match.any has no predicate destination")
    a, mask = d.src(kind), d.src("b32")

    def op(r: Registers) -> None:
        warp = r[0]
        members = _members(warp, r[mask], "match.sync")
        values = {lane: lane_value(r[a], lane) for lane in lanes_of(members)}
        if every:
            agree = len(set(values.values())) <= 1
            r[out] = members if agree else 0
            if same is not None:
                r[same] = agree
            return
        groups: dict[int, int] = {}
        for lane, value in values.items():
            groups[value] = groups.get(value, 0) | 1 << lane
        r[out] = from_lanes(np.array([groups.get(values.get(lane, -1), 0) for lane in range(LANES)], dtype=np.uint32))

    return _wrap(d, op)


@instruction("activemask")
def activemask(d: Decode) -> Op:
    d.require("b32")
    out = d.dst("b32")

    def op(r: Registers) -> None:
        r[out] = r[0].bits

    return op


@instruction("redux.sync")
def redux(d: Decode) -> Op:
    operation = d.choice("add", "min", "max", "and", "or", "xor")
    kind = d.type(("b32", "u32", "s32", "f32"))
    absolute, nan = d.flag("abs"), d.flag("NaN")
    if (kind == "b32") != (operation in ("and", "or", "xor")) or (kind == "f32" and operation == "add"):
        d.fail(f"redux.{operation} has no type .{kind}")
    out, a, mask = d.dst(kind), d.src(kind), d.src("b32")
    combine: dict[str, Callable[[int, int], int]] = {
        "add": lambda x, y: x + y, "min": min, "max": max,
        "and": int.__and__, "or": int.__or__, "xor": int.__xor__,
    }  # fmt: skip

    def op(r: Registers) -> None:
        members = _members(r[0], r[mask], "redux.sync")
        values = [lane_value(r[a], lane) for lane in lanes_of(members)]
        if kind == "f32":
            r[out] = _float_redux(values, operation, absolute, nan)
            return
        if kind == "s32":
            values = [to_signed(v, 32) for v in values]
        r[out] = reduce(combine[operation], values) & MASK[32]

    return _wrap(d, op)


def _float_redux(values: list[int], operation: str, absolute: bool, nan: bool) -> int:
    floats = to_floats(np.array(values, dtype=np.uint32), "f32")
    floats = np.abs(floats) if absolute else floats
    if np.isnan(floats).all() or (nan and np.isnan(floats).any()):
        return 0x7FFFFFFF
    best = np.nanmin(floats) if operation == "min" else np.nanmax(floats)
    return int(round_bits(np.array([best], dtype=np.float32), "f32")[0])


@instruction("elect.sync")
def elect(d: Decode) -> Op:
    out, chosen = d.dst_pair("b32", "pred")
    if chosen is None:
        d.fail("elect.sync needs a destination d|p")
    mask = d.src("b32")
    sink = d.slots.sink

    def op(r: Registers) -> None:
        warp = r[0]
        m = r[mask]
        members = m if type(m) is int and m == warp.bits else _members(warp, m, "elect.sync")
        lane = warp.cta.unit.policy.elect(members)
        if out != sink:
            r[out] = lane
        r[chosen] = _ELECTED[lane]

    return _wrap(d, op)


@instruction("bar.warp.sync")
def bar_warp(d: Decode) -> Ends:
    """Lanes that come first wait for the others of the mask."""
    mask = d.src("b32")
    line, hooks, name = d.line, d.hooks, d.item.name

    def op(r: Registers) -> bool:
        warp = r[0]
        if hooks:
            emit_warp_sync(d, _nothing, name)(r)
        m = lane_value(r[mask], (warp.bits & -warp.bits).bit_length() - 1)
        wanted = m & warp.live
        if type(r[mask]) is int:  # else lanes of several groups may be running, each in its own mask
            _require_named(warp, m, name)
        here = [f for f in warp.fragments if f.wait is not None and f.wait.kind == "warp-sync" and f.wait.detail == m]
        arrived = reduce(int.__or__, (f.bits for f in here), warp.bits)
        if wanted & ~arrived:
            return bool(warp.wait(Wait("warp-sync", line, target=warp.index, detail=m)))
        for fragment in here:
            fragment.wait = None
        warp.cta.unit.activity += 1
        return True

    return Ends(kind="blocking", op=op)


def _nothing(r: Registers) -> None:
    return
