"""tcgen05.mma against products computed in float64 from element addresses of the manual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator.smem_layout import SmemOperand
from ptxgen.emulator.tensor_core import MmaAccesses, mma, mma_accesses
from ptxgen.emulator.tmem import Tmem
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.smem_descriptor import Major, SmemDescriptor, k_step_offset, operand_addresses
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tmem import accumulator_layout, pack_address

SMEM_BYTES = 200 * 1024
B_START = 96 * 1024
NAN16 = 0xFFFF
SWIZZLES = [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128]


def to_raw(values: np.ndarray, element: str) -> np.ndarray:
    """Values that the element type holds exactly, as raw 16-bit elements."""
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def descriptors(start: int, mn: int, steps: int, major: Major, swizzle: Swizzle) -> list[SmemDescriptor]:
    """A packed operand of 16 * steps K: K-major panels, or MN-major atoms inside groups of 8 K."""
    span = swizzle.span_bytes
    if major == "K":
        panel = mn * span
        leading, stride = (panel, 128) if swizzle is Swizzle.NONE else (16, 8 * span)
        step_stride = panel
    else:
        atom, group = 8 * span, -(-2 * mn // span) * 8 * span
        leading, stride = (group, atom) if swizzle is Swizzle.NONE else (atom, group)
        step_stride = group
    return [
        SmemDescriptor(
            start_address=start + k_step_offset(swizzle=swizzle, major=major, step=step, stride_bytes=step_stride),
            leading_byte_offset=leading,
            stride_byte_offset=stride,
            swizzle=swizzle,
        )
        for step in range(steps)
    ]


def fill(smem: np.ndarray, raw: np.ndarray, operand: Sequence[SmemDescriptor], major: Major) -> set[int]:
    """Write (mn, k) raw elements where the descriptors say; the bytes that were written."""
    words = smem.view(np.uint16)
    written: set[int] = set()
    for step, descriptor in enumerate(operand):
        block = raw[:, 16 * step : 16 * step + 16]
        addresses = operand_addresses(
            descriptor, major=major, element_bytes=2, mn_count=block.shape[0], k_count=block.shape[1]
        )
        for address, value in zip(addresses, block.reshape(-1), strict=True):
            words[address // 2] = value
            written.update((address, address + 1))
    return written


class Problem:
    """Integer operands in shared memory among NaNs, and an accumulator of old values."""

    def __init__(
        self,
        *,
        m: int = 128,
        n: int = 64,
        steps: int = 2,
        element: str = "f16",
        majors: tuple[Major, Major] = ("K", "K"),
        swizzles: tuple[Swizzle, Swizzle] = (Swizzle.B128, Swizzle.B128),
        lane: int = 0,
        column: int = 32,
        **modifiers: Any,
    ) -> None:
        random = np.random.default_rng(m * n + steps)
        self.a = random.integers(-8, 9, (m, 16 * steps)).astype(np.float64)
        self.b = random.integers(-8, 9, (n, 16 * steps)).astype(np.float64)
        self.smem = np.full(SMEM_BYTES, 0xFF, np.uint8)
        operands = [
            descriptors(start, mn, steps, major, swizzle)
            for start, mn, major, swizzle in zip((1024, B_START), (m, n), majors, swizzles, strict=True)
        ]
        self.bytes = [
            fill(self.smem, to_raw(values, element), operand, major)
            for values, operand, major in zip((self.a, self.b), operands, majors, strict=True)
        ]
        self.idesc = InstructionDescriptor(
            m=m, n=n, a_type=element, b_type=element, a_major=majors[0], b_major=majors[1], **modifiers
        )
        self.tmem = Tmem()
        self.tmem.alloc(512)
        self.lane, self.column, self.m, self.n = lane, column, m, n
        self.rows = np.array(accumulator_layout(m, n).row_lanes) + lane
        self.old = random.integers(-50, 51, (m, n)).astype(np.float64)
        tile = np.full((n, 128), np.nan, np.float32)
        tile[:, self.rows] = self.old.T
        if self.idesc.d_type == "f16":
            self.tmem.words[column : column + n] = tile.astype(np.float16).view(np.uint16).astype(np.uint32)
        else:
            self.tmem.floats[column : column + n] = tile
        self.arguments: dict[str, Any] = {
            "d_address": pack_address(lane, column),
            "steps": tuple(zip(*([d.encode() for d in operand] for operand in operands), strict=True)),
            "idesc": self.idesc.encode(),
            "accumulate": True,
        }

    def run(self, **changes: Any) -> np.ndarray:
        """D (m, n) after the batch."""
        mma(self.tmem, self.smem, **{**self.arguments, **changes})
        words = self.tmem.words[self.column : self.column + self.n, self.rows].T
        if self.idesc.d_type == "f16":
            return np.ascontiguousarray(words & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
        return np.ascontiguousarray(words).view(np.float32).astype(np.float64)

    def accesses(self, **changes: Any) -> MmaAccesses:
        return mma_accesses(**{**self.arguments, **changes})


@settings(max_examples=60, deadline=None)
@given(
    m=st.sampled_from([64, 128]),
    n=st.sampled_from([8, 16, 24, 64, 96, 128]),
    steps=st.integers(1, 4),
    element=st.sampled_from(["f16", "bf16"]),
    data=st.data(),
)
def test_every_layout(m: int, n: int, steps: int, element: str, data: st.DataObject) -> None:
    majors: list[Major] = []
    swizzles = []
    for mn in (m, n):
        major: Major = data.draw(st.sampled_from(("K", "MN")))
        majors.append(major)
        # MN-major operands come in whole atoms.
        fitting = [s for s in SWIZZLES if major == "K" or 2 * mn % s.span_bytes == 0]
        swizzles.append(data.draw(st.sampled_from(fitting)))
    lane = data.draw(st.sampled_from([0, 16])) if m == 64 else 0
    problem = Problem(
        m=m,
        n=n,
        steps=steps,
        element=element,
        majors=(majors[0], majors[1]),
        swizzles=(swizzles[0], swizzles[1]),
        lane=lane,
    )
    product = problem.a @ problem.b.T
    before = problem.tmem.words.copy()
    accesses = problem.accesses()
    assert np.array_equal(problem.run(), problem.old + product)
    # Nothing else in TMEM changes, and the footprint names exactly the accumulator.
    changed = np.zeros(before.shape, np.bool_)
    for first, stop in accesses.d.lanes:
        changed[problem.column : problem.column + n, first:stop] = True
    assert accesses.d.columns == ((problem.column, problem.column + n),)
    assert np.array_equal(np.flatnonzero(changed.any(axis=0)), np.sort(problem.rows))
    assert np.array_equal(problem.tmem.words[~changed], before[~changed])
    # Without accumulation D is not read.
    problem.tmem.words.fill(0xFFFFFFFF)
    assert np.array_equal(problem.run(accumulate=False), product)
    for ranges, touched in zip((accesses.a_smem, accesses.b_smem), problem.bytes, strict=True):
        assert {byte for first, size in ranges for byte in range(first, first + size)} == touched


def test_batches_equal_single_instructions() -> None:
    batch, single = Problem(steps=4), Problem(steps=4)
    result = batch.run(accumulate=False)
    for index, step in enumerate(single.arguments["steps"]):
        last = single.run(steps=(step,), accumulate=index > 0)
    assert np.array_equal(result, last)
    assert batch.accesses(accumulate=False).reads_d
    assert not batch.accesses(accumulate=False, steps=batch.arguments["steps"][:1]).reads_d


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_values_widen_exactly(element: str) -> None:
    """All finite values, subnormals included, times the unit matrix."""
    problem = Problem(n=16, steps=1, element=element, swizzles=(Swizzle.B32, Swizzle.B32))
    a, b = descriptors(1024, 128, 1, "K", Swizzle.B32), descriptors(B_START, 16, 1, "K", Swizzle.B32)
    fill(problem.smem, to_raw(np.eye(16), element), b, "K")
    raw = np.arange(1 << 16, dtype=np.uint16)
    values = raw.view(np.float16).astype(np.float32) if element == "f16" else (raw.astype(np.uint32) << 16).view("f4")
    raw, values = np.where(np.isfinite(values), raw, 0), np.where(np.isfinite(values), values, 0)
    for start in range(0, raw.size, 2048):
        fill(problem.smem, raw[start : start + 2048].reshape(128, 16), a, "K")
        wanted = values[start : start + 2048].reshape(128, 16).astype(np.float64)
        assert np.array_equal(problem.run(accumulate=False), wanted)


@pytest.mark.parametrize(("negate_a", "negate_b", "sign"), [(True, False, -1), (False, True, -1), (True, True, 1)])
def test_negation(negate_a: bool, negate_b: bool, sign: int) -> None:
    problem = Problem(negate_a=negate_a, negate_b=negate_b)
    assert np.array_equal(problem.run(), problem.old + sign * problem.a @ problem.b.T)


@pytest.mark.parametrize("m", [64, 128])
def test_f16_accumulator_sits_in_low_halves(m: int) -> None:
    problem = Problem(m=m, steps=2, d_type="f16")
    first = (problem.old + problem.a[:, :16] @ problem.b[:, :16].T).astype(np.float16).astype(np.float64)
    second = (first + problem.a[:, 16:] @ problem.b[:, 16:].T).astype(np.float16).astype(np.float64)
    assert np.array_equal(problem.run(), second)
    upper = problem.tmem.words[problem.column : problem.column + problem.n, problem.rows] >> 16
    assert (upper == NAN16).all()


def test_f16_accumulator_rounds_every_instruction() -> None:
    """2048 + 1 is 2048 in f16, twice; one rounding at the end would give 2050."""
    problem = Problem(n=8, steps=3, d_type="f16", swizzles=(Swizzle.B32, Swizzle.B32))
    a, b = np.zeros((128, 48)), np.zeros((8, 48))
    a[0, ::16], b[0, ::16] = (2048, 1, 1), 1
    for values, start, mn in ((a, 1024, 128), (b, B_START, 8)):
        fill(problem.smem, to_raw(values, "f16"), descriptors(start, mn, 3, "K", Swizzle.B32), "K")
    assert problem.run(accumulate=False)[0, 0] == 2048


@pytest.mark.parametrize("m", [64, 128])
def test_scaling_of_d(m: int) -> None:
    problem = Problem(m=m, steps=2)
    product = [problem.a[:, part] @ problem.b[:, part].T for part in (slice(0, 16), slice(16, 32))]
    wanted = (problem.old / 8 + product[0]) / 8 + product[1]
    assert np.array_equal(problem.run(scale_d=3), wanted)


@pytest.mark.parametrize(("m", "lane"), [(64, 0), (64, 16), (128, 0)])
def test_disabled_lanes_keep_their_values(m: int, lane: int) -> None:
    problem = Problem(m=m, lane=lane)
    masks = (0x80000001, 0, 0xFFFFFFFF, 0x00030000)
    off = np.array([masks[row // 32] >> row % 32 & 1 for row in problem.rows], np.bool_)
    assert 0 < off.sum() < m
    accesses = problem.accesses(disabled_lanes=masks)
    wanted = np.where(off[:, None], problem.old, problem.old + problem.a @ problem.b.T)
    assert np.array_equal(problem.run(disabled_lanes=masks), wanted)
    written = {row for first, stop in accesses.d.lanes for row in range(first, stop)}
    assert written == set(problem.rows[~off])


@pytest.mark.parametrize(("m", "lane", "element"), [(128, 0, "f16"), (64, 0, "bf16"), (64, 16, "f16")])
def test_a_in_tmem(m: int, lane: int, element: str) -> None:
    """Two elements of K per column, row by row on D's lanes."""
    problem = Problem(m=m, lane=lane, element=element, steps=3)
    raw = to_raw(problem.a, element).astype(np.uint32)
    packed = raw[:, ::2] | raw[:, 1::2] << 16
    problem.tmem.words[300:324, problem.rows] = packed.T
    steps = tuple((pack_address(lane, 300 + 8 * index), b) for index, (_, b) in enumerate(problem.arguments["steps"]))
    problem.smem[:B_START] = 0xFF
    accesses = problem.accesses(steps=steps, a_in_tmem=True)
    assert accesses.a_smem == ()
    assert accesses.a_tmem is not None
    assert accesses.a_tmem.columns == ((300, 308), (308, 316), (316, 324))
    assert {row for first, stop in accesses.a_tmem.lanes for row in range(first, stop)} == set(problem.rows)
    assert np.array_equal(problem.run(steps=steps, a_in_tmem=True), problem.old + problem.a @ problem.b.T)


