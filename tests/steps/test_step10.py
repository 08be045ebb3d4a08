"""Step 10 gives the right D in all its variants, whatever order asynchronous work takes.

Tile counts are odd in both directions, K tiles are 1, depth - 1, depth and depth + 1, and pairs have no
tile, one, or many. Where tiles are claimed, the grid has a pair for each; how many run at once is up to
the chip, so chips of several sizes take the place of grids.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.hardware.targets import target
from ptxgen.render import emit
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import step
from ptxgen.toolchain import assemble, disassemble, find_tool

POLICIES = [("eager", 0), ("late", 0), ("random", 1), ("random", 2), ("random", 3)]
PAIRS = (1, 2, 3, 74)
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}

SMALL = "tile=256x64x64 consumers=1 accumulators=2"
VARIANTS = {
    "as it is": "",
    "256x256, two accumulators": "tile=256x256x64 consumers=1 accumulators=2 pipe_depth=6",
    "one accumulator": "tile=256x96x64 consumers=1 pipe_depth=3",
    "two consumers": "tile=512x32x32 pipe_depth=5",
    "three buffers": f"{SMALL} epilogue.staging_buffers=3 epilogue.slice_n=16",
    "four buffers, unrolled": f"{SMALL} epilogue.staging_buffers=4 epilogue.slice_n=16 epilogue.unroll=true",
    "64 columns": f"{SMALL} epilogue.slice_n=64 pipe_depth=7",
    "bf16": f"{SMALL} operand_type=bf16 output_type=bf16 scheduler.group=2",
    "f32": f"{SMALL} output_type=f32 scheduler.group=16 pipe_depth=2",
    "row major": f"{SMALL} scheduler.order=row_major tile.k=128 pipe_depth=3",
    "Hilbert order": f"{SMALL} scheduler.order=hilbert",
    "Hilbert order, claimed": "tile=512x64x64 pipe_depth=3 scheduler.order=hilbert scheduler=clc",
    "a grid of pairs": f"{SMALL} scheduler=grid",
    "claimed": f"{SMALL} scheduler=clc",
    "claimed, two consumers": "tile=512x64x64 pipe_depth=3 scheduler=clc scheduler.depth=3",
    "claimed, row major": f"{SMALL} scheduler=clc scheduler.depth=4 scheduler.order=row_major",
    "direct": f"{SMALL} epilogue.store=direct",
    "direct, two consumers, f32": "tile=512x64x64 pipe_depth=3 epilogue.store=direct output_type=f32",
    "direct, claimed": f"{SMALL} epilogue.store=direct epilogue.slice_n=16 epilogue.unroll=true scheduler=clc",
    "registers": f"{SMALL} setmaxnreg=true",
    "dependent": f"{SMALL} dependent_launch=true",
    "all at once": "tile=512x64x64 pipe_depth=4 setmaxnreg=true dependent_launch=true scheduler=clc",
}


@lru_cache(maxsize=64)
def spec_of(variant: str) -> GemmSpec:
    return parse_settings(step(10), tuple(VARIANTS[variant].split()))


def shapes(spec: GemmSpec) -> list[tuple[int, int, int]]:
    """The foundation's shapes, then odd tile counts with every number of K tiles that matters."""
    m, n, k, depth = spec.tile.m, spec.tile.n, spec.tile.k, spec.pipe_depth
    return [
        (128, 128, 64), (200, 136, 72), (1, 8, 8), (130, 264, 8), (384, 128, 1000), (1, 1, 1), (33, 7, 15),
        (3 * m, 3 * n, k),
        (2 * m + 1, 3 * n - 3, k * (depth - 1)),
        (m, 3 * n, k * depth - 5),
        (3 * m - 7, n, k * (depth + 1) - 8),
        (m + 1, 4 * n + 1, 2 * k * depth + 1),
    ]  # fmt: skip


