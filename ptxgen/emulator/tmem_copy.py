"""tcgen05.cp: a matrix from shared memory into tensor memory (PTX ISA 9.1 §9.7.16.9).

The source is described as K-major rows of 16 or 32 bytes, which become lanes of 4 or 8 columns. Forms with
fewer rows than lanes write each of them several times.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ptxgen.emulator.smem_layout import Bytes, Ranges, SmemOperand
from ptxgen.emulator.tmem import Tmem, TmemRegion
from ptxgen.errors import MachineError, SpecError
from ptxgen.hardware import smem_descriptor
from ptxgen.hardware.tmem import COLUMNS, LANES, unpack_address


class CopyShape(NamedTuple):
    """Rows of the source, 32-bit columns of a row, and the row that each of the 128 lanes gets."""

    rows: int
    columns: int
    row_of_lane: tuple[int, ...]


COPY_SHAPES: dict[tuple[str, str], CopyShape] = {
    ("128x256b", ""): CopyShape(128, 8, tuple(range(128))),
    ("128x128b", ""): CopyShape(128, 4, tuple(range(128))),
    ("64x128b", "warpx2::02_13"): CopyShape(64, 4, tuple(lane % 64 for lane in range(LANES))),
    ("64x128b", "warpx2::01_23"): CopyShape(64, 4, tuple(lane // 64 * 32 + lane % 32 for lane in range(LANES))),
    ("32x128b", "warpx4"): CopyShape(32, 4, tuple(lane % 32 for lane in range(LANES))),
}
"""By shape and multicast form."""


def copy_in(tmem: Tmem, smem: Bytes, *, shape: CopyShape, address: int, descriptor: int) -> None:
    """Copies into all lanes of the columns from `address` on. MachineError: illegal-descriptor,
    out-of-bounds, tmem-lane-access, tmem-use-after-dealloc."""
    column = _column(address, shape)
    tmem.check_columns(column, shape.columns)
    rows: NDArray[Any] = _source(descriptor, shape).gather(smem)
    tmem.words[column : column + shape.columns] = rows.T[:, shape.row_of_lane]


def copy_accesses(*, shape: CopyShape, address: int, descriptor: int) -> tuple[Ranges, TmemRegion]:
    """What `copy_in` reads and writes, for observers."""
    column = _column(address, shape)
    region = TmemRegion(lanes=((0, LANES),), columns=((column, column + shape.columns),))
    return _source(descriptor, shape).ranges(), region


def _column(address: int, shape: CopyShape) -> int:
    lane, column = unpack_address(address)
    if lane:
        raise MachineError("tmem-lane-access", f"tcgen05.cp to TMEM lane {lane}: it writes all lanes, from lane 0 on")
    if column + shape.columns > COLUMNS:
        raise MachineError("out-of-bounds", f"tcgen05.cp to TMEM column {column} needs {shape.columns} of {COLUMNS}")
    return column


@lru_cache(maxsize=256)
def _source(value: int, shape: CopyShape) -> SmemOperand:
    try:
        descriptor = smem_descriptor.decode(value, "sm_100a")
    except SpecError as error:
        raise MachineError("illegal-descriptor", f"the source of tcgen05.cp: {error}") from None
    return SmemOperand([descriptor], major="K", element_bytes=4, mn=shape.rows, k=shape.columns)
