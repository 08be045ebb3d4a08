"""Floating-point instructions as nvcc writes them, against exact fractions: kernels/floats.cu, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Array = np.ndarray[Any, Any]
N = 256


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits and the exponents of its normal numbers."""

    precision: int
    lowest: int
    highest: int

    @property
    def largest(self) -> Fraction:
        return (2 - Fraction(1, 2 ** (self.precision - 1))) * Fraction(2) ** self.highest

    def round(self, value: Fraction, mode: str = "rn") -> float:
        """`value` rounded once: rn (ties to even), rz, rm (down) or rp (up). Zero stays +0."""
        size = abs(value)
        if not size:
            return 0.0
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > size
        quantum = Fraction(2) ** (max(exponent, self.lowest) - self.precision + 1)
        count, rest = divmod(size, quantum)
        away = {
            "rn": rest * 2 > quantum or (rest * 2 == quantum and count % 2 == 1),
            "rz": False,
            "rm": rest > 0 and value < 0,
            "rp": rest > 0 and value > 0,
        }[mode]
        result = (count + away) * quantum
        stays_finite = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        if result > self.largest and not stays_finite:
            return math.inf if value > 0 else -math.inf
        return float(min(result, self.largest)) * (1 if value > 0 else -1)


F16 = Format(11, -14, 15)
BF16 = Format(8, -126, 127)
F32 = Format(24, -126, 127)
F64 = Format(53, -1022, 1023)


def fused(a: float, b: float, c: float, to: Format, mode: str = "rn") -> float:
    """a * b + c, rounded once."""
    with np.errstate(all="ignore"):
        plain = float(np.float64(a) * np.float64(b) + np.float64(c))
    if not all(map(math.isfinite, (a, b, c))):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        rounded = to.round(exact, mode)
        return rounded if rounded else math.copysign(0.0, -1 if exact < 0 else 1)
    if mode == "rm" and not (math.copysign(1, a) * math.copysign(1, b) == math.copysign(1, c) == 1):
        return -0.0
    return plain


def product(a: float, b: float, to: Format, mode: str = "rn") -> float:
    return fused(a, b, math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b)), to, mode)


