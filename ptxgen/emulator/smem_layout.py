"""Shared memory as 16-byte chunks: what swizzles and matrix descriptors permute.

Every layout of TMA and the tensor cores keeps 16 (with one swizzle 8) neighbouring bytes
together, so one NumPy take or put of chunks moves a whole tile. Index arrays depend only on
shapes and alignment and are cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.smem_descriptor import Major, SmemDescriptor, operand_offset
from ptxgen.hardware.swizzle import Swizzle

Bytes = NDArray[np.uint8]
Index = NDArray[np.intp]
Ranges = tuple[tuple[int, int], ...]
"""(address, bytes) pairs, ascending and disjoint."""

CHUNK_BYTES = 16

# Void types gather as fast as numbers of the same size and ask for no alignment.
CHUNK_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype("V8"), 16: np.dtype("V16")}
CHUNK = CHUNK_TYPES[CHUNK_BYTES]


def swizzle_addresses(addresses: Index, swizzle: Swizzle) -> Index:
    """`swizzle.apply` of an array of byte addresses."""
    swizzled: Index = addresses.copy()
    for shift, mask in swizzle.value[2]:
        swizzled ^= (addresses >> shift) & mask
    return swizzled


def merge_ranges(starts: Sequence[int] | Index, size: int) -> Ranges:
    """Pieces of `size` bytes at `starts`, sorted and with neighbours joined."""
    merged: list[tuple[int, int]] = []
    for start in sorted(map(int, starts)):
        if merged and start <= sum(merged[-1]):
            first = merged[-1][0]
            merged[-1] = (first, max(sum(merged[-1]), start + size) - first)
        else:
            merged.append((start, size))
    return tuple(merged)


def row_pitch(row_bytes: int, swizzle: Swizzle) -> int:
    """Bytes from one box row to the next in shared memory: a swizzle's span, or dense without one.

    H200s leave the rest of the span alone when a box row is shorter.
    """
    return row_bytes if swizzle is Swizzle.NONE else swizzle.span_bytes


@lru_cache(maxsize=1024)
def swizzled_chunks(nbytes: int, row_bytes: int, phase: int, swizzle: Swizzle) -> Index:
    """Places of the chunks of box rows from address `phase` on, swizzled.

    `phase` is an address modulo the swizzle's pattern; places count in chunks from the start of
    that pattern.
    """
    size = swizzle.chunk_bytes
    rows = row_pitch(row_bytes, swizzle) * np.arange(nbytes // row_bytes, dtype=np.intp)
    linear = np.add.outer(rows, np.arange(0, row_bytes, size, dtype=np.intp)).reshape(-1)
    places = swizzle_addresses(phase + linear, swizzle) // size
    places.flags.writeable = False
    return places


def place_swizzled(smem: Bytes, address: int, dense: Bytes, row_bytes: int, swizzle: Swizzle) -> None:
    """Write the box rows `dense`, of `row_bytes` each, from `address` on, through the swizzle.

    All three sizes are multiples of 16.
    """
    chunks, places = _window(smem, address, dense.size, row_bytes, swizzle)
    chunks[places] = dense.view(chunks.dtype)


def gather_swizzled(smem: Bytes, address: int, nbytes: int, row_bytes: int, swizzle: Swizzle) -> Bytes:
    """Inverse of `place_swizzled`: `nbytes` bytes of box rows from `address` on, as a new dense array."""
    chunks, places = _window(smem, address, nbytes, row_bytes, swizzle)
    return chunks.take(places).view(np.uint8)


def swizzled_range(address: int, nbytes: int, row_bytes: int, swizzle: Swizzle) -> tuple[int, int]:
    """(address, bytes) of the whole rows of the swizzle that box rows of `nbytes` in all touch."""
    span = swizzle.span_bytes
    first = address // span * span
    last = address + (nbytes // row_bytes - 1) * row_pitch(row_bytes, swizzle) + row_bytes
    return first, -(-last // span) * span - first


def _window(smem: Bytes, address: int, nbytes: int, row_bytes: int, swizzle: Swizzle) -> tuple[NDArray[Any], Index]:
    _, pattern, _ = swizzle.value
    size = swizzle.chunk_bytes
    phase = address % pattern
    first, touched = swizzled_range(address, nbytes, row_bytes, swizzle)
    if first + touched > smem.size:
        raise MachineError(
            "out-of-bounds",
            f"{touched} bytes from shared address {first:#x} on end beyond the {smem.size} bytes of shared memory",
        )
    window = smem.view(CHUNK_TYPES[size])[(address - phase) // size :]
    return window, swizzled_chunks(nbytes, row_bytes, phase, swizzle)


class SmemOperand:
    """One matrix operand in shared memory, as descriptors along K describe it.

    `gather` returns raw elements: [mn, k] when K-major, [k, mn] when MN-major, the K of all
    descriptors one after the other.
    """

    __slots__ = ("_element", "_end", "_places", "_ranges", "_shape", "major")

    def __init__(
        self, descriptors: Sequence[SmemDescriptor], *, major: Major, element_bytes: int, mn: int, k: int
    ) -> None:
        """`mn` rows (or columns) by `k` elements of K for each descriptor.

        MachineError("illegal-descriptor") when the operand starts inside a swizzle pattern,
        NotSupportedError for base offsets, whose effect no source states.
        """
        self.major = major
        per_chunk = CHUNK_BYTES // element_bytes
        mn_positions = range(0, mn, 1 if major == "K" else per_chunk)
        k_positions = range(0, k, per_chunk if major == "K" else 1)
        blocks = []
        for descriptor in descriptors:
            _check_start(descriptor)

            def offset(mn: int, k: int, descriptor: SmemDescriptor = descriptor) -> int:
                return operand_offset(descriptor, major=major, element_bytes=element_bytes, mn=mn, k=k)

            # Offsets are a sum of a part of mn and a part of k in every layout.
            along_mn = np.array([offset(position, 0) for position in mn_positions], dtype=np.intp)
            along_k = np.array([offset(0, position) for position in k_positions], dtype=np.intp)
            linear = np.add.outer(along_mn, along_k) if major == "K" else np.add.outer(along_k, along_mn)
            blocks.append(swizzle_addresses(linear + descriptor.start_address, descriptor.swizzle))
        addresses = np.concatenate(blocks, axis=1 if major == "K" else 0)
        self._places: Index = np.ascontiguousarray(addresses // CHUNK_BYTES).reshape(-1)
        self._end = int(addresses.max()) + CHUNK_BYTES
        self._ranges: Ranges | None = None
        self._element = np.dtype(f"u{element_bytes}")
        k_total = k * len(descriptors)
        self._shape = (mn, k_total) if major == "K" else (k_total, mn)

    def gather(self, smem: Bytes) -> NDArray[Any]:
        """The operand's elements as unsigned integers, a new C-contiguous array."""
        _require_inside(self._end, smem.size)
        return smem.view(CHUNK).take(self._places).view(self._element).reshape(self._shape)

    def ranges(self) -> Ranges:
        """The shared-memory bytes that a gather reads."""
        if self._ranges is None:
            self._ranges = merge_ranges(self._places * CHUNK_BYTES, CHUNK_BYTES)
        return self._ranges


