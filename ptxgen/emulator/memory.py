"""State spaces as bytes: global memory with its buffers, and the block that backs every space.

Generic addresses are split into windows by their upper 32 bits: shared, local, parameter and
constant each have one, everything from GLOBAL_BASE up is global memory.
"""

from __future__ import annotations

import bisect
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxgen.emulator.values import LANES, MASK, POISON32, UNSIGNED, Lanes, Value
from ptxgen.errors import MachineError

Bytes = npt.NDArray[np.uint8]

SHARED_WINDOW = 1 << 32
LOCAL_WINDOW = 2 << 32
PARAM_WINDOW = 3 << 32
CONST_WINDOW = 4 << 32
GLOBAL_BASE = 0x7F00_0000_0000
GUARD_BYTES = 1 << 20
"""Unallocated bytes after each buffer, so that an overrun never lands in the next one."""

SHARED_RESERVED_BYTES = 1024
"""The system's share at the start of shared memory (CUDA occupancy rules, sm_90 and later)."""

RANK_SHIFT = 24
"""A shared::cluster address carries the CTA's rank from this bit upward."""

_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


class Block:
    """A run of bytes that is read and written by words of 1, 2, 4, 8, 16 or 32 bytes.

    `offsets` are byte offsets, one int or one per lane; they must be aligned to the access. An
    offset outside raises IndexError, which the caller turns into a finding.
    """

    __slots__ = ("data", "size", "views", "words")

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.size = data.size
        whole = data[: data.size & ~15]
        self.views: dict[int, npt.NDArray[Any]] = {
            1: data,
            2: whole.view(np.uint16),
            4: whole.view(np.uint32),
            8: whole.view(np.uint64),
            16: whole.view(np.complex128),  # moved as 16 raw bytes, never computed with
        }
        self.words: dict[int, memoryview] = {size: self.views[size].data for size in (1, 2, 4, 8)}

    def load_word(self, offset: int, size: int) -> int:
        if size == 16:
            words = self.words[8]
            return int(words[offset >> 3]) | (int(words[(offset >> 3) + 1]) << 64)
        return int(self.words[size][offset >> _SHIFT[size]])

    def store_word(self, offset: int, size: int, value: int) -> None:
        if size == 16:
            self.words[8][offset >> 3] = value & MASK[64]
            self.words[8][(offset >> 3) + 1] = value >> 64
        else:
            self.words[size][offset >> _SHIFT[size]] = value

    def load_lanes(self, offsets: Lanes, size: int, count: int) -> list[Lanes]:
        """`count` elements of `size` bytes from each offset: a list of arrays, one per element."""
        if size * count == 32:
            first = offsets >> 4
            wide = self.views[16][np.stack((first, first + 1), axis=1)]
            return _columns(wide, size, count)
        return self.load_words(offsets >> _SHIFT[size * count], size, count)

    def load_words(self, index: Lanes, size: int, count: int) -> list[Lanes]:
        """As load_lanes, with offsets counted in accesses of size·count bytes (at most 16)."""
        if count == 1 and size <= 8:
            return [self.views[size][index]]
        return _columns(self.views[size * count][index], size, count)

    def store_lanes(self, offsets: Lanes, size: int, values: list[Lanes]) -> None:
        """The inverse of load_lanes; where lanes overlap, the highest lane wins."""
        if size * len(values) == 32:
            first = offsets >> 4
            index = np.stack((first, first + 1), axis=1)
            self.views[16][index] = _rows(values, size).view(np.complex128)
        else:
            self.store_words(offsets >> _SHIFT[size * len(values)], size, values)

    def store_words(self, index: Lanes, size: int, values: list[Lanes]) -> None:
        """The inverse of load_words."""
        if len(values) == 1 and size <= 8:
            self.views[size][index] = values[0]
        else:
            view = self.views[size * len(values)]
            view[index] = _rows(values, size).view(view.dtype)[:, 0]


