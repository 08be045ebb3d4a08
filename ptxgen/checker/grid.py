"""Clusters that synchronise through global memory: what they know of each other, and accesses that nothing orders.

A strong write hands on what its thread knows, as a clock of its own cluster; who reads it from another cluster, both
with a scope that takes in the whole GPU, holds that as one fact, a bit of its clocks like that of an operation. So it
travels inside the cluster as everything else does, and with the next strong write to a third one. Accesses are only
kept while the kernel runs, and judged when it has ended: by then a write may have come before or after a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptxgen.checker.clocks import Clock, either, epoch_of, merge, path_of
from ptxgen.checker.memory import lane_list
from ptxgen.checker.operations import Observation, Operation
from ptxgen.checker.order import Access, Agent
from ptxgen.emulator import events
from ptxgen.emulator.events import LaneRanges, Ranges, bounds_of

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster
    from ptxgen.checker.findings import Findings

GPU_SCOPES = ("gpu", "sys")
_MOST_PAIRS = 50
"""Findings after which no more are looked for."""

_Longs = npt.NDArray[np.int64]


class Foreign(Observation):
    """That a warp knows what a thread of another cluster knew when it released: `clock`, of cluster `unit`."""

    __slots__ = ("clock", "unit")

    def __init__(self, number: int, warp: int, line: int, order: int, unit: int, clock: Clock) -> None:
        super().__init__(number, warp, line, order)
        self.unit, self.clock = unit, clock


@dataclass(slots=True, frozen=True, eq=False)
class _Touch:
    """An access, and what its agent knew then."""

    cluster: Cluster
    agent: Agent
    clock: Clock
    ranges: Ranges
    lanes: int
    write: bool

    @property
    def bounds(self) -> tuple[int, int]:
        return bounds_of(self.ranges)

    def spans(self) -> _Longs:
        """Starts and ends, a row each; those of neighbouring lanes in one."""
        ranges = self.ranges
        if isinstance(ranges, LaneRanges):
            starts = np.sort(ranges.starts.astype(np.int64))
            cuts = np.flatnonzero(np.diff(starts) > ranges.size) + 1
            first, last = starts[np.r_[0, cuts]], starts[np.r_[cuts - 1, len(starts) - 1]]
            return np.stack((first, last + ranges.size), axis=1)
        return np.array(tuple(ranges), np.int64).reshape(-1, 2)  # a box may lie outside its tensor

    def lanes_in(self, low: int, high: int) -> list[int]:
        """The agent's lanes that access bytes [low, high)."""
        lanes, ranges = lane_list(self.lanes), self.ranges
        if isinstance(ranges, LaneRanges) and len(ranges) == len(lanes):
            inside = (ranges.starts < high) & (ranges.starts + ranges.size > low)
            lanes = [lane for lane, here in zip(lanes, inside.tolist(), strict=True) if here]
        return [lane for lane in lanes if self.agent.lanes >> lane & 1]


