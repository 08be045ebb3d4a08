"""What a thread, an asynchronous operation or a barrier knows to have happened: vector clocks.

A warp counts epochs: one ends at each of its releases and fences. An access is named by its warp,
lane and epoch. A clock holds, for every warp of the cluster, the epoch up to which all lanes of
that warp are known, and further single lanes that are known beyond it; so the arrive of one elected
lane speaks for that lane alone, and warps that run together cost one number. Asynchronous
operations have no epochs: each is one bit, set once its completion is known.

Every number also carries the path by which it was learned: the lines of the synchronisation that it
came through. When such knowledge orders two accesses, those lines were needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import ge

_PATH_BITS = 20
_PATH_MASK = (1 << _PATH_BITS) - 1
_MOST_PATHS = 200_000
Lanes = dict[int, int]
"""Thread (32 * warp + lane) -> stamp."""


def stamp(epoch: int, path: int = 0) -> int:
    """An epoch with its path. Stamps compare by epoch; of two paths to one epoch the older wins."""
    return epoch << _PATH_BITS | _PATH_MASK - path


def epoch_of(value: int) -> int:
    return value >> _PATH_BITS


def path_of(value: int) -> int:
    return _PATH_MASK - (value & _PATH_MASK)


class Paths:
    """Sets of PTX lines, numbered. Path 0 is empty: known without synchronisation. Once there are `most` sets,
    new ones are dropped, and what was needed is no longer known."""

    def __init__(self, most: int = _MOST_PATHS) -> None:
        self._most = most
        self.full = False
        self._sets: list[frozenset[int]] = [frozenset()]
        self._numbers: dict[frozenset[int], int] = {frozenset(): 0}
        self._sums: dict[tuple[int, int], int] = {}
        self._lines: dict[int, int] = {}
        self._needed: set[int] = set()
        self.ran_lines: set[int] = set()
        self.needed_lines: set[int] = set()
        self.open_lines: set[int] = set()
        """Lines that have passed something on, of which nothing was needed so far."""
        self.cta_scoped: set[int] = set()
        """Lines of synchronisation of .cta scope by which one CTA has synchronised with another."""

    def of(self, lines: Iterable[int]) -> int:
        """The path that consists of these lines."""
        return self._number(frozenset(lines))

    def of_line(self, line: int) -> int:
        """The path that consists of one line."""
        number = self._lines.get(line)
        if number is None:
            number = self._lines[line] = self._number(frozenset((line,)))
        return number

    def _number(self, lines: frozenset[int]) -> int:
        number = self._numbers.get(lines)
        if number is None:
            if len(self._sets) >= self._most:
                self.full = True
                return 0
            number = self._numbers[lines] = len(self._sets)
            self._sets.append(lines)
        return number

    def join(self, first: int, second: int) -> int:
        """The path that consists of two."""
        key = (first, second)
        number = self._sums.get(key)
        if number is None:
            number = self._sums[key] = self._number(self._sets[first] | self._sets[second])
        return number

    def crosses_in_cta_scope(self, path: int) -> bool:
        return not self.cta_scoped.isdisjoint(self._sets[path])

    def lines(self, path: int) -> frozenset[int]:
        return self._sets[path]

    def passed_on(self, line: int) -> None:
        """The synchronising instruction on a line has passed on what may be needed."""
        if line not in self.needed_lines:
            self.open_lines.add(line)

    def need(self, path: int) -> None:
        """Knowledge that came along this path has ordered something."""
        if path not in self._needed:
            self._needed.add(path)
            self.needed_lines |= self._sets[path]
            self.open_lines -= self._sets[path]


class Clock:
    """One state of knowledge; never changed, only replaced.

    `warps` and `lanes` hold generic-proxy accesses, `proxied` and `proxied_lanes` the part of them
    that a proxy fence has made visible to the async proxy. `done`, `read` and `fenced` are bit sets
    of operations: complete, their source read, and passed on behind tcgen05.fence::before_thread_sync.
    """

    __slots__ = ("done", "fenced", "lanes", "proxied", "proxied_lanes", "read", "warps")

    def __init__(
        self,
        warps: tuple[int, ...],
        lanes: Lanes,
        proxied: tuple[int, ...],
        proxied_lanes: Lanes,
        done: int,
        read: int,
        fenced: int,
    ) -> None:
        self.warps, self.lanes = warps, lanes
        self.proxied, self.proxied_lanes = proxied, proxied_lanes
        self.done, self.read, self.fenced = done, read, fenced

    def knows(self, warp: int, lane: int) -> int:
        """The stamp up to which a lane's accesses are known."""
        return max(self.warps[warp], self.lanes.get(warp << 5 | lane, 0)) if self.lanes else self.warps[warp]

    def knows_proxied(self, warp: int, lane: int) -> int:
        """The same for what the async proxy can see."""
        return max(self.proxied[warp], self.proxied_lanes.get(warp << 5 | lane, 0))

    def with_operations(self, done: int, read: int, fenced: int = 0) -> Clock:
        """This clock, knowing more operations."""
        return Clock(
            self.warps, self.lanes, self.proxied, self.proxied_lanes,
            self.done | done, self.read | read | done, self.fenced | fenced,
        )  # fmt: skip


