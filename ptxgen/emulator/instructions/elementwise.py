"""Builders of ops that compute registers from registers, lane by lane.

Each takes a function on ints (all lanes alike) and one on arrays; in the latter an operand may
still be an int. Results are raw bits in the unsigned type of the register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Op
from ptxgen.emulator.values import SIGNED, UNSIGNED, Lanes, Registers, Value

OnInts = Callable[..., Any]
OnLanes = Callable[..., Any]


def unary(d: int, a: int, on_int: OnInts, on_lanes: OnLanes) -> Op:
    def op(r: Registers) -> None:
        x = r[a]
        r[d] = on_int(x) if type(x) is int else on_lanes(x)

    return op


def binary(d: int, a: int, b: int, on_ints: OnInts, on_lanes: OnLanes) -> Op:
    def op(r: Registers) -> None:
        x, y = r[a], r[b]
        if type(x) is int and type(y) is int:
            r[d] = on_ints(x, y)
        else:
            r[d] = on_lanes(x, y)

    return op


def ternary(d: int, a: int, b: int, c: int, on_ints: OnInts, on_lanes: OnLanes) -> Op:
    def op(r: Registers) -> None:
        x, y, z = r[a], r[b], r[c]
        if type(x) is int and type(y) is int and type(z) is int:
            r[d] = on_ints(x, y, z)
        else:
            r[d] = on_lanes(x, y, z)

    return op


def by_lane(width: int, on_ints: OnInts) -> OnLanes:
    """The array form of a function on ints, one lane at a time: for rare instructions."""
    dtype = UNSIGNED[width]

    def on_lanes(*operands: Value) -> Lanes:
        columns = [x.tolist() if isinstance(x, np.ndarray) else [x] * 32 for x in operands]
        return np.array([on_ints(*row) for row in zip(*columns, strict=True)], dtype=dtype)

    return on_lanes


def unsigned(x: Value, width: int) -> Any:
    """An operand as unsigned array or scalar of `width` bits."""
    return x if isinstance(x, np.ndarray) else UNSIGNED[width](x)


def signed(x: Value, width: int) -> Any:
    """An operand as signed array or scalar of `width` bits."""
    return unsigned(x, width).view(SIGNED[width])


def typed(x: Value, kind: str, width: int) -> Any:
    """An operand as the integer type that `kind` ("s32", "u16", "b64") names."""
    return signed(x, width) if kind[0] == "s" else unsigned(x, width)


def raw(x: Any) -> Any:
    """A signed or float result as raw bits; comparisons and unsigned results as they are."""
    if x.dtype.kind == "u" or x.dtype.kind == "b":
        return x
    return x.view(UNSIGNED[8 * x.dtype.itemsize])