def _columns(wide: npt.NDArray[Any], size: int, count: int) -> list[Lanes]:
    """Wide words, one per lane, as a list of element arrays."""
    lanes = wide.shape[0]
    if size == 16:
        pairs = wide.reshape(lanes, count).view(np.uint64)
        return [pairs[:, 2 * i : 2 * i + 2] for i in range(count)]
    rows = wide.view(UNSIGNED[8 * size]).reshape(lanes, count)
    return list(np.ascontiguousarray(rows.T))


def _rows(values: list[Lanes], size: int) -> Lanes:
    """Element arrays as one contiguous (lanes, elements) array."""
    if size == 16:
        return np.concatenate(values, axis=1)
    return np.ascontiguousarray(np.concatenate(values).reshape(len(values), -1).T)


def poisoned(size_bytes: int) -> Bytes:
    """Fresh memory full of the poison word (values.POISON32); size rounded up to 16 bytes."""
    words = np.full(-(-size_bytes // 16) * 4, POISON32, dtype=np.uint32)
    return words.view(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A global allocation. `data` is its bytes, shared with forked worker processes."""

    name: str
    address: int
    size_bytes: int
    data: Bytes
    block: Block

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


class GlobalMemory:
    """The device's global memory: named buffers with unallocated bytes between them."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._starts: list[int] = []
        self._top = GLOBAL_BASE

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._buffers)

    def allocate(self, size_bytes: int, name: str, align: int = 256) -> Buffer:
        """A buffer of `size_bytes`, poisoned; `align` is a power of two. ValueError otherwise."""
        if size_bytes < 1 or align < 1 or align & (align - 1):
            raise ValueError(f"buffer {name}: size {size_bytes} must be positive and alignment {align} a power of two")
        address = -(-self._top // align) * align
        padded = -(-size_bytes // 16) * 16
        store = np.frombuffer(mmap.mmap(-1, padded), dtype=np.uint8)
        store.view(np.uint32)[:] = POISON32
        buffer = Buffer(name, address, size_bytes, store[:size_bytes], Block(store))
        self._top = address + padded + GUARD_BYTES
        self._buffers.append(buffer)
        self._starts.append(address)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Forgets a buffer; later accesses to its addresses are out of bounds."""
        at = self._buffers.index(buffer)
        del self._buffers[at], self._starts[at]

    def find(self, address: int, size_bytes: int = 1) -> Buffer:
        """The buffer that holds [address, address + size_bytes), or an out-of-bounds error."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at >= 0:
            buffer = self._buffers[at]
            if address + size_bytes <= buffer.end:
                return buffer
        raise MachineError("out-of-bounds", self.describe(address, size_bytes))

    def describe(self, address: int, size_bytes: int) -> str:
        """Why an address is in no buffer, with the nearest one named."""
        what = f"global address {address:#x} ({size_bytes} bytes) is in no buffer"
        if address & MASK[32] == POISON32 or address >> 32 == POISON32:
            return f"{what}; it holds the pattern of uninitialised memory"
        if not self._buffers:
            return f"{what}; nothing is allocated"
        near = min(
            self._buffers,
            key=lambda b: b.address - address if address < b.address else address - b.end,
        )
        place = (
            f"{near.address - address} bytes before"
            if address < near.address
            else f"{address - near.address} bytes into"
        )
        return f"{what}; nearest is {near.name!r} ({near.size_bytes} bytes), {place} it"

    def read(self, address: int, size_bytes: int) -> Bytes:
        """A view of the bytes at an address, all within one buffer."""
        buffer = self.find(address, size_bytes)
        start = address - buffer.address
        return buffer.data[start : start + size_bytes]


def local_offsets(address: Value, frame_bytes: int) -> Lanes:
    """Offsets into a warp's local block (lane-major frames) of a per-thread local address."""
    lanes = np.arange(LANES, dtype=np.int64) * frame_bytes
    return lanes + np.asarray(address, dtype=np.int64)
