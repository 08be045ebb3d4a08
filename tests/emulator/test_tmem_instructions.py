"""tcgen05.ld and .st in every shape, as instructions: a warp writes its lanes one way and reads them another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import PtxError
from ptxgen.hardware.tmem import access_shape

Run = Callable[..., Any]

COLUMNS = 32
LANE = 16  # of the 16-lane shapes
CASES = [
    ("32x32b", 16, False),
    ("32x32b", 16, True),
    ("16x64b", 8, False),
    ("16x64b", 4, True),
    ("16x128b", 4, False),
    ("16x128b", 4, True),
    ("16x256b", 2, False),
    ("16x256b", 2, True),
    ("16x32bx2", 8, False),
    ("16x32bx2", 4, True),
]
FRAME = """
    mov.u32 %r40, %ctaid.x; setp.ne.u32 %p0, %r40, 0;
    @%p0 ret;
    mov.u32 %r41, smem;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r41], 32;
    ld.shared.b32 %r42, [%r41]; add.u32 %r43, %r42, {lane};
    {write}
    tcgen05.wait::st.sync.aligned;
    {read}
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r42, 32;
    ret;"""


def frame(write: str, read: str, shape: str) -> str:
    lane = 0 if shape == "32x32b" else LANE << 16
    return FRAME.replace("{write}", write).replace("{read}", read).replace("{lane}", str(lane))


def form_of(shape: str, repeats: int, pack: str) -> tuple[str, str, str, int]:
    """Instruction, registers, half-split operand and register count."""
    count = access_shape(shape).registers(repeats)
    registers = "{" + ", ".join(f"%r{index}" for index in range(count)) + "}"
    return f"sync.aligned.{shape}.x{repeats}{pack}.b32", registers, ", 16" if shape == "16x32bx2" else "", count


def places(shape: str, repeats: int, pack: bool) -> np.ndarray[Any, Any]:
    """(register, thread, half, (lane, column)) of the tensor memory words."""
    kind = access_shape(shape)
    found = np.array(
        [
            [kind.positions(thread, register, pack=pack, half_split=16) for thread in range(32)]
            for register in range(kind.registers(repeats))
        ]
    )
    found[..., 0] += 0 if shape == "32x32b" else LANE
    return found


@pytest.mark.parametrize("policy", ["eager", "late"])
@pytest.mark.parametrize(("shape", "repeats", "pack"), CASES)
def test_loads(shape: str, repeats: int, pack: bool, policy: str, run_ptx: Run) -> None:
    """A word holds 256 * lane + column; with .pack::16b a register has the low halves of two."""
    name, registers, split, count = form_of(shape, repeats, ".pack::16b" if pack else "")
    write = "".join(
        f"mad.lo.u32 %r44, %t, 256, {column}; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r42+{column}], {{%r44}};\n    "
        for column in range(COLUMNS)
    )
    read = f"tcgen05.ld.{name} {registers}, [%r43]{split};\n    tcgen05.wait::ld.sync.aligned;\n    " + "".join(
        f"st.global.u32 [%rd1+{128 * index}], %r{index};\n    " for index in range(count)
    )
    outcome = run_ptx(frame(write, read, shape), grid=count, policy=policy)
    assert outcome.rules == []
    words = places(shape, repeats, pack) @ np.array([256, 1])
    expected = words[..., 0] | words[..., 1] << 16 if pack else words[..., 0]
    np.testing.assert_array_equal(outcome.out.reshape(count, 32), expected)


@pytest.mark.parametrize("policy", ["eager", "late"])
@pytest.mark.parametrize(("shape", "repeats", "pack"), CASES)
def test_stores(shape: str, repeats: int, pack: bool, policy: str, run_ptx: Run) -> None:
    """Register i of thread t holds 1 + 64 * i + t, and with .unpack::16b a mark in its upper half."""
    name, registers, split, count = form_of(shape, repeats, ".unpack::16b" if pack else "")
    mark = 0x50000 if pack else 0
    write = "".join(
        f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r42+{column}], {{%r45}};\n    " for column in range(COLUMNS)
    )
    write = "mov.b32 %r45, 0;\n    " + write + "tcgen05.wait::st.sync.aligned;\n    "
    write += "".join(f"add.u32 %r{index}, %t, {1 + 64 * index + mark};\n    " for index in range(count))
    write += f"tcgen05.st.{name} [%r43]{split}, {registers};"
    read = "".join(
        f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r44}}, [%r42+{column}];\n    tcgen05.wait::ld.sync.aligned;\n    "
        f"st.global.u32 [%rd1+{128 * column}], %r44;\n    "
        for column in range(COLUMNS)
    )
    outcome = run_ptx(frame(write, read, shape), grid=COLUMNS, policy=policy)
    assert outcome.rules == []
    expected = np.zeros((COLUMNS, 32), np.int64)
    for register, threads in enumerate(places(shape, repeats, pack).tolist()):
        for thread, halves in enumerate(threads):
            for value, (lane, column) in zip((1 + 64 * register + thread, mark >> 16), halves, strict=False):
                expected[column, lane] = value
    np.testing.assert_array_equal(outcome.out.reshape(COLUMNS, 32), expected)


@pytest.mark.parametrize(
    "text",
    [
        "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r0, %r1}, [%r42];",
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r42];",
        "tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32 [%r42], {%r0};",
    ],
)
def test_forms_that_do_not_exist(text: str, run_ptx: Run) -> None:
    with pytest.raises(PtxError):
        run_ptx(frame("", text, "32x32b"))
