"""Swizzles, TMEM maps and register fragments: involutions, bijections, known places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.hardware import fragments, tmem
from ptxgen.hardware.swizzle import Swizzle, swizzle_of_span


@given(st.sampled_from(Swizzle), st.integers(0, 2**20))
def test_swizzle_is_an_involution_inside_its_row_and_pattern(swizzle: Swizzle, address: int) -> None:
    moved = swizzle.apply(address)
    assert swizzle.apply(moved) == address
    assert moved // swizzle.span_bytes == address // swizzle.span_bytes
    assert swizzle.apply(address + swizzle.pattern_bytes) == moved + swizzle.pattern_bytes


@given(st.sampled_from(Swizzle), st.integers(0, 2**16))
def test_swizzle_keeps_chunks_together(swizzle: Swizzle, chunk: int) -> None:
    size = swizzle.chunk_bytes
    start = swizzle.apply(chunk * size)
    assert start % size == 0
    assert [swizzle.apply(chunk * size + byte) for byte in range(size)] == list(range(start, start + size))


@pytest.mark.parametrize("swizzle", Swizzle)
def test_swizzle_pattern_is_the_shortest_period(swizzle: Swizzle) -> None:
    half = swizzle.pattern_bytes // 2
    moves = [swizzle.apply(address) - address for address in range(swizzle.pattern_bytes)]
    assert swizzle is Swizzle.NONE or moves[:half] != moves[half:]


@pytest.mark.parametrize(
    ("swizzle", "address", "moved"),
    [
        (Swizzle.NONE, 0x3F0, 0x3F0),
        (Swizzle.B32, 0x080, 0x090),
        (Swizzle.B64, 0x180, 0x1B0),
        (Swizzle.B128, 0x380, 0x3F0),
        (Swizzle.B128, 0x0A4, 0x0B4),
        (Swizzle.B128_ATOM32, 0x180, 0x1E0),
        (Swizzle.B128_ATOM64, 0x080, 0x0C0),
        (Swizzle.B128_ATOM32_FLIP8, 0x080, 0x0A8),
    ],
)
def test_swizzle_known_addresses(swizzle: Swizzle, address: int, moved: int) -> None:
    assert swizzle.apply(address) == moved


def test_swizzle_of_span() -> None:
    assert [swizzle_of_span(span) for span in (16, 32, 64, 128)] == [
        Swizzle.NONE,
        Swizzle.B32,
        Swizzle.B64,
        Swizzle.B128,
    ]
    with pytest.raises(SpecError, match="48"):
        swizzle_of_span(48)


@given(st.integers(0, 127), st.integers(0, 511))
def test_tmem_address_round_trip(lane: int, column: int) -> None:
    assert tmem.unpack_address(tmem.pack_address(lane, column)) == (lane, column)


def test_tmem_address_bounds_and_bits() -> None:
    assert tmem.pack_address(32, 5) == 0x00200005
    for lane, column in ((128, 0), (0, 512), (-1, 0)):
        with pytest.raises(SpecError):
            tmem.pack_address(lane, column)


@given(st.integers(1, 512))
def test_allocation_is_the_smallest_legal(columns: int) -> None:
    size = tmem.allocation_columns(columns)
    assert tmem.is_allocation(size)
    assert size >= columns
    assert size == 32 or size // 2 < columns


def test_allocation_sizes() -> None:
    assert [size for size in range(1025) if tmem.is_allocation(size)] == [32, 64, 128, 256, 512]
    for columns in (0, 513):
        with pytest.raises(SpecError):
            tmem.allocation_columns(columns)


@pytest.mark.parametrize(
    ("m", "group", "stationary", "sparse", "name"),
    [
        (128, 1, False, False, "D"),
        (64, 1, False, False, "F"),
        (256, 2, False, False, "A"),
        (128, 2, False, False, "B"),
        (128, 2, False, True, "C"),
        (128, 1, True, False, "D"),
        (64, 1, True, False, "E"),
        (32, 1, True, False, "G"),
    ],
)
def test_accumulator_layouts_are_injective_and_fit(
    m: int, group: int, stationary: bool, sparse: bool, name: str
) -> None:
    n = 64
    layout = tmem.accumulator_layout(m, n, cta_group=group, weight_stationary=stationary, sparse=sparse)
    assert layout.name == name
    places = [layout.place(row, column) for row in range(m) for column in range(n)]
    assert len(set(places)) == m * n
    assert {cta for cta, _, _ in places} == set(range(group))
    assert max(lane for _, lane, _ in places) < tmem.LANES
    assert {column for _, _, column in places} == set(range(layout.columns))
    assert layout.row_lanes == tuple(lane for _, lane, _ in places[::n])


def test_accumulator_known_places() -> None:
    half = tmem.accumulator_layout(64, 32)
    assert [half.place(row, 7) for row in (0, 15, 16, 63)] == [(0, 0, 7), (0, 15, 7), (0, 32, 7), (0, 111, 7)]
    pair = tmem.accumulator_layout(128, 64, cta_group=2)
    assert pair.place(70, 40) == (1, 70, 8)
    assert tmem.accumulator_layout(32, 64, weight_stationary=True).place(3, 50) == (0, 99, 2)
    with pytest.raises(SpecError, match="m 256"):
        tmem.accumulator_layout(256, 64)


@pytest.mark.parametrize("name", sorted(tmem.ACCESS_SHAPES))
def test_access_shapes_cover_their_block_once(name: str) -> None:
    shape = tmem.access_shape(name)
    for repeats in (count for count in tmem.REPEATS if count <= min(shape.max_repeats, 8)):
        for pack in (False, True):
            columns = shape.columns(repeats, pack=pack)
            places = [
                place
                for thread in range(32)
                for register in range(shape.registers(repeats))
                for place in shape.positions(thread, register, pack=pack, half_split=columns)
            ]
            width = columns * (2 if name == "16x32bx2" else 1)
            assert sorted(places) == [(lane, column) for lane in range(shape.lanes) for column in range(width)]


def test_access_shape_known_places() -> None:
    """16x256b is the m16n8 accumulator fragment; the others as CUTLASS's copy traits have them."""
    assert tmem.access_shape("16x256b").place(5, 7) == (9, 11)
    assert tmem.access_shape("16x128b").place(6, 3) == (9, 6)
    assert tmem.access_shape("16x64b").place(7, 2) == (9, 5)
    assert tmem.access_shape("32x32b").place(31, 4) == (31, 4)
    assert tmem.access_shape("16x32bx2").positions(17, 3, half_split=40) == ((1, 43),)
    assert tmem.access_shape("32x32b").positions(2, 3, pack=True) == ((2, 6), (2, 7))