def test_nan_operands_and_accumulators_raise_no_warning() -> None:
    problem = Problem()
    problem.smem.fill(0xFF)
    assert np.isnan(problem.run()).all()
    problem.smem.view(np.uint16).fill(0x7C00)
    problem.run()


def rule_of(action: Callable[[], object]) -> str:
    with pytest.raises(MachineError) as error:
        action()
    return error.value.rule


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"idesc": 0x08200010 | 1 << 6}, "illegal-instruction-descriptor"),
        (
            {"idesc": 0x10100010},
            "illegal-instruction-descriptor",
        ),
        ({"idesc": 0x08200010 | 1 << 30}, "illegal-instruction-descriptor"),
        ({"d_address": pack_address(16, 0)}, "tmem-lane-access"),
        ({"d_address": 500}, "out-of-bounds"),
        ({"a_in_tmem": True, "steps": ((508, 0),)}, "out-of-bounds"),
        ({"a_in_tmem": True, "steps": ((16 << 16, 0),)}, "tmem-lane-access"),
    ],
)
def test_illegal_instructions(change: dict[str, Any], rule: str) -> None:
    assert rule_of(lambda: Problem().run(**change)) == rule


def test_illegal_matrix_descriptors() -> None:
    problem = Problem()
    (a, b), *_ = problem.arguments["steps"]
    for bad in (a & ~(1 << 46), a | 1 << 14, a | 3 << 61, a | 1 << 52):
        assert rule_of(lambda: problem.run(steps=((bad, b),))) == "illegal-descriptor"  # noqa: B023
        assert rule_of(lambda: problem.run(steps=((a, bad),))) == "illegal-descriptor"  # noqa: B023
    # Inside a pattern: 512 bytes beyond the 1024-byte boundary.
    assert rule_of(lambda: problem.run(steps=((a + 32, b),))) == "illegal-descriptor"
    with pytest.raises(NotSupportedError, match="base offset 1"):
        problem.run(steps=((a | 1 << 49, b),))


