"""mbarriers and asynchronous copies in hand-written CUDA: kernels/bulk_copies.cu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tensor_map import TensorMap

POLICIES = [("eager", 0), ("late", 0), ("random", 1), ("random", 2)]


def map_of(buffer: str, rows: int, columns: int, swizzle: Swizzle) -> Callable[[dict[str, int]], TensorMap]:
    return lambda addresses: TensorMap(
        element_type=element_type("f16"),
        address=addresses[buffer],
        dims=(columns, rows),
        strides_bytes=(columns * 2,),
        box=(64, 32),
        swizzle=swizzle,
    )


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("swizzle", [Swizzle.B128, Swizzle.NONE])
def test_tensor_copy_with_edges(cuda: Any, swizzle: Swizzle, policy: str, seed: int) -> None:
    rows, columns = 72, 264
    x = np.random.default_rng(12).standard_normal((rows, columns)).astype(np.float16)
    got = cuda("bulk_copies")(
        "tensor_copy",
        [map_of("x", rows, columns, swizzle), map_of("y", rows, columns, swizzle), 5],
        {"x": x, "y": np.full_like(x, np.nan)},
        grid=3,
        policy=policy,
        seed=seed,
    )
    np.testing.assert_array_equal(got["y"], x)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_bulk_copies_in_and_out_and_a_bulk_reduction(cuda: Any, policy: str, seed: int) -> None:
    x = np.random.default_rng(13).integers(-99, 99, (3, 256)).astype(np.float32)
    buffers = {"x": x, "y": np.zeros_like(x), "total": np.ones(256, np.float32)}
    got = cuda("bulk_copies")("bulk_double", list(buffers), buffers, grid=3, policy=policy, seed=seed)
    np.testing.assert_array_equal(got["y"], 2 * x)
    np.testing.assert_array_equal(got["total"], 1 + 2 * x.sum(axis=0))


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_mbarrier_tokens_counts_and_drops(cuda: Any, policy: str, seed: int) -> None:
    rounds = 3
    x = np.random.default_rng(14).integers(-99, 99, (rounds, 128), np.int32)
    got = cuda("bulk_copies")(
        "token_ring", ["x", "out", rounds], {"x": x, "out": np.zeros(128, np.int32)}, policy=policy, seed=seed
    )
    wanted = sum(np.roll(x[i], -33) * (i + 1) for i in range(rounds))
    np.testing.assert_array_equal(got["out"], wanted)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_cp_async_by_group_and_by_mbarrier(cuda: Any, policy: str, seed: int) -> None:
    x = np.random.default_rng(15).integers(-99, 99, 576, np.int32)
    buffers = {"x": x, "out": np.zeros(64, np.int32)}
    got = cuda("bulk_copies")("async_copies", ["x", "out"], buffers, block=64, policy=policy, seed=seed)
    t = np.arange(64)
    # Every second thread copies 4 of 8 bytes and zero-fills the rest.
    second = np.where(t % 4 == 3, 0, x[256 + t])
    np.testing.assert_array_equal(got["out"], x[255 - 3 * t] + 7 * second[t ^ 5] + 11 * x[512 + 63 - t])
