"""Matrices in a GPU's memory as operands of a kernel: what they are, and what TMA can take as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ptxgen.device.arrays import numpy_type
from ptxgen.errors import LaunchError, UnknownNameError
from ptxgen.hardware.element_types import ELEMENT_TYPES, ElementType
from ptxgen.hardware.tensor_map import COORDINATE_ALIGN_BYTES

PITCH_ALIGN_BYTES = 16
"""Bases and row pitches of TMA tensors are multiples of this (cuTensorMapEncodeTiled)."""


def _element_types_by_dtype() -> dict[str, str]:
    """NumPy's, torch's and JAX's name of a type -> PTX's."""
    found = {"void16": "bf16"}  # how __cuda_array_interface__ spells what it has no name for
    for name, element_type in ELEMENT_TYPES.items():
        try:
            found.setdefault(numpy_type(element_type).name, name)
        except UnknownNameError:
            continue
    return found


_ELEMENT_TYPES = _element_types_by_dtype()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatrix:
    """An array of some library. `ordinal` is the GPU whose memory it lies in, None for host memory."""

    name: str
    kind: str
    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: str
    ordinal: int | None
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.dtype}, {' x '.join(map(str, self.shape)) or 'scalar'})"

    def pitch_bytes(self, element_bytes: int) -> int:
        """From row to row; for a single row, which has no next one, the least that TMA takes."""
        return self.strides_bytes[0] if self.shape[0] > 1 else padded(self.shape[1] * element_bytes)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A rule that an operand breaks, and the argument of the call that mends it ("" where none does)."""

    text: str
    remedy: Literal["", "copy", "cast"]


def padded(size_bytes: int) -> int:
    """The next legal row pitch."""
    return -(-size_bytes // PITCH_ALIGN_BYTES) * PITCH_ALIGN_BYTES


def misfits(matrix: DeviceMatrix, wanted: ElementType, ordinal: int, *, output: bool = False) -> list[Misfit]:
    """Every rule that a matrix breaks as an operand of type `wanted` on GPU `ordinal`.

    Rules of layout hold for matrices with at least one element; others are not touched.
    """
    if len(matrix.shape) != 2:
        return [Misfit(f"{matrix} has {len(matrix.shape)} dimensions; a matrix has 2", "")]
    found = []
    if matrix.ordinal is None:
        found.append(Misfit(f"{matrix} lies in host memory; move it to cuda:{ordinal}, or pass NumPy arrays", ""))
    elif matrix.ordinal != ordinal:
        found.append(Misfit(f"{matrix} lies on cuda:{matrix.ordinal}; the kernel runs on cuda:{ordinal}", ""))
    if _ELEMENT_TYPES.get(matrix.dtype) != wanted.name:
        remedy: Literal["", "cast"] = "" if output else "cast"
        found.append(Misfit(f"{matrix} has type {matrix.dtype}; the kernel takes {numpy_type(wanted).name}", remedy))
        return found
    if output and matrix.read_only:
        found.append(Misfit(f"{matrix} is read-only", ""))
    if 0 not in matrix.shape:
        found += [Misfit(f"{matrix}: {text}", "copy") for text in _layout_misfits(matrix, wanted, output)]
    return found


def _layout_misfits(matrix: DeviceMatrix, wanted: ElementType, output: bool) -> list[str]:
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.strides_bytes
    row_bytes = columns * wanted.bytes
    found = []
    if columns > 1 and column_stride != wanted.bytes:
        found.append(
            f"neighbours in a row are {column_stride} bytes apart, not {wanted.bytes}: it is not row-major"
            + (" (transposed?)" if row_stride == wanted.bytes else "")
        )
    elif rows > 1 and row_stride < row_bytes:
        found.append(f"rows of {row_bytes} bytes start {row_stride} bytes apart, so they overlap")
    # The pitch of a single row matters to an output only: it tells how much of the row's end is ours.
    if (rows > 1 or output) and row_stride % PITCH_ALIGN_BYTES:
        found.append(f"rows start {row_stride} bytes apart; TMA takes multiples of {PITCH_ALIGN_BYTES} bytes")
    elif output and row_bytes % COORDINATE_ALIGN_BYTES and row_stride > padded(row_bytes):
        found.append(
            f"its rows of {row_bytes} bytes end inside a 16-byte chunk of wider rows ({row_stride} bytes); TMA "
            "writes whole chunks, and so what stands behind each row"
        )
    if matrix.address % PITCH_ALIGN_BYTES:
        found.append(f"it begins at {matrix.address:#x}; TMA takes multiples of {PITCH_ALIGN_BYTES} bytes")
    return found


def refuse(found: Iterable[Misfit], kernel: str, *, copy: bool, cast: bool) -> None:
    """LaunchError, listing every misfit, unless the arguments of the call mend them all."""
    found = list(found)
    if all((misfit.remedy == "copy" and copy) or (misfit.remedy == "cast" and cast) for misfit in found):
        return
    rules = "\n".join(f"  - {misfit.text}" for misfit in found)
    remedies = {misfit.remedy for misfit in found}
    ways_out = {"copy": "copy=True copies such arrays to where TMA takes them", "cast": "cast=True rounds them"}
    hint = "" if "" in remedies else "\n" + "; ".join(ways_out[remedy] for remedy in sorted(remedies))
    raise LaunchError(f"{kernel} cannot take these arrays:\n{rules}{hint}")
