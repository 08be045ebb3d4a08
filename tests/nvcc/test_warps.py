"""Warp-wide instructions and divergence as nvcc writes them: kernels/warps.cu and calls.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

LANES = np.arange(32)
THREADS = 64


def by_warp(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.reshape(-1, 32)


def shuffle(values: np.ndarray[Any, Any], source: np.ndarray[Any, Any], width: int = 32) -> np.ndarray[Any, Any]:
    """Lane by lane values of `source`; lanes whose source leaves their segment keep their own."""
    segment = LANES // width * width
    kept = (source < segment) | (source >= segment + width)
    return by_warp(values)[:, np.where(kept, LANES, source)].reshape(-1)


def test_shuffles(cuda: Any) -> None:
    x = np.random.default_rng(1).integers(-1000, 1000, THREADS, np.int32)
    threads = np.arange(THREADS)
    got = cuda("warps")(
        "warp_shuffles", ["x", "out"], {"x": x, "out": np.zeros((13, THREADS), np.int32)}, block=THREADS
    )["out"]
    sums = np.repeat(by_warp(x).sum(axis=1, dtype=np.int32), 32)
    wanted = [
        shuffle(x, np.full(32, 5)),
        by_warp(x)[np.arange(2)[:, None], (threads.reshape(2, 32) * 7) % 32].reshape(-1),
        shuffle(x, LANES // 8 * 8 + (LANES + 1) % 8),
        shuffle(x, LANES - 3),
        shuffle(x, LANES - 3, 16),
        shuffle(x, LANES + 5),
        shuffle(x, LANES + 5, 8),
        shuffle(x, LANES ^ 9),
        # A butterfly reads any lane below the end of its segment, earlier segments too.
        shuffle(x, np.where(LANES ^ 6 < LANES // 4 * 4 + 4, LANES ^ 6, LANES)),
        sums,
        shuffle(x, LANES + 7),
        np.tile(LANES + 7 < 32, 2),
        shuffle(x, LANES + 2),
    ]
    for row, line in enumerate(wanted):
        np.testing.assert_array_equal(got[row], line, f"row {row}")


def bits(flags: np.ndarray[Any, Any]) -> int:
    return int(sum(1 << int(lane) for lane in np.flatnonzero(flags)))


def test_votes_matches_and_reductions_some_under_divergence(cuda: Any) -> None:
    x = np.random.default_rng(2).integers(0, 100, THREADS, np.int32)
    x[40] = -7
    got = cuda("warps")("warp_votes", ["x", "out"], {"x": x, "out": np.zeros((17, THREADS), np.int32)}, block=THREADS)[
        "out"
    ].view(np.uint32)
    for warp, values in enumerate(by_warp(x)):
        part = np.zeros(32, np.int64)
        odd = values & 1 == 1
        part[odd] = np.arange(odd.sum()) + 100 * values[odd][0]
        two = ~odd & (values & 2 == 2)
        part[two] = -two.sum()
        same_sign = len(set(values >> 31)) == 1
        uniform: dict[int, int] = {
            0: bits(odd),
            1: int((values > 90).any()),
            2: int((values < 99).all()),
            4: 0xFFFFFFFF if same_sign else 0,
            5: int(same_sign),
            6: int(values.sum()),
            7: int(values.min()),
            8: int(values.max()),
            9: int(np.bitwise_and.reduce(values)),
            10: int(np.bitwise_or.reduce(values)),
            11: int(np.bitwise_xor.reduce(values)),
            16: 1,
        }
        by_lane = {
            3: [bits(values & 3 == value & 3) for value in values],
            12: part.tolist(),
            13: [(1 << lane) - 1 for lane in range(32)],
            14: list(range(32)),
            15: [0xFFFFFFFF << lane & 0xFFFFFFFF for lane in range(32)],
        }
        rows = by_lane | {row: [value] * 32 for row, value in uniform.items()}
        for row in range(17):
            wanted = np.array([value & 0xFFFFFFFF for value in rows[row]], np.uint32)
            np.testing.assert_array_equal(by_warp(got[row])[warp], wanted, f"row {row} warp {warp}")


def walk(value: int, thread: int) -> int:
    v, steps = value & 0xFFFF, 0
    while v > 1:
        v = 3 * v + 1 if v & 1 else v // 2
        steps += 1
        if steps > 500:
            break
        if steps % 3 == 0 and v & 6 == 6:
            continue
        steps += v & 15 == 15
    case = value % 9
    if case in (3, 4):
        steps = (~steps if case == 3 else steps) - 5
    else:
        steps = {
            0: steps ^ 0x10,
            1: steps + 77,
            2: steps * 3,
            5: steps.bit_count() + 1000,
            6: steps << 2,
            7: steps * steps + thread,
            8: 1,
        }[case]
    return steps & 0xFFFFFFFF


@pytest.mark.parametrize("options", [(), ("-lineinfo",), ("-G",)])
def test_loops_and_a_switch_that_diverge(cuda: Any, options: tuple[str, ...]) -> None:
    x = np.random.default_rng(3).integers(0, 1 << 30, 256).astype(np.uint32)
    got = cuda("warps", *options)("warp_divergence", ["x", "out"], {"x": x, "out": np.zeros_like(x)}, grid=2)
    np.testing.assert_array_equal(got["out"], [walk(int(value), i) for i, value in enumerate(x)])


def mix(a: int, b: int) -> int:
    for _ in range(b & 3):
        a = a * 31 + b
    return a ^ b


def test_calls_under_divergence(cuda: Any) -> None:
    x = np.random.default_rng(33).integers(-1000, 1000, 256, np.int32)
    got = cuda("calls")("calls", ["x", "out"], {"x": x, "out": np.zeros_like(x)}, grid=2)["out"]
    first = [mix(int(value), i) for i, value in enumerate(x)]
    wanted = [mix(v, int(value) + 1) if v & 1 else v for v, value in zip(first, x, strict=True)]
    np.testing.assert_array_equal(got.view(np.uint32), [value & 0xFFFFFFFF for value in wanted])
