"""cvt: between all integer and floating-point types, single and packed (PTX ISA 9.1 §9.7.9.21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Decode, Fuse, Op, instruction
from ptxgen.emulator.instructions.floats import Floats, flush, from_floats, round_bits, saturate, to_floats, to_value
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import MASK, POISON16, SIGNED, UNSIGNED, Registers, Value, from_lanes, to_signed

INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER: dict[str, Callable[[Any], Any]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_EIGHT_BIT = ("e4m3x2", "e5m2x2")
_OTHER_PACKED = (
    "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "e4m3x4", "e5m2x4", "e2m1x4", "e2m3x4", "e3m2x4", "s2f6x2",
)  # fmt: skip

_NAN = {"f16": np.uint16(0x7FFF), "f32": np.uint32(0x7FFFFFFF)}
_POISON = {"f16": POISON16, "f32": 0xFFFCA000}  # of f16, and what it is as f32

Convert = Callable[[Value], Value]


@instruction("cvt")
def cvt(d: Decode) -> Op:
    source = d.type((*INTEGERS, *FLOATS, "f16x2", "bf16x2", *_EIGHT_BIT, *_OTHER_PACKED))
    target = d.type((*INTEGERS, *FLOATS, "tf32", "f16x2", "bf16x2", *_EIGHT_BIT, *_OTHER_PACKED))
    if source in _OTHER_PACKED or target in _OTHER_PACKED:
        d.fail(f"cvt between .{target} and .{source} is not supported")
    if target in ("f16x2", "bf16x2") or target in _EIGHT_BIT:
        return _packed(d, target, source)
    if source in ("f16x2", "bf16x2"):
        d.fail(f"cvt from .{source} to .{target} does not exist")
    if source in INTEGERS:
        convert = _from_integer(d, target, source)
    elif target in INTEGERS:
        convert = _to_integer(d, target, source)
    else:
        convert = _between_floats(d, target, source)
    register = "b16" if TYPE_BITS[target] == 8 else target
    operand = d.operands[0] if d.operands else None
    bits = getattr(operand, "bits", TYPE_BITS[register])
    out = d.dst(register, wider=True)
    a = d.src("b16" if TYPE_BITS[source] == 8 else source, wider=True)
    width = TYPE_BITS[source]
    source_is_wide = isinstance(d.slots.widths[a], int) and d.slots.widths[a] > width
    extend = _extension(target, bits)

    def op(r: Registers) -> None:
        x = r[a]
        if source_is_wide:
            x = x & MASK[width] if type(x) is int else x.astype(UNSIGNED[width])
        r[out] = extend(convert(x))

    same = target in INTEGERS and source in INTEGERS and bits == TYPE_BITS[target]
    if same and not source_is_wide and target[0] == "u" and width <= bits and source[0] == "u":
        dtype = UNSIGNED[bits]

        def widen(r: Registers) -> None:
            x = r[a]
            r[out] = x if type(x) is int else x.astype(dtype)

        return widen
    return op


def _extension(target: str, bits: int) -> Convert:
    """From the target type's width to the register's: sign- or zero-extended."""
    width = TYPE_BITS[target]
    if bits == width:
        return lambda x: x
    wide = UNSIGNED[bits]
    if target[0] != "s":
        return lambda x: x if type(x) is int else x.astype(wide)

    def extend(x: Value) -> Value:
        if type(x) is int:
            return to_signed(x, width) & MASK[bits]
        return x.view(SIGNED[width]).astype(SIGNED[bits]).view(wide)

    return extend


def _numbers(x: Value, kind: str) -> Any:
    """Raw bits as an array of integers of the type; shape (1,) for an int."""
    width = TYPE_BITS[kind]
    bits = x if isinstance(x, np.ndarray) else np.array([x], dtype=UNSIGNED[width])
    return bits.view(SIGNED[width]) if kind[0] == "s" else bits


def _limits(kind: str) -> tuple[int, int]:
    width = TYPE_BITS[kind]
    if kind[0] == "s":
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    return 0, MASK[width]


def _from_integer(d: Decode, target: str, source: str) -> Convert:
    width = TYPE_BITS[source]
    if target in INTEGERS:
        return _between_integers(d, target, source)
    mode = d.choice("rn", "rz", "rm", "rp")
    sat = d.flag("sat")
    d.flag("ftz")

    def convert(x: Value) -> Value:
        numbers = _numbers(x, source)
        if width == 64:
            return to_value(_long_to_float(numbers, target, mode, sat))
        floats = numbers.astype(np.float64)  # exact
        return from_floats(saturate(floats) if sat else floats, target, mode)

    return convert


def _long_to_float(numbers: Any, target: str, mode: str, sat: bool) -> Any:
    """64-bit integers do not fit float64: they are first rounded to odd at 53 bits."""
    out = []
    for value in numbers.tolist():
        if target != "f64":
            size = abs(value)
            drop = max(0, size.bit_length() - 53)
            sticky = size & ((1 << drop) - 1)
            size = size >> drop << drop | (1 << drop if sticky else 0)
            out.append(float(size if value >= 0 else -size))
            continue
        nearest = float(value)
        if mode != "rn" and int(nearest) != value:
            up = int(nearest) < value
            if mode == "rp" or (mode == "rz" and value < 0):
                nearest = float(np.nextafter(nearest, np.inf)) if up else nearest
            else:
                nearest = nearest if up else float(np.nextafter(nearest, -np.inf))
        out.append(nearest)
    floats = np.array(out)
    return round_bits(saturate(floats) if sat else floats, target, mode)


def _between_integers(d: Decode, target: str, source: str) -> Convert:
    """Truncates or extends; .sat clamps to the target's range."""
    sat = d.flag("sat")
    width, out = TYPE_BITS[source], TYPE_BITS[target]
    low, high = _limits(target)

    def convert(x: Value) -> Value:
        if type(x) is int:
            value = to_signed(x, width) if source[0] == "s" else x
            return (max(low, min(high, value)) if sat else value) & MASK[out]
        numbers = _numbers(x, source)
        if sat:
            floor, ceiling = max(low, _limits(source)[0]), min(high, _limits(source)[1])
            numbers = np.clip(numbers, floor, ceiling)
        if out > width:
            numbers = numbers.astype(SIGNED[out] if source[0] == "s" else UNSIGNED[out])
            return numbers.view(UNSIGNED[out])
        return numbers.view(UNSIGNED[width]).astype(UNSIGNED[out])

    return convert


