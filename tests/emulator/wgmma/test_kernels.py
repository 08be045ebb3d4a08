"""The committed sm_90a kernels and random specs give exact products on an emulated H200, under every policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ptxgen
from ptxgen.device.arrays import make_matrix
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel, load
from ptxgen.errors import SpecError
from ptxgen.hardware.element_types import element_type
from ptxgen.spec import Epilogue, GemmSpec, Scheduler, Tile

FILES = sorted((Path(__file__).resolve().parents[3] / "generated" / "sm_90a").glob("*.ptx"))
POLICIES = [("eager", 0), ("late", 0), ("random", 0), ("random", 1), ("random", 2)]
SHAPES = [
    (128, 128, 64), (256, 384, 320), (200, 136, 72), (1, 8, 8), (130, 264, 8), (384, 128, 1000), (1, 1, 1), (33, 7, 15),
    (129, 257, 63),
]  # fmt: skip


def require_exact(kernel: Kernel, operand: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = (make_matrix("integers", rows, k, element_type(operand), rows) for rows in (m, n))
    d = kernel(a, b)
    assert kernel.report is not None
    assert kernel.report.findings == ()
    exact = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32).astype(d.dtype)
    np.testing.assert_array_equal(d.astype(np.float64), exact.astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_every_shape(file: Path, policy: str, seed: int) -> None:
    kernel = load(file, device=EmulatedDevice("sm_90a", policy=policy, seed=seed, workers=1))
    for size in SHAPES:
        require_exact(kernel, "f16", size)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_some_shapes(file: Path) -> None:
    """A sample of the above, the policies in turn."""
    for place, size in enumerate([(200, 136, 72), (129, 257, 63), (1, 1, 1)]):
        policy, seed = POLICIES[(place + FILES.index(file)) % len(POLICIES)]
        require_exact(load(file, device=EmulatedDevice("sm_90a", policy=policy, seed=seed, workers=1)), "f16", size)


def specs(seed: int) -> Iterator[GemmSpec]:
    """Endless random specs that build."""
    draw = random.Random(seed)
    while True:
        step = draw.choice([4, 5, 6, 7])
        consumers = draw.choice([1, 2]) if step == 7 else 1
        order = draw.choice(["row_major", "grouped"])
        try:
            yield ptxgen.step(step, target="sm_90a").replace(
                consumers=consumers,
                tile=Tile(
                    m=draw.choice([64, 128]) * consumers, n=draw.choice(range(8, 257, 8)), k=draw.choice([32, 64, 128])
                ),
                pipe_depth=1 if step == 4 else draw.randint(1, 8),
                operand_type=draw.choice(["f16", "bf16"]),
                output_type=draw.choice(["f16", "bf16", "f32"]),
                operand_swizzle=draw.choice([None, 128, 64, 32, 16]),
                scheduler=Scheduler(
                    kind=draw.choice(["grid", "persistent"]),
                    order=order,
                    group=None if order == "row_major" else draw.choice([1, 2, 3, 8, 100]),
                ),
                epilogue=Epilogue(
                    slice_n=draw.choice([None, 8, 16, 32, 48, 64]),
                    staging=draw.choice(["tile", "slices"]),
                    staging_buffers=draw.choice([1, 2, 3]),
                    unroll=True,
                ),
            )
        except SpecError:
            continue


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_random_specs(count: int) -> None:
    for number, spec in zip(range(count), specs(count), strict=False):
        policy, seed = POLICIES[number % len(POLICIES)]
        kernel = ptxgen.compile(spec, device=EmulatedDevice("sm_90a", policy=policy, seed=seed, workers=1))
        for size in [(200, 136, 72), (129, 257, 63)]:
            require_exact(kernel, spec.operand_type, size)
