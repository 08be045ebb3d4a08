"""Integer arithmetic (PTX ISA 9.1 §9.7.1, §9.7.2): wraps around unless told otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions import floating
from ptxgen.emulator.instructions.elementwise import (
    OnInts,
    OnLanes,
    binary,
    by_lane,
    raw,
    ternary,
    typed,
    unary,
)
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import MASK, SIGNED, UNSIGNED, Lanes, Registers, from_lanes, spread, to_signed

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _number(x: int, kind: str) -> int:
    """The value of raw bits read as an integer type."""
    return to_signed(x, TYPE_BITS[kind]) if kind[0] == "s" else x


def _clamp(value: int, kind: str) -> int:
    width = TYPE_BITS[kind]
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, MASK[width])
    return max(low, min(high, value)) & MASK[width]


@instruction("add", "sub")
def add_sub(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.add_sub(d)
    kind = d.type(INTEGERS)
    width, minus = TYPE_BITS[kind], d.opcode == "sub"
    sat = d.flag("sat")
    carry = d.slots.scratch(32, "carry flag") if d.flag("cc") else None
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    mask = MASK[width]
    if sat:
        if kind != "s32":
            d.fail(".sat needs .s32")

        def saturate(x: int, y: int) -> int:
            total = to_signed(x, 32) - to_signed(y, 32) if minus else to_signed(x, 32) + to_signed(y, 32)
            return _clamp(total, "s32")

        return binary(out, a, b, 32, saturate, by_lane(32, saturate))
    if carry is not None:
        return _with_carry(out, a, b, None, carry, width, minus)
    if minus:
        return binary(out, a, b, width, lambda x, y: x - y & mask, operator.sub)

    def add(r: Registers) -> None:
        x, y = r[a], r[b]
        if type(x) is int:
            if type(y) is int:
                r[out] = x + y & mask
                return
            x = spread(x, width)
        elif type(y) is int:
            y = spread(y, width)
        r[out] = x + y

    return add


@instruction("addc", "subc")
def add_sub_with_carry(d: Decode) -> Op:
    kind = d.type(("u32", "s32", "u64", "s64"))
    flag = d.slots.scratch(32, "carry flag")
    carry = flag if d.flag("cc") else None
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    return _with_carry(out, a, b, flag, carry, TYPE_BITS[kind], d.opcode == "subc")


def _with_carry(out: int, a: int, b: int, flag: int | None, carry: int | None, width: int, minus: bool) -> Op:
    """Adds or subtracts with the condition code's carry (a borrow for sub) in and out."""
    mask = MASK[width]

    def on_ints(x: int, y: int, c: int) -> tuple[int, int]:
        total = x - y - c if minus else x + y + c
        return total & mask, int(total < 0 or total > mask)

    def op(r: Registers) -> None:
        x, y = r[a], r[b]
        c = 0 if flag is None else r[flag]
        if type(x) is int and type(y) is int and type(c) is int:
            r[out], after = on_ints(x, y, c)
        else:
            columns = [v.tolist() if isinstance(v, np.ndarray) else [v] * 32 for v in (x, y, c)]
            pairs = [on_ints(*row) for row in zip(*columns, strict=True)]
            r[out] = np.array([pair[0] for pair in pairs], dtype=UNSIGNED[width])
            after = np.array([pair[1] for pair in pairs], dtype=np.uint32)  # type: ignore[assignment]
        if carry is not None:
            r[carry] = after

    return op


# -- products -----------------------------------------------------------------------------------


def _product(kind: str, part: str) -> tuple[OnInts, OnLanes, int]:
    """x*y by part "lo", "hi" or "wide": on ints, on lanes, and the result's width."""
    width = TYPE_BITS[kind]
    if part == "wide":
        result = 2 * width

        def wide(x: int, y: int) -> int:
            return (_number(x, kind) * _number(y, kind)) & MASK[result]

        types = SIGNED if kind[0] == "s" else UNSIGNED

        def wide_lanes(x: Lanes, y: Lanes) -> Lanes:
            return raw(typed(x, kind).astype(types[result]) * typed(y, kind))  # type: ignore[no-any-return]

        return wide, wide_lanes, result
    if part == "hi":

        def high(x: int, y: int) -> int:
            return (_number(x, kind) * _number(y, kind)) >> width & MASK[width]

        if width == 64:
            return high, by_lane(64, high), 64
        _, lanes, result = _product(kind, "wide")

        def high_lanes(x: Lanes, y: Lanes) -> Lanes:
            return (lanes(x, y) >> UNSIGNED[result](width)).astype(UNSIGNED[width])  # type: ignore[no-any-return]

        return high, high_lanes, width

    return lambda x, y: x * y & MASK[width], operator.mul, width


