"""Comparisons and selections (PTX ISA 9.1 §9.7.6, §9.7.7)."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.floats import flush, to_floats
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import SIGNED, UNSIGNED, Registers, Value, spread, to_lanes, to_signed
from ptxgen.errors import MachineError

_INTEGER_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOAT_TYPES = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
_BOOLEAN: dict[str, Callable[[Value, Value], Value]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip


_TRUE = {"f32": 0x3F800000, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}


def _comparison(d: Decode, kind: str) -> Callable[[Value, Value], Value]:
    """The comparison that the modifiers name, on raw values of a type."""
    if kind in _FLOAT_TYPES:
        name = d.choice("eq", "ne", "lt", "le", "gt", "ge", *_UNORDERED, "num", "nan")
        return _float_comparison(name, kind, d.flag("ftz"))
    name = d.choice(*_COMPARE)
    width, compare = TYPE_BITS[kind], _COMPARE[name]
    if kind[0] == "b" and name not in ("eq", "ne"):
        d.fail(f"comparison .{name} needs a signed or unsigned type")
    if kind[0] != "s" or name in ("eq", "ne"):

        def unsigned(x: Value, y: Value) -> Value:
            if type(x) is type(y):
                return compare(x, y)
            return compare(to_lanes(x, width), to_lanes(y, width))

        return unsigned
    sign, dtype = 1 << (width - 1), SIGNED[width]

    def signed(x: Value, y: Value) -> Value:
        if type(x) is int and type(y) is int:  # flipping the sign bit maps signed to unsigned order
            return compare(x ^ sign, y ^ sign)
        return compare(to_lanes(x, width).view(dtype), to_lanes(y, width).view(dtype))

    return signed


def _float_comparison(name: str, kind: str, ftz: bool) -> Callable[[Value, Value], Value]:
    def compare(x: Value, y: Value) -> Value:
        p, q = to_floats(x, kind), to_floats(y, kind)
        if ftz:
            p, q = flush(p, kind), flush(q, kind)
        nan = np.isnan(p) | np.isnan(q)
        if name == "num":
            result = ~nan
        elif name == "nan":
            result = nan
        elif name in _UNORDERED:
            result = nan | _COMPARE[name[:-1]](p, q)
        else:
            result = ~nan & _COMPARE[name](p, q)
        return result if result.shape[0] > 1 else bool(result[0])

    return compare


@instruction("setp")
def setp(d: Decode) -> Op:
    kind = d.type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    packed = kind.endswith("x2")
    compare = _comparison(d, kind[:-2] if packed else kind)
    combine = d.optional("and", "or", "xor")
    first, second = d.dst_pair("pred", "pred")
    a, b = d.src(kind), d.src(kind)
    c, negated = d.predicate() if combine else (0, False)
    if packed:
        return _packed_setp(d, compare, first, second, a, b, combine)
    if second is None and not combine:

        def op(r: Registers) -> None:
            r[first] = compare(r[a], r[b])

        return op
    boolean = _BOOLEAN.get(combine)

    def both(r: Registers) -> None:
        result = compare(r[a], r[b])
        other = result ^ True
        if boolean is not None:
            p = r[c]
            if p is None:
                raise MachineError("uninitialised-read", "setp combines a predicate that was never written")
            p = p ^ negated
            result, other = boolean(result, p), boolean(other, p)
        r[first] = result
        if second is not None:
            r[second] = other

    return both


def _packed_setp(
    d: Decode,
    compare: Callable[[Value, Value], Value],
    first: int,
    second: int | None,
    a: int,
    b: int,
    combine: str,
) -> Op:
    if second is None or combine:
        d.fail("setp of a packed type needs a destination p|q and no boolean operator")

    def op(r: Registers) -> None:
        x, y = to_lanes(r[a], 32), to_lanes(r[b], 32)
        halves = [(to_lanes_16(x, s), to_lanes_16(y, s)) for s in (0, 16)]
        r[first], r[second] = (compare(p, q) for p, q in halves)

    return op


def to_lanes_16(x: Value, shift: int) -> Value:
    """One half of a packed register, as an array."""
    return (x >> spread(shift, 32)).astype(np.uint16)


@instruction("set")
def set_(d: Decode) -> Op:
    kind = d.type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    result_kind = d.type(("u32", "s32", "f32", "u16", "s16", "f16", "bf16", "f16x2", "bf16x2"))
    packed = kind.endswith("x2")
    compare = _comparison(d, kind[:-2] if packed else kind)
    combine = d.optional("and", "or", "xor")
    out, a, b = d.dst(result_kind), d.src(kind), d.src(kind)
    c, negated = d.predicate() if combine else (0, False)
    width = 16 if packed else TYPE_BITS[result_kind]
    true = _TRUE.get(result_kind, (1 << width) - 1)
    dtype = UNSIGNED[width]

    def choose(result: Value) -> Value:
        return (true if result else 0) if type(result) is bool else np.where(result, dtype(true), dtype(0))

    if packed:
        if combine:
            d.fail("set of a packed type with a boolean operator is not supported")

        def halves(r: Registers) -> None:
            x, y = to_lanes(r[a], 32), to_lanes(r[b], 32)
            low, high = (choose(compare(to_lanes_16(x, s), to_lanes_16(y, s))) for s in (0, 16))
            if type(low) is int and type(high) is int:
                r[out] = high << 16 | low
            else:
                r[out] = to_lanes(high, 16).astype(np.uint32) << np.uint32(16) | to_lanes(low, 16)

        return halves

    def op(r: Registers) -> None:
        result = compare(r[a], r[b])
        if combine:
            result = _BOOLEAN[combine](result, r[c] ^ negated)
        r[out] = choose(result)

    return op


@instruction("selp")
def selp(d: Decode) -> Op:
    kind = d.type((*_INTEGER_TYPES, "f16", "bf16", "f32", "f64", "b128"))
    width = TYPE_BITS[kind]
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    c, negated = d.predicate()

    def op(r: Registers) -> None:
        p = r[c]
        if type(p) is bool:
            r[out] = r[a] if p is not negated else r[b]
            return
        if p is None:
            raise MachineError("uninitialised-read", "selp selects by a predicate that was never written")
        x, y = r[a], r[b]
        if type(x) is int and x == (y if type(y) is int else -1):
            r[out] = x
            return
        if negated:
            x, y = y, x
        if width == 128:
            p = p[:, None]
        r[out] = np.where(p, to_lanes(x, width), to_lanes(y, width))

    return op


@instruction("slct")
def slct(d: Decode) -> Op:
    by = d.type(("s32", "f32"))
    kind = d.type((*_INTEGER_TYPES, "f32", "f64"))
    d.flag("ftz")
    width = TYPE_BITS[kind]
    out, a, b, c = d.dst(kind), d.src(kind), d.src(kind), d.src(by)

    def op(r: Registers) -> None:
        x, y, z = r[a], r[b], r[c]
        if by == "s32":
            if type(z) is int:
                r[out] = x if to_signed(z, 32) >= 0 else y
                return
            p = z.view(np.int32) >= 0
        else:
            p = to_floats(z, "f32") >= 0
            if p.shape[0] == 1:
                r[out] = x if p[0] else y
                return
        r[out] = np.where(p, to_lanes(x, width), to_lanes(y, width))

    return op


@instruction("testp")
def testp(d: Decode) -> Op:
    kind = d.type(("f32", "f64"))
    test = d.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    out, a = d.dst("pred"), d.src(kind)
    tiny = np.finfo(np.float32 if kind == "f32" else np.float64).tiny

    def op(r: Registers) -> None:
        x = to_floats(r[a], kind)
        size = np.abs(x)
        result = {
            "finite": np.isfinite(x),
            "infinite": np.isinf(x),
            "number": ~np.isnan(x),
            "notanumber": np.isnan(x),
            "normal": np.isfinite(x) & ((size >= tiny) | (size == 0)),
            "subnormal": (size > 0) & (size < tiny),
        }[test]
        r[out] = result if result.shape[0] > 1 else bool(result[0])

    return op
