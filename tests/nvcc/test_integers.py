"""Integer instructions as nvcc writes them, against NumPy: kernels/integers.cu, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]
N = 256
MASK = 0xFFFFFFFF


def edges(bits: int) -> tuple[Array, Array]:
    """Random pairs, every pair of edge values among them."""
    random = np.random.default_rng(bits)
    top = 1 << (bits - 1)
    special = [0, 1, 2, 7, 31, 32, 0x7FFF, 0xFFFF, top - 1, top, top + 1, 2 * top - 1, 2 * top - 31]
    pairs = [(a, b) for a in special for b in special]
    while len(pairs) < N:
        a, b = (int.from_bytes(random.bytes(bits // 8), "little") for _ in range(2))
        pairs.append((a, b >> int(random.integers(0, bits))))
    unsigned = {32: np.uint32, 64: np.uint64}[bits]
    x, y = (np.array(column, unsigned) for column in zip(*pairs, strict=True))
    return x, y


def signed(value: int, bits: int) -> int:
    return ((value + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))


def quotient(a: int, b: int) -> int:
    """Division that truncates towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def s(value: int) -> int:
    return signed(value, 32)


def byte_permute(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for i in range(4):
        pick = selector >> (4 * i) & 15
        byte = source[pick & 7]
        if pick & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << (8 * i)
    return result


def field_mask(at: int, length: int) -> int:
    return ((1 << length) - 1) << at & MASK


def bit_field_extract(a: int, at: int, length: int, *, is_signed: bool) -> int:
    value = (a >> at if at < 32 else 0) & ((1 << length) - 1)
    top = min(at + length - 1, 31)
    if is_signed and length and a >> top & 1:
        value |= MASK & ~((1 << min(length, 32 - at)) - 1) if at < 32 else MASK
    return value & MASK


def find_leading(a: int, *, is_signed: bool) -> int:
    if is_signed and a >> 31:
        a = ~a & MASK
    return a.bit_length() - 1


def nth_set(mask: int, count: int) -> int:
    """Position of the count-th set bit from bit 0 up, all ones when there is none."""
    at = [bit for bit in range(32) if mask >> bit & 1]
    return at[count - 1] if len(at) >= count else MASK


def dot4(a: int, b: int, c: int, *, is_signed: bool) -> int:
    pairs = zip(a.to_bytes(4, "little"), b.to_bytes(4, "little"), strict=True)
    return c + sum(signed(p, 8) * signed(q, 8) if is_signed else p * q for p, q in pairs)


def low24(a: int, *, is_signed: bool) -> int:
    return signed(a, 24) if is_signed else a & 0xFFFFFF


def lookup(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))