class Grid:
    """What the clusters of one launch do in global memory."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._clusters: dict[int, Cluster] = {}
        self._touches: list[_Touch] = []
        self._last: dict[tuple[int, int, int], _Touch] = {}
        self._places: dict[int, dict[tuple[int, str], Clock]] = {}
        """Address -> (cluster, scope) -> what its strong writes there have released."""
        self._facts: dict[tuple[int, int, int], Foreign] = {}

    # -- while it runs ---------------------------------------------------------------------------

    def note(
        self, cluster: Cluster, agents: Sequence[tuple[int, Agent]], ranges: Ranges, lanes: int, write: bool
    ) -> None:
        """An access to global memory."""
        self._clusters[cluster.number] = cluster
        for _, agent in agents:
            clock = agent.view.clock if isinstance(agent, Access) else agent.clock
            touch = _Touch(cluster, agent, clock, ranges, lanes or agent.lanes, write)
            if isinstance(agent, Access) and agent.uniform and not write:
                key = cluster.number, agent.warp, agent.line
                last = self._last.get(key)
                self._last[key] = touch
                if last is not None and last.ranges == ranges and last.clock is clock:
                    continue  # looks again
            self._touches.append(touch)

    def acquire(self, cluster: Cluster, event: events.Access) -> None:
        """A strong read learns what strong writes of other clusters to the same place have released; a relaxed one, at
        the next fence of such a scope."""
        if event.scope not in GPU_SCOPES:
            return
        warp, bits, place = cluster.warp(event), 0, event.ranges[0][0]
        for (unit, scope), clock in self._places.get(place, {}).items():
            if unit != cluster.number and scope in GPU_SCOPES:
                bits |= self._fact(cluster, warp.number, event.line, unit, clock).bit
        if not bits:
            return
        known = cluster.nothing.with_operations(bits, 0)
        for view in warp.change(event.lanes):
            if event.order in ("acquire", "acq_rel", "sc"):
                cluster.learn(warp, view, known, ((place, "gpu"),), cluster.paths.of_line(event.line))
            else:
                view.pending_grid = either(view.pending_grid, known)

    def _fact(self, cluster: Cluster, warp: int, line: int, unit: int, clock: Clock) -> Foreign:
        key = cluster.number, unit, id(clock)
        fact = self._facts.get(key)
        if fact is None:
            fact = self._facts[key] = Foreign(len(cluster.facts), warp, line, cluster.now, unit, clock)
            cluster.facts.append(fact)
            cluster.foreign.append(fact)
        return fact

    def release(self, cluster: Cluster, event: events.Access, brought: Clock) -> None:
        """A strong write hands on `brought`. One that replaces the value ends what others had handed on there."""
        held = self._places.setdefault(event.ranges[0][0], {})
        key = cluster.number, event.scope
        if event.kind != "atomic":
            held.clear()
        before = held.get(key)
        held[key] = brought if before is None else merge(before, brought)

    # -- afterwards ------------------------------------------------------------------------------

    def judge(self) -> None:
        """Reports accesses of two clusters to the same bytes that nothing orders, one of them a write."""
        found = 0
        for first, second, low, high in self._meetings():
            lanes = first.lanes_in(low, high)
            if self._known(second, first, lanes) or self._known(first, second, second.lanes_in(low, high)):
                continue
            self._findings.between_clusters(first.cluster, first.agent, first.write, second.cluster, second.agent,
                                            second.write, (low, high))  # fmt: skip
            found += 1
            if found >= _MOST_PAIRS:
                return

    def _meetings(self) -> Iterator[tuple[_Touch, _Touch, int, int]]:
        """Pairs of touches in the order in which they were made, and bytes that both touch: once a pair."""
        touches = self._near_writes()
        if not touches:
            return
        spans = [touch.spans() for touch in touches]
        numbers = np.repeat(np.arange(len(touches)), [len(span) for span in spans])
        table = np.concatenate(spans)
        order = np.argsort(table[:, 0], kind="stable")
        table, numbers = table[order], numbers[order]
        behind = np.searchsorted(table[:, 0], table[:, 1], side="left")
        seen: set[tuple[int, int]] = set()
        for at in np.flatnonzero(behind > np.arange(len(table)) + 1):
            for other in range(int(at) + 1, int(behind[at])):
                pair = int(numbers[at]), int(numbers[other])
                pair = min(pair), max(pair)
                if pair in seen:
                    continue
                seen.add(pair)
                first, second = touches[pair[0]], touches[pair[1]]
                if first.cluster is not second.cluster and _conflict(first, second):
                    low, high = max(table[at, 0], table[other, 0]), min(table[at, 1], table[other, 1])
                    yield first, second, int(low), int(high)

    def _near_writes(self) -> list[_Touch]:
        """Touches in whose neighbourhood something is written: most reads are of operands."""
        bounds = sorted(touch.bounds for touch in self._touches if touch.write)
        written: list[list[int]] = []
        for low, high in bounds:
            if written and low <= written[-1][1]:
                written[-1][1] = max(written[-1][1], high)
            else:
                written.append([low, high])
        starts = np.array([low for low, _ in written], np.int64)

        def near(touch: _Touch) -> bool:
            low, high = touch.bounds
            at = int(np.searchsorted(starts, high, side="left"))
            return at > 0 and written[at - 1][1] > low

        return [touch for touch in self._touches if touch.write or near(touch)]

    def _known(self, later: _Touch, first: _Touch, lanes: list[int]) -> bool:
        """Whether the agent of `later` knew that the first access was over, for all of these lanes."""
        agent, unit = first.agent, first.cluster.number
        if isinstance(agent, Operation):
            return self._holds(later, unit, lambda clock: bool((clock.done if first.write else clock.read) & agent.bit))

        def knows(lane: int) -> bool:
            def holds(clock: Clock) -> bool:
                value = clock.knows(agent.warp, lane)
                if epoch_of(value) < agent.epoch:
                    return False
                first.cluster.paths.need(path_of(value))
                return True

            return self._holds(later, unit, holds)

        return all(knows(lane) for lane in lanes)

    def _holds(self, later: _Touch, unit: int, holds: Callable[[Clock], bool]) -> bool:
        """Whether what the agent knew of cluster `unit`, itself or from others, satisfies `holds`."""
        warp = later.agent.warp
        return self._search(later.cluster, later.clock, warp, unit, holds, set())

    def _search(
        self, cluster: Cluster, clock: Clock, warp: int | None, unit: int, holds: Callable[[Clock], bool],
        seen: set[tuple[int, int]],
    ) -> bool:  # fmt: skip
        for fact in cluster.foreign:
            if not clock.done & fact.bit or (cluster.number, fact.number) in seen:
                continue
            seen.add((cluster.number, fact.number))
            told = (
                holds(fact.clock)
                if fact.unit == unit
                else self._search(self._clusters[fact.unit], fact.clock, None, unit, holds, seen)
            )
            if told:
                if warp is not None:
                    cluster.provenance.need(fact, warp)
                return True
        return False


def _conflict(first: _Touch, second: _Touch) -> bool:
    if not (first.write or second.write) or (first.agent.strong and second.agent.strong):
        return False
    one, other = first.agent, second.agent
    return not (isinstance(one, Access) and isinstance(other, Access) and one.same_store(other))
