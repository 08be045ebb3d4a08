"""Plan: the geometry of stages, panels and staging, for random specs and for known ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ptxgen.hardware.smem_descriptor import k_step_offset
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.ir.program import Program
from ptxgen.plan import BARRIER_SLOT_BYTES, Operand
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import build, step


@given(data=st.data())
def test_places_in_shared_memory_are_aligned_disjoint_and_inside(
    specs: SearchStrategy[GemmSpec], data: DataObject
) -> None:
    program = build(data.draw(specs))  # which checks it: no choices that the spec allows break a static rule
    bytes_of = [(b.offset + stage * b.stage_bytes, b.nbytes) for b in program.buffers for stage in range(b.stages)]
    bytes_of += [(b.offset + 8 * stage, 8) for b in program.barriers for stage in range(b.stages)]
    ends = 0
    for offset, nbytes in sorted(bytes_of):
        assert offset >= ends
        ends = offset + nbytes
    assert ends == program.smem_bytes <= 232448
    for buffer in program.buffers:
        for stage in range(buffer.stages):
            if buffer.name in ("staging", "ring"):  # source, destination of TMA
                assert (buffer.offset + stage * buffer.stage_bytes) % 128 == 0
    assert all(barrier.offset % BARRIER_SLOT_BYTES == 0 for barrier in program.barriers)


@given(data=st.data())
def test_swizzled_panels_repeat_from_their_own_start(specs: SearchStrategy[GemmSpec], data: DataObject) -> None:
    """A panel begins where the swizzle's pattern begins, so that descriptors need no base offset."""
    plan = data.draw(specs).plan
    starts = [
        (plan.ring_offset + stage * plan.stage_bytes + first + panel * operand.panel_bytes, operand.swizzle)
        for stage in range(plan.pipe_depth)
        for operand, first in ((plan.a, 0), (plan.b, plan.a.tile_bytes))
        for panel in range(operand.panels)
    ]
    staging = plan.staging
    starts += [
        (plan.staging_offset + index * staging.panel_bytes, staging.swizzle)
        for index in range(plan.consumers * staging.buffers * staging.panels)
    ]
    assert all(start % swizzle.pattern_bytes == 0 for start, swizzle in starts if swizzle is not Swizzle.NONE)


@given(data=st.data())
def test_panels_cover_the_tile_exactly(specs: SearchStrategy[GemmSpec], data: DataObject) -> None:
    spec = data.draw(specs)
    plan, tile = spec.plan, spec.tile
    for operand, extent in ((plan.a, tile.m), (plan.b, tile.n)):
        rows = extent // spec.cta_group  # a pair of CTAs shares the tile's operands
        assert operand.panels * operand.panel_k == tile.k
        assert operand.panel_k * 2 == operand.swizzle.span_bytes
        assert operand.tile_bytes == rows * tile.k * 2
    staging = plan.staging
    assert staging.panels * staging.panel_columns == staging.columns
    assert staging.columns == (tile.n if spec.epilogue.staging == "tile" else plan.slice_n)
    tiles = plan.consumers if spec.consumer_tiles == "own" else 1  # of a CTA at a time
    assert staging.rows * plan.consumers == tiles * tile.m // spec.cta_group
    assert tile.n % plan.slice_n == 0
    # A slice is whole panels of a row, or a panel's row is whole slices.
    assert plan.slice_bytes % staging.panel_span == 0 or staging.panel_span % plan.slice_bytes == 0
    assert plan.slice_bytes % 16 == 0


@given(data=st.data())
def test_every_mma_takes_its_own_32_bytes_of_k(specs: SearchStrategy[GemmSpec], data: DataObject) -> None:
    spec = data.draw(specs)
    for operand in (spec.plan.a, spec.plan.b):
        offsets = operand.mma_offsets
        assert len(offsets) == spec.tile.k * 2 // 32
        assert offsets == tuple(
            k_step_offset(swizzle=operand.swizzle, major="K", step=index, stride_bytes=operand.panel_bytes)
            for index in range(len(offsets))
        )
        # The 32 bytes of row r lie within its panel's row, or in two 16-byte chunks a panel apart.
        first_row = {
            byte
            for start in offsets
            for chunk in (0, operand.panel_bytes if operand.swizzle is Swizzle.NONE else 16)
            for byte in range(start + chunk, start + chunk + 16)
        }
        assert len(first_row) == spec.tile.k * 2
        assert max(first_row) < operand.tile_bytes - (operand.rows - 1) * operand.swizzle.span_bytes


def buffer_end(program: Program) -> int:
    return max(buffer.end for buffer in program.buffers)


@pytest.mark.parametrize(("number", "smem_bytes"), [(4, 66560), (5, 99328), (6, 99328)])
def test_the_tutorials_kernels_take_what_the_tutorial_says(number: int, smem_bytes: int) -> None:
    plan = step(number).plan
    assert plan.smem_bytes == smem_bytes
    assert buffer_end(build(step(number))) == smem_bytes


def test_a_wide_f32_tile_fits_at_depth_4_when_slices_are_staged() -> None:
    settings = ("tile=128x256x64", "output_type=f32", "pipe_depth=4", "epilogue.staging=slices")
    plan = parse_settings(step(6), settings).plan
    assert plan.smem_bytes == 1024 + 128 * 32 * 4 + 4 * (128 + 256) * 64 * 2 == 214016
    assert plan.tmem_columns == 256


def test_no_other_offset_moves_with_the_depth() -> None:
    def places(depth: int) -> list[tuple[str, int]]:
        program = build(step(6).replace(pipe_depth=depth, tile={"n": 64}))
        return [(b.name, b.offset) for b in program.buffers] + [(b.name, b.offset) for b in program.barriers]

    assert places(1) == places(2) == places(8)


@pytest.mark.parametrize(
    ("n", "accumulators", "columns"),
    [(16, 1, 32), (32, 1, 32), (48, 1, 64), (128, 1, 128), (144, 1, 256), (256, 2, 512)],
)
def test_tensor_memory_is_the_smallest_power_of_two(n: int, accumulators: int, columns: int) -> None:
    spec = step(7 if accumulators == 2 else 6).replace(tile={"n": n}, accumulators=accumulators, pipe_depth=2)
    assert spec.plan.tmem_columns == columns


@pytest.mark.parametrize(
    ("k", "choice", "span"),
    [(32, None, 64), (64, None, 128), (128, None, 128), (32, 32, 32), (64, 16, 16), (128, 64, 64)],
)
def test_the_operand_span_is_the_widest_or_the_chosen_one(k: int, choice: int | None, span: int) -> None:
    operand: Operand = step(5).replace(tile={"k": k}, operand_swizzle=choice).plan.a
    assert operand.swizzle.span_bytes == span
    assert operand.panels == 2 * k // span
