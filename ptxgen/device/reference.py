"""Is D = A . B^T? The answer of a float64 product, and how far from it a right kernel may be.

A kernel rounds a sum of K exact products, accumulated in float32 in an order of its choosing, once to the
output type. So element by element, and not in some percentile,

    |d - ref| <= ulp(ref) / 2  +  2 (K + 1) 2^-24 (|A| . |B|^T)

where ulp is that of the output type. Where all inputs are integers and no partial sum can reach 2^24,
every order gives the exact sum, and d must be the exact sum rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgen.device.arrays import Matrix

_BLOCK_ROWS = 512  # of D at a time: the float64 temporaries of a 4096-column block stay below 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongElement:
    """One element of D out of its bound."""

    row: int
    column: int
    value: float
    reference: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How D compares with the float64 product.

    `exact` says that the inputs allowed only one right answer. Errors are over the elements whose
    reference is finite in the output type. `first_wrong` is the first in row-major order.
    """

    elements: int
    wrong: int
    exact: bool
    max_error: float
    max_error_ratio: float  # error over its bound; at most 1 where nothing is wrong
    unexpected_nonfinite: int  # NaN or infinite where the rounded reference is finite
    first_wrong: WrongElement | None

    @property
    def matches(self) -> bool:
        """Whether every element is within its bound."""
        return self.wrong == 0

    def summary(self) -> str:
        """One or two lines for a person."""
        rule = "the exact result" if self.exact else "the bound"
        if self.matches:
            return f"all {self.elements} elements match {rule}: max |d - ref| = {self.max_error:.3g}" + (
                "" if self.exact else f", {self.max_error_ratio:.2f} of its bound"
            )
        text = f"{self.wrong} of {self.elements} elements differ from the reference by more than {rule} allows"
        if self.unexpected_nonfinite:
            text += f" ({self.unexpected_nonfinite} are NaN or infinite)"
        first = self.first_wrong
        assert first is not None
        return (
            f"{text}\nfirst at D[{first.row}, {first.column}]: {first.value:.8g}, reference {first.reference:.8g}, "
            f"allowed difference {first.bound:.3g}"
        )


def compare(a: Matrix, b: Matrix, d: Matrix, *, progress: Callable[[int, int], None] | None = None) -> Comparison:
    """Compare D (M x N) with the float64 product of A (M x K) and B (N x K).

    Works on blocks of rows of D, so that memory stays small; `progress(done, total)` counts rows.
    """
    rows = a.shape[0]
    transposed = b.astype(np.float64).T
    magnitudes = np.abs(b.astype(np.float32)).T
    integers = _integral(a) and _integral(b)
    total = Comparison(
        elements=0, wrong=0, exact=True, max_error=0.0, max_error_ratio=0.0, unexpected_nonfinite=0, first_wrong=None
    )
    for start in range(0, rows, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, rows)
        with np.errstate(all="ignore"):
            part = _compare_rows(a[start:stop], transposed, magnitudes, d[start:stop], integers, start)
        total = Comparison(
            elements=total.elements + part.elements,
            wrong=total.wrong + part.wrong,
            exact=total.exact and part.exact,
            max_error=max(total.max_error, part.max_error),
            max_error_ratio=max(total.max_error_ratio, part.max_error_ratio),
            unexpected_nonfinite=total.unexpected_nonfinite + part.unexpected_nonfinite,
            first_wrong=total.first_wrong or part.first_wrong,
        )
        if progress is not None:
            progress(stop, rows)
    return total


def _compare_rows(
    a: Matrix, transposed: Matrix, magnitudes: Matrix, d: Matrix, integers: bool, first_row: int
) -> Comparison:
    """The comparison of some rows of D; B comes as its transpose in float64 and as |B|^T in float32."""
    value = d.astype(np.float64)
    reference = a.astype(np.float64) @ transposed
    magnitude: Matrix = np.abs(a.astype(np.float32)) @ magnitudes
    if not np.isfinite(magnitude).all():  # beyond float32, or the inputs are not finite
        magnitude = np.abs(a.astype(np.float64)) @ np.abs(transposed)
    rounded = reference.astype(d.dtype).astype(np.float64)
    exact = integers and bool(magnitude.max(initial=0) < 2**24)
    if exact:
        error = np.abs(value - rounded)
        bound = np.zeros_like(error)
    else:
        error = np.abs(value - reference)
        bound = 0.5 * _ulp(reference, d.dtype) + (a.shape[1] + 1) * 2.0**-23 * magnitude
    expected_finite, finite = np.isfinite(rounded), np.isfinite(value)
    within = (error <= bound) & np.isfinite(reference)
    right = (value == rounded) | (np.isnan(value) & np.isnan(rounded)) | (within & (finite | ~expected_finite))
    judged = expected_finite & finite
    ratio = np.divide(error, bound, out=np.zeros_like(error), where=judged & (bound > 0))
    first = None
    if not right.all():
        row, column = divmod(int(np.argmin(right)), right.shape[1])
        first = WrongElement(
            row=first_row + row,
            column=column,
            value=float(value[row, column]),
            reference=float(reference[row, column]),
            bound=float(bound[row, column]),
        )
    return Comparison(
        elements=right.size,
        wrong=right.size - int(np.count_nonzero(right)),
        exact=exact,
        max_error=float(error.max(initial=0.0, where=judged)),
        max_error_ratio=float(ratio.max(initial=0.0)),
        unexpected_nonfinite=int(np.count_nonzero(expected_finite & ~finite)),
        first_wrong=first,
    )


def _integral(array: Matrix) -> bool:
    if array.dtype.kind in "iu":
        return True
    values = array.astype(np.float32)
    return bool((np.isfinite(values) & (values == np.rint(values))).all())


# type -> (fraction bits, exponent of the smallest normal number)
_FORMATS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022)}


def _ulp(values: Matrix, dtype: np.dtype[Any]) -> Matrix:
    """The spacing of `dtype` at each value: 2^(exponent - fraction bits), at least the smallest subnormal."""
    fraction_bits, lowest = _FORMATS[dtype.name]
    _, exponent = np.frexp(values)  # |value| in [2^(exponent-1), 2^exponent)
    spacing: Matrix = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - fraction_bits)
    return spacing