def test_access_shape_limits() -> None:
    assert tmem.access_shape("16x256b").registers(32) == 128
    assert tmem.access_shape("32x32b").registers(128) == 128
    for name, repeats in (("16x256b", 64), ("16x128b", 128), ("32x32b", 3), ("32x32b", 0)):
        with pytest.raises(SpecError, match="x1, x2"):
            tmem.access_shape(name).registers(repeats)
    with pytest.raises(UnknownNameError, match="32x32b"):
        tmem.access_shape("32x32")


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_accumulator_is_a_bijection(n: int) -> None:
    registers = fragments.wgmma_accumulator_registers(n)
    places = {
        fragments.wgmma_accumulator(thread, register): (thread, register)
        for thread in range(fragments.WARPGROUP_THREADS)
        for register in range(registers)
    }
    assert places.keys() == {(row, column) for row in range(64) for column in range(n)}
    for (row, column), owner in places.items():
        assert fragments.wgmma_accumulator_owner(row, column) == owner


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_a_operand_is_a_bijection(bits: int) -> None:
    elements, k = 128 // bits, 256 // bits
    places = {
        fragments.wgmma_a_operand(thread, element, bits)
        for thread in range(fragments.WARPGROUP_THREADS)
        for element in range(elements)
    }
    assert places == {(row, column) for row in range(64) for column in range(k)}


def test_wgmma_known_places() -> None:
    assert fragments.wgmma_accumulator(37, 6) == (25, 10)
    assert fragments.wgmma_a_operand(33, 7, 16) == (24, 11)
    assert fragments.wgmma_a_operand(1, 3, 32) == (8, 5)


def test_ldmatrix_covers_each_matrix() -> None:
    for matrix in range(4):
        pairs = {fragments.ldmatrix(thread, matrix) for thread in range(32)}
        assert pairs == {(matrix, row, column) for row in range(8) for column in range(0, 8, 2)}