def _to_integer(d: Decode, target: str, source: str) -> Convert:
    """Rounds, then clamps to the target's range; NaN gives 0, or the sign bit alone
    where either type has 64 bits."""
    rounding = _TO_INTEGER[d.choice(*_TO_INTEGER)]
    ftz = d.flag("ftz")
    d.flag("sat")
    width = TYPE_BITS[target]
    low, high = _limits(target)
    limit = float(high + 1)
    nan = 1 << (width - 1) if width == 64 or source == "f64" else 0

    def convert(x: Value) -> Value:
        floats = to_floats(x, source)
        if ftz and source == "f32":
            floats = flush(floats)
        numbers = rounding(floats.astype(np.float64))
        bad = np.isnan(numbers)
        over = numbers >= limit
        inside = np.clip(np.where(bad | over, 0, numbers), low, None)
        if width == 64 and target[0] == "u":
            result = inside.astype(np.uint64)
        else:
            result = inside.astype(np.int64).astype(SIGNED[width]).view(UNSIGNED[width]) if target[0] == "s" else (
                inside.astype(np.int64).astype(UNSIGNED[width])
            )  # fmt: skip
        dtype = UNSIGNED[width]
        return to_value(np.where(bad, dtype(nan), np.where(over, dtype(high), result)))

    return convert