def test_operand_beyond_shared_memory() -> None:
    problem = Problem()
    problem.smem = problem.smem[: B_START + 1024]
    assert rule_of(problem.run) == "out-of-bounds"


def test_transposed_32_byte_atoms_need_32_bit_elements() -> None:
    problem = Problem(majors=("K", "MN"))
    (a, _), *_ = problem.arguments["steps"]
    atom = SmemDescriptor(
        start_address=0, leading_byte_offset=512, stride_byte_offset=2048, swizzle=Swizzle.B128_ATOM32
    ).encode()
    assert rule_of(lambda: problem.run(steps=((a, atom),))) == "illegal-descriptor"


def test_accumulator_needs_an_allocation() -> None:
    problem = Problem()
    problem.tmem.dealloc(0, 512)
    assert rule_of(problem.run) == "tmem-use-after-dealloc"
    problem.tmem.reset()
    assert rule_of(problem.run) == "out-of-bounds"


def test_a_in_tmem_lies_on_lanes_of_d_and_is_k_major() -> None:
    problem = Problem(m=64, lane=16)
    (_, b), *_ = problem.arguments["steps"]
    assert rule_of(lambda: problem.run(steps=((300, b),), a_in_tmem=True)) == "tmem-lane-access"
    transposed = Problem(majors=("MN", "K"))
    assert rule_of(lambda: transposed.run(a_in_tmem=True)) == "illegal-instruction-descriptor"


