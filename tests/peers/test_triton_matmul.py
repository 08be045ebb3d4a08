"""Kernels from a compiler that no one here wrote run unmodified and give the right product."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
TILES = [(128, 128, 64), (128, 256, 64)]
POLICIES = [("eager", 0), ("late", 0), ("random", 0), ("random", 1), ("random", 2)]
SHAPES = [(128, 256, 64), (256, 384, 320), (200, 136, 72), (1, 8, 8), (129, 257, 63), (128, 256, 1000)]
LARGE = (384, 520, 200)
KERNELS: list[tuple[str, dict[str, bool]]] = [
    ("plain", {}),
    ("plain", {"ROLES": True}),
    ("plain", {"CHAINED": True}),
    ("persistent", {}),
    ("persistent", {"FLATTEN": True}),
    ("persistent", {"ROLES": True}),
]


def pitched(rows: int, columns: int, values: Array, kind: Any) -> Array:
    """`values` in rows of a whole number of 16 bytes, one more row and 16 more bytes than it needs; NaN around it."""
    per_16_bytes = 16 // np.dtype(kind).itemsize
    pitch = -(-columns // per_16_bytes) * per_16_bytes + per_16_bytes
    whole = np.full((rows + 1, pitch), np.nan).astype(kind)
    whole[:rows, :columns] = values.astype(kind)
    return whole


def product(matmul: Any, a: Array, b: Array, **options: Any) -> Array:
    """D as float64. The guard row and the guard columns of D must stay as they were."""
    (m, k), n = a.shape, b.shape[0]
    operand, output = TYPES[matmul.operand], TYPES[matmul.output]
    d = pitched(m, n, np.full((m, n), np.nan), output)
    got = matmul(pitched(m, k, a, operand), pitched(n, k, b, operand), d, (m, n, k), **options)
    guard = got.astype(np.float64)
    written = -(-n * d.dtype.itemsize // 16) * 16 // d.dtype.itemsize
    assert np.isnan(guard[m:]).all()
    assert np.isnan(guard[:, written:]).all()
    inside: Array = guard[:m, :n]
    return inside


def integers(seed: int, size: tuple[int, int, int]) -> tuple[Array, Array]:
    m, n, k = size
    random = np.random.default_rng(seed)
    return random.integers(-8, 9, (m, k)).astype(np.float64), random.integers(-8, 9, (n, k)).astype(np.float64)


def check_exact(matmul: Any, size: tuple[int, int, int], **options: Any) -> None:
    a, b = integers(sum(size), size)
    exact = (a @ b.T).astype(np.float32).astype(TYPES[matmul.output]).astype(np.float64)
    np.testing.assert_array_equal(product(matmul, a, b, **options), exact)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("kernel", "constants"), KERNELS)
def test_integer_products_are_exact(
    triton_matmul: Any, kernel: str, constants: dict[str, bool], tile: Any, size: Any
) -> None:
    matmul = triton_matmul(kernel, tile, **constants)
    options = {} if kernel == "plain" else {"grid": (2, 1, 1)}
    check_exact(matmul, size, policy="eager", **options)
    check_exact(matmul, size, policy="late", **options)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("kernel", "constants"), KERNELS)
def test_every_policy(
    triton_matmul: Any, kernel: str, constants: dict[str, bool], tile: Any, policy: str, seed: int
) -> None:
    options = {} if kernel == "plain" else {"grid": (3, 1, 1)}
    check_exact(triton_matmul(kernel, tile, **constants), LARGE, policy=policy, seed=seed, **options)


@pytest.mark.parametrize("programs", [1, 2, 7, 20])
@pytest.mark.parametrize(("kernel", "constants"), KERNELS[3:])
def test_persistent_grids_smaller_and_larger_than_the_tiles(
    triton_matmul: Any, kernel: str, constants: dict[str, bool], programs: int
) -> None:
    matmul = triton_matmul(kernel, (128, 128, 64), **constants)
    check_exact(matmul, LARGE, policy="eager", grid=(programs, 1, 1))


@pytest.mark.parametrize(("operand", "output"), [("f16", "f16"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32")])
def test_normal_inputs_stay_within_the_bound(triton_matmul: Any, operand: str, output: str) -> None:
    m, n, k = 200, 136, 328
    random = np.random.default_rng(31)
    kind = TYPES[operand]
    a, b = (random.standard_normal((rows, k)).astype(kind).astype(np.float64) for rows in (m, n))
    matmul = triton_matmul("plain", (128, 128, 64), operand=operand, output=output, num_stages=2)
    got = product(matmul, a, b, policy="late")
    wanted = a @ b.T
    ulp = np.spacing(np.abs(wanted).astype(TYPES[output])).astype(np.float64)
    bound = ulp / 2 + 2 * (k + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize(
    ("tile", "options"),
    [
        ((64, 64, 32), {}),
        ((128, 64, 128), {}),
        ((128, 128, 64), {"num_warps": 8}),
        ((128, 128, 64), {"num_stages": 1}),
    ],
)
def test_other_tiles_warps_and_depths(triton_matmul: Any, tile: Any, options: Any) -> None:
    matmul = triton_matmul("plain", tile, **options)
    for policy in ("eager", "late", "random"):
        check_exact(matmul, (200, 136, 200), policy=policy)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("programs", [15, 20])
def test_tiles_of_programs_that_were_cancelled(triton_matmul: Any, programs: int, policy: str, seed: int) -> None:
    """A program for each tile, or more; which of them start, and which are cancelled by others, is policy."""
    matmul = triton_matmul("persistent", (128, 128, 64), clc=True)
    check_exact(matmul, LARGE, policy=policy, seed=seed, grid=(programs, 1, 1))
