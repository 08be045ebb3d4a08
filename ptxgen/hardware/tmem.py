"""Tensor memory of sm_100a: 128 lanes x 512 columns of 32 bits per SM.

PTX ISA 9.1 §9.7.16.1 (addresses), §9.7.16.7 (allocation), §9.7.16.8 (load and store shapes),
§9.7.16.10.5 (accumulator layouts).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 128
COLUMNS = 512
MIN_ALLOCATION_COLUMNS = 32
WARP_LANES = 32


def pack_address(lane: int, column: int) -> int:
    """TMEM address: lane in bits 16-31, column in bits 0-15."""
    if not (0 <= lane < LANES and 0 <= column < COLUMNS):
        raise SpecError(
            f"TMEM lane {lane}, column {column}",
            [f"lanes are 0..{LANES - 1}, columns 0..{COLUMNS - 1}"],
        )
    return lane << 16 | column


def unpack_address(address: int) -> tuple[int, int]:
    """(lane, column) of a TMEM address, unchecked."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


def allocation_columns(columns: int) -> int:
    """Smallest legal allocation that holds `columns`: a power of two in 32..512."""
    if not 1 <= columns <= COLUMNS:
        raise SpecError(f"{columns} columns of TMEM", [f"an allocation has 1..{COLUMNS} columns"])
    return max(MIN_ALLOCATION_COLUMNS, 1 << (columns - 1).bit_length())


def is_allocation(columns: int) -> bool:
    """Whether `tcgen05.alloc` takes `columns`: a power of two in 32..512."""
    return MIN_ALLOCATION_COLUMNS <= columns <= COLUMNS and columns & (columns - 1) == 0