def least(a: float, b: float) -> float:
    """The smaller one, the number when the other is NaN, -0 below +0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min((a, b), key=lambda v: (v, math.copysign(1, v)))


def most(a: float, b: float) -> float:
    return -least(-a, -b)


def flushed(a: float) -> float:
    return a if not math.isfinite(a) or abs(a) >= 2.0**-126 else math.copysign(0.0, a)


def quiet(operation: Callable[..., Any], *values: float) -> float:
    with np.errstate(all="ignore"):
        return float(operation(*(np.float32(value) for value in values)))


def clamp01(a: float) -> float:
    return 0.0 if math.isnan(a) or a <= 0 else min(a, 1.0)


def tf32(a: float) -> float:
    if not math.isfinite(a):
        return a
    word = np.float32(a).view(np.uint32)
    return float(((word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32))


def same(got: Array, wanted: Array) -> Array:
    """Bit for bit, any NaN for NaN."""
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[got.dtype.itemsize]
    nan = np.isnan(got) & np.isnan(wanted)
    equal: Array = (got.view(unsigned) == wanted.view(unsigned)) | nan
    return equal


def floats() -> tuple[Array, Array]:
    """Pairs of every edge value, then numbers near each other, then random bits."""
    special = np.array(
        [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, -2.5, 65504.0, 3.4e38, -3.4e38, 1e-40, -1e-45, np.inf, -np.inf, np.nan],
        np.float32,
    )[:15]
    random = np.random.default_rng(20)
    a, b = (column.reshape(-1)[: N // 2] for column in np.meshgrid(special, special))
    near = random.standard_normal((2, N // 4)).astype(np.float32) * 8
    words = random.integers(0, 2**32, (2, N - N // 2 - N // 4), np.uint32).view(np.float32)
    return np.concatenate([a, near[0], words[0]]), np.concatenate([b, near[1], words[1]])


def add(a: float, b: float, mode: str = "rn", to: Format = F32) -> float:
    return fused(a, 1.0, b, to, mode)


FLOAT_ROWS: list[tuple[str, Callable[[float, float], float]]] = [
    ("add", add),
    ("sub", lambda a, b: add(a, -b)),
    ("mul", lambda a, b: product(a, b, F32)),
    ("fma", lambda a, b: fused(a, b, a, F32)),
    ("div", lambda a, b: quiet(np.divide, a, b)),
    ("sqrt", lambda a, b: quiet(np.sqrt, abs(a))),
    ("rcp", lambda a, b: quiet(np.divide, 1.0, a)),
    ("min", least),
    ("max", most),
    ("neg", lambda a, b: -a),
    ("abs", lambda a, b: abs(a)),
    ("floor", lambda a, b: quiet(np.floor, a)),
    ("ceil", lambda a, b: quiet(np.ceil, a)),
    ("trunc", lambda a, b: quiet(np.trunc, a)),
    ("rint", lambda a, b: quiet(np.rint, a)),
    ("copysign", math.copysign),
    ("saturate", lambda a, b: clamp01(a)),
    ("clamp above", lambda a, b: least(most(a, b), 1.0)),
    ("min.NaN", lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else least(a, b)),
    ("add.ftz", lambda a, b: flushed(add(flushed(a), flushed(b)))),
    ("cvt.rna.tf32", lambda a, b: tf32(a)),
]
DIRECTED_ROWS: list[tuple[str, Callable[[float, float], float]]] = [
    ("add.rz", lambda a, b: add(a, b, "rz")),
    ("add.rp", lambda a, b: add(a, b, "rp")),
    ("add.rm", lambda a, b: add(a, b, "rm")),
    ("mul.rz", lambda a, b: product(a, b, F32, "rz")),
]


def compare(a: float, b: float) -> int:
    return (a < b) | (a == b) << 1 | (a != b) << 2 | (not a < b) << 3 | math.isnan(a) << 4 | math.isinf(b) << 5


@pytest.mark.parametrize(
    ("entry", "rows", "extra"), [("float_bits", FLOAT_ROWS, 1), ("float_directed", DIRECTED_ROWS, 0)]
)
def test_f32_rows(cuda: Any, entry: str, rows: list[tuple[str, Callable[[float, float], float]]], extra: int) -> None:
    x, y = floats()
    out = np.zeros((len(rows) + extra, N), np.uint32)
    got = cuda("floats")(entry, ["x", "y", "out", N], {"x": x, "y": y, "out": out}, grid=2)["out"]
    pairs = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    for row, (name, meaning) in enumerate(rows):
        wanted = np.array([meaning(a, b) for a, b in pairs], np.float32)
        wrong = np.flatnonzero(~same(got[row].view(np.float32), wanted))
        assert not wrong.size, (name, [(pairs[i], hex(got[row][i]), wanted[i].item().hex()) for i in wrong[:4]])
    if extra:
        np.testing.assert_array_equal(got[-1], [compare(a, b) for a, b in pairs])


def to_integer(value: float, bits: int, signed: bool, nan: int) -> int:
    """Saturating conversion of a value that is already whole."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if math.isnan(value):
        return nan
    return high if value > high else low if value < low else int(value)


def narrow(values: Array, to: Format, mode: str) -> Array:
    """Every f32 rounded to another format, as f64."""
    return np.array(
        [
            float(v) if v == 0 or not np.isfinite(v) else math.copysign(to.round(Fraction(float(v)), mode), v)
            for v in values
        ]
    )


def half_words(values: Array) -> Array:
    return values.astype(np.float16).view(np.uint16).astype(np.uint32)


def bf16_words(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)


NAN_WORDS = {"f16": (0x7C00, 0x3FF), "bf16": (0x7F80, 0x7F), "f32": (0x7F800000, 0x7FFFFF)}


