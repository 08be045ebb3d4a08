"""Split-K and stream-K: K tiles dealt out among CTAs, each exactly once, and the right D from their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import compile
from ptxgen.device.verification import cases
from ptxgen.errors import LaunchError, SpecError
from ptxgen.ir import ops as ir
from ptxgen.spec import GemmSpec
from ptxgen.steps import build

POLICIES = [("eager", 0), ("late", 0), ("random", 1)]
SMALL: dict[str, Any] = {"tile": {"m": 64, "n": 64, "k": 64}, "consumers": 1, "pipe_depth": 3}


def spec(scheduler: dict[str, Any], **changes: Any) -> GemmSpec:
    return ptxgen.step(10, target="sm_90a").replace(scheduler=scheduler, **(SMALL | changes))


SPECS = {
    "split 2": spec({"split_k": 2}),
    "split 3, 128 x 64, row by row": spec(
        {"split_k": 3, "order": "row_major", "group": None}, tile={"m": 128, "n": 64, "k": 32}, consumers=2
    ),
    "split 8 along m": spec({"split_k": 8}, cluster=(2, 1, 1)),
    "stream": spec({"stream_k": True}),
    "stream, 128 rows a consumer": spec({"stream_k": True}, tile={"m": 256, "n": 64, "k": 64}, consumers=2),
    "stream along m": spec({"stream_k": True, "order": "hilbert", "group": 2}, cluster=(2, 1, 1)),
    "split 2, swapped": spec({"split_k": 2}, swap_ab=True, tile={"m": 24, "n": 128, "k": 64}, consumers=2),
    "stream along m, swapped": spec(
        {"stream_k": True}, swap_ab=True, cluster=(2, 1, 1), tile={"m": 16, "n": 64, "k": 64}, output_type="bf16"
    ),
    "stream along n, slices": spec(
        {"stream_k": True}, cluster=(1, 2, 1), epilogue={"staging": "slices"}, output_type="f32"
    ),
}
PAIR: dict[str, Any] = {"tile": {"m": 256, "n": 64, "k": 64}, "consumers": 1, "accumulators": 2, "pipe_depth": 3}
DIRECT: dict[str, Any] = {"store": "direct", "staging": "tile", "staging_buffers": 1}
SPECS |= {
    name: ptxgen.step(10).replace(scheduler=scheduler, **changes)
    for name, scheduler, changes in (
        ("pairs, split 2", {"split_k": 2}, PAIR),
        ("pairs, stream", {"stream_k": True}, PAIR),
        (
            "pairs, stream, two consumers",
            {"stream_k": True},
            PAIR | {"tile": {"m": 512, "n": 32, "k": 64}, "consumers": 2, "accumulators": 1},
        ),
        ("pairs, stream, direct", {"stream_k": True}, PAIR | {"epilogue": DIRECT, "output_type": "f32"}),
        (
            "pairs, split 3, unrolled",
            {"split_k": 3, "order": "hilbert", "group": 2},
            PAIR | {"epilogue": {"unroll": True}, "dependent_launch": True},
        ),
    )
}
SHAPES = [(129, 200, 512), (16, 300, 1000), (64, 64, 64), (64, 64, 320), (321, 65, 24)]
"""Edges; few rows; one K tile; one tile for many CTAs; fewer K tiles than parts."""


def require_product(chosen: GemmSpec, policy: tuple[str, int], shape: tuple[int, int, int], grid: int) -> None:
    """Integers, whose sums are exact in any order: D is the product rounded once. Nothing is left in the flags."""
    device = EmulatedDevice(chosen.target, policy=policy[0], seed=policy[1], workers=1)
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a = rng.integers(-5, 6, (m, k)).astype(np.float16)
    b = rng.integers(-5, 6, (n, k)).astype(np.float16)
    d = compile(chosen, device)(a, b, grid=(grid, 1, 1))
    product = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(d, product.astype(d.dtype))


@pytest.mark.parametrize("name", SPECS)
def test_the_product_is_right(name: str) -> None:
    """Every spec, with policies, grids, and all but two shapes in turn."""
    turn = list(SPECS).index(name)
    for index, shape in enumerate([*SHAPES[:2], SHAPES[2 + turn % 3]]):
        require_product(SPECS[name], POLICIES[(index + turn) % 3], shape, (6, 2, 10)[index])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0]}{p[1]}")
@pytest.mark.parametrize("name", SPECS)
def test_every_shape(name: str, policy: tuple[str, int]) -> None:
    for index, shape in enumerate([*SHAPES, (1, 1, 1), (500, 300, 136)], start=POLICIES.index(policy)):
        require_product(SPECS[name], policy, shape, (2, 6, 14, 132)[index % 4])


def test_the_usual_kernel_has_none_of_it() -> None:
    """One part is no division: the text is the same as ever."""
    usual = ptxgen.step(10, target="sm_90a")
    assert usual.replace(scheduler={"split_k": 1, "stream_k": False}).hash == usual.hash
    assert "flags" not in ptxgen.emit(usual)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"scheduler": {"split_k": 0}}, "a tile's K is split into 1 to 64 parts"),
        ({"scheduler": {"split_k": 65}}, "a tile's K is split into 1 to 64 parts"),
        ({"scheduler": {"split_k": 2.0}}, "scheduler.split_k must be of type int"),
        ({"scheduler": {"stream_k": 1}}, "scheduler.stream_k must be of type bool"),
        ({"scheduler": {"split_k": 2, "stream_k": True}}, "in one of these ways, not in both"),
        ({"scheduler": {"split_k": 2, "kind": "grid"}}, "a CTA has a whole tile"),
        (
            {"scheduler": {"stream_k": True}, "tile": {"n": 128}, "consumer_tiles": "own"},
            "consumers that take turns have whole tiles",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        ptxgen.step(10, target="sm_90a").replace(**changes)


def test_other_steps_and_schedulers_refuse() -> None:
    with pytest.raises(SpecError, match="scheduler.split_k=2: a choice of step 10, not of step 7"):
        ptxgen.step(7, target="sm_90a").replace(scheduler={"split_k": 2})
    with pytest.raises(SpecError, match="scheduler.stream_k=true: a choice of step 10, not of step 9"):
        ptxgen.step(9).replace(scheduler={"stream_k": True})
    with pytest.raises(SpecError, match="scheduler.split_k=2: with scheduler.kind=clc a CTA has a whole tile"):
        ptxgen.step(10).replace(scheduler={"split_k": 2, "kind": "clc"})


def test_a_grid_must_run_at_once() -> None:
    device = EmulatedDevice("sm_90a")
    kernel = compile(SPECS["stream"], device)
    problem = {"M": 64, "N": 64, "K": 64}
    kernel.plan(problem, grid=(132, 1, 1))
    with pytest.raises(LaunchError, match="a grid of 133 CTAs, which wait for each other .* has 132 SMs"):
        kernel.plan(problem, grid=(133, 1, 1))


def test_slots_for_every_unit() -> None:
    """Sizes of the scratch buffers follow the grid, or the tiles."""
    problem = {"M": 130, "N": 64, "K": 64}
    kernel = compile(SPECS["stream"], EmulatedDevice("sm_90a"))
    assert kernel.plan(problem, grid=(6, 1, 1)).buffer("PARTIALS").rows == 6
    assert kernel.plan(problem).buffer("FLAGS").rows == 132
    split = compile(SPECS["split 8 along m"], EmulatedDevice("sm_90a")).plan(problem)
    assert split.buffer("PARTIALS").rows == 2 * 8 * 2
    assert split.buffer("PARTIALS").columns == 64 * 64


def test_verify_tells_the_parts_of_two_lengths_apart() -> None:
    """In some run a tile begins in a longer part and ends in the first K tile of a shorter one, which is not the first
    of those: who takes one part for a longer one then forgets the last."""
    chosen = ptxgen.step(10, target="sm_90a").replace(scheduler={"stream_k": True})
    kernel, tile = compile(chosen, EmulatedDevice("sm_90a")), chosen.cluster_tile
    found = []
    for case in cases(kernel, {}, None, ("eager",), (0,)):
        ctas = kernel.plan(case.problem, grid=case.grid).grid[0]
        k_tiles = -(-case.problem["K"] // tile.k)
        tiles = -(-case.problem["M"] // tile.m) * -(-case.problem["N"] // tile.n)
        dealt = (tiles - (max((tiles - 1) // ctas, 1) - 1) * ctas) * k_tiles
        share, longer = divmod(dealt, min(ctas, dealt))
        turn = longer * (share + 1)  # K tiles in the longer parts
        rest = -turn % k_tiles  # of the tile in which they end
        found.append(rest > share and rest % share == 1 % share)
    assert any(found)


def test_the_order_of_addition_is_that_of_the_units() -> None:
    """Sums that round: D is the same for every schedule, bit by bit."""
    rng = np.random.default_rng(7)
    a = rng.standard_normal((100, 1000)).astype(np.float16)
    b = rng.standard_normal((70, 1000)).astype(np.float16)
    for name in ("split 2", "stream", "pairs, stream"):
        chosen = SPECS[name].replace(output_type="f32")
        found = {
            compile(chosen, EmulatedDevice(chosen.target, policy=policy, seed=seed, workers=1))(
                a, b, grid=(6, 1, 1)
            ).tobytes()
            for policy, seed in [*POLICIES, ("random", 2)]
        }
        assert len(found) == 1


def test_a_flag_is_for_one_warp() -> None:
    """The pieces of the program: a thread stores what its twin adds, and each warp has a flag of its own."""
    ops = list(build(SPECS["split 2"]).ops())
    stored = [op.values for op in ops if isinstance(op, ir.StorePartial)]
    added = [op.dst for op in ops if isinstance(op, ir.AddPartial)]
    assert [register for values in stored for register in values] == added
    assert len(added) == len(set(added)) == 32