def _between_floats(d: Decode, target: str, source: str) -> Convert:
    integral = d.optional(*_TO_INTEGER)
    narrows = TYPE_BITS[target] < TYPE_BITS[source] or target == "tf32"
    narrows |= {target, source} == {"f16", "bf16"}
    mode = "rn"
    if not integral:
        modes = ("rn", "rz", "rm", "rp", "rna")
        mode = d.choice(*modes) if narrows else d.choice(*modes, default="rn")
    ftz, sat = d.flag("ftz"), d.flag("sat")
    relu, finite = d.flag("relu"), d.flag("satfinite")
    computes = source == "f16" or (source == "f32" and (bool(integral) or ftz))  # others move a NaN's bits

    def convert(x: Value) -> Value:
        floats = to_floats(x, source)
        if ftz and source == "f32":
            floats = flush(floats)
        bits = _finish(floats, target, mode, integral, sat, relu, finite, ftz)
        return to_value(_one_nan(bits, target) if computes and target == "f32" else bits)

    return convert


def _finish(x: Floats, target: str, mode: str, integral: str, sat: bool, relu: bool, finite: bool, ftz: bool) -> Any:
    if integral:
        x = _TO_INTEGER[integral](x)
    if relu:
        x = np.where(np.isnan(x), x, np.maximum(x, 0))
    if sat:
        x = saturate(x)
    if finite:
        x = _within(x, target)
    bits = round_bits(x, target, mode)
    if ftz and target == "f32":
        bits = flush(bits.view(np.float32)).view(np.uint32)
    return _one_nan(bits, target) if target == "f16" and x.dtype == np.float32 else bits


def _one_nan(bits: Any, target: str) -> Any:
    """Every NaN without sign and payload, as an H200 converts those of f16 and f32 (those of f64 it truncates).

    Poison stays what it is: a sum over operands that were never written is still found when it is stored.
    """
    nan = np.isnan(bits.view(np.float16 if target == "f16" else np.float32))
    return np.where(nan & (bits != _POISON[target]), _NAN[target], bits) if nan.any() else bits


def _within(x: Floats, target: str) -> Floats:
    """Clamped to the largest finite value of the target."""
    most = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127"), "tf32": float.fromhex("0x1.ffcp127")}.get(target)
    return x if most is None else np.clip(x, -most, most)


# -- packed -------------------------------------------------------------------------------------


def _packed(d: Decode, target: str, source: str) -> Op:
    """Two values into one register: the first source goes to the upper half."""
    mode = d.choice("rn", "rz", "rs", default="rn")
    if mode == "rs":
        d.fail("stochastic rounding is not supported")
    relu, finite = d.flag("relu"), d.flag("satfinite")
    if target in _EIGHT_BIT:
        return _to_eight_bit(d, target, source, relu)
    half = target[:-2]
    if source in _EIGHT_BIT:
        return _from_eight_bit(d, source, half, relu)
    if source != "f32":
        d.fail(f"cvt from .{source} to .{target} does not exist")
    out, high, low = d.dst("b32"), d.src("f32"), d.src("f32")

    def op(r: Registers) -> None:
        r[out] = pack_pair(r[high], r[low], half, mode, relu, finite)

    def build(parts: list[tuple[int, ...]]) -> Op:
        return _pack_many(parts, half, mode, relu, finite)

    d.fuse = Fuse(("cvt pair", half, mode, relu, finite), (out, high, low), build)
    return op


def _pack_many(parts: list[tuple[int, ...]], half: str, mode: str, relu: bool, finite: bool) -> Op:
    """Several packed conversions at once: an epilogue has them by the dozen."""
    count = len(parts)
    outs = [out for out, _, _ in parts]
    sources = [slot for _, high, low in parts for slot in (low, high)]
    first, last = outs[0], outs[-1] + 1
    in_order = outs == list(range(first, last))

    def op(r: Registers) -> None:
        rows = [r[slot] for slot in sources]
        if any(type(row) is int for row in rows):
            for out, high, low in parts:
                r[out] = pack_pair(r[high], r[low], half, mode, relu, finite)
            return
        floats = np.concatenate(rows).view(np.float32)
        bits = _finish(floats, half, mode, "", False, relu, finite, False).reshape(count, 2, 32)
        words = list(np.ascontiguousarray(bits.transpose(0, 2, 1)).view(np.uint32)[:, :, 0])
        if in_order:
            r[first:last] = words
        else:
            for out, word in zip(outs, words, strict=True):
                r[out] = word

    return op


