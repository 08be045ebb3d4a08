"""Register values: what a register holds and how values of either form are converted.

A register of a warp holds one of
- an `int` (`bool` for a predicate): the same bits in every lane that still matters,
- an array of 32 unsigned integers (bools for a predicate): one per lane.

Integers are raw bits, never negative, below 2**width. Arrays are never changed in place, so that a
`mov` may share one. `None` stands for a predicate that was never written.

Uninitialised memory and registers hold the poison word POISON32. Every 16-bit half and every 32-bit
word of it is a quiet NaN (f16, bf16, f32), as an address it lies in no window, and no finite input
contains it; so it can be followed through moves and memory without a shadow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Lanes = npt.NDArray[Any]
Value = Any  # int | bool | Lanes | None; see the module's docstring
Registers = list[Any]  # slot 0 is the Warp itself, the others are values

LANES = 32
ALL_LANES = 0xFFFFFFFF
MASK = {1: 1, 8: 0xFF, 16: 0xFFFF, 32: 0xFFFFFFFF, 64: (1 << 64) - 1, 128: (1 << 128) - 1}
UNSIGNED: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}

POISON16 = 0xFFE5
POISON32 = 0xFFE5FFE5
POISON = {width: int("FFE5" * 8, 16) & MASK[width] for width in (8, 16, 32, 64, 128)}

_SPREAD: dict[int, dict[int, Lanes]] = {width: {} for width in (1, 8, 16, 32, 64, 128)}
_SPREAD_LIMIT = 4096

LANE_INDEX = np.arange(LANES, dtype=np.uint32)
LANE_BIT = np.left_shift(np.uint32(1), LANE_INDEX)


def to_signed(value: int, width: int) -> int:
    """Two's complement value of `width` raw bits."""
    return value - ((value & (1 << (width - 1))) << 1)


def spread(value: int, width: int) -> Lanes:
    """An int as an array of 32 equal lanes, cached: NumPy works on two arrays several times faster
    than on an array and a scalar."""
    cache = _SPREAD[width]
    lanes = cache.get(value)
    if lanes is None:
        if width == 128:
            pair = np.array([value & MASK[64], value >> 64], dtype=np.uint64)
            lanes = np.repeat(pair[None, :], LANES, axis=0)
        else:
            lanes = np.full(LANES, value, dtype=UNSIGNED[width])
        lanes.flags.writeable = False
        if len(cache) >= _SPREAD_LIMIT:
            cache.clear()
        cache[value] = lanes
    return lanes


def to_lanes(value: Value, width: int) -> Lanes:
    """The value as an array of 32 lanes of the unsigned type of `width` bits (1: bool)."""
    return value if isinstance(value, np.ndarray) else spread(value, width)


def from_lanes(array: Lanes) -> Value:
    """The array, or an int when all 32 lanes agree (a cheap test comes first)."""
    first = array.item(0)
    if first != array.item(LANES - 1) or not (array == first).all():
        return array
    return first


def lane_value(value: Value, lane: int) -> Any:
    """One lane's value as a Python int (bool for predicates)."""
    if type(value) is int or type(value) is bool:
        return value
    if value.ndim == 2:  # 128-bit registers: two 64-bit words a lane
        return value.item(lane, 0) | (value.item(lane, 1) << 64)
    return value.item(lane)


_MASKS: dict[int, Lanes] = {}
_MASK_BITS: dict[int, int] = {}  # id of an array in _MASKS, which keeps it alive, to its bits
_MASK_LIMIT = 1 << 16


def bits_of(mask: Lanes) -> int:
    """The 32-bit lane mask of a boolean array, lane 0 in bit 0."""
    bits = _MASK_BITS.get(id(mask))
    if bits is not None:
        return bits
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def mask_of(bits: int) -> Lanes:
    """The boolean array of a 32-bit lane mask; cached, so do not change it."""
    mask = _MASKS.get(bits)
    if mask is None:
        mask = (np.uint32(bits) & LANE_BIT) != 0
        mask.flags.writeable = False
        if len(_MASKS) < _MASK_LIMIT:
            _MASKS[bits] = mask
            _MASK_BITS[id(mask)] = bits
    return mask


def lanes_of(bits: int) -> Iterator[int]:
    """Lane numbers of the set bits, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def merge(active: Lanes, new: Value, old: Value, width: int) -> Value:
    """`new` in the active lanes, `old` in the others."""
    if type(new) is type(old) and type(new) in (int, bool) and new == old:
        return new
    if old is None:  # nothing was there: a never-written register
        old = POISON.get(width, False)
    fresh, kept = to_lanes(new, width), to_lanes(old, width)
    return np.where(active[:, None] if width == 128 else active, fresh, kept)
