"""Tensor memory of one CTA: contents, allocation, and the accesses of tcgen05.ld and tcgen05.st.

Words are kept column by column, 128 lanes each, so that an accumulator tile is one contiguous
block and a 32x32b load, registers by threads, a plain copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import MachineError
from ptxgen.hardware.tmem import (
    COLUMNS,
    LANES,
    MIN_ALLOCATION_COLUMNS,
    WARP_LANES,
    access_shape,
    is_allocation,
    pack_address,
    unpack_address,
    warp_base_lane,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TmemRegion:
    """Lanes by columns, each as half-open ranges: everything in the product of the two."""

    lanes: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]


class Tmem:
    """128 lanes x 512 columns of 32 bits; `words[column, lane]`.

    `fill` is the word that memory holds before anything is written. `floats` is the same memory
    as f32.
    """

    __slots__ = ("_allocations", "_checked", "_freed", "_last_columns", "_permit", "_reserved", "floats", "words")

    def __init__(self, fill: int = 0xFFFFFFFF) -> None:
        self.words: NDArray[np.uint32] = np.empty((COLUMNS, LANES), np.uint32)
        self.floats: NDArray[np.float32] = self.words.view(np.float32)
        self.reset(fill)

    def reset(self, fill: int = 0xFFFFFFFF) -> None:
        """As new, for the next CTA."""
        self.words.fill(fill)
        self._allocations: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        self._freed: set[int] = set()
        self._checked: set[tuple[int, int]] = set()
        self._last_columns = COLUMNS
        self._permit = True

    # Allocation

    def alloc(self, columns: int) -> int | None:
        """`tcgen05.alloc`: the address, or None while no space is free and the warp has to wait."""
        column = self.room(columns)
        if column is None:
            return None
        self._allocate(column, columns)
        return pack_address(0, column)

    def reserve(self, column: int, columns: int) -> None:
        """Keeps columns for the CTA's part of an allocation that the other CTA of its pair has made."""
        self._reserved[column] = columns

    def alloc_reserved(self, column: int) -> int:
        """`tcgen05.alloc` of what was reserved: the address."""
        self._allocate(column, self._reserved.pop(column))
        return pack_address(0, column)

    def _allocate(self, column: int, columns: int) -> None:
        self._allocations[column] = self._last_columns = columns
        self._freed.difference_update(range(column, column + columns))

    def room(self, columns: int) -> int | None:
        """The column at which an allocation would start now, with its rules checked."""
        if not self._permit:
            raise MachineError(
                "alloc-after-relinquish", f"tcgen05.alloc of {columns} columns after relinquish_alloc_permit"
            )
        if not is_allocation(columns):
            raise MachineError(
                "illegal-tmem-allocation",
                f"tcgen05.alloc of {columns} columns: it takes a power of two in {MIN_ALLOCATION_COLUMNS}..{COLUMNS}",
            )
        if columns > self._last_columns:
            raise MachineError(
                "illegal-tmem-allocation",
                f"tcgen05.alloc of {columns} columns after one of {self._last_columns}:"
                " successive allocations of a CTA must not grow",
            )
        taken = [*self._allocations.items(), *self._reserved.items()]
        for column in range(0, COLUMNS, columns):
            if all(column + columns <= first or first + size <= column for first, size in taken):
                return column
        return None

    def dealloc(self, address: int, columns: int) -> None:
        """`tcgen05.dealloc`: address and columns are those of one allocation."""
        lane, column = unpack_address(address)
        if lane or self._allocations.get(column) != columns:
            rule = "tmem-use-after-dealloc" if column in self._freed else "illegal-tmem-allocation"
            raise MachineError(
                rule,
                f"tcgen05.dealloc of {columns} columns at {address:#010x};{self._describe_allocations()}",
            )
        del self._allocations[column]
        self._freed.update(range(column, column + columns))
        self._checked.clear()

    def relinquish(self) -> None:
        """`tcgen05.relinquish_alloc_permit`."""
        self._permit = False

    def check_exit(self) -> None:
        """What must hold when the CTA ends: everything allocated is deallocated."""
        if self._allocations:
            raise MachineError("tmem-leak", f"the CTA ends without tcgen05.dealloc;{self._describe_allocations()}")

    def check_columns(self, first: int, count: int) -> None:
        """MachineError unless columns first..first+count-1 are allocated."""
        if (first, count) in self._checked:
            return
        for column in range(first, first + count):
            if not any(start <= column < start + size for start, size in self._allocations.items()):
                rule = "tmem-use-after-dealloc" if column in self._freed else "out-of-bounds"
                state = "deallocated" if column in self._freed else "not allocated"
                raise MachineError(
                    rule,
                    f"TMEM columns {first}..{first + count - 1} are used but column {column} is {state};"
                    + self._describe_allocations(),
                )
        self._checked.add((first, count))

    def _describe_allocations(self) -> str:
        if not self._allocations:
            return " nothing is allocated"
        pieces = ", ".join(f"{first}..{first + size - 1}" for first, size in sorted(self._allocations.items()))
        return f" allocated columns: {pieces}"

    # Loads and stores

    def load(
        self, shape: str, repeats: int, warp: int, address: int, *, pack: bool = False, half_split: int = 0
    ) -> NDArray[np.uint32]:
        """`tcgen05.ld.{shape}.x{repeats}` of warp `warp` of the CTA: (registers, 32 threads), new.

        `pack` is `.pack::16b`: two columns' low halves in a register.
        """
        lane, column = self._locate(shape, repeats, warp, address, pack, half_split)
        if shape == "32x32b" and not pack:
            block: NDArray[np.uint32] = self.words[column : column + repeats, lane : lane + WARP_LANES].copy()
            return block
        window = self.words.reshape(-1)[column * LANES + lane :]
        low, high = _places(shape, repeats, pack, half_split)
        values: NDArray[np.uint32] = window.take(low)
        if high is not None:
            values = (values & np.uint32(0xFFFF)) | (window.take(high) << np.uint32(16))
        return values

    def store(
        self,
        shape: str,
        repeats: int,
        warp: int,
        address: int,
        values: NDArray[np.uint32],
        *,
        unpack: bool = False,
        half_split: int = 0,
    ) -> None:
        """`tcgen05.st.{shape}.x{repeats}`: `values` is (registers, 32 threads) of u32.

        `unpack` is `.unpack::16b`: the halves of a register go to two columns, zero-extended.
        """
        lane, column = self._locate(shape, repeats, warp, address, unpack, half_split)
        if shape == "32x32b" and not unpack:
            self.words[column : column + repeats, lane : lane + WARP_LANES] = values
            return
        window = self.words.reshape(-1)[column * LANES + lane :]
        low, high = _places(shape, repeats, unpack, half_split)
        if high is None:
            window[low] = values
        else:
            window[low] = values & 0xFFFF
            window[high] = values >> 16

    def access_region(
        self, shape: str, repeats: int, warp: int, address: int, *, pack: bool = False, half_split: int = 0
    ) -> TmemRegion:
        """What a load or store of these operands touches, with all its rules checked."""
        lane, column = self._locate(shape, repeats, warp, address, pack, half_split)
        kind = access_shape(shape)
        count = kind.columns(repeats, pack=pack)
        columns = [(column, column + count)]
        if shape == "16x32bx2":
            columns.append((column + half_split, column + half_split + count))
        return TmemRegion(lanes=((lane, lane + kind.lanes),), columns=tuple(columns))

    def _locate(
        self, shape: str, repeats: int, warp: int, address: int, pack: bool, half_split: int
    ) -> tuple[int, int]:
        """(lane, column) where the access starts; lane and columns are legal."""
        lane, column = unpack_address(address)
        own = warp_base_lane(warp)
        offsets = (0,) if shape == "32x32b" else (0, 16)
        offset = lane - own
        if lane_is_implicit(warp, address):
            offset = lane
        if offset not in offsets:
            legal = " or ".join(str(own + offset) for offset in offsets)
            raise MachineError(
                "tmem-lane-access",
                f"warp {warp} accesses TMEM from lane {lane} with shape {shape}: it may start at lane {legal}",
            )
        count = access_shape(shape).columns(repeats, pack=pack)
        self.check_columns(column, count)
        if shape == "16x32bx2":
            self.check_columns(column + half_split, count)
        return own + offset, column


def lane_is_implicit(warp: int, address: int) -> bool:
    """Whether the lane field leaves out the warp's own base lane.

    Hardware outside debug builds fills it in, so the access works; kernels should not rely on it.
    """
    return warp_base_lane(warp) != 0 and unpack_address(address)[0] in (0, 16)


@lru_cache(maxsize=256)
def _places(shape: str, repeats: int, pack: bool, half_split: int) -> tuple[NDArray[np.intp], NDArray[np.intp] | None]:
    """Word indices from the first word on, (registers, threads); with `pack` of both halves."""
    kind = access_shape(shape)
    positions: NDArray[Any] = np.array(
        [
            [kind.positions(thread, register, pack=pack, half_split=half_split) for thread in range(32)]
            for register in range(kind.registers(repeats))
        ],
        dtype=np.intp,
    )
    words = positions[..., 1] * LANES + positions[..., 0]
    return np.ascontiguousarray(words[..., 0]), np.ascontiguousarray(words[..., 1]) if pack else None
