"""The walk over segments, on the emulator: every K tile of every tile is in one segment of one CTA.

A kernel of nothing but the walk writes down its segments, and what a segment that begins a tile but does not end it
would wait for.
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from ptxgen.device.description import LaunchDescription
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel
from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Parameter
from ptxgen.ir.program import Program, Role
from ptxgen.render import render
from ptxgen.spec import GemmSpec
from ptxgen.steps import step
from ptxgen.steps.builder import Builder, at
from ptxgen.steps.schedule import Schedule

OUT = Parameter(name="out", kind="u64", comment="a row of eight words for each segment")
K_TILES = Parameter(name="k_tiles", kind="u32", comment="K tiles")
ROWS_OF_CTA = 64
TILES, GRIDS = (1, 2, 3, 7, 12), (1, 2, 3, 5, 12)


def spec_of(**scheduler: Any) -> GemmSpec:
    return step(10, target="sm_90a").replace(scheduler={"order": "row_major", "group": None, **scheduler})


def program(spec: GemmSpec) -> Program:
    """A CTA's rows: CTA, tile, first and end K tile, unit, then for those that wait the last unit and the K tiles
    that are summed up with the last but one."""
    builder = Builder()
    out, place = builder.register("out", "walk", "b64"), builder.register("place", "walk", "b64")
    row, cta = builder.register("row", "walk"), builder.register("cta", "walk")
    last, covered = builder.register("last", "walk"), builder.register("covered", "walk")
    short, inside = builder.register("short", "walk", "pred"), builder.register("inside", "walk", "pred")
    elected, k_tiles = builder.register("elected", "walk", "pred"), builder.register("k_tiles", "walk")
    builder.emit(
        ir.LoadParameter(dst=out, parameter=OUT, comment=OUT.comment),
        ir.LoadParameter(dst=k_tiles, parameter=K_TILES, comment=K_TILES.comment),
        ir.ElectOne(dst=elected, comment="one lane writes"),
        ir.ReadSpecial(dst=cta, special="%ctaid.x", comment="CTA"),
    )
    builder.integer("mul.lo.u32", row, cta, ROWS_OF_CTA, comment="its first row")
    schedule = Schedule(builder, spec)
    schedule.set_up()
    segments = schedule.segments
    assert segments is not None
    with schedule.tiles():
        builder.integer("mad.wide.u32", place, row, 32, out, comment="address")
        builder.integer("add.u32", row, row, 1, comment="next row")
        builder.integer("mov.b32", last, segments.unit, comment="no other unit")
        builder.integer("mov.b32", covered, segments.end_k_tile, comment="as far as the segment")
        builder.compare("ne.u32", inside, segments.first_k_tile, 0, comment="begins inside")
        builder.compare("lt.u32", short, segments.end_k_tile, k_tiles, comment="ends inside")
        with (
            builder.guard("alone", short, comment="ends the tile"),
            builder.guard("handed_over", inside, comment="waits for nobody", negate=True),
            segments.each_behind() as (unit, so_far),
        ):
            builder.integer("mov.b32", last, unit, comment="the last unit")
            builder.integer("mov.b32", covered, so_far, comment="without it")
        values = (cta, builder.registers["tile"], segments.first_k_tile, segments.end_k_tile)
        builder.emit(ir.StoreGlobal(predicate=elected, address=at(place), values=values, comment="this segment"))
        values = (segments.unit, segments.part, last, covered)
        builder.emit(ir.StoreGlobal(predicate=elected, address=at(place, 16), values=values, comment="its sum"))
    builder.emit(ir.Return())
    return Program(
        name="walk",
        target=spec.target,
        ptx_version=(8, 0),
        command="walk",
        spec_hash="",
        launch=json.dumps(DESCRIPTION),
        threads=32,
        cluster_ctas=1,
        entry_registers=None,
        smem_bytes=0,
        smem_limit_bytes=0,
        tmem_columns=0,
        parameters=(OUT, K_TILES, *schedule.parameters),
        buffers=(),
        barriers=(),
        named_barriers=(),
        registers=tuple(builder.registers.values()),
        setup=(),
        roles=(Role(name="all", first_warp=0, warps=1, body=builder.take()),),
        teardown=(),
    )


DESCRIPTION: dict[str, object] = {
    "version": 1,
    "entry": "walk",
    "defaults": {"M": 1, "N": 1, "K": 1},
    "grid": ["SM_COUNT", 1, 1],
    "block": [32, 1, 1],
    "buffers": [
        {
            "name": "OUT",
            "type": "f32",
            "shape": [["product", "CTAS", ROWS_OF_CTA], 8],
            "pitch_bytes": 32,
            "fill": "nan",
        }
    ],
    "arguments": [
        {"name": "out", "kind": "buffer", "buffer": "OUT"},
        {"name": "k_tiles", "kind": "u32", "value": "K"},
        {"name": "m_tiles", "kind": "u32", "value": "M"},
        {"name": "n_tiles", "kind": "u32", "value": "N"},
    ],
}
"""M, N and K are the numbers of tiles here."""


@lru_cache(maxsize=16)
def kernel(split_k: int) -> Kernel:
    """split_k 0: stream-K."""
    spec = spec_of(stream_k=True) if split_k == 0 else spec_of(split_k=split_k)
    device = EmulatedDevice(spec.target, workers=1)
    return Kernel(render(program(spec)), LaunchDescription.from_json(DESCRIPTION, "walk"), device, name="walk")


def walk(split_k: int, tiles: int, k_tiles: int, grid: int) -> list[list[int]]:
    """The rows that were written, in the order of the CTAs and of their walks."""
    walker = kernel(split_k)
    execution = walker.run(walker.plan({"M": 1, "N": tiles, "K": k_tiles}, grid=(grid, 1, 1)), {})
    assert not execution.report.findings
    words = np.ascontiguousarray(execution.outputs["OUT"]).view(np.uint32)
    assert (words[ROWS_OF_CTA - 1 :: ROWS_OF_CTA] == 0xFFFFFFFF).all(), "a CTA has more segments than rows"
    return [row for row in words.tolist() if row[0] != 0xFFFFFFFF]


def require_partition(split_k: int, tiles: int, k_tiles: int, grid: int) -> None:
    rows = walk(split_k, tiles, k_tiles, grid)
    by_tile: dict[int, list[list[int]]] = {tile: [] for tile in range(tiles)}
    for row in rows:
        by_tile[row[1]].append(row)
    for tile, own in by_tile.items():
        own.sort(key=lambda row: row[2])
        assert own[0][2] == 0
        assert own[-1][3] == k_tiles
        assert all(left[3] == right[2] for left, right in itertools.pairwise(own)), f"tile {tile}: {own}"
        assert all(row[2] < row[3] for row in own)
        # Who begins a tile waits for the units of the other segments, one after the other, and for no more.
        assert [row[4] for row in own] == list(range(own[0][4], own[0][6] + 1))
        assert own[0][7] == own[-1][2] or len(own) == 1
    handed_over = [row[4] for row in rows if row[2]]
    assert len(handed_over) == len(set(handed_over)), "two sums in one slot"
    lengths = {row[4]: 0 for row in rows}
    for row in rows:
        lengths[row[4]] += row[3] - row[2]
    if split_k:
        assert max(lengths.values()) - min(lengths.values()) <= 1
        assert max(len(own) for own in by_tile.values()) == min(split_k, k_tiles, grid)
    else:
        by_cta = [sum(row[3] - row[2] for row in rows if row[0] == cta) for cta in range(grid)]
        assert max(by_cta) - min(by_cta) <= 1, "CTAs have equal shares"
        for cta in range(grid):
            mine = [row for row in rows if row[0] == cta]
            assert not any(row[2] for row in mine[1:]), "only a CTA's first segment begins inside a tile"


@pytest.mark.parametrize("split_k", [0, 2, 3, 5])
def test_every_k_tile_once(split_k: int) -> None:
    for index, (tiles, grid) in enumerate(itertools.product(TILES, GRIDS)):
        require_partition(split_k, tiles, (1, 2, 3, 7)[index % 4], grid)


@pytest.mark.slow
@pytest.mark.parametrize("split_k", [0, 2, 3, 4, 7])
@pytest.mark.parametrize("k_tiles", [1, 2, 3, 5, 8])
def test_every_k_tile_once_in_many_problems(split_k: int, k_tiles: int) -> None:
    for tiles, grid in itertools.product(range(1, 20), (1, 2, 3, 4, 5, 7, 11)):
        require_partition(split_k, tiles, k_tiles, grid)


def test_whole_waves_are_not_divided() -> None:
    """Tiles in whole waves stay whole, and of ten and a half waves nine do."""
    assert all(row[2:4] == [0, 4] for row in walk(0, 6, 4, 3))
    rows = walk(0, 21, 4, 2)
    divided = {row[1] for row in rows if row[2:4] != [0, 4]}
    assert divided
    assert max(row[1] for row in rows if row[4] < 2) == 2
