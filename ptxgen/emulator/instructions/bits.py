"""Logic, shifts and bit fields (PTX ISA 9.1 §9.7.1, §9.7.8)."""

from __future__ import annotations

import operator

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.elementwise import OnInts, OnLanes, binary, by_lane, ternary, typed, unary
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import MASK, UNSIGNED, Lanes, Registers, Value, from_lanes, spread, to_lanes, to_signed
from ptxgen.errors import MachineError

_LOGIC = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


@instruction("and", "or", "xor")
def logic(d: Decode) -> Op:
    kind = d.type(("pred", "b16", "b32", "b64"))
    combine = _LOGIC[d.opcode]
    if kind == "pred":
        out = d.dst(kind)
        (a, negate_a), (b, negate_b) = d.predicate(), d.predicate()

        def predicates(r: Registers) -> None:
            x, y = r[a], r[b]
            if x is None or y is None:
                raise MachineError("uninitialised-read", "a predicate that was never written is combined here")
            r[out] = combine(x ^ True if negate_a else x, y ^ True if negate_b else y)

        return predicates
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    width = TYPE_BITS[kind]
    if d.opcode == "and":  # masks often leave what all lanes share
        return binary(out, a, b, width, combine, lambda x, y: from_lanes(x & y))
    return binary(out, a, b, width, combine, combine)


@instruction("not")
def invert(d: Decode) -> Op:
    kind = d.type(("pred", "b16", "b32", "b64"))
    out = d.dst(kind)
    mask: int | bool = MASK[TYPE_BITS[kind]]
    if kind == "pred":
        a, negated = d.predicate()
        mask = not negated
    else:
        a = d.src(kind)

    width = TYPE_BITS[kind]

    def op(r: Registers) -> None:
        x = r[a]
        if x is None:
            raise MachineError("uninitialised-read", "a predicate that was never written is negated here")
        r[out] = x ^ mask if type(x) is int or type(x) is bool else x ^ spread(mask, width)

    return op


@instruction("cnot")
def cnot(d: Decode) -> Op:
    kind = d.type(("b16", "b32", "b64"))
    dtype = UNSIGNED[TYPE_BITS[kind]]
    out, a = d.dst(kind), d.src(kind)
    return unary(out, a, lambda x: int(x == 0), lambda x: (x == 0).astype(dtype))


@instruction("lop3")
def lop3(d: Decode) -> Op:
    combine = d.optional("or", "and")
    d.require("b32")
    if combine:
        d.count(6)
        out, accepted = d.dst_pair("b32", "pred")
        if accepted is None:
            d.fail("lop3.BoolOp needs a destination d|p")
    else:
        d.count(5)
        out, accepted = d.dst("b32"), None
    a, b, c = d.src("b32"), d.src("b32"), d.src("b32")
    table = d.integer("the table")
    if not 0 <= table <= 255:
        d.fail(f"the table of lop3 is 0..255, not {table}")
    q, negated = d.predicate() if combine else (d.slots.sink, False)

    def compute(x: Value, y: Value, z: Value) -> Value:
        """The table's minterms: bit 7 is x·y·z, bit 0 is ¬x·¬y·¬z."""
        nx, ny, nz = x ^ 0xFFFFFFFF, y ^ 0xFFFFFFFF, z ^ 0xFFFFFFFF
        total = x & 0
        for minterm in range(8):
            if table >> minterm & 1:
                total = total | ((x if minterm & 4 else nx) & (y if minterm & 2 else ny) & (z if minterm & 1 else nz))
        return total

    simple = {0x80: (0, 0), 0xFE: (1, 1), 0x96: (2, 2)}.get(table)
    ops = (operator.and_, operator.or_, operator.xor)

    def op(r: Registers) -> None:
        x, y, z = r[a], r[b], r[c]
        if not (type(x) is type(y) is type(z)):
            x, y, z = to_lanes(x, 32), to_lanes(y, 32), to_lanes(z, 32)
        v = ops[simple[0]](ops[simple[0]](x, y), z) if simple else compute(x, y, z)
        r[out] = v
        if accepted is not None:
            nonzero = v != 0
            p = r[q] ^ negated
            r[accepted] = nonzero | p if combine == "or" else nonzero & p

    return op


