"""Global bytes that a cluster reads and writes, kept compactly, and overlaps between clusters.

Clusters of one launch are ordered by nothing (unless they synchronise through memory, in which
case the launch runs in one process and this check does not apply): a byte that one writes and
another reads or writes is a race.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptxgen.emulator.memory import GlobalMemory
from ptxgen.emulator.values import Lanes
from ptxgen.hardware.tensor_map import TensorMap

_Longs = npt.NDArray[np.int64]


class Strips(NamedTuple):
    """Rows of bytes at a constant pitch."""

    write: bool
    line: int
    start: int
    row_bytes: int
    rows: int
    pitch: int


class Spans(NamedTuple):
    """Disjoint ranges, ascending: starts and ends."""

    write: bool
    line: int
    starts: _Longs
    ends: _Longs


class AccessLog:
    """What one cluster touched. Boxes of tensor copies extend each other along the innermost
    dimension, so a K loop leaves one entry per operand row block."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[bool, int, int, tuple[int, ...]], list[list[int]]] = {}
        self._maps: dict[int, TensorMap] = {}
        self._lanes: dict[tuple[bool, int, int], list[Lanes]] = {}

    def box(self, write: bool, line: int, tensor_map: TensorMap, coordinates: Sequence[int]) -> None:
        key = (write, line, id(tensor_map), tuple(coordinates[1:]))
        low, high = coordinates[0], coordinates[0] + tensor_map.box[0]
        extents = self._boxes.get(key)
        if extents is None:
            self._boxes[key] = [[low, high]]
            self._maps[id(tensor_map)] = tensor_map
        elif extents[-1][1] == low:
            extents[-1][1] = high
        elif extents[-1][0] > low or extents[-1][1] < high:
            extents.append([low, high])

    def lanes(self, write: bool, line: int, addresses: Lanes, size: int) -> None:
        self._lanes.setdefault((write, line, size), []).append(addresses)

    def span(self, write: bool, line: int, start: int, size: int) -> None:
        self._lanes.setdefault((write, line, size), []).append(np.array([start], dtype=np.uint64))

    def entries(self) -> list[Strips | Spans]:
        """Everything, clipped to the tensors and coalesced."""
        out: list[Strips | Spans] = []
        for (write, line, key, outer), extents in self._boxes.items():
            for low, high in extents:
                out.extend(_strips(self._maps[key], write, line, low, high, outer))
        for (write, line, size), arrays in self._lanes.items():
            starts = np.unique(np.concatenate(arrays)).astype(np.int64)
            out.append(Spans(write, line, *_coalesce(starts, starts + size)))
        return out


def _strips(tensor_map: TensorMap, write: bool, line: int, low: int, high: int, outer: tuple[int, ...]) -> list[Strips]:
    """The rows of one box, clipped to the tensor; one Strips per index of the third and outer
    dimensions."""
    size = tensor_map.element_type.bits // 8
    low, high = max(low, 0), min(high, tensor_map.dims[0])
    starts = [tensor_map.address + low * size]
    rows, pitch = 1, 0
    for dimension, first in enumerate(outer, start=1):
        stride = tensor_map.strides_bytes[dimension - 1] * tensor_map.element_strides[dimension]
        count = tensor_map.box_elements[dimension]
        inside = [
            i for i in range(count)
            if 0 <= first + i * tensor_map.element_strides[dimension] < tensor_map.dims[dimension]
        ]  # fmt: skip
        if not inside or high <= low:
            return []
        base = first * tensor_map.strides_bytes[dimension - 1]
        if dimension == 1:
            rows, pitch = len(inside), stride
            starts = [start + base + inside[0] * stride for start in starts]
        else:
            starts = [start + base + i * stride for start in starts for i in inside]
    return [Strips(write, line, start, (high - low) * size, rows, pitch) for start in starts]


def _coalesce(starts: _Longs, ends: _Longs) -> tuple[_Longs, _Longs]:
    """Sorted ranges, those that touch or overlap joined."""
    if starts.size == 0:
        return starts, ends
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    at = np.flatnonzero(first)
    return starts[at], reach[np.concatenate((at[1:] - 1, [starts.size - 1]))]


