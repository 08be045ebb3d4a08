"""Memories that are addressed by the byte: shared and global."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptxgen.checker.memory import Memory, lane_list, whole_number
from ptxgen.checker.operations import Operation
from ptxgen.checker.order import Access, Agent
from ptxgen.checker.shadow import Cells, Where, distinct
from ptxgen.checker.threads import ALL_LANES
from ptxgen.emulator.events import BoxRanges, LaneRanges, Ranges, bounds_of

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster

Agents = Sequence[tuple[int, Agent]]
"""The agents of one access, with the lanes that each of them stands for."""

_Reading = tuple[Agents, Ranges, int]

_FEW = 8
_LANES = np.arange(32, dtype=np.int32)
_STEPS = np.arange(32)
_CHUNK_BYTES = 1 << 20


class SharedMemory(Memory):
    """One CTA's shared memory, by 16-byte cells that are cut smaller where accesses need it."""

    space = "shared"

    def __init__(self, cluster: Cluster, size_bytes: int) -> None:
        super().__init__(cluster)
        self._cells = Cells(-(-size_bytes // 16), 16)

    def access(self, agents: Agents, ranges: Ranges, lanes: int, write: bool) -> None:
        """Bytes [start, stop) each, for the agents' lanes in order or, if one, for all."""
        cells = self._cells
        if len(ranges) == len(agents) == 1:  # most often a stage, again
            (start, stop), granule = ranges[0], cells.granule
            box = ((start // granule, stop // granule),)
            block = cells.blocks.get(box)
            if block is not None and not (start | stop) & (granule - 1):
                self.touch_block(block, cells, box, agents[0][1], write)
                return
        _touch(self, cells, agents, ranges, lanes, write)

    def take_over(self, operation: Operation, agent: Agent, ranges: Ranges) -> None:
        """What an operation wrote last becomes the agent's write."""
        granule = self._cells.granule
        for start, stop in ranges:
            self._cells.rename(((start // granule, stop // granule),), whole_number(operation), whole_number(agent))

    def describe(self, cells: Cells, where: Where, hits: npt.NDArray[np.bool_]) -> str:
        return f"bytes {_spans(cells.granule, where, hits)} of shared memory"


class GlobalMemory(Memory):
    """Global memory, in chunks that are shadowed once something is written there; until then their
    reads are only kept."""

    space = "global"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._chunks: dict[int, Cells] = {}
        self._reads: dict[int, list[_Reading]] = {}

    def access(self, agents: Agents, ranges: Ranges, lanes: int, write: bool) -> None:
        """As SharedMemory.access, in global addresses."""
        low, high = bounds_of(ranges)
        for number in range(low // _CHUNK_BYTES, (high - 1) // _CHUNK_BYTES + 1):
            cells = self._chunks.get(number)
            if cells is not None:
                self._touch_chunk(cells, number, agents, ranges, lanes, write)
            elif not write:
                self._reads.setdefault(number, []).append((agents, ranges, lanes))
            else:
                cells = self._chunks[number] = Cells(_CHUNK_BYTES // 16, 16)
                for reading in self._reads.pop(number, ()):
                    self._touch_chunk(cells, number, *reading, False)
                self._touch_chunk(cells, number, agents, ranges, lanes, write)

    def _touch_chunk(self, cells: Cells, number: int, agents: Agents, ranges: Ranges, lanes: int, write: bool) -> None:
        """The part of an access that lies in one chunk."""
        base, end = number * _CHUNK_BYTES, (number + 1) * _CHUNK_BYTES
        if isinstance(ranges, BoxRanges) and base <= ranges.bounds[0] and ranges.bounds[1] <= end:
            _touch_rows(self, cells, agents, ranges, write, base)
            return
        if isinstance(ranges, LaneRanges):
            inside = (ranges.starts >= base) & (ranges.starts < end)
            if not inside.all():
                lanes = sum(1 << lane for lane, here in zip(lane_list(lanes), inside, strict=True) if here)
                agents = [(bits & lanes, agent) for bits, agent in agents if bits & lanes]
                ranges = LaneRanges(ranges.starts[inside], ranges.size)
        else:
            ranges = tuple((max(start, base), min(stop, end)) for start, stop in ranges if start < end and stop > base)
        if ranges:
            _touch(self, cells, agents, ranges, lanes, write, base)

    def writers(self, start: int, stop: int) -> list[Access]:
        """The threads' accesses that wrote last to bytes [start, stop)."""
        found: set[int] = set()
        for number in range(start // _CHUNK_BYTES, (stop - 1) // _CHUNK_BYTES + 1):
            cells = self._chunks.get(number)
            if cells is not None:
                base = number * _CHUNK_BYTES
                box = max(start - base, 0) // cells.granule, -(-min(stop - base, _CHUNK_BYTES) // cells.granule)
                cells.dissolve((box,))
                found |= {one >> 5 for one in distinct(cells.writers((box,))) if one > 0}
        return [self._cluster.accesses[one] for one in sorted(found)]

    def describe(self, cells: Cells, where: Where, hits: npt.NDArray[np.bool_]) -> str:
        base = next(number for number, own in self._chunks.items() if own is cells) * _CHUNK_BYTES
        return f"bytes {_spans(cells.granule, where, hits, base)} of global memory"


def _touch(
    memory: Memory, cells: Cells, agents: Agents, ranges: Ranges, lanes: int, write: bool, base: int = 0
) -> None:
    """Splits an access into selections of cells; `base` is the address of the first cell."""
    if isinstance(ranges, LaneRanges) and len(ranges) > 1:
        _touch_by_lane(memory, cells, agents, ranges, lanes, write, base)
    elif len(ranges) <= _FEW:
        fit = 0
        for start, stop in ranges:
            fit |= start | stop
        _fit(cells, fit)
        granule = cells.granule
        for start, stop in ranges:
            for box in cells.pieces((start - base) // granule, (stop - base) // granule):
                for _, agent in agents:
                    memory.touch(cells, box, agent, write)
    else:  # the rows of a box in global memory
        bounds = np.array(ranges, np.int64)
        _fit(cells, int(np.bitwise_or.reduce(bounds, axis=None)))
        starts, stops = ((bounds - base) // cells.granule).T
        counts = stops - starts
        whole = np.repeat(stops - np.cumsum(counts), counts) + np.arange(int(counts.sum()))
        within = int(whole.min()), int(whole.max()) + 1
        for _, agent in agents:
            memory.touch_by_lane(cells, whole, within, None, agent, write)


def _touch_rows(memory: Memory, cells: Cells, agents: Agents, ranges: BoxRanges, write: bool, base: int) -> None:
    """The rows of a box, all within the cells."""
    starts, nbytes = ranges.rows()
    if not nbytes:
        return
    _fit(cells, int(np.bitwise_or.reduce(starts)) | nbytes)
    firsts, count = (starts - base) // cells.granule, nbytes // cells.granule
    whole = np.add.outer(firsts, np.arange(count)).reshape(-1)
    for _, agent in agents:
        memory.touch_by_lane(cells, whole, _cells_within(cells, ranges, base), None, agent, write)


def _cells_within(cells: Cells, ranges: BoxRanges | LaneRanges, base: int) -> tuple[int, int]:
    low, high = ranges.bounds
    return (low - base) // cells.granule, -(-(high - base) // cells.granule)


def _fit(cells: Cells, bits: int) -> None:
    """Makes the cells small enough for addresses that have these bits."""
    if bits & (cells.granule - 1):
        cells.refine(1 if bits & 3 else 4)


def _touch_by_lane(
    memory: Memory, cells: Cells, agents: Agents, ranges: LaneRanges, lanes: int, write: bool, base: int
) -> None:
    _fit(cells, ranges.size)
    count = ranges.size // cells.granule
    starts = ranges.units if count == 1 else ranges.units * count
    if base:
        starts = starts - base // cells.granule
    bounds = _cells_within(cells, ranges, base)
    which = _LANES if lanes == ALL_LANES else np.array(lane_list(lanes), np.int32)
    for bits, agent in agents:
        mine, who = starts, which
        if bits != lanes:
            chosen = [place for place, lane in enumerate(lane_list(lanes)) if bits >> lane & 1]
            mine, who = starts[chosen], which[chosen]
        if count == 1:
            memory.touch_by_lane(cells, mine, bounds, who, agent, write)
        else:
            memory.touch_by_lane(cells, mine[:, None] + _STEPS[:count], bounds, who[:, None], agent, write)


def _spans(granule: int, where: Where, hits: npt.NDArray[np.bool_], base: int = 0) -> str:
    """The bytes of the marked cells: their range, and how many when it has holes."""
    numbers = np.arange(*where[0]) if isinstance(where, tuple) else where
    marked = np.unique(numbers[hits])
    low, high = int(marked[0]) * granule, (int(marked[-1]) + 1) * granule
    text = f"[{base + low:#x}, {base + high:#x})"
    count = marked.size * granule
    return text if count == high - low else f"{count} in {text}"
