"""Integer instructions against Python's own arithmetic, on lanes that differ and on lanes that all agree.

The two ways are separate code: a register whose lanes agree is a Python int.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

M = 0xFFFFFFFF
EDGES = [0, 1, 2, 3, 31, 32, 33, 0x7F, 0x80, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0x80000001, M, M - 1]


def s(x: int) -> int:
    return x - ((x & 0x80000000) << 1)


def c_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bfe(a: int, start: int, length: int) -> int:
    return a >> (start & 255) & ((1 << (length & 255)) - 1) & M


def lop3(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))


FORMS: dict[str, Callable[[int, int, int], int]] = {
    "add.u32 d, a, b;": lambda a, b, c: a + b,
    "sub.u32 d, a, b;": lambda a, b, c: a - b,
    "add.sat.s32 d, a, b;": lambda a, b, c: max(-(2**31), min(2**31 - 1, s(a) + s(b))),
    "mul.lo.s32 d, a, b;": lambda a, b, c: a * b,
    "mul.hi.u32 d, a, b;": lambda a, b, c: a * b >> 32,
    "mul.hi.s32 d, a, b;": lambda a, b, c: s(a) * s(b) >> 32,
    "mad.lo.u32 d, a, b, c;": lambda a, b, c: a * b + c,
    "mad.hi.s32 d, a, b, c;": lambda a, b, c: (s(a) * s(b) >> 32) + c,
    "{ .reg .b64 w; mul.wide.s32 w, a, b; shr.u64 w, w, 16; cvt.u32.u64 d, w; }": lambda a, b, c: s(a) * s(b) >> 16,
    "{ .reg .b64 w, z; cvt.u64.u32 z, c; mad.wide.u32 w, a, b, z; shr.u64 w, w, 30; cvt.u32.u64 d, w; }": (
        lambda a, b, c: (a * b + c & (1 << 64) - 1) >> 30
    ),
    "or.b32 b, b, 1; div.u32 d, a, b;": lambda a, b, c: a // (b | 1),
    "or.b32 b, b, 1; rem.u32 d, a, b;": lambda a, b, c: a % (b | 1),
    "or.b32 b, b, 1; div.s32 d, a, b;": lambda a, b, c: c_div(s(a), s(b | 1)),
    "or.b32 b, b, 1; rem.s32 d, a, b;": lambda a, b, c: s(a) - c_div(s(a), s(b | 1)) * s(b | 1),
    "min.s32 d, a, b;": lambda a, b, c: min(s(a), s(b)),
    "max.u32 d, a, b;": lambda a, b, c: max(a, b),
    "abs.s32 d, a;": lambda a, b, c: abs(s(a)),
    "neg.s32 d, a;": lambda a, b, c: -a,
    "sad.s32 d, a, b, c;": lambda a, b, c: c + abs(s(a) - s(b)),
    "and.b32 d, a, b;": lambda a, b, c: a & b,
    "xor.b32 d, a, b;": lambda a, b, c: a ^ b,
    "not.b32 d, a;": lambda a, b, c: ~a,
    "cnot.b32 d, a;": lambda a, b, c: int(a == 0),
    "lop3.b32 d, a, b, c, 0xE8;": lambda a, b, c: lop3(a, b, c, 0xE8),
    "lop3.b32 d, a, b, c, 0x1D;": lambda a, b, c: lop3(a, b, c, 0x1D),
    "shl.b32 d, a, b;": lambda a, b, c: a << b if b < 32 else 0,
    "shr.u32 d, a, b;": lambda a, b, c: a >> b if b < 32 else 0,
    "shr.s32 d, a, b;": lambda a, b, c: s(a) >> min(b, 31),
    "shf.l.wrap.b32 d, a, b, c;": lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
    "shf.r.clamp.b32 d, a, b, c;": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "bfe.u32 d, a, b, c;": bfe,
    "bfe.u32 d, a, 7, 9;": lambda a, b, c: a >> 7 & 511,
    "bfi.b32 d, a, b, 5, 11;": lambda a, b, c: b & ~(2047 << 5) | (a & 2047) << 5,
    "prmt.b32 d, a, b, 0x6420;": lambda a, b, c: sum(((b << 32 | a) >> 8 * k & 255) << 8 * i
                                                      for i, k in enumerate((0, 2, 4, 6))),
    "popc.b32 d, a;": lambda a, b, c: a.bit_count(),
    "clz.b32 d, a;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 d, a;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 d, a;": lambda a, b, c: a.bit_length() - 1,
    "setp.lt.s32 %p1, a, b; selp.b32 d, a, c, %p1;": lambda a, b, c: a if s(a) < s(b) else c,
    "setp.hi.u32 %p1, a, b; selp.b32 d, 1, 2, %p1;": lambda a, b, c: 1 if a > b else 2,
    "setp.eq.u32 %p2, a, c; setp.le.or.s32 %p1|%p3, a, b, %p2; selp.b32 d, 4, 2, %p1; @%p3 add.u32 d, d, 1;": (
        lambda a, b, c: (4 if s(a) <= s(b) or a == c else 2) + int(not s(a) <= s(b) or a == c)
    ),
    "set.ge.u32.s32 d, a, b;": lambda a, b, c: M if s(a) >= s(b) else 0,
    "cvt.s32.s8 d, a;": lambda a, b, c: (a & 255) - ((a & 128) << 1),
    "cvt.sat.u8.s32 d, a;": lambda a, b, c: max(0, min(255, s(a))),
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, a; mov.b32 d, {hi, lo}; }": lambda a, b, c: a >> 16 | a << 16,
    "add.cc.u32 d, a, b; addc.u32 d, c, 0;": lambda a, b, c: c + (a + b > M),
    "sub.cc.u32 d, a, b; subc.u32 d, c, 7;": lambda a, b, c: c - 7 - (a < b),
}  # fmt: skip


def body(form: str, uniform: bool) -> str:
    """Loads a, b and c of this thread (or, uniformly, of thread 0), computes d and stores it."""
    place = "%rd0" if uniform else "%rd3"
    return f"""
    add.s64 %rd3, %rd0, %rd2;
    .reg .b32 a, b, c, d;
    ld.global.u32 a, [{place}]; ld.global.u32 b, [{place}+128]; ld.global.u32 c, [{place}+256];
    {form}
    st.global.u32 [%rd1], d;
    ret;"""


@pytest.mark.parametrize("form", FORMS)
def test_integer_instruction(form: str, run_ptx: Callable[..., Any]) -> None:
    random = np.random.default_rng(len(form))
    operands = random.integers(0, 2**32, (3, 32), np.uint32)
    for row in operands:
        places = random.permutation(32)[: len(EDGES)]
        row[places] = EDGES
    operands[1:, ::3] %= 40  # also shift amounts and lengths of fields
    wanted = [FORMS[form](*map(int, column)) & M for column in operands.T]
    assert run_ptx(body(form, uniform=False), inputs=operands.reshape(-1)).out.tolist() == wanted
    for lane in range(0, 32, 5):
        column = np.repeat(operands[:, lane : lane + 1], 32, axis=1)
        got = run_ptx(body(form, uniform=True), inputs=column.reshape(-1)).out
        assert got.tolist() == [wanted[lane]] * 32, [hex(int(x)) for x in operands[:, lane]]
