"""Builders of ops that compute registers from registers, lane by lane.

Each takes a function on ints (all lanes alike) and one on arrays of 32 lanes, in the unsigned type
of the operand's width. Results are raw bits in the unsigned type of the register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Op
from ptxgen.emulator.values import SIGNED, UNSIGNED, Lanes, Registers, spread

OnInts = Callable[..., Any]
OnLanes = Callable[..., Any]


def unary(d: int, a: int, on_int: OnInts, on_lanes: OnLanes) -> Op:
    def op(r: Registers) -> None:
        x = r[a]
        r[d] = on_int(x) if type(x) is int else on_lanes(x)

    return op


def binary(d: int, a: int, b: int, width: int, on_ints: OnInts, on_lanes: OnLanes, b_width: int = 0) -> Op:
    """`width` of both operands, or `b_width` of the second."""
    other = b_width or width

    def op(r: Registers) -> None:
        x, y = r[a], r[b]
        if type(x) is int:
            if type(y) is int:
                r[d] = on_ints(x, y)
                return
            x = spread(x, width)
        elif type(y) is int:
            y = spread(y, other)
        r[d] = on_lanes(x, y)

    return op


def ternary(d: int, a: int, b: int, c: int, widths: tuple[int, int, int], on_ints: OnInts, on_lanes: OnLanes) -> Op:
    def op(r: Registers) -> None:
        x, y, z = r[a], r[b], r[c]
        if type(x) is int and type(y) is int and type(z) is int:
            r[d] = on_ints(x, y, z)
        else:
            r[d] = on_lanes(
                *(v if type(v) is not int else spread(v, w) for v, w in zip((x, y, z), widths, strict=True))
            )

    return op


def by_lane(width: int, on_ints: OnInts) -> OnLanes:
    """The array form of a function on ints, one lane at a time: for rare instructions."""
    dtype = UNSIGNED[width]

    def on_lanes(*operands: Lanes) -> Lanes:
        rows = zip(*(x.tolist() for x in operands), strict=True)
        return np.array([on_ints(*row) for row in rows], dtype=dtype)

    return on_lanes


def typed(x: Lanes, kind: str) -> Any:
    """Lanes as the integer type that `kind` ("s32", "u16", "b64") names."""
    return x.view(SIGNED[8 * x.itemsize]) if kind[0] == "s" else x


def raw(x: Any) -> Any:
    """A signed result as raw bits; unsigned ones as they are."""
    return x if x.dtype.kind == "u" else x.view(UNSIGNED[8 * x.itemsize])
