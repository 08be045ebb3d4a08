"""Operands: types, layouts, files, made-up values."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.device.arrays import INPUT_KINDS, as_matrix, load_matrix, make_matrix, numpy_type, save_matrix
from ptxgen.errors import LaunchError, PtxgenError, UnknownNameError
from ptxgen.hardware.element_types import ELEMENT_TYPES

F16, BF16, F32 = (ELEMENT_TYPES[name] for name in ("f16", "bf16", "f32"))
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_the_right_type_is_not_copied() -> None:
    matrix = VALUES.astype(np.float16)
    assert np.shares_memory(as_matrix(matrix, F16, "A"), matrix)


@pytest.mark.parametrize(
    "matrix",
    [
        np.asfortranarray(VALUES.astype(np.float16)),
        np.repeat(VALUES.astype(np.float16), 2, axis=1)[:, ::2],
        VALUES.astype(np.float16)[::-1][::-1],
        VALUES.astype(">f2"),
    ],
    ids=["fortran", "strided", "reversed twice", "big-endian"],
)
def test_other_layouts_are_copied(matrix: np.ndarray[Any, Any]) -> None:
    taken = as_matrix(matrix, F16, "A")
    assert taken.flags.c_contiguous
    assert taken.dtype == np.float16
    np.testing.assert_array_equal(taken, VALUES)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ([[1.0]], "A must be a NumPy array, got list"),
        (np.zeros(3, np.float16), "A must be a matrix (2 dimensions), got shape (3,)"),
        (np.zeros((1, 2, 3), np.float16), "A must be a matrix (2 dimensions), got shape (1, 2, 3)"),
        (VALUES, "A has dtype float32, the kernel takes f16 (float16)"),
        (VALUES.astype(np.float64), "A has dtype float64, the kernel takes f16 (float16)"),
        (VALUES.astype(ml_dtypes.bfloat16), "A has dtype bfloat16, the kernel takes f16"),
        (VALUES.astype(ml_dtypes.bfloat16).view("V2"), "A has dtype |V2, the kernel takes f16"),
        (VALUES.astype(np.int16), "cast=True (--cast)"),
    ],
)
def test_refused(array: object, words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        as_matrix(array, F16, "A")
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_cast_rounds(dtype: Any) -> None:
    taken = as_matrix((VALUES % 2).astype(dtype), F16, "A", cast=True)
    assert taken.dtype == np.float16
    np.testing.assert_array_equal(taken, VALUES % 2)


def test_cast_rounds_once_and_overflows_to_infinity() -> None:
    taken = as_matrix(np.array([[2049.0, 1e6]]), F16, "A", cast=True)
    assert taken.tolist() == [[2048.0, np.inf]]


@pytest.mark.parametrize("array", [np.array([["x"]]), np.zeros((1, 1), complex), np.zeros((1, 1), "V2")])
def test_cast_refuses_what_is_no_number(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(LaunchError, match="cannot be rounded to f16"):
        as_matrix(array, F16, "A", cast=True)


def test_saved_bf16_reloads_as_bf16(tmp_path: Path) -> None:
    matrix = VALUES.astype(ml_dtypes.bfloat16)
    save_matrix(tmp_path / "b.npy", matrix)
    raw = load_matrix(tmp_path / "b.npy")
    assert raw.dtype == np.dtype("V2")
    np.testing.assert_array_equal(as_matrix(raw, BF16, "B"), matrix)


def test_file_round_trip_keeps_the_name_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_matrix(tmp_path / "d", VALUES.T)
    np.testing.assert_array_equal(load_matrix(tmp_path / "d"), VALUES.T)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def npy_bytes() -> bytes:
    stream = io.BytesIO()
    np.save(stream, VALUES)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", npy_bytes()[:40], npy_bytes()[:-5], b"PK\x03\x04" + bytes(40)],
    ids=["empty", "text", "cut header", "cut data", "zip"],
)
def test_files_that_are_no_array(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(PtxgenError, match=r"cannot read .*a.npy' as a .npy file"):
        load_matrix(path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(PtxgenError, match="cannot read"):
        load_matrix(tmp_path / "a.npy")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(PtxgenError, match=r"cannot read .*none.npy': No such file or directory"):
        load_matrix(tmp_path / "none.npy")
    with pytest.raises(PtxgenError, match="Is a directory"):
        load_matrix(tmp_path)
    with pytest.raises(PtxgenError, match=r"cannot write .*x.npy': No such file or directory"):
        save_matrix(tmp_path / "none" / "x.npy", VALUES)


@pytest.mark.parametrize("kind", INPUT_KINDS)
@pytest.mark.parametrize("element_type", [F16, BF16, F32, ELEMENT_TYPES["s8"], ELEMENT_TYPES["u8"]], ids=str)
def test_made_up_values_repeat_and_differ(kind: str, element_type: Any) -> None:
    matrix = make_matrix(kind, 40, 96, element_type, 3)
    assert matrix.dtype == numpy_type(element_type)
    np.testing.assert_array_equal(matrix, make_matrix(kind, 40, 96, element_type, 3))
    values = matrix.astype(np.float32)
    assert len({row.tobytes() for row in values}) == 40
    assert len({column.tobytes() for column in values.T}) == 96


def test_integers_and_ramp_are_exact_in_bf16() -> None:
    for kind in ("integers", "ramp"):
        exact = make_matrix(kind, 300, 300, F32, 1)
        np.testing.assert_array_equal(make_matrix(kind, 300, 300, BF16, 1).astype(np.float32), exact)
        np.testing.assert_array_equal(exact, np.rint(exact))


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'normal'"):
        make_matrix("norml", 1, 1, F16, 0)
    with pytest.raises(UnknownNameError, match="element type in NumPy"):
        numpy_type(ELEMENT_TYPES["e2m1"])
