"""The checker on Triton's kernels, which run right on hardware: no error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import Finding, Module
from ptxgen.hardware.targets import target

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]

POLICIES = [("eager", 0), ("late", 0), ("random", 0), ("random", 1)]
TRITON = [
    ("plain", (128, 128, 64), {}),
    ("plain", (128, 256, 64), {}),
    ("plain", (64, 64, 32), {}),
    ("plain", (128, 128, 64), {"num_warps": 8}),
    ("plain", (128, 128, 64), {"num_stages": 1}),
    ("plain", (128, 128, 64), {"operand": "bf16", "output": "f32"}),
    ("plain", (128, 128, 64), {"ROLES": True}),
    ("plain", (128, 128, 64), {"CHAINED": True}),
    ("persistent", (128, 128, 64), {}),
    ("persistent", (128, 128, 64), {"FLATTEN": True}),
    ("persistent", (128, 256, 64), {"ROLES": True}),
]


def checker_for(module: Module, grid: tuple[int, int, int], threads: int) -> Checker:
    smem_bytes = target("sm_100a").smem_per_sm_bytes
    return Checker(module.lines, grid=grid, cluster=(1, 1, 1), threads=threads, smem_bytes=smem_bytes)


def errors(findings: tuple[Finding, ...]) -> list[str]:
    return [str(finding) for finding in findings if finding.severity == "error"]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(("kernel", "tile", "options"), TRITON)
def test_triton_has_no_errors(
    triton_matmul: Any, kernel: str, tile: tuple[int, int, int], options: dict[str, Any], policy: str, seed: int
) -> None:
    matmul = triton_matmul(kernel, tile, **options)
    m, n, k = size = (192, 320, 320)
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    if matmul.operand == "bf16":
        a, b = (x.astype(np.float32).view(np.uint16)[:, 1::2].copy() for x in (a, b))
    d = np.zeros((m, n), np.float32 if matmul.output == "f32" else np.float16)
    grid = (3, 1, 1) if kernel == "persistent" else (-(-m // tile[0]), -(-n // tile[1]), 1)
    checker = checker_for(matmul.module, grid, matmul.threads)
    matmul(a, b, d, size, policy=policy, seed=seed, grid=grid, observers=(checker,))
    assert errors(checker.conclude(())) == []


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("roles", [False, True])
def test_triton_has_no_errors_where_it_cancels_programs(
    triton_matmul: Any, roles: bool, policy: str, seed: int
) -> None:
    m, n, k = size = (192, 320, 200)
    matmul = triton_matmul("persistent", (128, 128, 64), clc=True, ROLES=roles)
    assert any("clusterlaunchcontrol.try_cancel" in line for line in matmul.module.lines)
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    d = np.zeros((m, n), np.float16)
    grid = (6, 1, 1)
    checker = checker_for(matmul.module, grid, matmul.threads)
    got = matmul(a, b, d, size, policy=policy, seed=seed, grid=grid, observers=(checker,))
    assert errors(checker.conclude(())) == []
    np.testing.assert_array_equal(got, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))