def without_nan(words: Array, kind: str) -> Array:
    """NaN patterns of a 16-bit type, alone or in pairs, made one and the same."""
    if kind == "f32":
        nan = (words & 0x7F800000 == 0x7F800000) & (words & 0x7FFFFF != 0)
        return np.where(nan, np.uint32(0x7FFFFFFF), words)
    exponent, fraction = NAN_WORDS[kind]
    halves = np.ascontiguousarray(words.astype(np.uint32)).view(np.uint16)
    nan = (halves & exponent == exponent) & (halves & fraction != 0)
    return np.where(nan, np.uint16(0x7FFF), halves).view(np.uint32)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_conversions(cuda: Any) -> None:
    x, _ = floats()
    k = np.random.default_rng(21).integers(-(2**31), 2**31, N).astype(np.int32)
    k[:8] = [0, 1, -1, 2049, 65519, 65520, 16777217, -(2**31)]
    out = np.zeros((26, N), np.uint32)
    got = cuda("floats")("float_conversions", ["x", "k", "out", N], {"x": x, "k": k, "out": out}, grid=2)["out"]

    def integers(values: Array, bits: int, signed: bool, nan: int = 0) -> Array:
        return np.array([to_integer(float(v), bits, signed, nan) & 0xFFFFFFFF for v in values], np.uint32)

    with np.errstate(all="ignore"):
        half, bfloat = narrow(x, F16, "rn"), narrow(x, BF16, "rn")
        doubled = narrow((2 * x).astype(np.float32), BF16, "rn")
        tripled = narrow((x * np.float32(3)).astype(np.float32), F16, "rn")
        d = x.astype(np.float64) * 3.0 + k
        long = [to_integer(float(v), 64, True, -(1 << 63)) for v in np.trunc(x)]
        fp8 = [
            np.clip(x, -limit, limit).astype(kind).view(np.uint8).astype(np.uint32)
            for limit, kind in ((448.0, ml_dtypes.float8_e4m3fn), (57344.0, ml_dtypes.float8_e5m2))
        ]
        wanted: list[tuple[str, Array]] = [
            ("f16", half_words(half)),
            ("f16", half_words(narrow(x, F16, "rz"))),
            ("bf16", bf16_words(bfloat)),
            ("bf16", bf16_words(narrow(x, BF16, "rz"))),
            ("f16", half_words(half) | half_words(-half) << 16),
            ("bf16", bf16_words(bfloat) | bf16_words(doubled) << 16),
            ("f32", half.astype(np.float32).view(np.uint32)),
            ("f32", bfloat.astype(np.float32).view(np.uint32)),
            ("", integers(np.rint(x), 32, True)),
            ("", integers(np.trunc(x), 32, True)),
            ("", integers(np.floor(x), 32, True)),
            ("", integers(np.ceil(x), 32, True)),
            ("", integers(np.trunc(x), 32, False)),
            ("f32", k.astype(np.float32).view(np.uint32)),
            ("f32", k.view(np.uint32).astype(np.float32).view(np.uint32)),
            ("f32", (k.astype(np.int64) * 65537).astype(np.float32).view(np.uint32)),
            ("", np.array([(v & (1 << 64) - 1) >> 8 & 0xFFFFFFFF for v in long], np.uint32)),
            ("", integers(np.trunc(half), 16, True)),
            ("f16", half_words(k.astype(np.float64))),
            ("f32", d.astype(np.float32).view(np.uint32)),
            ("", integers(np.trunc(d), 32, True, -(1 << 31))),
            ("f64 high", (d.view(np.uint64) >> np.uint64(20)).astype(np.uint32)),
            ("", np.where(np.isnan(x), 0x7F, fp8[0])),
            ("", np.where(np.isnan(x), 0x7F, fp8[1])),
            ("f16", half_words(np.clip(tripled, -65504, 65504)) | half_words(np.clip(half, -65504, 65504)) << 16),
            (
                "f16",
                half_words(np.where(half < 0, 0, half) + 0.0) << 16 | half_words(np.where(half > 0, 0, -half) + 0.0),
            ),
        ]
    for row, (kind, words) in enumerate(wanted):
        if kind == "f64 high":
            finite = np.isfinite(d)
            np.testing.assert_array_equal(got[row][finite], words[finite], f"row {row}")
        elif kind:
            np.testing.assert_array_equal(without_nan(got[row], kind), without_nan(words, kind), f"row {row}")
        else:
            np.testing.assert_array_equal(got[row], words, f"row {row}")


def relu(a: float) -> float:
    return a if math.isnan(a) or a > 0 else 0.0


def pair_rows(to: Format) -> list[Callable[[float, float], float]]:
    return [
        lambda a, b: add(a, b, "rn", to),
        lambda a, b: add(a, -b, "rn", to),
        lambda a, b: product(a, b, to),
        lambda a, b: fused(a, b, a, to),
        least,
        most,
        lambda a, b: -a,
        lambda a, b: abs(a),
    ]