def saturate(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def funnel_left(low: int, high: int, shift: int) -> int:
    return (high << 32 | low) << shift >> 32


OPERATIONS_32: list[tuple[str, Callable[[int, int], int]]] = [
    ("add", lambda a, b: a + b),
    ("sub", lambda a, b: a - b),
    ("mul", lambda a, b: a * b),
    ("mulhi signed", lambda a, b: s(a) * s(b) >> 32),
    ("mulhi unsigned", lambda a, b: a * b >> 32),
    ("div signed", lambda a, b: quotient(s(a), s(b | 1))),
    ("rem signed", lambda a, b: s(a) - quotient(s(a), s(b | 1)) * s(b | 1)),
    ("div unsigned", lambda a, b: a // (b | 1)),
    ("rem unsigned", lambda a, b: a % (b | 1)),
    ("min signed", lambda a, b: min(s(a), s(b))),
    ("max unsigned", max),
    ("abs", lambda a, b: abs(s(a))),
    ("neg", lambda a, b: -a),
    ("shl", lambda a, b: a << (b & 31)),
    ("shr signed", lambda a, b: s(a) >> (b & 31)),
    ("shr unsigned", lambda a, b: a >> (b & 31)),
    ("popc", lambda a, b: a.bit_count()),
    ("clz", lambda a, b: 32 - a.bit_length()),
    ("brev", lambda a, b: int(f"{a:032b}"[::-1], 2)),
    ("ffs", lambda a, b: (a & -a).bit_length()),
    ("byte_perm constant", lambda a, b: byte_permute(a, b, 0x6240)),
    ("byte_perm", lambda a, b: byte_permute(a, b, b & 0x7777)),
    ("funnel left", lambda a, b: funnel_left(a, b, a & 31)),
    ("funnel right", lambda a, b: (b << 32 | a) >> (a & 31)),
    ("funnel left clamped", lambda a, b: funnel_left(a, b, min(a & 63, 32))),
    ("sad signed", lambda a, b: abs(s(a) - s(b)) + b),
    ("sad unsigned", lambda a, b: abs(a - b) + a),
    ("mul24 signed", lambda a, b: low24(a, is_signed=True) * low24(b, is_signed=True)),
    ("mul24 unsigned", lambda a, b: low24(a, is_signed=False) * low24(b, is_signed=False)),
    ("hadd", lambda a, b: s(a) + s(b) >> 1),
    ("urhadd", lambda a, b: a + b + 1 >> 1),
    ("dp4a signed", lambda a, b: dot4(a, b, a, is_signed=True)),
    ("dp4a unsigned", lambda a, b: dot4(a, b, a, is_signed=False)),
    ("mad", lambda a, b: a * b + (a ^ b)),
    ("logic", lambda a, b: a & b | ~a & (b ^ 0x55)),
    ("narrow signed", lambda a, b: signed(a, 8) + signed(b, 16)),
    ("narrow unsigned", lambda a, b: (a & 0xFF) * (b & 0xFFFF)),
    ("select", lambda a, b: a if s(a) < s(b) else b),
    ("compare", lambda a, b: (s(a) < s(b)) + 2 * (a < b) + 4 * (a == b) + 8 * (s(a) >= 0)),
]


def at(b: int) -> int:
    return b & 0xFF


def length(b: int) -> int:
    return b >> 8 & 0xFF


def control(b: int) -> int:
    return b & 3


OPERATIONS_ASM: list[tuple[str, Callable[[int, int], int]]] = [
    ("bfe.u32", lambda a, b: bit_field_extract(a, at(b), length(b), is_signed=False)),
    ("bfe.s32", lambda a, b: bit_field_extract(a, at(b), length(b), is_signed=True)),
    (
        "bfi",
        lambda a, b: b & ~field_mask(at(b), length(b)) | a << at(b) & field_mask(at(b), length(b)),
    ),
    ("bfind.u32", lambda a, b: find_leading(a, is_signed=False)),
    ("bfind.s32", lambda a, b: find_leading(a, is_signed=True)),
    ("bfind.shiftamt", lambda a, b: 31 - find_leading(a, is_signed=False) if a else MASK),
    ("lop3 0x96", lambda a, b: lookup(a, b, a + b, 0x96)),
    ("lop3 0xe8", lambda a, b: lookup(a, b, a + b, 0xE8)),
    ("lop3 0x1b", lambda a, b: lookup(a, b, a + b, 0x1B)),
    ("prmt", lambda a, b: byte_permute(a, b, b)),
    ("prmt.f4e", lambda a, b: byte_permute(a, b, (0x3210, 0x4321, 0x5432, 0x6543)[control(b)])),
    ("prmt.b4e", lambda a, b: byte_permute(a, b, (0x5670, 0x6701, 0x7012, 0x0123)[control(b)])),
    ("prmt.rc8", lambda a, b: byte_permute(a, b, 0x1111 * control(b))),
    ("prmt.ecl", lambda a, b: byte_permute(a, b, (0x3210, 0x3211, 0x3222, 0x3333)[control(b)])),
    ("prmt.ecr", lambda a, b: byte_permute(a, b, (0x0000, 0x1110, 0x2210, 0x3210)[control(b)])),
    ("prmt.rc16", lambda a, b: byte_permute(a, b, (0x1010, 0x3232, 0x1010, 0x3232)[control(b)])),
    ("add.sat", lambda a, b: saturate(s(a) + s(b), -(2**31), 2**31 - 1)),
    ("sub.sat", lambda a, b: saturate(s(a) - s(b), -(2**31), 2**31 - 1)),
    ("mad.hi.s32", lambda a, b: (s(a) * s(b) >> 32) + a),
    ("mad.hi.u32", lambda a, b: (a * b >> 32) + a),
    ("add.cc", lambda a, b: a + b),
    ("addc", lambda a, b: a + (a + b > MASK)),
    ("sub.cc", lambda a, b: a - b),
    ("subc", lambda a, b: a - (a < b)),
    ("mad.lo.cc", lambda a, b: (a * b & MASK) + a),
    ("madc.hi", lambda a, b: (a * b >> 32) + ((a * b & MASK) + a > MASK)),
    ("shf.l.wrap", lambda a, b: funnel_left(a, b, at(b) & 31)),
    ("shf.r.clamp", lambda a, b: (b << 32 | a) >> min(at(b), 32)),
    ("shl", lambda a, b: a << min(at(b), 32)),
    ("shr.s32", lambda a, b: s(a) >> min(at(b), 31)),
    ("shr.u32", lambda a, b: a >> min(at(b), 32)),
    ("cnot", lambda a, b: int(not a & 1)),
    ("slct", lambda a, b: a if s(a ^ b) >= 0 else b),
    ("setp with two results", lambda a, b: 1 if s(a) < s(b) else 2 + 4),
    ("set", lambda a, b: MASK if s(a) < s(b) else 0),
    ("cvt.sat.u8", lambda a, b: saturate(s(a), 0, 255)),
    ("cvt.sat.s16", lambda a, b: saturate(s(a), -32768, 32767)),
    ("fns", lambda a, b: nth_set(a, 3)),
    ("bmsk.clamp", lambda a, b: field_mask(at(b), length(b))),
    ("szext.wrap", lambda a, b: signed(a, at(b) & 31) if at(b) & 31 else 0),
]

OPERATIONS_64: list[tuple[str, Callable[[int, int], int]]] = [
    ("add", lambda a, b: a + b),
    ("sub", lambda a, b: a - b),
    ("mul", lambda a, b: a * b),
    ("mulhi signed", lambda a, b: signed(a, 64) * signed(b, 64) >> 64),
    ("mulhi unsigned", lambda a, b: a * b >> 64),
    ("div signed", lambda a, b: quotient(signed(a, 64), signed(b | 1, 64))),
    (
        "rem signed",
        lambda a, b: signed(a, 64) - quotient(signed(a, 64), signed(b | 1, 64)) * signed(b | 1, 64),
    ),
    ("div unsigned", lambda a, b: a // (b | 1)),
    ("rem unsigned", lambda a, b: a % (b | 1)),
    ("div by constant", lambda a, b: quotient(signed(a, 64), 1000003)),
    ("rem by constant", lambda a, b: a % 48),
    ("shl", lambda a, b: a << (b & 63)),
    ("shr signed", lambda a, b: signed(a, 64) >> (b & 63)),
    ("shr unsigned", lambda a, b: a >> (b & 63)),
    ("popc", lambda a, b: a.bit_count()),
    ("clz", lambda a, b: 64 - a.bit_length()),
    ("brev", lambda a, b: int(f"{a:064b}"[::-1], 2)),
    ("mul.wide signed", lambda a, b: s(a) * s(b)),
    ("mul.wide unsigned", lambda a, b: (a & MASK) * (b & MASK)),
    ("min signed", lambda a, b: min(signed(a, 64), signed(b, 64))),
    ("max unsigned", max),
    ("abs", lambda a, b: abs(signed(a, 64))),
    ("logic", lambda a, b: ~a ^ (a & b)),
    ("compare", lambda a, b: (signed(a, 64) < signed(b, 64)) | (a < b) << 1),
]


@pytest.mark.parametrize(
    ("entry", "bits", "operations"),
    [
        ("integers_32", 32, OPERATIONS_32),
        ("integers_asm", 32, OPERATIONS_ASM),
        ("integers_64", 64, OPERATIONS_64),
    ],
)
def test_every_row_is_what_python_computes(
    cuda: Any, entry: str, bits: int, operations: list[tuple[str, Callable[[int, int], int]]]
) -> None:
    x, y = edges(bits)
    out = np.zeros((len(operations), N), x.dtype)
    got = cuda("integers")(entry, ["x", "y", "out", N], {"x": x, "y": y, "out": out}, grid=2)["out"]
    for row, (name, meaning) in enumerate(operations):
        wanted = [meaning(int(a), int(b)) & ((1 << bits) - 1) for a, b in zip(x, y, strict=True)]
        wrong = [
            f"{name}({int(a):#x}, {int(b):#x}) gave {int(g):#x}, not {w:#x}"
            for a, b, g, w in zip(x, y, got[row], wanted, strict=True)
            if g != w
        ]
        assert not wrong, wrong[:4]
