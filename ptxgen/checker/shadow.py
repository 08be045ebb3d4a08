"""Shadow memory: the last write and the reads since, for every cell of a memory.

A cell holds numbers. Accesses by threads are numbered 32 * access + lane, asynchronous operations
-1 - operation, sets of several readers from SETS upward; 0 is nobody. What one agent wrote as a
whole stays a block with a single number, until an access cuts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]
Box = tuple[tuple[int, int], ...]
"""Cells [start, stop) along each axis."""
Where = Any  # a Box or an index array

SETS = 1 << 30


class Block:
    """Cells that have the same last write and the same readers."""

    __slots__ = ("reads", "writes")

    def __init__(self, writes: int, reads: int) -> None:
        self.writes, self.reads = writes, reads


class Cells:
    """Numbers by cell. `granule` units of address (bytes, lanes) make one cell of the last axis.
    The arrays do not count where a block lies."""

    __slots__ = ("_reads", "_writes", "blocks", "granule")

    def __init__(self, shape: int | tuple[int, int], granule: int) -> None:
        self.granule = granule
        self._writes: Numbers = np.zeros(shape, np.int32)
        self._reads: Numbers = np.zeros(shape, np.int32)
        self.blocks: dict[Box, Block] = {}

    def refine(self, granule: int) -> None:
        """Cuts every cell (along the last axis) into smaller ones."""
        times = self.granule // granule
        self.granule = granule
        self._writes = np.repeat(self._writes, times, axis=-1)
        self._reads = np.repeat(self._reads, times, axis=-1)
        self.blocks = {
            (*box[:-1], (box[-1][0] * times, box[-1][1] * times)): block for box, block in self.blocks.items()
        }

    def writers(self, where: Where) -> Numbers:
        numbers: Numbers = self._writes[_index(where)]
        return numbers

    def readers(self, where: Where) -> Numbers:
        numbers: Numbers = self._reads[_index(where)]
        return numbers

    def write(self, where: Where, number: Any) -> None:
        """A write: nobody has read since."""
        index = _index(where)
        self._writes[index] = number
        self._reads[index] = 0

    def read(self, where: Where, number: Any) -> None:
        self._reads[_index(where)] = number

    def rename(self, box: Box, old: int, new: int) -> None:
        """Gives the last write of some cells another number."""
        self.dissolve(box)
        numbers = self._writes[_index(box)]
        numbers[numbers == old] = new

    def dissolve(self, box: Box) -> None:
        """Turns the blocks that a box meets into cells."""
        low, high = box[0]
        near = [place for place in self.blocks if place[0][0] < high and low < place[0][1]]
        for place in near:
            if not _meet(place[1:], box[1:]):
                continue
            block = self.blocks.pop(place)
            index = _index(place)
            self._writes[index] = block.writes
            self._reads[index] = block.reads

    def pieces(self, start: int, stop: int) -> list[Box]:
        """The blocks that lie in a range of a one-dimensional memory, and the gaps between them;
        blocks that lie in it only partly are dissolved."""
        whole: Box = ((start, stop),)
        if whole in self.blocks:
            return [whole]
        inside = sorted(place for place in self.blocks if _meet(place, whole))
        if not inside:
            return [whole]
        pieces: list[Box] = []
        at = start
        for place in inside:
            ((low, high),) = place
            if low < start or high > stop:
                self.dissolve(place)
                continue
            if low > at:
                pieces.append(((at, low),))
            pieces.append(place)
            at = high
        if at < stop:
            pieces.append(((at, stop),))
        return pieces


def _index(where: Where) -> Any:
    if isinstance(where, tuple):
        return tuple(slice(start, stop) for start, stop in where)
    return where


def _meet(first: Box, second: Box) -> bool:
    return all(low < stop and start < high for (low, high), (start, stop) in zip(first, second, strict=True))


class ReaderSets:
    """Sets of readers, numbered."""

    def __init__(self) -> None:
        self._sets: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, readers: tuple[int, ...]) -> int:
        """The number of a set; a single reader is its own."""
        if len(readers) == 1:
            return readers[0]
        found = self._numbers.get(readers)
        if found is None:
            found = self._numbers[readers] = SETS + len(self._sets)
            self._sets.append(readers)
        return found

    def members(self, number: int) -> tuple[int, ...]:
        """The readers behind one number of a cell."""
        return self._sets[number - SETS] if number >= SETS else (number,)


def distinct(numbers: Numbers) -> list[int]:
    """The different numbers of some cells, without 0, ascending."""
    if not np.count_nonzero(numbers):
        return []
    low, top = int(numbers.min()), int(numbers.max())
    if low == top:
        return [low]
    return [number for number in np.unique(numbers).tolist() if number]


def by_access(numbers: list[int]) -> Iterator[tuple[int, list[int]]]:
    """(access, lanes) for the numbers of threads, (-1 - operation, []) for those of operations; the
    numbers ascend and contain no sets."""
    access, lanes = 0, list[int]()
    for number in numbers:
        if number < 0:
            yield number, []
        elif number >> 5 == access:
            lanes.append(number & 31)
        else:
            if lanes:
                yield access, lanes
            access, lanes = number >> 5, [number & 31]
    if lanes:
        yield access, lanes