@pytest.mark.parametrize(
    ("entry", "kind", "to", "dtype"),
    [
        ("half_bits", "f16", F16, np.float16),
        ("bfloat_bits", "bf16", BF16, ml_dtypes.bfloat16),
    ],
)
def test_packed_arithmetic(cuda: Any, entry: str, kind: str, to: Format, dtype: Any) -> None:
    random = np.random.default_rng(22)
    words = random.integers(0, 1 << 16, (2, 2 * N), np.uint16)
    words[:, :N] = (random.standard_normal((2, N)) * 4).astype(dtype).view(np.uint16)
    x, y = (half.view(dtype).astype(np.float64) for half in words)
    rows = pair_rows(to)
    count = 12 if kind == "f16" else len(rows)
    packed = words.view(np.uint32)
    out = np.zeros((count, N), np.uint32)
    got = cuda("floats")(entry, ["x", "y", "out", N], {"x": packed[0], "y": packed[1], "out": out}, grid=2)["out"]

    def store(values: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.array(values, np.float64).astype(dtype).view(np.uint16).view(np.uint32)

    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    wanted = [store([meaning(a, b) for a, b in pairs]) for meaning in rows]
    if kind == "f16":
        wanted.append(store(x > y))
        low = [add(pairs[i][0], pairs[i + 1][1], "rn", to) for i in range(0, 2 * N, 2)]
        high = [product(pairs[i][1], pairs[i + 1][0], to) for i in range(0, 2 * N, 2)]
        wanted.append(store(np.stack([low, high], axis=1).reshape(-1)))
        wanted.append(np.where(x[::2] < y[::2], packed[0], packed[1]))
        wanted.append(store([relu(fused(a, b, a, to)) for a, b in pairs]))
    for row, line in enumerate(wanted):
        np.testing.assert_array_equal(without_nan(got[row], kind), without_nan(line, kind), f"row {row}")


def test_doubles(cuda: Any) -> None:
    random = np.random.default_rng(23)
    x, y = random.standard_normal((2, N)) * np.exp(random.uniform(-30, 30, (2, N)))
    x[:4], y[:4] = [0.0, -0.0, 1e300, -3.5], [-0.0, 0.0, 1e300, 3.5]
    out = np.zeros((10, N), np.uint64)
    got = cuda("floats")("double_bits", ["x", "y", "out", N], {"x": x, "y": y, "out": out}, grid=2)["out"]
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    with np.errstate(all="ignore"):
        whole = [float(to_integer(math.trunc(a), 64, True, 0)) for a in x]
        wanted = [
            x + y, x * y, [fused(a, b, a, F64) for a, b in pairs], x / y, np.sqrt(np.abs(x)),
            [least(a, b) for a, b in pairs], [most(a, b) for a, b in pairs], np.floor(x), whole, np.where(x < y, x, -y),
        ]  # fmt: skip
    for row, line in enumerate(wanted):
        wrong = np.flatnonzero(~same(got[row].view(np.float64), np.array(line, np.float64)))
        assert not wrong.size, (row, [(pairs[i], got[row].view(np.float64)[i], line[i]) for i in wrong[:4]])


def test_approximations(cuda: Any) -> None:
    x = np.random.default_rng(24).uniform(0.1, 3, N).astype(np.float32)
    got = cuda("floats")("float_approximate", ["x", "out", N], {"x": x, "out": np.zeros((17, N), np.float32)}, grid=2)[
        "out"
    ]
    v = x.astype(np.float64)
    root = np.sqrt(v)
    wanted: list[Any] = [
        np.exp(v), np.log(v), np.sin(v), np.cos(v), 1 / root, 1 / v, np.exp2(v), np.log2(v), np.tanh(v), root, 1 / v,
        np.exp(v), np.log(v), np.sin(v), v * root, np.tanh(v), [math.erf(a) for a in v],
    ]  # fmt: skip
    for row, line in enumerate(wanted):
        # tanh.approx is good to 11 bits, the others to 20 and more.
        np.testing.assert_allclose(got[row], line, rtol=1e-3 if row == 8 else 4e-6, atol=2e-6, err_msg=f"row {row}")