@pytest.mark.parametrize("change", [{"kind": "tf32"}, {"kind": "mxf4"}, {"idesc": 0x08200010 | 1 << 2}])
def test_not_modelled(change: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedError, match="not modelled"):
        Problem().run(**change)


def test_gather_of_other_element_sizes() -> None:
    """The operand gather serves 8- and 32-bit elements as well."""
    smem = np.random.default_rng(3).integers(0, 256, 16384, dtype=np.uint8)
    for element_bytes, k in ((1, 32), (4, 8)):
        cases: list[tuple[Major, Swizzle]] = [("K", Swizzle.B64), ("MN", Swizzle.B128_ATOM32)]
        for major, swizzle in cases:
            described = SmemDescriptor(
                start_address=1024, leading_byte_offset=1024, stride_byte_offset=512, swizzle=swizzle
            )
            operand = SmemOperand([described], major=major, element_bytes=element_bytes, mn=64, k=k)
            gathered = operand.gather(smem) if major == "K" else operand.gather(smem).T
            addresses = operand_addresses(
                described,
                major=major,
                element_bytes=element_bytes,
                mn_count=64,
                k_count=k,
            )
            words = smem.view(f"u{element_bytes}")
            assert gathered.reshape(-1).tolist() == [words[address // element_bytes] for address in addresses]
