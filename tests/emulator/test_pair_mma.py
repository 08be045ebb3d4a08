"""tcgen05.mma on a pair of CTAs, as a function of their memories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.emulator.smem_layout import place_swizzled
from ptxgen.emulator.tensor_core import mma, mma_accesses
from ptxgen.emulator.tmem import Tmem
from ptxgen.errors import MachineError
from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.smem_descriptor import SmemDescriptor
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tmem import accumulator_layout

Array = np.ndarray[Any, Any]

K, A_START, B_START, COLUMN = 64, 0, 32768, 32
A_COLUMN = 384
"""Of A in tensor memory."""


class Pair:
    """Integers in the memories of two CTAs, halves of A and of B in each, and an old accumulator."""

    def __init__(self, m: int, n: int, **modifiers: Any) -> None:
        random = np.random.default_rng(m + n)
        self.m, self.n = m, n
        self.a = random.integers(-8, 9, (m, K)).astype(np.float16)
        self.b = random.integers(-8, 9, (n, K)).astype(np.float16)
        self.smem = [np.full(65536, 0xFF, np.uint8) for _ in range(2)]
        self.tmem = [Tmem() for _ in range(2)]
        self.idesc = InstructionDescriptor(m=m, n=n, a_type="f16", b_type="f16", **modifiers)
        layout = accumulator_layout(m, n, cta_group=2)
        places = np.array([[layout.place(row, column) for column in range(n)] for row in range(m)])
        self._cta, self._lane, self._column = places[..., 0], places[..., 1], places[..., 2] + COLUMN
        self.old = random.integers(-50, 51, (m, n)).astype(np.float32)
        for cta in range(2):
            self.tmem[cta].alloc(512)
            for start, matrix in ((A_START, self.a), (B_START, self.b)):
                half = np.split(matrix, 2)[cta]
                place_swizzled(self.smem[cta], start, half.reshape(-1).view(np.uint8), 2 * K, Swizzle.B128)
            packed = np.ascontiguousarray(np.split(self.a, 2)[cta]).view(np.uint32)  # (rows, K / 2)
            copies = 2 if m == 128 else 1  # layout B reads A beside both halves of D
            self.tmem[cta].words[A_COLUMN : A_COLUMN + K // 2] = np.tile(packed.T, (1, copies))
            mine = self._cta == cta
            words = self.old[mine].astype(np.float16).view(np.uint16) if self.idesc.d_type == "f16" else self.old[mine]
            self.tmem[cta].words[self._column[mine], self._lane[mine]] = (
                words if words.dtype == np.uint16 else words.view(np.uint32)
            )

    def run(self, a_in_tmem: bool = False, **changes: Any) -> Array:
        """D (m, n) after four instructions of 16 k."""
        a, b = (
            SmemDescriptor(start_address=start, leading_byte_offset=16, stride_byte_offset=1024, swizzle=Swizzle.B128)
            for start in (A_START, B_START)
        )
        steps = [
            (A_COLUMN + 8 * step if a_in_tmem else a.encode() + 2 * step, b.encode() + 2 * step) for step in range(4)
        ]
        mma(
            self.tmem[0], self.smem[0], peer=(self.tmem[1], self.smem[1]), d_address=COLUMN, steps=steps,
            idesc=self.idesc.encode(), a_in_tmem=a_in_tmem, **{"accumulate": True, **changes},
        )  # fmt: skip
        words: Array = np.stack([tmem.words for tmem in self.tmem])[self._cta, self._column, self._lane]
        halves: Array = (words & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
        values: Array = words.view(np.float32)
        return halves if self.idesc.d_type == "f16" else values

    @property
    def product(self) -> Array:
        exact: Array = self.a.astype(np.float32) @ self.b.astype(np.float32).T
        return exact


@pytest.mark.parametrize("a_in_tmem", [False, True])
@pytest.mark.parametrize(("m", "n"), [(256, 16), (256, 256), (128, 32), (128, 256)])
def test_both_layouts(m: int, n: int, a_in_tmem: bool) -> None:
    pair = Pair(m, n)
    np.testing.assert_array_equal(pair.run(a_in_tmem), pair.old + pair.product)
    np.testing.assert_array_equal(Pair(m, n).run(a_in_tmem, accumulate=False), pair.product)


@pytest.mark.parametrize("m", [128, 256])
def test_modifiers(m: int) -> None:
    pair = Pair(m, 32, d_type="f16", negate_b=True)
    exact = pair.old - pair.product
    assert np.abs(exact).max() < 2048
    np.testing.assert_array_equal(pair.run(), exact)


@pytest.mark.parametrize("m", [128, 256])
def test_words_of_the_lane_mask(m: int) -> None:
    """Four words for the even CTA, then four for the odd one; a bit keeps a lane as it was."""
    pair = Pair(m, 32)
    d = pair.run(disabled_lanes=(0x3, 0, 0, 0, 0, 0x80000000, 0, 0))
    kept = np.zeros((m, 32), np.bool_)
    columns = 32 if m == 256 else 16  # of m 128, lanes 0-63 have the first half of n only
    for row in (0, 1, m // 2 + 63):
        kept[row, :columns] = True
    np.testing.assert_array_equal(d, np.where(kept, pair.old, pair.old + pair.product))


def test_what_each_cta_is_seen_to_access() -> None:
    idesc = InstructionDescriptor(m=128, n=64, a_type="f16", b_type="f16").encode()
    descriptor = SmemDescriptor(start_address=0, leading_byte_offset=16, stride_byte_offset=1024, swizzle=Swizzle.B128)
    steps = ((descriptor.encode(), descriptor.encode() + 2048),)
    seen = mma_accesses(d_address=COLUMN, steps=steps, idesc=idesc, accumulate=False, cta_group=2)
    assert sum(size for _, size in seen.a_smem) == 64 * 32
    assert sum(size for _, size in seen.b_smem) == 32 * 32
    assert (seen.d.lanes, seen.d.columns) == (((0, 128),), ((COLUMN, COLUMN + 32),))


@pytest.mark.parametrize(
    ("m", "n", "changes", "rule"),
    [
        (64, 64, {}, "illegal-instruction-descriptor"),
        (256, 8, {}, "illegal-instruction-descriptor"),
        (256, 24, {}, "illegal-instruction-descriptor"),
        (128, 64, {"d_address": 16 << 16}, "tmem-lane-access"),
        (256, 256, {"d_address": 288}, "out-of-bounds"),
        (128, 256, {"d_address": 400}, "out-of-bounds"),
    ],
)
def test_what_a_pair_cannot_do(m: int, n: int, changes: dict[str, Any], rule: str) -> None:
    idesc = InstructionDescriptor(m=m, n=n, a_type="f16", b_type="f16").encode()
    descriptor = SmemDescriptor(start_address=0, leading_byte_offset=16, stride_byte_offset=1024, swizzle=Swizzle.B128)
    memories = [(Tmem(), np.zeros(65536, np.uint8)) for _ in range(2)]
    for tmem, _ in memories:
        tmem.alloc(512)
    arguments = {"d_address": 0, "steps": [(descriptor.encode(),) * 2], "idesc": idesc, "accumulate": False, **changes}
    with pytest.raises(MachineError) as caught:
        mma(*memories[0], peer=memories[1], **arguments)
    assert caught.value.rule == rule
