"""Tensor copies between global and shared memory, as cp.async.bulk.tensor does them.

A box lies row by row in shared memory, innermost dimension fastest: dense, or with a swizzle one
row per span, then swizzled. Loads fill out-of-bounds elements; stores clip outer dimensions per
element and the innermost one in 16-byte chunks. All of it agrees byte by byte with an H200.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ptxgen.emulator.reductions import reduce_elements
from ptxgen.emulator.smem_layout import (
    CHUNK,
    CHUNK_BYTES,
    CHUNK_TYPES,
    Bytes,
    Index,
    Ranges,
    gather_swizzled,
    merge_ranges,
    place_swizzled,
    swizzled_chunks,
    swizzled_range,
)
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.tensor_map import COORDINATE_ALIGN_BYTES, SMEM_ALIGN_BYTES, TensorMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ptxgen.hardware.swizzle import Swizzle

__all__ = ["BoundTensor", "GlobalBytes", "gather_swizzled", "place_swizzled"]

Coordinates = tuple[int, ...]

# Types that TMA converts on the way; only copies are modelled.
_CONVERTED = ("f32_ftz", "tf32", "tf32_ftz")

# What an H200 fills every two bytes of a floating-point element with: f32 0x7FF77FF7.
_NAN_FILL = 0x7FF7


class GlobalBytes(Protocol):
    """What a tensor needs of global memory."""

    def view(self, address: int, nbytes: int) -> Bytes:
        """The bytes themselves, not a copy; MachineError("out-of-bounds") when not allocated."""
        ...


class BoundTensor:
    """A tensor map together with the global memory that it points into.

    Coordinates run from the innermost dimension outwards. Keep one object per tensor map: it
    holds views of the whole tensor and the index arrays of whole-box loads.
    """

    __slots__ = (
        "_box",
        "_chunk_grid",
        "_elements",
        "_flat",
        "_last",
        "_memory",
        "_plans",
        "_row",
        "_size",
        "_span",
        "_steps",
        "tensor_map",
    )

    def __init__(self, tensor_map: TensorMap, memory: GlobalBytes) -> None:
        element = tensor_map.element_type
        if tensor_map.interleave != "none":
            raise NotSupportedError(f"tensor maps with interleave {tensor_map.interleave} are not modelled")
        if element.is_packed or element.name in _CONVERTED:
            raise NotSupportedError(f"tensor copies of {element} are not modelled")
        self.tensor_map = tensor_map
        self._memory = memory
        self._steps = (element.bytes, *tensor_map.strides_bytes)
        self._box = tensor_map.box_elements
        # Largest coordinates of a box that lies wholly inside.
        traversal = (1, *tensor_map.element_strides[1:])
        self._last = tuple(
            size - (count - 1) * stride - 1
            for size, count, stride in zip(tensor_map.dims, self._box, traversal, strict=True)
        )
        self._span = CHUNK_BYTES + sum(
            (count - 1) * stride * step for count, stride, step in zip(self._box, traversal, self._steps, strict=True)
        )
        self._size, self._row = tensor_map.box_bytes, tensor_map.inner_box_bytes
        self._elements: NDArray[Any] | None = None
        self._chunk_grid: NDArray[Any] | None = None
        self._flat: NDArray[Any] | None = None
        self._plans: dict[int, Index | None] = {}

    # Loads

    def load(self, coordinates: Coordinates, smem: Bytes, address: int) -> None:
        """Copy the box at `coordinates` to shared address `address`: rules, fill and swizzle."""
        self.check(coordinates, address)
        for coordinate, last in zip(coordinates, self._last, strict=True):
            if not 0 <= coordinate <= last:
                break
        else:
            phase = address % self.tensor_map.swizzle.pattern_bytes
            if phase not in self._plans:
                self._plans[phase] = self._plan(phase)
            places = self._plans[phase]
            if places is not None and sum(self.smem_range(address)) <= smem.size:
                size = self.tensor_map.swizzle.chunk_bytes
                offset = sum(map(int.__mul__, coordinates, self._steps)) // size
                first = address // size
                target = smem.view(CHUNK_TYPES[size])[first : first + places.size]
                # "clip" lets NumPy write straight into `target`; every place is in range.
                self._source()[offset:].take(places, out=target, mode="clip")
                return
        tensor_map = self.tensor_map
        place_swizzled(smem, address, self.load_box(coordinates), tensor_map.inner_box_bytes, tensor_map.swizzle)

    def load_box(self, coordinates: Coordinates) -> Bytes:
        """The box at `coordinates`, dense, as a new array of `tensor_map.box_bytes` bytes.

        Elements outside are 0, or with NaN fill 0x7FF7 in every two bytes, as H200s do.
        """
        self.check(coordinates)
        size = self.tensor_map.element_type.bytes
        dense = np.zeros(self._box[::-1], f"u{size}")
        if self.tensor_map.oob_fill == "nan":
            dense.view(np.uint16)[...] = _NAN_FILL
        inner = self._inside(coordinates[0], self._box[0], self.tensor_map.dims[0], 1)
        box, tensor = self._outer(coordinates)
        source, target = (*tensor, inner[1]), (*box, inner[0])
        dense[target] = self._all_elements()[source]
        return dense.reshape(-1).view(np.uint8)

    # Stores

    def gather(self, smem: Bytes, address: int) -> Bytes:
        """The box that a store from shared address `address` reads, dense, as a new array."""
        return gather_swizzled(smem, address, self._size, self._row, self.tensor_map.swizzle)

    def store_box(self, coordinates: Coordinates, dense: Bytes) -> None:
        """Write a dense box (as `gather` returns it) at `coordinates`, clipped."""
        region, box = self._store_region(coordinates)
        region[...] = dense.view(CHUNK).reshape(self._box_chunks())[box]

    def clipped(self, coordinates: Coordinates, dense: Bytes) -> Bytes:
        """The bytes of a dense box that `store_box` would write."""
        _, box = self._store_region(coordinates)
        return np.ascontiguousarray(dense.view(CHUNK).reshape(self._box_chunks())[box]).view(np.uint8)

    def reduce_box(self, coordinates: Coordinates, dense: Bytes, operation: str) -> None:
        """cp.reduce.async.bulk.tensor: combine a dense box with the tensor, clipped like a store.

        `operation` is add, min, max, inc, dec, and, or, xor; NotSupportedError when the element
        type does not have it.
        """
        region, _ = self._store_region(coordinates)
        element = self.tensor_map.element_type.name
        new = self.clipped(coordinates, dense)
        old = np.ascontiguousarray(region).view(np.uint8)
        region[...] = reduce_elements(operation, element, old, new).view(CHUNK).reshape(region.shape)

    # Rules and footprints

    def check(self, coordinates: Coordinates, address: int | None = None) -> None:
        """Rules of every tensor copy; MachineError names the broken one."""
        if len(coordinates) != len(self._steps):
            raise MachineError(
                "illegal-tensor-copy",
                f"{len(coordinates)} coordinates for a tensor map of rank {self.tensor_map.rank}",
            )
        if coordinates[0] * self._steps[0] % COORDINATE_ALIGN_BYTES:
            raise MachineError(
                "illegal-tensor-copy",
                f"innermost coordinate {coordinates[0]} of {self._steps[0]}-byte elements is byte"
                f" {coordinates[0] * self._steps[0]}, not a multiple of {COORDINATE_ALIGN_BYTES}",
            )
        if address is not None and address % SMEM_ALIGN_BYTES:
            raise MachineError(
                "misaligned-address",
                f"shared address {address:#x} of a tensor copy is not a multiple of {SMEM_ALIGN_BYTES}",
            )

    def check_store(self, coordinates: Coordinates, address: int | None = None) -> None:
        """`check`, and no negative coordinate."""
        self.check(coordinates, address)
        if min(coordinates) < 0:
            raise MachineError("illegal-tensor-copy", f"a tensor store at negative coordinates {coordinates}")

    def smem_range(self, address: int) -> tuple[int, int]:
        """(shared address, bytes) that a copy at `address` reads or writes."""
        return swizzled_range(address, self._size, self._row, self.tensor_map.swizzle)

    def read_rows(self, coordinates: Coordinates) -> tuple[Index, int]:
        """Where the rows begin in global memory that a load at `coordinates` reads, and the bytes of each."""
        self.check(coordinates)
        size = self._steps[0]
        _, inner = self._inside(coordinates[0], self._box[0], self.tensor_map.dims[0], 1)
        return self._rows(coordinates, inner.start * size, (inner.stop - inner.start) * size)

    def write_rows(self, coordinates: Coordinates) -> tuple[Index, int]:
        """The same of a store, clipped chunks included."""
        self.check_store(coordinates)
        return self._rows(coordinates, coordinates[0] * self._steps[0], self._inner_chunks(coordinates) * CHUNK_BYTES)

    def read_ranges(self, coordinates: Coordinates) -> Ranges:
        """Global bytes that a load at `coordinates` reads."""
        return _joined(*self.read_rows(coordinates))

    def write_ranges(self, coordinates: Coordinates) -> Ranges:
        """Global bytes that a store at `coordinates` writes, clipped chunks included."""
        return _joined(*self.write_rows(coordinates))

    def bounds(self, coordinates: Coordinates) -> tuple[int, int]:
        """Global addresses [start, stop) that a copy at `coordinates` stays within."""
        address = self.tensor_map.address
        if min(coordinates) >= 0 and all(map(int.__le__, coordinates, self._last)):
            low = address + sum(map(int.__mul__, coordinates, self._steps))
            return low, low + self._span
        strides = (1, *self.tensor_map.element_strides[1:])
        low = high = 0
        for at, count, size, stride, step in zip(
            coordinates, self._box, self.tensor_map.dims, strides, self._steps, strict=True
        ):
            low += max(0, min(at, size - 1)) * step
            high += max(0, min(at + (count - 1) * stride, size - 1)) * step
        return address + low, address + high + CHUNK_BYTES

    # Parts

    @staticmethod
    def _inside(coordinate: int, count: int, size: int, stride: int) -> tuple[slice, slice]:
        """(positions in the box, positions in the tensor) that a dimension has inside."""
        first = max(0, -(coordinate // stride))
        stop = max(first, min(count, -((coordinate - size) // stride)))
        begin = coordinate + first * stride
        end = begin + (stop - first - 1) * stride + 1 if stop > first else begin
        return slice(first, stop), slice(max(begin, 0), max(end, 0), stride)

    def _outer(self, coordinates: Coordinates) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Slices of box and tensor for all dimensions but the innermost, outermost first."""
        tensor_map = self.tensor_map
        pairs = [
            self._inside(coordinates[d], self._box[d], tensor_map.dims[d], tensor_map.element_strides[d])
            for d in range(tensor_map.rank - 1, 0, -1)
        ]
        return tuple(box for box, _ in pairs), tuple(tensor for _, tensor in pairs)

    def _rows(self, coordinates: Coordinates, first: int, nbytes: int) -> tuple[Index, int]:
        starts = np.array([self.tensor_map.address + first], np.int64)
        _, tensor = self._outer(coordinates)
        for piece, size, step in zip(tensor, self.tensor_map.dims[:0:-1], self._steps[:0:-1], strict=True):
            starts = np.add.outer(starts, step * np.arange(*piece.indices(size)))
        starts = starts.reshape(-1)
        return (starts, nbytes) if nbytes > 0 and starts.size else (starts[:0], 0)

    def _inner_chunks(self, coordinates: Coordinates) -> int:
        """Chunks of a box row that a store writes: the last one may reach beyond the row's end."""
        left = (self.tensor_map.dims[0] - coordinates[0]) * self._steps[0]
        return max(0, min(self.tensor_map.inner_box_bytes, left) + CHUNK_BYTES - 1) // CHUNK_BYTES

    def _box_chunks(self) -> tuple[int, ...]:
        return (*self._box[:0:-1], self.tensor_map.inner_box_bytes // CHUNK_BYTES)

    def _store_region(self, coordinates: Coordinates) -> tuple[NDArray[Any], tuple[slice, ...]]:
        """(the written chunks as a view of global memory, their slices of the box)."""
        self.check_store(coordinates)
        box, tensor = self._outer(coordinates)
        first, count = coordinates[0] * self._steps[0] // CHUNK_BYTES, self._inner_chunks(coordinates)
        if count == 0 or any(piece.start == piece.stop for piece in tensor):
            first = count = 0
        if (first + count) * CHUNK_BYTES <= self.tensor_map.dims[0] * self._steps[0]:
            grid = self._whole_chunks()
        else:
            # Bytes beyond a row's end: ask memory for exactly what this store touches.
            sizes = (*(piece.stop for piece in tensor), first + count)
            grid = self._grid(sizes, CHUNK, CHUNK_BYTES)
        where = (*tensor, slice(first, first + count))
        return grid[where], (*box, slice(0, count))

    def _grid(self, sizes: tuple[int, ...], dtype: np.dtype[Any], inner_bytes: int) -> NDArray[Any]:
        """A strided view of the tensor's first `sizes` (outermost first) items of `dtype`."""
        strides = (*self._steps[:0:-1], inner_bytes)
        if min(sizes) == 0:  # a row shorter than a chunk
            return np.empty(sizes, dtype)
        extent = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + inner_bytes
        raw = self._memory.view(self.tensor_map.address, extent)
        grid: NDArray[Any] = np.ndarray(sizes, dtype, raw.data, strides=strides)
        return grid

    def _all_elements(self) -> NDArray[Any]:
        if self._elements is None:
            size = self._steps[0]
            self._elements = self._grid(self.tensor_map.dims[::-1], np.dtype(f"u{size}"), size)
        return self._elements

    def _whole_chunks(self) -> NDArray[Any]:
        if self._chunk_grid is None:
            whole = self.tensor_map.dims[0] * self._steps[0] // CHUNK_BYTES
            self._chunk_grid = self._grid((*self.tensor_map.dims[:0:-1], whole), CHUNK, CHUNK_BYTES)
        return self._chunk_grid

    def _source(self) -> NDArray[Any]:
        """The tensor's bytes from its address on, flat, in chunks of the swizzle."""
        if self._flat is None:
            dims = self.tensor_map.dims
            extent = sum((size - 1) * step for size, step in zip(dims, self._steps, strict=True)) + self._steps[0]
            size = self.tensor_map.swizzle.chunk_bytes
            raw = self._memory.view(self.tensor_map.address, extent)
            self._flat = raw[: extent // size * size].view(CHUNK_TYPES[size])
        return self._flat

    def _plan(self, phase: int) -> Index | None:
        """For each chunk of the destination, the chunk of the source counted from the box's first.

        None when the box does not fill its own bytes: rows shorter than the swizzle's span, or
        chunks that move out.
        """
        tensor_map = self.tensor_map
        return _load_plan(
            tensor_map.inner_box_bytes,
            self._box[1:],
            tuple(map(int.__mul__, tensor_map.element_strides[1:], tensor_map.strides_bytes)),
            phase,
            tensor_map.swizzle,
        )


def _joined(starts: Index, nbytes: int) -> Ranges:
    return merge_ranges(starts, nbytes) if nbytes else ()


@lru_cache(maxsize=256)
def _load_plan(
    inner_bytes: int, outer: tuple[int, ...], strides: tuple[int, ...], phase: int, swizzle: Swizzle
) -> Index | None:
    size = swizzle.chunk_bytes
    source = np.arange(0, inner_bytes, size, dtype=np.intp)
    for count, stride in zip(outer, strides, strict=True):
        source = np.add.outer(stride * np.arange(count, dtype=np.intp), source)
    source = source.reshape(-1) // size
    target = swizzled_chunks(source.size * size, inner_bytes, phase, swizzle) - phase // size
    if not np.array_equal(np.sort(target), np.arange(target.size)):
        return None
    places = np.empty_like(source)
    places[target] = source
    return places
