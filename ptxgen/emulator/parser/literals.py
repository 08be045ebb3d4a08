"""Number literals (PTX ISA 9.1 §4.5)."""

from __future__ import annotations

import struct

from ptxgen.emulator.module import TYPE_BITS, Immediate

_FLOAT_BYTES = {"f32": "<f", "f64": "<d"}


def number(text: str) -> Immediate:
    lower = text.lower()
    if lower.startswith("0f"):
        return Immediate("f32", int(text[2:], 16))
    if lower.startswith("0d") and len(text) == 18:
        return Immediate("f64", int(text[2:], 16))
    digits = lower.rstrip("u")
    if digits.startswith("0x"):
        return Immediate("int", int(digits, 16))
    if digits.startswith("0b"):
        return Immediate("int", int(digits, 2))
    if "." in digits or "e" in digits:
        return Immediate("float", float(digits))
    if len(digits) > 1 and digits[0] == "0" and not set(digits) - set("01234567"):
        return Immediate("int", int(digits, 8))
    return Immediate("int", int(digits))


def constant_bytes(literal: Immediate, negative: bool, kind: str) -> bytes:
    size = TYPE_BITS[kind] // 8
    if literal.kind in ("f32", "f64"):
        return int(literal.value).to_bytes(8 if literal.kind == "f64" else 4, "little")[:size]
    value = -literal.value if negative else literal.value
    if kind in _FLOAT_BYTES:
        return struct.pack(_FLOAT_BYTES[kind], float(value))
    return (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
