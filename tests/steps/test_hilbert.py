"""The Hilbert order: every tile has one id, whatever the problem, and whole squares are walked along a curve.

The instructions of the text are evaluated, for all tile ids of a problem at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.errors import SpecError
from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Hex, Register
from ptxgen.steps import hilbert, step
from ptxgen.steps.builder import Builder

Ids = npt.NDArray[np.uint64]
OPCODES: dict[str, Callable[..., Any]] = {
    "mov.b32": lambda a: a,
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "div.u32": lambda a, b: a // b,
    "rem.u32": lambda a, b: a % b,
    "min.u32": np.minimum,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "selp.b32": lambda a, b, p: np.where(p, a, b),
}


def program(side: int) -> tuple[ir.Op, ...]:
    builder = Builder()
    for name in ("m_tiles", "n_tiles", "group", "span"):
        builder.register(name, "tile scheduler")
    tile, m_tile, n_tile = (builder.register(name, "tile scheduler") for name in ("tile", "m_tile", "n_tile"))
    hilbert.locate(builder, tile, m_tile, n_tile, side)
    return builder.take()


def evaluate(ops: Iterable[ir.Op], values: dict[str, Any]) -> None:
    """No value may leave 32 bits, nor be negative."""

    def value(operand: Any) -> Any:
        if isinstance(operand, Register):
            return values[operand.name]
        return np.uint64(operand.value if isinstance(operand, Hex) else operand)

    for op in ops:
        if isinstance(op, ir.Integer):
            result = OPCODES[op.opcode](*(value(source) for source in op.sources))
            assert np.max(result) < 2**32, op
            values[op.dst.name] = result
        elif isinstance(op, ir.Compare):
            compare = {"eq.u32": np.equal, "ne.u32": np.not_equal}[op.opcode]
            values[op.dst.name] = compare(value(op.left), value(op.right))
        else:
            assert isinstance(op, ir.DoWhile)
            while True:
                evaluate(op.body, values)
                if not np.any(value(op.again)):
                    break


def located(side: int, m_tiles: int, n_tiles: int, ids: Iterable[int]) -> list[tuple[int, int]]:
    tile = np.array(list(ids), np.uint64)
    group = min(side, m_tiles)
    values: dict[str, Any] = {"tile": tile, "m_tiles": np.uint64(m_tiles), "n_tiles": np.uint64(n_tiles)}
    values |= {"group": np.uint64(group), "span": np.uint64(group * n_tiles)}
    evaluate(program(side), values)
    return list(zip(values["m_tile"].tolist(), values["n_tile"].tolist(), strict=True))


@pytest.mark.parametrize("side", [2, 4, 8])
def test_every_tile_has_one_id(side: int) -> None:
    for m, n in itertools.product(range(1, 2 * side + 2), range(1, 2 * side + 4)):
        order = located(side, m, n, range(m * n))
        assert sorted(order) == list(itertools.product(range(m), range(n))), (m, n)


@pytest.mark.parametrize("side", [2, 4, 8, 16, 32, 64])
def test_a_whole_square_is_a_hilbert_curve(side: int) -> None:
    """Neighbours all the way, and every aligned quarter of it is one stretch."""
    order = located(side, side, side, range(side * side))
    assert all(abs(m - p) + abs(n - q) == 1 for (m, n), (p, q) in itertools.pairwise(order))
    quarter = side * side // 4
    for first in range(0, side * side, quarter):
        part = order[first : first + quarter]
        assert {(m // (side // 2), n // (side // 2)) for m, n in part} == {
            (part[0][0] // (side // 2), part[0][1] // (side // 2))
        }


def test_no_value_overflows_at_the_largest_problem() -> None:
    for m, n in [(46340, 46340), (1, 2**31 - 1), (2**31 - 1, 1), (65535, 32768)]:
        ids = (0, 1, m * n // 2, m * n - 2, m * n - 1)
        found = located(64, m, n, ids)
        assert all(0 <= row < m and 0 <= column < n for row, column in found)
        assert len(set(found)) == len(ids)


@pytest.mark.parametrize("kind", ["persistent", "clc"])
def test_pairs_of_sm_100a_walk_it_too(kind: str) -> None:
    scheduler = {"kind": kind, "order": "hilbert", "group": 2, "depth": 2 if kind == "clc" else None}
    spec = step(10).replace(tile={"n": 32}, pipe_depth=2, scheduler=scheduler)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 6, (rows, 40)).astype(np.float16) for rows in (1100, 130))
    d = ptxgen.compile(spec, device=EmulatedDevice("sm_100a", policy="random", seed=1, workers=1))(a, b)
    np.testing.assert_array_equal(d, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))


@pytest.mark.parametrize(
    ("number", "scheduler", "rule"),
    [
        (7, {"order": "hilbert", "group": 8}, "scheduler.order=hilbert: a choice of step 10"),
        (10, {"order": "hilbert", "group": 12}, "squares have sides of 2, 4, 8, 16, 32 or 64"),
    ],
)
def test_refusals(number: int, scheduler: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        step(number, target="sm_90a").replace(scheduler=scheduler)