@instruction("shl", "shr")
def shift(d: Decode) -> Op:
    left = d.opcode == "shl"
    kinds = ("b16", "b32", "b64") if left else ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
    kind = d.type(kinds)
    width = TYPE_BITS[kind]
    out, a, b = d.dst(kind), d.src(kind), d.src("u32")
    on_ints, on_lanes = _shift(kind, width, left)
    last = width - 1

    def op(r: Registers) -> None:
        x, n = r[a], r[b]
        if type(n) is int:
            if type(x) is int:
                r[out] = on_ints(x, n)
            elif n < width:
                r[out] = on_lanes(x, spread(n, width))
            else:
                r[out] = on_lanes(x, spread(last, width)) if kind[0] == "s" else 0
            return
        count = np.minimum(n, last).astype(UNSIGNED[width])
        moved = to_lanes(on_lanes(to_lanes(x, width), count), width)
        r[out] = moved if kind[0] == "s" else np.where(n < width, moved, UNSIGNED[width](0))

    return op


def _shift(kind: str, width: int, left: bool) -> tuple[OnInts, OnLanes]:
    """Shifts on ints (any amount) and on lanes (amounts below the width)."""
    mask = MASK[width]
    if left:
        return (lambda x, n: x << n & mask if n < width else 0), operator.lshift
    if kind[0] == "s":
        return (
            lambda x, n: (to_signed(x, width) >> min(n, width - 1)) & mask,
            lambda x, n: from_lanes((typed(x, "s") >> typed(n, "s")).view(UNSIGNED[width])),
        )
    return (lambda x, n: x >> n), (lambda x, n: from_lanes(x >> n))


@instruction("shf")
def shf(d: Decode) -> Op:
    direction, mode = d.choice("l", "r"), d.choice("wrap", "clamp")
    d.require("b32")
    out, a, b, c = d.dst("b32"), d.src("b32"), d.src("b32"), d.src("u32")
    left = direction == "l"

    def on_ints(low: int, high: int, n: int) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        both = high << 32 | low
        return (both << n >> 32 if left else both >> n) & MASK[32]

    def on_lanes(low: Lanes, high: Lanes, n: Lanes) -> Lanes:
        count = (n & 31 if mode == "wrap" else np.minimum(n, 32)).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        moved = both << count >> np.uint64(32) if left else both >> count
        return moved.astype(np.uint32)  # type: ignore[no-any-return]

    return ternary(out, a, b, c, (32, 32, 32), on_ints, on_lanes)


@instruction("prmt")
def prmt(d: Decode) -> Op:
    mode = d.optional("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    d.require("b32")
    out, a, b, c = d.dst("b32"), d.src("b32"), d.src("b32"), d.src("b32")

    def selectors(control: int) -> list[int]:
        """For each result byte the source byte, plus 8 to spread its sign (§9.7.8 prmt)."""
        if not mode:
            return [control >> (4 * i) & 15 for i in range(4)]
        n = control & 3
        return {
            "f4e": [n, n + 1, n + 2, n + 3],
            "b4e": [n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8],
            "rc8": [n] * 4,
            "ecl": [max(i, n) for i in range(4)],
            "ecr": [min(i, n) for i in range(4)],
            "rc16": [0, 1, 0, 1] if n & 1 == 0 else [2, 3, 2, 3],
        }[mode]

    def on_ints(x: int, y: int, control: int) -> int:
        both, result = y << 32 | x, 0
        for i, selector in enumerate(selectors(control)):
            byte = both >> (8 * (selector & 7)) & 0xFF
            if selector & 8:
                byte = 0xFF if byte & 0x80 else 0
            result |= byte << (8 * i)
        return result

    slow = by_lane(32, on_ints)

    def op(r: Registers) -> None:
        x, y, control = r[a], r[b], r[c]
        if type(control) is not int or any(selector & 8 for selector in selectors(control)):
            uniform = type(x) is int and type(y) is int and type(control) is int
            r[out] = on_ints(x, y, control) if uniform else slow(*(to_lanes(v, 32) for v in (x, y, control)))
            return
        if type(x) is int and type(y) is int:
            r[out] = on_ints(x, y, control)
            return
        both = np.stack((to_lanes(x, 32), to_lanes(y, 32)), axis=1).view(np.uint8)
        r[out] = np.ascontiguousarray(both[:, selectors(control)]).view(np.uint32)[:, 0]

    return op


@instruction("bfe")
def bfe(d: Decode) -> Op:
    kind = d.type(("u32", "s32", "u64", "s64"))
    width = TYPE_BITS[kind]
    out, a, b, c = d.dst(kind), d.src(kind), d.src("u32"), d.src("u32")

    def on_ints(x: int, start: int, length: int) -> int:
        start, length = start & 0xFF, length & 0xFF
        field = x >> start & ((1 << length) - 1)
        if kind[0] == "u" or length == 0:
            return field & MASK[width]
        sign = x >> min(start + length - 1, width - 1) & 1
        kept = max(0, min(length, width - start))
        return field | (MASK[width] >> kept << kept if sign else 0)

    slow = by_lane(width, on_ints)

    def op(r: Registers) -> None:
        x, start, length = r[a], r[b], r[c]
        if type(start) is int and type(length) is int:
            if type(x) is int:
                r[out] = on_ints(x, start, length)
                return
            if kind[0] == "u" and start & 0xFF < width:
                field = ((1 << (length & 0xFF)) - 1) & MASK[width]
                r[out] = from_lanes(x >> spread(start & 0xFF, width) & spread(field, width))
                return
        r[out] = slow(to_lanes(x, width), to_lanes(start, 32), to_lanes(length, 32))

    return op


@instruction("bfi")
def bfi(d: Decode) -> Op:
    kind = d.type(("b32", "b64"))
    width = TYPE_BITS[kind]
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)
    c, e = d.src("u32"), d.src("u32")

    def insert(x: int, y: int, start: int, length: int) -> int:
        field = ((1 << (length & 0xFF)) - 1) << (start & 0xFF) & MASK[width]
        return y & ~field | x << (start & 0xFF) & field

    slow = by_lane(width, insert)

    def op(r: Registers) -> None:
        operands = r[a], r[b], r[c], r[e]
        if all(type(v) is int for v in operands):
            r[out] = insert(*operands)
        else:
            r[out] = slow(*(to_lanes(v, w) for v, w in zip(operands, (width, width, 32, 32), strict=True)))

    return op


