"""Atomic operations and chains through global memory as nvcc writes them: kernels/atomics.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

MASK64 = (1 << 64) - 1


def test_integer_atomics(cuda: Any) -> None:
    n = 200
    x = np.random.default_rng(9).integers(-(2**31), 2**31, n).astype(np.int32)
    o = np.array([5, 5, 100, 100, -1, 0, 77], np.int32)
    u = np.zeros(10 + n, np.uint32)
    u[0] = 0xFFFFFFFF
    w = np.zeros(4, np.uint64)
    got = cuda("atomics")("atomics_int", ["x", "o", "u", "w", n], {"x": x, "o": o, "u": u, "w": w}, grid=2)
    v = [int(value) for value in x]
    words = x.view(np.uint32)
    signed = [5 + sum(v), 5 - sum(v), min([*v, 100]), max([*v, 100])]
    np.testing.assert_array_equal(got["o"][:4], np.array([s & 0xFFFFFFFF for s in signed], np.uint32).view(np.int32))
    bitwise = [np.bitwise_and.reduce(x), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x) ^ 77]
    np.testing.assert_array_equal(got["o"][4:], bitwise)
    counts = [int((words & 3 == i).sum()) for i in range(4)]
    # inc and dec turn over at 9: ten values; dec starts from 0 and goes to 9 first.
    wanted = [words.min(), words.max(), n % 10, -n % 10, *counts, n, n * (n - 1) // 2]
    np.testing.assert_array_equal(got["u"][:10], np.array(wanted, np.uint32))
    np.testing.assert_array_equal(got["u"][10:], words ^ 0x5A5A)
    xor = 0
    for i, value in enumerate(v):
        xor ^= (value << 20 | i) & MASK64
    wide = [sum(v) * 1000000007 & MASK64, max(value << 33 & MASK64 for value in v), xor, sum(v) & MASK64]
    assert [int(value) for value in got["w"]] == wide


def test_floating_point_atomics_in_global_and_shared_memory(cuda: Any) -> None:
    x = np.random.default_rng(10).integers(-40, 40, 256).astype(np.float32)
    buffers = {
        "x": x,
        "f": np.zeros(1, np.float32),
        "d": np.zeros(1, np.float64),
        "h": np.zeros(2, np.float16),
        "totals": np.zeros(4, np.float32),
    }
    got = cuda("atomics")("atomics_float", list(buffers), buffers, grid=2)
    assert got["f"][0] == x.sum()
    assert got["d"][0] == x.sum() * 0.25
    assert list(got["h"]) == [128, 512]
    first, second = x.reshape(2, 128)
    assert list(got["totals"]) == [first.sum(), first.min(), second.sum(), second.min()]


def test_the_last_block_sums_what_the_others_left(cuda: Any) -> None:
    blocks = 5
    x = np.random.default_rng(11).integers(-1000, 1000, 128 * blocks, np.int32)
    buffers = {
        "x": x,
        "partial": np.zeros(blocks, np.int32),
        "done": np.zeros(1, np.uint32),
        "out": np.zeros(1, np.int32),
    }
    got = cuda("atomics")("last_block_sums", list(buffers), buffers, grid=blocks)
    assert got["out"][0] == x.sum()
    assert got["done"][0] == blocks


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 1), ("random", 2)])
def test_blocks_that_wait_for_the_block_before(cuda: Any, policy: str, seed: int) -> None:
    blocks = 6
    buffers = {"flag": np.zeros(1, np.uint32), "out": np.ones(1, np.int32)}
    got = cuda("atomics")("chained_blocks", ["flag", "out"], buffers, grid=blocks, block=32, policy=policy, seed=seed)
    wanted = 1
    for block in range(blocks):
        wanted = wanted * 3 + block
    assert got["out"][0] == wanted
