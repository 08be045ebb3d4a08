"""NumPy matrices as operands: types, files, and the values that runs start from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ptxgen.errors import LaunchError, PtxgenError, UnknownNameError
from ptxgen.files import replacing
from ptxgen.hardware.element_types import ElementType

Matrix: TypeAlias = NDArray[Any]
"""Two dimensions, row-major and dense unless said otherwise."""

INPUT_KINDS = ("normal", "integers", "ramp")

_RAMP_PERIOD = 251  # prime, so rows do not repeat with the tile; its values are exact in bf16
_INTEGER_BOUND = 8

_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "ue8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
}


def numpy_type(element_type: ElementType) -> np.dtype[Any]:
    """The NumPy type of a PTX element type; UnknownNameError where NumPy has none."""
    try:
        return _DTYPES[element_type.name]
    except KeyError:
        raise UnknownNameError("element type in NumPy", element_type.name, _DTYPES) from None


def as_matrix(array: object, element_type: ElementType, name: str, *, cast: bool = False) -> Matrix:
    """`array` as a dense row-major matrix of `element_type`; `name` stands in errors (LaunchError).

    Strided and Fortran-ordered arrays are copied, other byte orders swapped. Raw 16-bit data (`|V2`, what
    a saved bf16 array reloads as) is taken as bf16 where bf16 is wanted. Any other type is refused unless
    `cast`, which rounds the values to the wanted type.
    """
    wanted = numpy_type(element_type)
    if not isinstance(array, np.ndarray):
        raise LaunchError(f"{name} must be a NumPy array, got {type(array).__name__}")
    if array.ndim != 2:
        raise LaunchError(f"{name} must be a matrix (2 dimensions), got shape {array.shape}")
    if array.dtype.newbyteorder("=") == wanted:
        return np.ascontiguousarray(array, dtype=wanted)
    if element_type.name == "bf16" and array.dtype == np.dtype("V2"):
        return np.ascontiguousarray(array).view(wanted)
    if not cast:
        way = "convert it, or let it be rounded with cast=True (--cast)"
        if array.dtype in (np.dtype("V2"), _DTYPES["bf16"]):
            way = "a kernel for bf16 (operand_type=bf16) takes it as it is"
        raise LaunchError(f"{name} has dtype {array.dtype}, the kernel takes {element_type} ({wanted.name}): {way}")
    if array.dtype.kind not in "fiub" and array.dtype not in _DTYPES.values():
        raise LaunchError(f"{name} has dtype {array.dtype}, which cannot be rounded to {element_type}")
    with np.errstate(over="ignore"):  # a value beyond the wanted type becomes infinite, as on a device
        return np.ascontiguousarray(array.astype(wanted))


def load_matrix(path: str | os.PathLike[str]) -> Matrix:
    """The array in a .npy file; PtxgenError names the file where it is missing or is no such file."""
    try:
        with Path(path).open("rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except OSError as error:
        raise PtxgenError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, EOFError, MemoryError) as error:
        raise PtxgenError(f"cannot read {str(path)!r} as a .npy file: {error}") from error


def save_matrix(path: str | os.PathLike[str], array: Matrix) -> None:
    """Write a .npy file, whole or not at all. NumPy reloads types of ml_dtypes as raw bytes."""
    with replacing(path) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)


def make_matrix(kind: str, rows: int, columns: int, element_type: ElementType, seed: int | tuple[int, ...]) -> Matrix:
    """Values to run a kernel on when there are no others; the same for the same seed.

    normal: N(0, 1), rounded. integers: uniform in -8..8. ramp: the linear index modulo 251, less 125, so
    that neighbouring rows and columns differ everywhere.
    """
    wanted = numpy_type(element_type)
    generator = np.random.Generator(np.random.PCG64(seed))
    if kind == "normal" and element_type.is_float:
        return generator.standard_normal((rows, columns), dtype=np.float32).astype(wanted)
    if kind in ("integers", "normal"):
        low = 0 if element_type.name.startswith("u") else -_INTEGER_BOUND
        return generator.integers(low, _INTEGER_BOUND, (rows, columns), dtype=np.int8, endpoint=True).astype(wanted)
    if kind == "ramp":
        values = np.arange(rows * columns, dtype=np.int64) % _RAMP_PERIOD
        if not element_type.name.startswith("u"):
            values -= _RAMP_PERIOD // 2
        return values.reshape(rows, columns).astype(np.float32).astype(wanted)
    raise UnknownNameError("kind of input", kind, INPUT_KINDS)
