"""Floating-point arithmetic (PTX ISA 9.1 §9.7.3 to 5).

f32 and f64 round as the instruction says. The `.approx` functions are computed accurately and
rounded once, which is within the error that the ISA allows.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.floats import (
    Floats,
    flush,
    fma_f64,
    from_floats,
    odd_sum,
    product_f64,
    round_bits,
    round_fraction,
    saturate,
    to_floats,
    to_value,
)
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import MASK, UNSIGNED, Registers, Value

SCALARS = ("f16", "bf16", "f32", "f64")
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
MODES = ("rn", "rz", "rm", "rp")

Compute = Callable[..., Floats]


def is_float(d: Decode) -> bool:
    """Whether the instruction's type is a floating-point one."""
    return any(d.has(kind) for kind in (*SCALARS, *PACKED))


def _mode(d: Decode, default: str = "rn") -> str:
    return d.choice(*MODES, default=default)


class _Form:
    """How results are finished: type, rounding, flushing, saturation."""

    def __init__(self, d: Decode, kinds: tuple[str, ...] = (*SCALARS, *PACKED)) -> None:
        self.kind = d.type(kinds)
        self.scalar = PACKED.get(self.kind, self.kind)
        self.packed = self.kind in PACKED
        self.mode = _mode(d)
        self.ftz = d.flag("ftz")
        self.sat = d.flag("sat")
        self.relu = d.flag("relu")
        self.width = TYPE_BITS[self.scalar]

    def load(self, x: Value) -> Floats:
        floats = to_floats(x, self.scalar)
        return flush(floats, self.scalar) if self.ftz else floats

    def store(self, x: Floats) -> Value:
        if self.relu:
            x = np.where(np.isnan(x), np.nan, np.maximum(x, 0))
        if self.sat:
            x = saturate(x)
        if self.ftz:
            x = flush(to_floats(round_bits(x, self.scalar, self.mode), self.scalar), self.scalar)
        return from_floats(x, self.scalar, self.mode)

    def op(self, d: Decode, compute: Compute, count: int) -> Op:
        """The op that applies `compute` to `count` sources, half by half for packed types."""
        out = d.dst(self.kind)
        sources = [d.src(self.kind) for _ in range(count)]
        load, store, width = self.load, self.store, self.width
        if self.packed:
            whole = TYPE_BITS[self.kind]

            def packed(r: Registers) -> None:
                values = [r[s] for s in sources]
                low = store(compute(*(load(_half(x, 0, width)) for x in values)))
                high = store(compute(*(load(_half(x, width, width)) for x in values)))
                r[out] = _join(low, high, width, whole)

            return packed

        def op(r: Registers) -> None:
            r[out] = store(compute(*(load(r[s]) for s in sources)))

        return op


def _half(x: Value, shift: int, width: int) -> Value:
    if type(x) is int:
        return x >> shift & MASK[width]
    return (x >> x.dtype.type(shift)).astype(UNSIGNED[width])


def _join(low: Value, high: Value, width: int, whole: int) -> Value:
    if type(low) is int and type(high) is int:
        return high << width | low
    dtype = UNSIGNED[whole]
    parts = [x.astype(dtype) if isinstance(x, np.ndarray) else dtype(x) for x in (low, high)]
    return parts[1] << dtype(width) | parts[0]


def _wide(*operands: Floats) -> list[Floats]:
    return [x.astype(np.float64) for x in operands]


def _sum(form: _Form, sign: int) -> Compute:
    def compute(x: Floats, y: Floats) -> Floats:
        y = y * x.dtype.type(sign) if sign < 0 else y
        if form.scalar == "f64":
            return _f64_by_lane(lambda p, q: fma_f64(p, 1.0, q, form.mode), form, x + y, x, y)
        if form.scalar == "f32" and form.mode == "rn":
            return x + y
        p, q = _wide(x, y)
        return odd_sum(p, q, form.mode)

    return compute


def _f64_by_lane(function: Callable[..., float], form: _Form, nearest: Floats, *operands: Floats) -> Floats:
    """f64 results in a directed mode, exactly, lane by lane; `nearest` serves for rn."""
    if form.mode == "rn":
        return nearest
    columns = np.broadcast_arrays(*operands)
    return np.array([function(*map(float, row)) for row in zip(*columns, strict=True)])


def _product(form: _Form) -> Compute:
    def compute(x: Floats, y: Floats) -> Floats:
        if form.scalar == "f64":
            return _f64_by_lane(lambda p, q: product_f64(p, q, form.mode), form, x * y, x, y)
        if form.scalar == "f32" and form.mode == "rn":
            return x * y
        wide = _wide(x, y)
        return wide[0] * wide[1]  # exact

    return compute


def _fused(form: _Form) -> Compute:
    def compute(x: Floats, y: Floats, z: Floats) -> Floats:
        if form.scalar == "f64":
            columns = np.broadcast_arrays(x, y, z)
            rows = zip(*columns, strict=True)
            return np.array([fma_f64(float(p), float(q), float(s), form.mode) for p, q, s in rows])
        p, q, s = _wide(x, y, z)
        product = p * q  # exact
        return odd_sum(product, s, form.mode)

    return compute


def _mixed(d: Decode) -> str:
    """The narrow type of a mixed-precision form such as add.f32.f16, or ""."""
    if d.has("f32") and (d.has("f16") or d.has("bf16")):
        return d.type(("f16", "bf16"))
    return ""