@instruction("bmsk")
def bmsk(d: Decode) -> Op:
    mode = d.choice("clamp", "wrap")
    d.require("b32")

    def on_ints(start: int, length: int) -> int:
        if mode == "wrap":
            start, length = start & 31, length & 31
        start, length = min(start, 32), min(length, 32)
        return ((1 << length) - 1) << start & MASK[32]

    out, a, b = d.dst("b32"), d.src("b32"), d.src("b32")
    return binary(out, a, b, 32, on_ints, by_lane(32, on_ints))


@instruction("szext")
def szext(d: Decode) -> Op:
    mode = d.choice("clamp", "wrap")
    kind = d.type(("u32", "s32"))

    def on_ints(x: int, bits: int) -> int:
        bits = bits & 31 if mode == "wrap" else min(bits, 32)
        low = x & ((1 << bits) - 1)
        if kind == "u32" or bits == 0:
            return low
        return to_signed(low, bits) & MASK[32]

    out, a, b = d.dst(kind), d.src(kind), d.src("u32")
    return binary(out, a, b, 32, on_ints, by_lane(32, on_ints))


@instruction("popc")
def popc(d: Decode) -> Op:
    kind = d.type(("b32", "b64"))
    out, a = d.dst("b32"), d.src(kind)
    return unary(out, a, lambda x: x.bit_count(), by_lane(32, lambda x: x.bit_count()))


@instruction("clz")
def clz(d: Decode) -> Op:
    kind = d.type(("b32", "b64"))
    width = TYPE_BITS[kind]
    out, a = d.dst("b32"), d.src(kind)
    return unary(out, a, lambda x: width - x.bit_length(), by_lane(32, lambda x: width - x.bit_length()))


@instruction("brev")
def brev(d: Decode) -> Op:
    kind = d.type(("b32", "b64"))
    width = TYPE_BITS[kind]

    def reverse(x: int) -> int:
        return int(f"{x:0{width}b}"[::-1], 2)

    out, a = d.dst(kind), d.src(kind)
    return unary(out, a, reverse, by_lane(width, reverse))


@instruction("bfind")
def bfind(d: Decode) -> Op:
    shift = d.flag("shiftamt")
    kind = d.type(("u32", "s32", "u64", "s64"))
    width = TYPE_BITS[kind]

    def find(x: int) -> int:
        if kind[0] == "s" and x >> (width - 1):
            x ^= MASK[width]
        if x == 0:
            return MASK[32]
        return width - x.bit_length() if shift else x.bit_length() - 1

    out, a = d.dst("u32"), d.src(kind)
    return unary(out, a, find, by_lane(32, find))


@instruction("fns")
def fns(d: Decode) -> Op:
    d.require("b32")

    def find(mask: int, base: int, offset: int) -> int:
        """The offset-th set bit from `base` on, upward or downward (§9.7.1 fns)."""
        n = to_signed(offset, 32)
        base &= 31
        if n == 0:
            return base if mask >> base & 1 else MASK[32]
        places = range(base, 32) if n > 0 else range(base, -1, -1)
        for place in places:
            if mask >> place & 1:
                n -= 1 if n > 0 else -1
                if n == 0:
                    return place
        return MASK[32]

    out, a, b, c = d.dst("b32"), d.src("b32"), d.src("b32"), d.src("s32")
    return ternary(out, a, b, c, (32, 32, 32), find, by_lane(32, find))