def check_reach(ranges: Ranges, smem_bytes: int) -> None:
    """What an operand's `ranges` have to keep; `gather` does it by itself. MachineError: out-of-bounds."""
    if ranges:
        _require_inside(sum(ranges[-1]), smem_bytes)


def _require_inside(end: int, smem_bytes: int) -> None:
    if end > smem_bytes:
        raise MachineError(
            "out-of-bounds",
            f"a matrix descriptor reaches shared address {end - 1:#x}, beyond the {smem_bytes} bytes of shared memory",
        )


def _check_start(descriptor: SmemDescriptor) -> None:
    if descriptor.base_offset:
        raise NotSupportedError(
            f"matrix descriptor with base offset {descriptor.base_offset}: only 0 is modelled;"
            f" align tiles to the {descriptor.swizzle.pattern_bytes} bytes of their swizzle pattern"
        )
    if descriptor.absolute_lbo:
        raise MachineError("illegal-descriptor", "absolute leading offsets (bit 52) exist on sm_103a only")
    if descriptor.start_address % descriptor.swizzle.pattern_bytes >= descriptor.swizzle.span_bytes:
        raise MachineError(
            "illegal-descriptor",
            f"the operand at shared address {descriptor.start_address:#x} starts inside a swizzle pattern of"
            f" {descriptor.swizzle.pattern_bytes} bytes while its base offset is 0: align the tile, or step"
            f" along K inside the pattern's first row of {descriptor.swizzle.span_bytes} bytes",
        )