def check(spec: GemmSpec, policy: tuple[str, int], pairs: int, shape: tuple[int, int, int]) -> None:
    """Exact on integers: their sums are exact, and rounded once."""
    m, n, k = shape
    walks = spec.scheduler.kind == "persistent"
    chip = target("sm_100a") if walks else dataclasses.replace(target("sm_100a"), sm_count=2 * pairs)
    device = EmulatedDevice(chip, policy=policy[0], seed=policy[1], workers=1)
    kernel = ptxgen.compile(spec, device=device)
    random = np.random.default_rng(m + n + k)
    a, b = (random.integers(-5, 6, (rows, k)).astype(TYPES[spec.operand_type]) for rows in (m, n))
    d = kernel(a, b, grid=(2 * pairs, 1, 1) if walks else None)
    reference = a.astype(np.float64) @ b.astype(np.float64).T
    assert d.dtype == TYPES[spec.output_type]
    np.testing.assert_array_equal(d, reference.astype(d.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0]}{p[1]}")
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_shape(variant: str, policy: tuple[str, int]) -> None:
    """Each shape with one, two or three pairs, and over the policies with all of them."""
    spec = spec_of(variant)
    for index, shape in enumerate(shapes(spec)):
        check(spec, policy, PAIRS[(index + POLICIES.index(policy)) % 3], shape)
    check(spec, policy, 74, shapes(spec)[9])


@pytest.mark.parametrize("variant", VARIANTS)
def test_some_shapes(variant: str) -> None:
    """A sample of the above: every variant, the sizes, policies and grids in turn."""
    spec, number = spec_of(variant), list(VARIANTS).index(variant)
    wanted = shapes(spec)
    large = spec.tile.m * spec.tile.n > 2**16
    for index in (number, number + 5) if not large else (7 + number,):
        shape = wanted[index % len(wanted)]
        check(spec, POLICIES[(number + index) % len(POLICIES)], PAIRS[(number + index) % 3], shape)


def test_more_pairs_than_tiles() -> None:
    check(spec_of("claimed"), ("late", 0), 74, (300, 70, 64))
    check(spec_of("two consumers"), ("random", 1), 74, (600, 33, 32))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_checker_finds_nothing(variant: str) -> None:
    spec = spec_of(variant)
    m, n, k = 2 * spec.tile.m + 1, 2 * spec.tile.n - 3, spec.tile.k * spec.pipe_depth + 8
    for policy, seed in (("eager", 0), ("late", 0), ("random", 1)):
        walks = spec.scheduler.kind == "persistent"
        chip = target("sm_100a") if walks else dataclasses.replace(target("sm_100a"), sm_count=4)
        device = EmulatedDevice(chip, policy=policy, seed=seed, workers=1, check=True)
        kernel = ptxgen.compile(spec, device=device)
        a, b = (np.ones((rows, k), TYPES[spec.operand_type]) for rows in (m, n))
        _, report = kernel.execute(a, b, grid=(4, 1, 1) if walks else None)
        assert not report.findings


@pytest.mark.slow
@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("variant", VARIANTS)
def test_ptxas_is_content(variant: str) -> None:
    spec = spec_of(variant)
    assembly = assemble(emit(spec), line_info=False)
    assert (assembly.warnings, assembly.infos, assembly.spill_bytes) == ((), (), 0)
    if spec.setmaxnreg:
        assert assembly.registers == (128 if spec.consumers == 1 else 168)
    else:
        assert assembly.registers <= (64 if spec.plan.slice_n <= 32 else 80)
    if find_tool("nvdisasm"):
        assert disassemble(assembly.cubin).count("BRA.U.ANY") == 0


def test_every_wait_has_the_time_hint() -> None:
    text = emit(step(10).replace(scheduler={"kind": "clc"}, suspend_ns=500))
    waits = [line for line in text.splitlines() if "mbarrier.try_wait" in line]
    assert len(waits) > 8
    assert all(", %suspend_ns;" in line for line in waits)
