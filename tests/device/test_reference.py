"""The judge of results: what it lets pass and what not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.reference import compare
from ptxgen.hardware.element_types import ELEMENT_TYPES

OUTPUTS = [np.float16, ml_dtypes.bfloat16, np.float32]


def operands(kind: str, m: int = 600, n: int = 40, k: int = 96, name: str = "f16") -> tuple[Matrix, Matrix]:
    element_type = ELEMENT_TYPES[name]
    return make_matrix(kind, m, k, element_type, 1), make_matrix(kind, n, k, element_type, 2)


def product(a: Matrix, b: Matrix, dtype: Any) -> Matrix:
    """What a right kernel gives: a float32 sum, rounded once."""
    d: Matrix = (a.astype(np.float32) @ b.astype(np.float32).T).astype(dtype)
    return d


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_a_right_result_matches(kind: str, name: str, dtype: Any) -> None:
    a, b = operands(kind, name=name)
    comparison = compare(a, b, product(a, b, dtype))
    assert comparison.matches
    assert comparison.exact == (kind == "integers")
    assert comparison.elements == 600 * 40
    assert comparison.max_error_ratio <= 1


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_one_integer_off_by_one_unit_is_found(dtype: Any) -> None:
    a, b = operands("integers")
    d = product(a, b, dtype)
    d[520, 7] = np.nextafter(d[520, 7], dtype(np.inf)) if dtype is not ml_dtypes.bfloat16 else d[520, 7] * dtype(1.01)
    comparison = compare(a, b, d)
    assert (comparison.wrong, comparison.matches) == (1, False)
    assert comparison.first_wrong is not None
    assert (comparison.first_wrong.row, comparison.first_wrong.column) == (520, 7)
    assert "first at D[520, 7]" in comparison.summary()


def test_bound_is_half_a_unit_plus_the_summation_error() -> None:
    """1.5 * 1.5 in float32: half a unit is 2 * 2^-24, the sum's share 2 (1 + 1) 2^-24 * 2.25 = 9 * 2^-24."""
    a = np.full((1, 1), 1.5, np.float16)
    assert compare(a, a, np.array([[2.25 + 8 * 2.0**-24]], np.float32)).matches
    assert not compare(a, a, np.array([[2.25 + 12 * 2.0**-24]], np.float32)).matches
    assert compare(a, a, np.array([[2.25]], np.float16)).matches
    assert not compare(a, a, np.array([[2.25 + 2.0**-9]], np.float16)).matches


def test_a_dropped_k_tail_is_found() -> None:
    a, b = operands("normal", k=100)
    assert not compare(a, b, product(a[:, :96], b[:, :96], np.float16)).matches


def test_nan_where_the_reference_has_none_is_wrong() -> None:
    a, b = operands("normal")
    d = product(a, b, np.float16)
    d[3, 4], d[5, 6] = np.nan, np.inf
    comparison = compare(a, b, d)
    assert (comparison.wrong, comparison.unexpected_nonfinite) == (2, 2)
    assert "(2 are NaN or infinite)" in comparison.summary()


def test_nan_and_infinity_of_the_inputs_must_come_through() -> None:
    a, b = operands("normal", m=4)
    a[1, 0], a[2, 0] = np.inf, np.nan
    d = product(a, b, np.float16)
    assert compare(a, b, d).matches
    assert compare(a, b, d).unexpected_nonfinite == 0
    for row in (1, 2):
        wrong = d.copy()
        wrong[row, 0] = 1.0
        assert compare(a, b, wrong).wrong == 1


def test_overflow_of_the_output_type_is_right() -> None:
    a = np.full((1, 4), 200.0, np.float16)
    assert compare(a, a, np.array([[np.inf]], np.float16)).matches  # 160000 > 65504
    assert not compare(a, a, np.array([[-np.inf]], np.float16)).matches
    assert not compare(a, a, np.array([[np.nan]], np.float16)).matches
    assert compare(a, a, np.array([[160000.0]], np.float32)).matches


def test_products_beyond_float32_keep_a_meaningful_bound() -> None:
    a = np.full((1, 1), 1e30, ml_dtypes.bfloat16)
    b = np.full((1, 1), 1e-30, ml_dtypes.bfloat16)
    big = np.full((1, 1), 1e38, ml_dtypes.bfloat16)
    assert compare(a, b, product(a, b, np.float32)).matches
    assert not compare(big, big, np.zeros((1, 1), np.float32)).matches


def test_subnormal_results() -> None:
    a = np.full((1, 1), 2.0**-14, np.float16)
    b = np.full((1, 1), 0.7, np.float16)
    assert compare(a, b, product(a, b, np.float16)).matches
    assert not compare(a, b, product(a, b, np.float16) * np.float16(1.1)).matches


def test_progress_counts_rows() -> None:
    a, b = operands("integers", m=1100)
    seen: list[tuple[int, int]] = []
    compare(a, b, product(a, b, np.float32), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(512, 1100), (1024, 1100), (1100, 1100)]