def _mixed_op(d: Decode, narrow: str, compute: Callable[[_Form], Compute], narrow_count: int) -> Op:
    form = _Form(d, ("f32",))
    out = d.dst("f32")
    sources = [(d.src(narrow), narrow) for _ in range(narrow_count)]
    sources.append((d.src("f32"), "f32"))
    function = compute(form)

    def op(r: Registers) -> None:
        r[out] = form.store(function(*(to_floats(r[s], kind) for s, kind in sources)))

    return op


def add_sub(d: Decode) -> Op:
    sign = -1 if d.opcode == "sub" else 1
    narrow = _mixed(d)
    if narrow:
        return _mixed_op(d, narrow, lambda form: _sum(form, sign), 1)
    form = _Form(d)
    return form.op(d, _sum(form, sign), 2)


def mul(d: Decode) -> Op:
    form = _Form(d)
    return form.op(d, _product(form), 2)


@instruction("fma")
def fma_instruction(d: Decode) -> Op:
    if not is_float(d):
        d.fail("fma needs a floating-point type")
    return fma(d)


def fma(d: Decode) -> Op:
    narrow = _mixed(d)
    if narrow:
        return _mixed_op(d, narrow, _fused, 2)
    form = _Form(d)
    d.flag("oob")
    return form.op(d, _fused(form), 3)


def div(d: Decode) -> Op:
    if d.opcode == "rem":
        d.fail("rem has no floating-point form")
    d.flag("approx")
    d.flag("full")
    form = _Form(d, ("f32", "f64"))

    def compute(x: Floats, y: Floats) -> Floats:
        if form.scalar == "f64":

            def exact(p: float, q: float) -> float:
                if not (np.isfinite(p) and np.isfinite(q)) or p == 0 or q == 0:
                    return float(np.float64(p) / np.float64(q))
                return round_fraction(Fraction(p) / Fraction(q), form.mode)

            return _f64_by_lane(exact, form, x / y, x, y)
        if form.mode == "rn":
            return x / y
        wide = _wide(x, y)
        return wide[0] / wide[1]

    return form.op(d, compute, 2)


def min_max(d: Decode) -> Op:
    nan, xorsign, absolute = d.flag("NaN"), d.flag("xorsign"), d.flag("abs")
    form = _Form(d)
    larger = d.opcode == "max"

    def pair(x: Floats, y: Floats) -> Floats:
        p, q = (np.abs(x), np.abs(y)) if xorsign or absolute else (x, y)
        # -0 counts as less than +0.
        first = (p > q) | ((p == q) & ~np.signbit(p)) if larger else (p < q) | ((p == q) & np.signbit(p))
        result: Floats = np.where(first, p, q)
        if nan:
            result = np.where(np.isnan(p) | np.isnan(q), np.float32(np.nan), result)
        else:
            result = np.where(np.isnan(p), q, np.where(np.isnan(q), p, result))
        if xorsign:
            result = np.where(np.signbit(x) ^ np.signbit(y), -np.abs(result), np.abs(result))
        return result

    if len(d.operands) == 4:
        return form.op(d, lambda x, y, z: pair(pair(x, y), z), 3)
    return form.op(d, pair, 2)


def abs_neg(d: Decode) -> Op:
    """Changes sign bits only, except that .ftz flushes subnormals."""
    ftz = d.flag("ftz")
    kind = d.type((*SCALARS, *PACKED))
    width = TYPE_BITS[kind]
    part = TYPE_BITS[PACKED.get(kind, kind)]
    sign = sum(1 << (part * (i + 1) - 1) for i in range(width // part))
    out, a = d.dst(kind), d.src(kind)
    negate = d.opcode == "neg"

    def op(r: Registers) -> None:
        x = r[a]
        if ftz and kind == "f32":
            x = to_value(flush(to_floats(x, kind)).view(np.uint32))
        r[out] = x ^ sign if negate else x & (sign ^ MASK[width])

    return op


@instruction("copysign")
def copysign(d: Decode) -> Op:
    kind = d.type(("f32", "f64"))
    width = TYPE_BITS[kind]
    sign = 1 << (width - 1)
    out, a, b = d.dst(kind), d.src(kind), d.src(kind)

    def op(r: Registers) -> None:
        r[out] = (r[a] & sign) | (r[b] & (sign ^ MASK[width]))

    return op


# -- functions of one operand -------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def function(d: Decode) -> Op:
    d.flag("approx")
    form = _Form(d, (*SCALARS, "f16x2", "bf16x2"))
    compute = _FUNCTIONS[d.opcode]
    mode = form.mode

    def evaluate(x: Floats) -> Floats:
        result: Floats = compute(x.astype(np.float64))
        if mode != "rn" and d.opcode in ("rcp", "sqrt") and form.scalar == "f64":
            return _directed_f64(d.opcode, x, mode)
        return result

    return form.op(d, evaluate, 1)


def _directed_f64(name: str, x: Floats, mode: str) -> Floats:
    def one(value: float) -> float:
        if not np.isfinite(value) or value == 0 or (name == "sqrt" and value < 0):
            return float(_FUNCTIONS[name](np.float64(value)))
        if name == "rcp":
            return round_fraction(1 / Fraction(value), mode)
        root = float(np.sqrt(value))
        error = Fraction(root) ** 2 - Fraction(value)
        if error > 0 and mode in ("rz", "rm"):
            return float(np.nextafter(root, 0))
        if error < 0 and mode == "rp":
            return float(np.nextafter(root, np.inf))
        return root

    return np.array([one(float(value)) for value in x])
