"""The steps give the right D on the emulator, whatever order asynchronous work takes.

The oracle is a float64 product computed here. Integer inputs have one right answer, the exact sum
rounded once; normal ones are held to |d - ref| <= ulp(ref)/2 + 2 (K + 1) 2^-24 (|A| . |B|^T) in every
element. D starts as NaN, and the device watches a guard band around it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.spec import GemmSpec

SHAPES = [
    (128, 128, 64), (256, 384, 320), (200, 136, 72), (1, 8, 8), (130, 264, 8), (384, 128, 1000),
    (1, 1, 1), (33, 7, 15), (129, 257, 63),
]  # fmt: skip
POLICIES = [("eager", 0), ("late", 0), ("random", 1), ("random", 2), ("random", 3)]


def operands(kind: str, m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if kind == "integers":
        return rng.integers(-5, 6, (m, k)).astype(np.float16), rng.integers(-5, 6, (n, k)).astype(np.float16)
    return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)


def require_product(a: np.ndarray, b: np.ndarray, d: np.ndarray, kind: str) -> None:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    reference = wide_a @ wide_b.T
    if kind == "integers":
        assert np.abs(wide_a).max() * np.abs(wide_b).max() * a.shape[1] < 2**24
        np.testing.assert_array_equal(d, reference.astype(np.float16))
        return
    ulp = np.spacing(np.abs(reference.astype(np.float16))).astype(np.float64)
    bound = ulp / 2 + 2 * (a.shape[1] + 1) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b).T)
    assert (np.abs(d.astype(np.float64) - reference) <= bound).all()


def specs() -> Iterator[tuple[GemmSpec, tuple[int | None, ...]]]:
    """Each spec and the grids to run it with; more CTAs than tiles is among them."""
    yield ptxgen.step(4), (None,)
    for depth in (1, 2, 3, 5):
        yield ptxgen.step(5).replace(pipe_depth=depth), (None,)
        yield ptxgen.step(6).replace(pipe_depth=depth), (1, 2, 7, 40)
    for depth in (2, 3, 6):
        yield ptxgen.step(7).replace(pipe_depth=depth), (1, 7, 40)
        small = {"staging": "slices", "staging_buffers": 2}
        yield ptxgen.step(7).replace(pipe_depth=depth, accumulators=2, epilogue=small), (1, 2, 40)
    yield ptxgen.step(3), (None,)
    for depth in (2, 5):
        yield ptxgen.step(8).replace(pipe_depth=depth), (2, 6, 40)
        yield ptxgen.step(8).replace(pipe_depth=depth, tile={"n": 96}, accumulators=2), (2, 40)
    yield ptxgen.step(9), (2, 6, 40)
    yield ptxgen.step(9).replace(pipe_depth=2, tile={"n": 128}, output_type="f16"), (2, 4, 40)
    for step in (8, 9):
        yield ptxgen.step(step).replace(scheduler={"kind": "grid"}), (None,)


CASES = list(specs())
NAMES = [f"step{spec.step}-depth{spec.pipe_depth}-{spec.hash[:4]}" for spec, _ in CASES]


def run(spec: GemmSpec, grid: int | None, policy: tuple[str, int], shapes: list[tuple[int, int, int]]) -> None:
    device = EmulatedDevice(spec.target, policy=policy[0], seed=policy[1], workers=1)
    kernel = ptxgen.compile(spec, device=device)
    extent = None if grid is None else (grid, 1, 1)
    for m, n, k in shapes:
        for kind in ("integers", "normal"):
            a, b = operands(kind, m, n, k, seed=m + n + k)
            d = kernel(a, b, grid=extent)
            assert d.shape == (m, n)
            require_product(a, b, d, kind)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0]}{p[1]}")
@pytest.mark.parametrize(("spec", "grids"), CASES, ids=NAMES)
def test_every_shape(spec: GemmSpec, grids: tuple[int | None, ...], policy: tuple[str, int]) -> None:
    for grid in grids:
        run(spec, grid, policy, SHAPES)


@pytest.mark.parametrize(("spec", "grids"), CASES, ids=NAMES)
def test_some_shapes(spec: GemmSpec, grids: tuple[int | None, ...]) -> None:
    """A sample of the above: every spec, the grids and policies in turn."""
    for index, shape in enumerate([(200, 136, 72), (129, 257, 63), (1, 1, 1)]):
        run(spec, grids[index % len(grids)], POLICIES[(spec.pipe_depth + index) % len(POLICIES)], [shape])


@pytest.mark.parametrize("step", [1, 2])
def test_one_tile(step: int) -> None:
    for policy in POLICIES:
        run(ptxgen.step(step), None, policy, [(128, 128, 64), (1, 8, 8), (33, 7, 15), (127, 121, 63)])