def warp_base_lane(warp: int) -> int:
    """First of the 32 lanes that warp `warp` of a CTA can load and store: 32·(warp mod 4)."""
    return warp % 4 * WARP_LANES


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorLayout:
    """Where D of one tcgen05.mma lies: `place(row, column)` -> (CTA of the pair, lane, column).

    Lanes are relative to the address's base lane, columns to its column. m and n are those of the
    whole instruction; every element takes a 32-bit column.
    """

    name: str
    m: int
    n: int
    ctas: int
    place: Callable[[int, int], tuple[int, int, int]]

    @property
    def columns(self) -> int:
        """TMEM columns per CTA."""
        return {"B": self.n // 2, "E": self.n // 2, "G": self.n // 4}.get(self.name, self.n)

    @property
    def row_lanes(self) -> tuple[int, ...]:
        """Lane of each row in the first column."""
        return tuple(self.place(row, 0)[1] for row in range(self.m))


def _half_lane(row: int) -> int:
    """Lane of row `row` of 64 when a warp's quarter holds 16 of its 32 lanes."""
    return 32 * (row // 16) + row % 16


@cache
def accumulator_layout(
    m: int, n: int, *, cta_group: int = 1, weight_stationary: bool = False, sparse: bool = False
) -> AccumulatorLayout:
    """The layout that the manual calls A to G, by shape; SpecError when there is none."""
    half, quarter = n // 2, n // 4
    layouts: dict[tuple[int, int, bool], tuple[str, Callable[[int, int], tuple[int, int, int]]]] = {
        (1, 128, False): ("D", lambda r, c: (0, r, c)),
        (1, 64, False): ("F", lambda r, c: (0, _half_lane(r), c)),
        (2, 256, False): ("A", lambda r, c: (r // 128, r % 128, c)),
        (2, 128, False): ("B", lambda r, c: (r // 64, r % 64 + 64 * (c // half), c % half)),
        (1, 128, True): ("D", lambda r, c: (0, r, c)),
        (1, 64, True): ("E", lambda r, c: (0, r + 64 * (c // half), c % half)),
        (1, 32, True): ("G", lambda r, c: (0, r + 32 * (c // quarter), c % quarter)),
    }
    if sparse and (cta_group, m) == (2, 128):
        name, place = "C", lambda r, c: (r // 64, _half_lane(r % 64), c)
    else:
        try:
            name, place = layouts[cta_group, m, weight_stationary]
        except KeyError:
            ws = ".ws" if weight_stationary else ""
            raise SpecError(
                f"an accumulator of tcgen05.mma{ws} with m {m} under cta_group::{cta_group}",
                ["m is 64 or 128 (.ws: 32, 64, 128) on one CTA, 128 or 256 on a pair"],
            ) from None
    return AccumulatorLayout(name=name, m=m, n=n, ctas=cta_group, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessShape:
    """A shape of tcgen05.ld and tcgen05.st.

    `place(thread, register)` -> (lane, column) relative to the address; for 16x32bx2 the columns
    of threads 16-31 count from the half split offset.
    """

    name: str
    lanes: int
    registers_per_repeat: int
    columns_per_repeat: int
    max_repeats: int
    place: Callable[[int, int], tuple[int, int]]

    def registers(self, repeats: int) -> int:
        """Registers of a thread for `.x{repeats}`; SpecError when the count is not legal."""
        if repeats not in REPEATS or repeats > self.max_repeats:
            legal = ", ".join(f"x{count}" for count in REPEATS if count <= self.max_repeats)
            raise SpecError(f"tcgen05.ld.{self.name}.x{repeats}", [f"the counts are {legal}"])
        return repeats * self.registers_per_repeat

    def columns(self, repeats: int, *, pack: bool = False) -> int:
        """Columns touched from one column address (by each half for 16x32bx2).

        `.pack::16b` and `.unpack::16b` put two columns into a register.
        """
        return repeats * self.columns_per_repeat * (2 if pack else 1)

    def positions(
        self, thread: int, register: int, *, pack: bool = False, half_split: int = 0
    ) -> tuple[tuple[int, int], ...]:
        """(lane, column) of a register: one, or with `pack` the low and the high half's column."""
        lane, column = self.place(thread, register)
        offset = half_split if self.name == "16x32bx2" and thread >= 16 else 0
        if not pack:
            return ((lane, column + offset),)
        return ((lane, 2 * column + offset), (lane, 2 * column + 1 + offset))


REPEATS = (1, 2, 4, 8, 16, 32, 64, 128)

ACCESS_SHAPES: dict[str, AccessShape] = {
    shape.name: shape
    for shape in (
        AccessShape(
            name="32x32b",
            lanes=32,
            registers_per_repeat=1,
            columns_per_repeat=1,
            max_repeats=128,
            place=lambda t, i: (t, i),
        ),
        AccessShape(
            name="16x64b",
            lanes=16,
            registers_per_repeat=1,
            columns_per_repeat=2,
            max_repeats=128,
            place=lambda t, i: (8 * (t & 1) + (t >> 2), 2 * i + (t >> 1 & 1)),
        ),
        AccessShape(
            name="16x128b",
            lanes=16,
            registers_per_repeat=2,
            columns_per_repeat=4,
            max_repeats=64,
            place=lambda t, i: ((t >> 2) + 8 * (i & 1), 4 * (i >> 1) + (t & 3)),
        ),
        AccessShape(
            name="16x256b",
            lanes=16,
            registers_per_repeat=4,
            columns_per_repeat=8,
            max_repeats=32,
            place=lambda t, i: (
                (t >> 2) + 8 * (i >> 1 & 1),
                8 * (i >> 2) + 2 * (t & 3) + (i & 1),
            ),
        ),
        AccessShape(
            name="16x32bx2",
            lanes=16,
            registers_per_repeat=1,
            columns_per_repeat=1,
            max_repeats=128,
            place=lambda t, i: (t % 16, i),
        ),
    )
}


def access_shape(name: str) -> AccessShape:
    """The shape of tcgen05.ld/st called `name`; UnknownNameError otherwise."""
    try:
        return ACCESS_SHAPES[name]
    except KeyError:
        raise UnknownNameError("tcgen05.ld shape", name, ACCESS_SHAPES) from None