def _expand(entry: Strips | Spans) -> tuple[_Longs, _Longs]:
    if isinstance(entry, Spans):
        return entry.starts, entry.ends
    starts = entry.start + np.arange(entry.rows, dtype=np.int64) * entry.pitch
    return starts, starts + entry.row_bytes


class Race(NamedTuple):
    """Two clusters that touch the same bytes; `first` writes."""

    first: int
    first_line: int
    second: int
    second_line: int
    second_writes: bool
    start: int
    end: int


def find_races(memory: GlobalMemory, logs: dict[int, list[Strips | Spans]], limit: int = 20) -> list[Race]:
    """Overlaps between clusters, at most `limit`; `logs` maps cluster number to its entries."""
    bounds = _written_buffers(memory, logs)
    if not bounds:
        return []
    writes = _collect(logs, True, bounds)
    reads = _collect(logs, False, bounds)
    return (_overlaps(writes, writes, True) + _overlaps(writes, reads, False))[:limit]


def _written_buffers(memory: GlobalMemory, logs: dict[int, list[Strips | Spans]]) -> list[tuple[int, int]]:
    written = {
        entry.start if isinstance(entry, Strips) else int(entry.starts[0])
        for entries in logs.values()
        for entry in entries
        if entry.write and (isinstance(entry, Strips) or entry.starts.size)
    }
    return [(b.address, b.end) for b in memory.buffers if any(b.address <= start < b.end for start in written)]


_Table = tuple[_Longs, _Longs, _Longs, _Longs]  # starts, ends, clusters, lines; sorted by start


def _collect(logs: dict[int, list[Strips | Spans]], write: bool, bounds: list[tuple[int, int]]) -> _Table:
    """All ranges of one kind; those of one cluster are disjoint."""
    parts: list[tuple[_Longs, _Longs, _Longs, _Longs]] = []
    for number, entries in logs.items():
        pieces = [
            (*_expand(entry), entry.line) for entry in entries if entry.write == write and _in_bounds(entry, bounds)
        ]
        if not pieces:
            continue
        starts = np.concatenate([piece[0] for piece in pieces])
        ends = np.concatenate([piece[1] for piece in pieces])
        lines = np.concatenate([np.full(piece[0].size, piece[2], dtype=np.int64) for piece in pieces])
        order = np.argsort(starts, kind="stable")
        starts, ends, lines = starts[order], ends[order], lines[order]
        joined_starts, joined_ends = _coalesce(starts, ends)
        joined_lines = lines[np.searchsorted(starts, joined_starts)]
        parts.append((joined_starts, joined_ends, np.full(joined_starts.size, number), joined_lines))
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty, empty
    table = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((table[2], table[0]))
    return table[0][order], table[1][order], table[2][order], table[3][order]


def _in_bounds(entry: Strips | Spans, bounds: list[tuple[int, int]]) -> bool:
    if isinstance(entry, Spans):
        return entry.starts.size > 0
    return any(low <= entry.start < high for low, high in bounds)


def _overlaps(writes: _Table, others: _Table, same: bool) -> list[Race]:
    """Pairs of a write and another access whose ranges intersect, of different clusters. As the
    ranges of one cluster are disjoint, a range only overlaps ranges of others."""
    races: list[Race] = []
    starts, ends, clusters, lines = writes
    if starts.size == 0 or others[0].size == 0:
        return races
    reach = np.maximum.accumulate(ends)
    # The first write that may reach into each access, and the first that starts after it.
    first = np.searchsorted(reach, others[0], side="right")
    last = np.searchsorted(starts, others[1], side="left")
    own = 1 if same else 0
    seen: set[tuple[int, int]] = set()
    for at in np.flatnonzero(last - first > own):
        for write in range(int(first[at]), int(last[at])):
            low, high = max(starts[write], others[0][at]), min(ends[write], others[1][at])
            pair = (int(clusters[write]), int(others[2][at]))
            if pair[0] == pair[1] or low >= high or pair in seen or (same and pair[::-1] in seen):
                continue
            seen.add(pair)
            ends_of = (pair[0], int(lines[write])), (pair[1], int(others[3][at]))
            (first_unit, first_line), (second, second_line) = sorted(ends_of) if same else ends_of
            races.append(Race(first_unit, first_line, second, second_line, same, int(low), int(high)))
        if len(races) >= 20:
            break
    return races
