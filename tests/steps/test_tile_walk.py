"""The walk over output tiles, on the emulator: every tile of a problem is some CTA's or pair's, once.

A kernel of nothing but the scheduler's own ops writes down which tile it is at; the emulator reports
two clusters that write the same place.
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache

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

GRIDS = (1, 2, 5, 74)
COUNTS = list(itertools.product(range(1, 10), range(1, 10)))
OUT = Parameter(name="out", kind="u64", comment="a row of four words for each tile and CTA")


def spec_of(ctas: int, order: str, group: int | None) -> GemmSpec:
    number = 6 if ctas == 1 else 10
    return step(number).replace(scheduler={"order": order, "group": group})


def program(spec: GemmSpec) -> Program:
    """Writes m_coord, n_coord, the tile's id and the CTA's rank to row id x CTAs + rank."""
    builder = Builder()
    rank, row = builder.register("rank", "walk"), builder.register("row", "walk")
    out, place = builder.register("out", "walk", "b64"), builder.register("place", "walk", "b64")
    elected = builder.register("elected", "walk", "pred")
    builder.emit(
        ir.ReadSpecial(dst=rank, special="%cluster_ctarank", comment="CTA of the cluster"),
        ir.LoadParameter(dst=out, parameter=OUT, comment=OUT.comment),
        ir.ElectOne(dst=elected, comment="one lane writes"),
    )
    schedule = Schedule(builder, spec)
    schedule.set_up()
    with schedule.tiles():
        tile = builder.registers["tile"]
        builder.integer("mad.lo.u32", row, tile, spec.cluster_ctas, rank, comment="row")
        builder.integer("mad.wide.u32", place, row, 16, out, comment="address")
        values = (schedule.m_coord, schedule.n_coord, tile, rank)
        builder.emit(ir.StoreGlobal(predicate=elected, address=at(place), values=values, comment="this tile"))
    builder.emit(ir.Return())
    return Program(
        name="walk",
        target=spec.target,
        ptx_version=(8, 6),
        command="walk",
        spec_hash="",
        launch=json.dumps(description(spec)),
        threads=32,
        cluster_ctas=spec.cluster_ctas,
        entry_registers=None,
        smem_bytes=0,
        smem_limit_bytes=0,
        tmem_columns=0,
        parameters=(OUT, *schedule.parameters),
        buffers=(),
        barriers=(),
        named_barriers=(),
        registers=tuple(builder.registers.values()),
        setup=(),
        roles=(Role(name="all", first_warp=0, warps=1, body=builder.take()),),
        teardown=(),
    )


def description(spec: GemmSpec) -> dict[str, object]:
    """M and N are the numbers of tiles here."""
    rows = ["product", "M", "N", spec.cluster_ctas]
    return {
        "version": 1,
        "entry": "walk",
        "defaults": {"M": 1, "N": 1, "K": 1},
        "grid": ["SM_COUNT", 1, 1],
        "block": [32, 1, 1],
        "cluster": list(spec.cluster),
        "dynamic_smem_bytes": 0,
        "buffers": [{"name": "OUT", "type": "f32", "shape": [rows, 4], "pitch_bytes": 16, "fill": "nan"}],
        "arguments": [
            {"name": "out", "kind": "buffer", "buffer": "OUT"},
            {"name": "m_tiles", "kind": "u32", "value": "M"},
            {"name": "n_tiles", "kind": "u32", "value": "N"},
        ],
    }


@lru_cache(maxsize=32)
def kernel(ctas: int, order: str, group: int | None) -> Kernel:
    spec = spec_of(ctas, order, group)
    device = EmulatedDevice(spec.target, workers=1)
    return Kernel(render(program(spec)), LaunchDescription.from_json(description(spec), "walk"), device, name="walk")


def require_bijection(
    ctas: int, order: str, group: int | None, m_tiles: int, n_tiles: int, clusters: int
) -> list[tuple[int, int]]:
    """The tiles in the order of their ids; each is there, in every CTA of its cluster."""
    walk, tile = kernel(ctas, order, group), spec_of(ctas, order, group).tile
    launch = walk.plan({"M": m_tiles, "N": n_tiles, "K": 1}, grid=(clusters * ctas, 1, 1))
    execution = walk.run(launch, {})
    assert not execution.report.findings
    words = np.ascontiguousarray(execution.outputs["OUT"]).view(np.uint32).reshape(m_tiles * n_tiles, ctas, 4)
    assert (words[:, :, 2] == np.arange(m_tiles * n_tiles)[:, None]).all()
    assert (words[:, :, 3] == np.arange(ctas)).all()
    m = (words[:, :, 0] - words[:, :, 3] * (tile.m // ctas)) / tile.m
    n = words[:, :, 1] / tile.n
    assert (m == m[:, :1]).all()
    assert (n == n[:, :1]).all()
    found = list(zip(m[:, 0].tolist(), n[:, 0].tolist(), strict=True))
    assert sorted(found) == list(itertools.product(range(m_tiles), range(n_tiles)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("clusters", GRIDS)
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("group", range(1, 9))
def test_every_tile_is_visited_once(group: int, ctas: int, clusters: int) -> None:
    for m_tiles, n_tiles in COUNTS:
        require_bijection(ctas, "grouped", group, m_tiles, n_tiles, clusters)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", GRIDS)
@pytest.mark.parametrize("ctas", [1, 2])
def test_every_tile_is_visited_once_row_by_row(ctas: int, clusters: int) -> None:
    for m_tiles, n_tiles in COUNTS:
        found = require_bijection(ctas, "row_major", None, m_tiles, n_tiles, clusters)
        assert found == list(itertools.product(range(m_tiles), range(n_tiles)))


@pytest.mark.parametrize("ctas", [1, 2])
def test_some_tiles_are_visited_once(ctas: int) -> None:
    """A sample of the above."""
    for index, (m_tiles, n_tiles) in enumerate(COUNTS[ctas::5]):
        require_bijection(ctas, "grouped", 1 + index % 8, m_tiles, n_tiles, GRIDS[index % 3])
    require_bijection(ctas, "grouped", 3, 7, 9, 74)
