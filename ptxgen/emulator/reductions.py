"""The arithmetic of cp.reduce.async.bulk on arrays of raw elements.

PTX ISA 9.1 §9.7.9.25: add of u32, s32, u64, f32, f16, bf16; min and max of u32, s32, u64, s64,
f16, bf16; inc and dec of u32; and, or, xor of 32- and 64-bit types.

As an H200 does it (docs/hardware-facts.md): subnormal numbers stay, those of f32 too, which the manual
says the add flushes; of a number and a NaN the extreme is the number, and -0 is less than +0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_STORAGE = {"u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8", "f32": "f4", "f16": "f2", "bf16": "u2"}
_INTEGERS = ("u32", "s32", "u64", "s64")
_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f16", "bf16"),
    "min": (*_INTEGERS, "f16", "bf16"),
    "max": (*_INTEGERS, "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": _INTEGERS,
    "or": _INTEGERS,
    "xor": _INTEGERS,
}


def bf16_to_f32(raw: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16 bits as f32 values, exactly."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """f32 values as bf16 bits, rounded to nearest even; every NaN becomes 0x7fff."""
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def reduce_elements(operation: str, element: str, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """`old` op `new` for two arrays of the same shape that hold raw elements; same dtype back."""
    if element not in _TYPES.get(operation, ()):
        raise NotSupportedError(f"a bulk reduction {operation} of {element} does not exist")
    a, b = old.view(_STORAGE[element]), new.view(_STORAGE[element])
    with np.errstate(all="ignore"):
        if element == "bf16":
            result = f32_to_bf16(_combine(operation, bf16_to_f32(a), bf16_to_f32(b)))
        else:
            result = _combine(operation, a, b)
    raw: NDArray[Any] = result.astype(a.dtype, copy=False).view(old.dtype)
    if element in ("f32", "f16"):
        nan = np.array(0x7FFFFFFF if element == "f32" else 0x7FFF, f"u{a.itemsize}")
        raw = np.where(np.isnan(result), nan, raw.view(nan.dtype)).view(old.dtype)
    if element in ("f16", "bf16") and operation in ("min", "max"):
        bits, other = old.view(np.uint16), new.view(np.uint16)
        zero = np.bitwise_or(bits, other) if operation == "min" else np.bitwise_and(bits, other)
        raw = np.where((bits | other) & 0x7FFF == 0, zero, raw.view(np.uint16)).view(old.dtype)
    return raw


def _combine(operation: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    functions: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
        "add": np.add,
        "min": np.fmin,
        "max": np.fmax,
        "inc": lambda old, limit: np.where(old >= limit, 0, old + 1),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    return functions[operation](a, b)
