"""Shared memory, barriers, constants and local arrays as nvcc writes them: kernels/shared_memory.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

POLICIES = [("eager", 0), ("late", 0), ("random", 1)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_block_sum(cuda: Any, policy: str, seed: int) -> None:
    n = 1000
    x = np.random.default_rng(4).integers(-50, 50, n).astype(np.float32)
    out = np.zeros(3, np.float32)
    got = cuda("shared_memory")(
        "block_sum", ["x", "out", n], {"x": x, "out": out}, grid=3, dynamic_smem_bytes=512, policy=policy, seed=seed
    )["out"]
    blocks = np.arange(n) // 128 % 3
    np.testing.assert_array_equal(got, [x[blocks == block].sum() for block in range(3)])


def test_matmul_tiled(cuda: Any) -> None:
    m, n, k = 37, 29, 50
    random = np.random.default_rng(5)
    a = random.integers(-9, 9, (m, k)).astype(np.float32)
    b = random.integers(-9, 9, (k, n)).astype(np.float32)
    d = np.full((m, n), np.nan, np.float32)
    buffers = {"a": a, "b": b, "d": d}
    got = cuda("shared_memory", "-lineinfo")(
        "matmul_tiled", ["a", "b", "d", m, n, k], buffers, grid=(2, 3, 1), block=(16, 16, 1)
    )["d"]
    np.testing.assert_array_equal(got, a @ b)


def test_barriers_that_reduce(cuda: Any) -> None:
    x = np.random.default_rng(6).integers(-99, 100, 128, np.int32)
    got = cuda("shared_memory")("block_votes", ["x", "out"], {"x": x, "out": np.zeros_like(x)})["out"]
    seen = np.array([x[i::4].sum() for i in range(4)])
    common = (x > 0).sum() * 1000 + int((x > 98).any()) * 100 + int((x > -1000).all()) * 10
    np.testing.assert_array_equal(got, common + (seen[np.arange(128) % 4] & 7))


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_named_barriers_hand_over_twice(cuda: Any, policy: str, seed: int) -> None:
    x = np.random.default_rng(7).integers(-99, 100, 128, np.int32)
    buffers = {"x": x, "out": np.zeros_like(x)}
    got = cuda("shared_memory")("named_barriers", ["x", "out"], buffers, policy=policy, seed=seed)["out"]
    np.testing.assert_array_equal(got.reshape(2, 64), 3 * x.reshape(2, 64)[:, ::-1])


def test_bytes_vectors_constants_and_local_arrays(cuda: Any) -> None:
    x = np.random.default_rng(8).integers(0, 256, 256, np.uint8)
    got = cuda("shared_memory")("mixed_widths", ["x", "out"], {"x": x, "out": np.zeros(128, np.uint32)})["out"]
    weights = [1, -2, 3, -5, 7, -11, 13, -17]
    for t in range(128):
        r = int(x[255 - t]) + int(x.view(np.int16)[t]) * 3
        r += int(np.bitwise_xor.reduce(x.view(np.uint32).reshape(-1, 4)[t & 15]))
        r += (int(x.view(np.uint64)[t & 31]) >> 13 & 0xFFFFFFFF) + int(x.view(np.int8)[t])
        local = {(i + t) & 7: weights[i] + t for i in range(8)}
        r += local[t & 7] * 1000 + local[t >> 3 & 7] * 7
        assert int(got[t]) == r & 0xFFFFFFFF, t