@instruction("mul")
def mul(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.mul(d)
    kind = d.type(INTEGERS)
    part = d.choice("lo", "hi", "wide")
    if part == "wide" and kind not in _WIDE:
        d.fail(f"mul.wide has no type .{kind}")
    out = d.dst(_WIDE[kind] if part == "wide" else kind)
    on_ints, on_lanes, _ = _product(kind, part)
    return binary(out, d.src(kind), d.src(kind), TYPE_BITS[kind], on_ints, on_lanes)


@instruction("mul24", "mad24")
def mul24(d: Decode) -> Op:
    kind = d.type(("u32", "s32"))
    part = d.choice("lo", "hi")
    sat = d.flag("sat")
    adds = d.opcode == "mad24"
    if sat and not (adds and part == "hi" and kind == "s32"):
        d.fail(".sat needs mad24.hi.s32")

    def small(x: int) -> int:
        return to_signed(x & 0xFFFFFF, 24) if kind == "s32" else x & 0xFFFFFF

    def product(x: int, y: int) -> int:
        full = small(x) * small(y)
        return full >> 16 if part == "hi" else full

    def multiply(x: int, y: int) -> int:
        return product(x, y) & MASK[32]

    def multiply_add(x: int, y: int, z: int) -> int:
        full = to_signed(product(x, y) & MASK[32], 32) + _number(z, kind)
        return _clamp(full, "s32") if sat else full & MASK[32]

    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    if adds:
        return ternary(out, a, b, d.src(kind), (32, 32, 32), multiply_add, by_lane(32, multiply_add))
    return binary(out, a, b, 32, multiply, by_lane(32, multiply))


@instruction("mad")
def mad(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.fma(d)
    kind = d.type(INTEGERS)
    part = d.choice("lo", "hi", "wide")
    sat = d.flag("sat")
    carry = d.slots.scratch(32, "carry flag") if d.flag("cc") else None
    if part == "wide" and kind not in _WIDE:
        d.fail(f"mad.wide has no type .{kind}")
    if sat and (part, kind) != ("hi", "s32"):
        d.fail(".sat needs mad.hi.s32")
    total = _WIDE[kind] if part == "wide" else kind
    on_ints, on_lanes, width = _product(kind, part)
    out, a, b, c = d.dst(total), d.src(kind), d.src(kind), d.src(total)
    if carry is not None:
        return _mad_carry(out, (a, b, c), None, carry, on_ints, width)
    if sat:

        def saturate(x: int, y: int, z: int) -> int:
            return _clamp(to_signed(on_ints(x, y), 32) + to_signed(z, 32), "s32")

        return ternary(out, a, b, c, (32, 32, 32), saturate, by_lane(32, saturate))
    mask, narrow = MASK[width], TYPE_BITS[kind]

    def add(r: Registers) -> None:
        x, y, z = r[a], r[b], r[c]
        if type(x) is int and type(y) is int:
            v = on_ints(x, y)
            r[out] = v + z & mask if type(z) is int else spread(v, width) + z
            return
        if type(x) is int:
            x = spread(x, narrow)
        elif type(y) is int:
            y = spread(y, narrow)
        r[out] = on_lanes(x, y) + (spread(z, width) if type(z) is int else z)

    return add


@instruction("madc")
def madc(d: Decode) -> Op:
    kind = d.type(("u32", "s32", "u64", "s64"))
    part = d.choice("lo", "hi")
    flag = d.slots.scratch(32, "carry flag")
    carry = flag if d.flag("cc") else None
    on_ints, _, width = _product(kind, part)
    out, a, b, c = d.dst(kind), d.src(kind), d.src(kind), d.src(kind)
    return _mad_carry(out, (a, b, c), flag, carry, on_ints, width)


def _mad_carry(
    out: int, sources: tuple[int, int, int], flag: int | None, carry: int | None, product: OnInts, width: int
) -> Op:
    a, b, c = sources
    mask = MASK[width]

    def on_ints(x: int, y: int, z: int, cc: int) -> tuple[int, int]:
        total = product(x, y) + z + cc
        return total & mask, int(total > mask)

    def op(r: Registers) -> None:
        operands = [r[a], r[b], r[c], 0 if flag is None else r[flag]]
        if all(type(x) is int for x in operands):
            r[out], after = on_ints(*operands)
        else:
            columns = [x.tolist() if isinstance(x, np.ndarray) else [x] * 32 for x in operands]
            pairs = [on_ints(*row) for row in zip(*columns, strict=True)]
            r[out] = np.array([pair[0] for pair in pairs], dtype=UNSIGNED[width])
            after = np.array([pair[1] for pair in pairs], dtype=np.uint32)  # type: ignore[assignment]
        if carry is not None:
            r[carry] = after

    return op


# -- quotients ----------------------------------------------------------------------------------


@instruction("div", "rem")
def div_rem(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.div(d)
    kind = d.type(INTEGERS)
    width, quotient = TYPE_BITS[kind], d.opcode == "div"
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)

    def on_ints(x: int, y: int) -> int:
        """Rounds to zero. By zero, hardware gives all ones as quotient and x as remainder."""
        if y == 0:
            return MASK[width] if quotient else x
        n, m = _number(x, kind), _number(y, kind)
        q = abs(n) // abs(m)
        if (n < 0) != (m < 0):
            q = -q
        return (q if quotient else n - q * m) & MASK[width]

    if kind[0] == "s":
        return binary(out, a, b, width, on_ints, by_lane(width, on_ints))

    def on_lanes(x: Lanes, y: Lanes) -> Lanes:
        zero = y == 0
        safe = np.where(zero, UNSIGNED[width](1), y)
        if quotient:
            return from_lanes(np.where(zero, UNSIGNED[width](MASK[width]), x // safe))  # type: ignore[no-any-return]
        return np.where(zero, x, x % safe)

    return binary(out, a, b, width, on_ints, on_lanes)


# -- selections and counts ----------------------------------------------------------------------


@instruction("min", "max")
def min_max(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.min_max(d)
    kind = d.type((*INTEGERS, "u16x2", "s16x2"))
    relu = d.flag("relu")
    width = 32 if kind.endswith("x2") else TYPE_BITS[kind]
    register = "b32" if kind.endswith("x2") else kind
    out, a, b = d.dst(register), d.src(register), d.src(register)
    larger = d.opcode == "max"
    pick: Callable[..., int] = max if larger else min
    choose = np.maximum if larger else np.minimum
    if kind.endswith("x2"):
        half = kind[0] + "16"

        def packed(x: int, y: int) -> int:
            low = _pick(pick, x & 0xFFFF, y & 0xFFFF, half, relu)
            return low | _pick(pick, x >> 16, y >> 16, half, relu) << 16

        return binary(out, a, b, 32, packed, by_lane(32, packed))
    if relu and kind != "s32":
        d.fail(".relu needs .s32 or .s16x2")

    def on_lanes(x: Lanes, y: Lanes) -> Lanes:
        result = choose(typed(x, kind), typed(y, kind))
        return raw(np.maximum(result, 0) if relu else result)  # type: ignore[no-any-return]

    return binary(out, a, b, width, lambda x, y: _pick(pick, x, y, kind, relu), on_lanes)


def _pick(pick: Callable[..., int], x: int, y: int, kind: str, relu: bool) -> int:
    value = pick(_number(x, kind), _number(y, kind))
    return (max(value, 0) if relu else value) & MASK[TYPE_BITS[kind]]


@instruction("abs", "neg")
def abs_neg(d: Decode) -> Op:
    if floating.is_float(d):
        return floating.abs_neg(d)
    kind = d.type(("s16", "s32", "s64"))
    width = TYPE_BITS[kind]
    out, a = d.dst(kind), d.src(kind)
    if d.opcode == "neg":
        return unary(out, a, lambda x: -x & MASK[width], lambda x: raw(-typed(x, "s")))
    return unary(
        out,
        a,
        lambda x: abs(to_signed(x, width)) & MASK[width],
        lambda x: raw(np.abs(typed(x, "s"))),
    )


@instruction("sad")
def sad(d: Decode) -> Op:
    kind = d.type(INTEGERS)
    width = TYPE_BITS[kind]

    def on_ints(x: int, y: int, z: int) -> int:
        return (z + abs(_number(x, kind) - _number(y, kind))) & MASK[width]

    out, a, b, c = d.dst(kind), d.src(kind), d.src(kind), d.src(kind)
    return ternary(out, a, b, c, (width, width, width), on_ints, by_lane(width, on_ints))


@instruction("dp4a", "dp2a")
def dot(d: Decode) -> Op:
    b_kind, a_kind = d.type(("u32", "s32")), d.type(("u32", "s32"))
    high = False
    if d.opcode == "dp2a":
        high = d.choice("lo", "hi") == "hi"

    def parts(x: int, bits: int, count: int, kind: str) -> list[int]:
        values = [x >> (bits * i) & MASK[bits] for i in range(count)]
        return [to_signed(v, bits) if kind == "s32" else v for v in values]

    def dp4a(x: int, y: int, z: int) -> int:
        products = zip(parts(x, 8, 4, a_kind), parts(y, 8, 4, b_kind), strict=True)
        return (z + sum(p * q for p, q in products)) & MASK[32]

    def dp2a(x: int, y: int, z: int) -> int:
        chosen = parts(y, 8, 4, b_kind)[2 if high else 0 :][:2]
        return (z + sum(p * q for p, q in zip(parts(x, 16, 2, a_kind), chosen, strict=True))) & MASK[32]

    on_ints = dp4a if d.opcode == "dp4a" else dp2a
    out, a, b, c = d.dst("b32"), d.src("b32"), d.src("b32"), d.src("b32")
    return ternary(out, a, b, c, (32, 32, 32), on_ints, by_lane(32, on_ints))