def execution_of(clock: Clock, nothing: Clock, observations: int) -> Clock:
    """The part of a clock that relaxed synchronisation passes on: that work on tensor memory is over,
    where a tcgen05.fence or commit stands behind it (PTX ISA 9.1 §9.7.16.6.4), and which phases have
    been seen. It says nothing of other memory."""
    done = clock.done & (clock.fenced | observations)
    return nothing.with_operations(done, 0, clock.fenced)


def empty(warps: int) -> Clock:
    """Knows nothing of any of `warps` warps."""
    none = (0,) * warps
    return Clock(none, {}, none, {}, 0, 0, 0)


def merge(first: Clock, second: Clock) -> Clock:
    """Knows what either knows."""
    warps = first.warps
    if warps is not second.warps and warps != second.warps:
        warps = tuple(map(max, warps, second.warps))
    proxied = first.proxied
    if proxied is not second.proxied and proxied != second.proxied:
        proxied = tuple(map(max, proxied, second.proxied))
    return Clock(
        warps,
        _merge_lanes(first.lanes, second.lanes, warps),
        proxied,
        _merge_lanes(first.proxied_lanes, second.proxied_lanes, proxied),
        first.done | second.done,
        first.read | second.read,
        first.fenced | second.fenced,
    )


def _merge_lanes(first: Lanes, second: Lanes, warps: tuple[int, ...]) -> Lanes:
    if first is second or not second:
        return first
    new = {thread: value for thread, value in second.items() if value > first.get(thread, 0)}
    if not new:
        return first
    lanes = first | new
    return {thread: value for thread, value in lanes.items() if value >> _PATH_BITS > warps[thread >> 5] >> _PATH_BITS}


def acquire(own: Clock, other: Clock, paths: Paths, path: int) -> Clock:
    """`own` after it has learned `other` along `path`; what it knew already keeps its own path."""
    warps = _raise(own.warps, other.warps, paths, path)
    proxied = _raise(own.proxied, other.proxied, paths, path)
    return Clock(
        warps,
        _raise_lanes(own.lanes, other.lanes, warps, paths, path),
        proxied,
        _raise_lanes(own.proxied_lanes, other.proxied_lanes, proxied, paths, path),
        own.done | other.done,
        own.read | other.read,
        own.fenced | other.fenced,
    )


def _raise(own: tuple[int, ...], other: tuple[int, ...], paths: Paths, path: int) -> tuple[int, ...]:
    if own is other or (all(map(ge, own, other)) and not paths.cta_scoped):
        return own
    raised: list[int] | None = None
    for warp, value in enumerate(other):
        if value >> _PATH_BITS > own[warp] >> _PATH_BITS or (
            paths.cta_scoped
            and value >> _PATH_BITS == own[warp] >> _PATH_BITS
            and _better(own[warp], value, paths, path)
        ):
            if raised is None:
                raised = list(own)
            raised[warp] = stamp(epoch_of(value), paths.join(path_of(value), path))
    return own if raised is None else tuple(raised)


def _better(own: int, value: int, paths: Paths, path: int) -> bool:
    """Whether the same epoch is now known by a way of enough scope, and was not."""
    if not epoch_of(own):
        return False
    return paths.crosses_in_cta_scope(path_of(own)) and not paths.crosses_in_cta_scope(paths.join(path_of(value), path))


def _raise_lanes(own: Lanes, other: Lanes, warps: tuple[int, ...], paths: Paths, path: int) -> Lanes:
    if own is other or not other:
        return own
    lanes = {}
    for thread, value in other.items():
        mine = own.get(thread, 0)
        if epoch_of(value) > epoch_of(mine) or (
            paths.cta_scoped and epoch_of(value) == epoch_of(mine) and _better(mine, value, paths, path)
        ):
            lanes[thread] = stamp(epoch_of(value), paths.join(path_of(value), path))
    return _merge_lanes(own, lanes, warps)


def either(first: Clock | None, second: Clock | None) -> Clock | None:
    """The merge of two clocks, of which one or both may not be there."""
    if first is None or second is None:
        return first or second
    return first if first is second else merge(first, second)


def members(bits: int) -> Iterator[int]:
    """The numbers of the set bits, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
