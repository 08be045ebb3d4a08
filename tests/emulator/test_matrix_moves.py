"""ldmatrix, stmatrix and movmatrix against elements moved one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import NotSupportedError, PtxError

Array = np.ndarray[Any, Any]

PLACES = np.random.default_rng(7).permutation(64)[:32]
"""Rows of 16 bytes in shared memory, for the 32 row addresses of an .x4."""

# %r1: the start of the area, %r2: the row that this lane addresses (the first half of the input says which), %r3: the
# value that it moves in or out.
SET_UP = """
    mov.u32 %r1, smem;
    mul.wide.u32 %rd3, %t, 4;
    add.u64 %rd4, %rd0, %rd3;
    ld.global.u32 %r2, [%rd4];
    mad.lo.u32 %r2, %r2, 16, %r1;
"""
FILL = """
    add.u64 %rd4, %rd0, 128;
    mad.lo.u32 %r4, %t, 32, %r1;
    mad.wide.u32 %rd4, %t, 32, %rd4;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd4];
    ld.global.v4.u32 {%r9, %r10, %r11, %r12}, [%rd4+16];
    st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};
    st.shared.v4.u32 [%r4+16], {%r9, %r10, %r11, %r12};
    bar.warp.sync -1;
"""


def slots(count: int) -> str:
    return "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"


def element(matrix: Array, register: int, lane: int, half: int, transposed: bool) -> int:
    """What half of a lane's register holds; `matrix` has rows of eight 16-bit elements, eight for each register."""
    row, column = lane // 4, 2 * (lane % 4) + half
    if transposed:
        row, column = column, row
    return int(matrix[8 * register + row, column])


@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(run_ptx: Any, count: int, transposed: bool, space: str) -> None:
    area = np.arange(64 * 8, dtype=np.uint16) * 3 + 1
    address = "[%r2]" if space else "[%rd5]"
    generic = "" if space else "cvt.u64.u32 %rd5, %r2; cvta.shared.u64 %rd5, %rd5;"
    trans = ".trans" if transposed else ""
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {slots(count)}, {address};"
    stores = "".join(f"st.shared.u32 [%r30+{128 * i}], %r{20 + i};" for i in range(count))
    read_back = "ld.shared.u32 %r31, [%r30+{}]; st.global.u32 [%rd1], %r31;"
    matrix = area.reshape(64, 8)[PLACES]
    rows = PLACES.copy()
    rows[8 * count :] = 1 << 20  # addresses that the instruction does not look at
    for register in range(count):
        body = (
            f"{SET_UP}{FILL}{generic}{load}\nadd.u32 %r30, %r1, 2048; mad.lo.u32 %r30, %t, 4, %r30;\n"
            f"{stores}{read_back.format(128 * register)}\nret;"
        )
        got = run_ptx(body, inputs=np.concatenate([rows.astype(np.uint32), area.view(np.uint32)]))
        assert got.rules == []
        halves = got.out.view(np.uint16).reshape(32, 2)
        for lane in range(32):
            for half in range(2):
                assert halves[lane, half] == element(matrix, register, lane, half, transposed)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(run_ptx: Any, count: int, transposed: bool) -> None:
    """Register i of lane l is 1000 i + l in its low half, the same + 500 in its high half."""
    trans = ".trans" if transposed else ""
    values = "".join(
        f"add.u32 %r4, %t, {1000 * i}; add.u32 %r5, %r4, 500; shl.b32 %r5, %r5, 16; or.b32 %r{20 + i}, %r4, %r5;"
        for i in range(count)
    )
    store = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {slots(count)};"
    rows = PLACES.copy()
    rows[8 * count :] = 1 << 20
    for word in range(4):
        clear = "mov.u32 %r6, 0; mad.lo.u32 %r4, %t, 32, %r1; st.shared.v4.u32 [%r4], {%r6, %r6, %r6, %r6};"
        clear += "st.shared.v4.u32 [%r4+16], {%r6, %r6, %r6, %r6}; bar.warp.sync -1;"
        read = f"ld.shared.u32 %r31, [%r2+{4 * word}]; st.global.u32 [%rd1], %r31;"
        mine = f"setp.lt.u32 %p1, %t, {8 * count}; @!%p1 ret; {read} ret;"
        got = run_ptx(f"{SET_UP}{clear}{values}{store}bar.warp.sync -1;\n{mine}", inputs=rows.astype(np.uint32))
        assert got.rules == []
        halves = got.out.view(np.uint16).reshape(32, 2)
        for register in range(count):
            for lane in range(32):
                for half in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + half
                    if transposed:
                        row, column = column, row
                    if column // 2 == word:
                        wanted = 1000 * register + lane + 500 * half
                        assert halves[8 * register + row, column % 2] == wanted


def test_movmatrix_transposes(run_ptx: Any) -> None:
    body = "shl.b32 %r2, %t, 17; or.b32 %r2, %r2, %t;\nmovmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2;\n"
    got = run_ptx(f"{body}st.global.u32 [%rd1], %r3;\nret;")
    rows = [[lane * (1 + half) for lane in range(4 * row, 4 * row + 4) for half in range(2)] for row in range(8)]
    np.testing.assert_array_equal(got.out.view(np.uint16).reshape(8, 8), np.array(rows).T)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("add.u32 %r2, %r2, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r2];", "misaligned-address"),
        ("add.u32 %r2, %r2, 65536; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r2];", "out-of-bounds"),
        ("stmatrix.sync.aligned.m8n8.x1.b16 [%rd0], {%r20};", "out-of-bounds"),
        (
            "setp.lt.u32 %p1, %t, 8; @%p1 stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r20};",
            "divergent-aligned-instruction",
        ),
        (
            "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%r1], 1; bar.warp.sync -1;"
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r20, %r20, %r20, %r20};",
            "barrier-overwritten",
        ),
    ],
)
def test_broken_rules(run_ptx: Any, text: str, rule: str) -> None:
    got = run_ptx(f"{SET_UP}mov.u32 %r20, 0;\n{text}\nret;", inputs=np.arange(32, dtype=np.uint32))
    assert got.rules == [rule]


def test_other_shapes_are_not_modelled(run_ptx: Any) -> None:
    with pytest.raises(NotSupportedError, match=r"stmatrix with \.m16n8 is not modelled"):
        run_ptx("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r2], {%r20};")
    with pytest.raises(PtxError, match=r"takes 2 register\(s\), not 1"):
        run_ptx("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20}, [%r2];")