def pack_pair(high: Value, low: Value, half: str, mode: str, relu: bool, finite: bool) -> Value:
    """cvt.f16x2.f32 and cvt.bf16x2.f32 of one register."""
    if type(high) is int and type(low) is int:
        pair = to_floats(np.array([low, high], dtype=np.uint32), "f32")
        bits = _finish(pair, half, mode, "", False, relu, finite, False)
        return int(bits[0]) | int(bits[1]) << 16
    pairs = np.empty((32, 2), dtype=np.uint32)
    pairs[:, 0] = low
    pairs[:, 1] = high
    bits = _finish(pairs.view(np.float32), half, mode, "", False, relu, finite, False)
    return bits.view(np.uint32)[:, 0]


def _eight_bit_type(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn if name == "e4m3x2" else ml_dtypes.float8_e5m2


def _to_eight_bit(d: Decode, target: str, source: str, relu: bool) -> Op:
    dtype = _eight_bit_type(target)
    most = 448.0 if target == "e4m3x2" else 57344.0
    out = d.dst("b16")
    if source == "f32":
        slots = [d.src("f32"), d.src("f32")]
    elif source == "f16x2":
        slots = [d.src("b32")]
    else:
        d.fail(f"cvt from .{source} to .{target} does not exist")

    def op(r: Registers) -> None:
        if source == "f32":
            high, low = (to_floats(r[s], "f32") for s in slots)
        else:
            x = np.atleast_1d(np.asarray(r[slots[0]], dtype=np.uint32))
            low, high = ((x >> np.uint32(s)).astype(np.uint16).view(np.float16).astype(np.float32) for s in (0, 16))
        halves = []
        for x in (low, high):
            floats = np.clip(np.maximum(x, 0) if relu else x, -most, most)
            bits = floats.astype(dtype).view(np.uint8)
            halves.append(np.where(np.isnan(x), 0x7F, bits).astype(np.uint16))
        r[out] = to_value(np.atleast_1d(halves[0] | halves[1] << np.uint16(8)))

    return op


def _from_eight_bit(d: Decode, source: str, half: str, relu: bool) -> Op:
    dtype = _eight_bit_type(source)
    out, a = d.dst("b32"), d.src("b16")

    def op(r: Registers) -> None:
        x = np.atleast_1d(np.asarray(r[a], dtype=np.uint16))
        halves = []
        for shift in (0, 8):
            floats = (x >> np.uint16(shift)).astype(np.uint8).view(dtype).astype(np.float32)
            floats = np.where(np.isnan(floats), floats, np.maximum(floats, 0)) if relu else floats
            halves.append(round_bits(floats, half).astype(np.uint32))
        bits = halves[0] | halves[1] << np.uint32(16)
        r[out] = from_lanes(bits) if bits.shape[0] > 1 else int(bits[0])

    return op


@instruction("cvt.pack")
def cvt_pack(d: Decode) -> Op:
    """Two s32 saturated to 16, 8, 4 or 2 bits, above the low bits of c."""
    kinds = ("u16", "s16", "u8", "s8")
    target = ""
    if d.has("b32"):
        d.require("b32")
    d.require("sat")
    if d.has("s32"):
        d.require("s32")
    target = d.choice(*kinds)
    width = TYPE_BITS[target]
    low, high = _limits(target)
    out, a, b = d.dst("b32"), d.src("b32"), d.src("b32")
    c = d.src("b32") if width == 8 else d.slots.constant(0, 32)

    def one(x: int, y: int, z: int) -> int:
        first, second = (max(low, min(high, to_signed(v, 32))) & MASK[width] for v in (x, y))
        return (z << (2 * width) | first << width | second) & MASK[32]

    def op(r: Registers) -> None:
        operands = [r[a], r[b], r[c]]
        if all(type(x) is int for x in operands):
            r[out] = one(*operands)
        else:
            columns = [x.tolist() if isinstance(x, np.ndarray) else [x] * 32 for x in operands]
            r[out] = np.array([one(*row) for row in zip(*columns, strict=True)], dtype=np.uint32)

    return op
