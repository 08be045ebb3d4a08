"""Floating-point values as NumPy arrays, and correct rounding to any type and mode.

Arrays have shape (1,) where all lanes agree and (32,) otherwise. f16 and bf16 are computed with as
f32 or f64, then rounded once. The runner silences NumPy's warnings.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ptxgen.emulator.values import UNSIGNED, Value

Floats = Any  # npt.NDArray[np.floating]; NumPy's stubs make of most operations Any

WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "tf32": 32}


def to_floats(x: Value, kind: str) -> Floats:
    """Raw bits as numbers: f64 as float64, the other types as float32."""
    width = WIDTHS[kind]
    bits: Any = x if isinstance(x, np.ndarray) else np.array([x], dtype=UNSIGNED[width])
    if kind in ("f32", "tf32"):
        return bits.view(np.float32)
    if kind == "f64":
        return bits.view(np.float64)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_value(bits: Any) -> Value:
    """Raw bits as a register value: an int where there is only one."""
    return int(bits[0]) if bits.shape[0] == 1 else bits


def from_floats(x: Floats, kind: str, mode: str = "rn") -> Value:
    """Numbers rounded to a type, as raw bits. Without an exact float64 at hand, pass what is."""
    return to_value(round_bits(x, kind, mode))


def round_bits(x: Floats, kind: str, mode: str = "rn") -> Any:
    """Rounds to a type: mode "rn", "rz", "rm" (down), "rp" (up) or "rna" (tf32: ties away)."""
    if kind == "f64":
        return x.astype(np.float64, copy=False).view(np.uint64)
    if kind == "bf16":
        return _round_upper(x, 16, mode).astype(np.uint16)
    if kind == "tf32":
        return _round_upper(x, 13, mode) << np.uint32(13)
    target: Any = np.float32 if kind == "f32" else np.float16
    nearest = x.astype(target, copy=False)
    if mode != "rn":
        nearest = _directed(x, nearest, mode)
    return nearest.view(UNSIGNED[WIDTHS[kind]])


def _directed(x: Floats, nearest: Floats, mode: str) -> Floats:
    """The neighbour of `nearest` that a directed mode asks for."""
    back = nearest.astype(np.float64)
    wide = x.astype(np.float64)
    if mode == "rz":
        wrong, to = np.abs(back) > np.abs(wide), np.zeros_like(nearest)
    elif mode == "rm":
        wrong, to = back > wide, np.full_like(nearest, -np.inf)
    else:
        wrong, to = back < wide, np.full_like(nearest, np.inf)
    return np.where(wrong, np.nextafter(nearest, to), nearest)


def _round_upper(x: Floats, drop: int, mode: str) -> Any:
    """f32 without its `drop` low mantissa bits, shifted down by them."""
    bits = _odd_f32(x).view(np.uint32)
    nan = np.isnan(x)
    one, half = np.uint32(1 << drop), np.uint32(1 << (drop - 1))
    negative = (bits >> np.uint32(31)).astype(bool)
    inexact = (bits & (one - np.uint32(1))) != 0
    if mode == "rn":
        bits = bits + (half - np.uint32(1)) + (bits >> np.uint32(drop) & np.uint32(1))
    elif mode == "rna":
        bits = bits + half
    elif mode == "rm":
        bits = np.where(inexact & negative, bits + one, bits)
    elif mode == "rp":
        bits = np.where(inexact & ~negative, bits + one, bits)
    # .rna keeps a NaN's sign and upper bits, even where only infinity is left of it.
    result = np.where(nan, x.view(np.uint32) if mode == "rna" else np.uint32(0x7FFFFFFF), bits) >> np.uint32(drop)
    return result


def _odd_f32(x: Floats) -> Floats:
    """float64 rounded to float32 so that a second rounding is still right: inexact results get an
    odd last bit (Boldo, Melquiond: "Emulation of FMA and correctly rounded sums")."""
    if x.dtype == np.float32:
        return x
    nearest = x.astype(np.float32)
    truncated = _directed(x, nearest, "rz").view(np.uint32)
    inexact = (nearest.astype(np.float64) != x) & np.isfinite(x)
    return np.where(inexact, truncated | np.uint32(1), truncated).view(np.float32)


def odd_sum(x: Floats, y: Floats, mode: str) -> Floats:
    """x + y in float64, rounded to odd, so that rounding it again to a narrower type is right."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)  # Knuth's TwoSum
    bits = total.view(np.int64)
    adjust = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    odd = np.where(adjust, np.where(away, bits + 1, bits - 1), bits).view(np.float64)
    if mode == "rm":  # a sum that cancels is -0 when rounding down
        odd = np.where((odd == 0) & (np.signbit(x) | np.signbit(y)), -0.0, odd)
    return odd


def fma_f64(x: float, y: float, z: float, mode: str) -> float:
    """x*y + z of float64, rounded once."""
    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        total = np.float64(x) * np.float64(y) + np.float64(z)
        cancels = bool(np.signbit(np.float64(x) * np.float64(y)) != np.signbit(z))
        return -0.0 if mode == "rm" and cancels else float(total)
    return round_fraction(exact, mode)


def round_fraction(exact: Fraction, mode: str) -> float:
    """An exact number as float64."""
    try:
        nearest = exact.numerator / exact.denominator  # correctly rounded by Python
    except OverflowError:
        nearest = np.inf if exact > 0 else -np.inf
    if mode == "rn" or (np.isfinite(nearest) and Fraction(nearest) == exact):
        return nearest
    low = (not np.isfinite(nearest) and nearest < 0) or (np.isfinite(nearest) and Fraction(nearest) < exact)
    if mode == "rm" or (mode == "rz" and exact > 0):
        return nearest if low else float(np.nextafter(nearest, -np.inf))
    return float(np.nextafter(nearest, np.inf)) if low else nearest


_TINY = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


def flush(x: Floats, kind: str = "f32") -> Floats:
    """Numbers that are subnormal in a type as zeros of the same sign."""
    return np.where(np.abs(x) < _TINY[kind], np.copysign(x.dtype.type(0), x), x)


def product_f64(x: float, y: float, mode: str) -> float:
    """x*y of float64, rounded once."""
    if x == 0 or y == 0 or not (np.isfinite(x) and np.isfinite(y)):
        return float(np.float64(x) * np.float64(y))
    return round_fraction(Fraction(x) * Fraction(y), mode)


def saturate(x: Floats) -> Floats:
    """Into [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)) + x.dtype.type(0)
