"""The checker: an observer that finds missing order, and judges what a launch reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ptxgen.checker import accessing, phases, synchronising
from ptxgen.checker.clocks import Paths
from ptxgen.checker.cluster import Cluster, Shape
from ptxgen.checker.deadlocks import explain, last_arrivals
from ptxgen.checker.findings import Extent, Findings
from ptxgen.checker.grid import Grid
from ptxgen.checker.missing import Source
from ptxgen.checker.usage import Usage
from ptxgen.emulator import events
from ptxgen.emulator.report import Finding

_HANDLERS: dict[type[events.Event], Callable[[Cluster, Any], None]] = {
    events.Access: accessing.access,
    events.TmemAccess: accessing.tmem_access,
    events.TmemAllocation: accessing.tmem_allocation,
    events.AsyncIssue: accessing.async_issue,
    events.AsyncSourceRead: accessing.source_read,
    events.AsyncComplete: accessing.completed,
    events.MbarrierInit: phases.mbarrier_init,
    events.MbarrierInval: phases.mbarrier_inval,
    events.MbarrierArrive: phases.mbarrier_arrive,
    events.MbarrierComplete: phases.mbarrier_complete,
    events.MbarrierWait: phases.mbarrier_wait,
    events.NamedBarrier: synchronising.named_barrier,
    events.ClusterBarrier: synchronising.cluster_barrier,
    events.WarpSync: synchronising.warp_sync,
    events.Fence: synchronising.fence,
    events.WaitGroup: synchronising.wait_group,
    events.Commit: synchronising.commit,
    events.GridWait: synchronising.grid_wait,
    events.RegisterRequest: synchronising.register_request,
    events.WarpExit: synchronising.warp_exit,
}


class Checker:
    """Observes one launch of `grid` CTAs in clusters of `cluster`, of `threads` threads and
    `smem_bytes` bytes of shared memory each; `lines` is the PTX text.

    `usage` may be shared by several launches of one text. `shares_global`: clusters may synchronise through global
    memory, so that their accesses there are judged together.
    """

    def __init__(
        self,
        lines: Sequence[str],
        *,
        grid: Extent,
        cluster: Extent,
        threads: int,
        smem_bytes: int,
        usage: Usage | None = None,
        shares_global: bool = False,
        dependent: bool | None = None,
    ) -> None:
        self._source = Source(lines)
        self._findings = Findings(self._source, grid, cluster)
        ctas = cluster[0] * cluster[1] * cluster[2]
        self._shape = Shape(ctas=ctas, warps_per_cta=-(-threads // 32), smem_bytes=smem_bytes)
        self._paths = Paths()
        self._grid = Grid(self._findings) if shares_global else None
        self._clusters: dict[int, Cluster] = {}
        self._current: Cluster | None = None
        if dependent is None:
            dependent = any("griddepcontrol.wait" in line.partition("//")[0] for line in lines)
        self._dependent = dependent
        self._usage = usage if usage is not None else Usage()

    def on_event(self, event: events.Event) -> None:
        """Takes one event of the machine."""
        cluster = self._current
        if cluster is None or cluster.number != event.unit:
            cluster = self._enter(event.unit)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            cluster.now += 1
            handler(cluster, event)

    def _enter(self, unit: int) -> Cluster:
        last = self._current
        if last is not None and last.ended:
            _release(self._clusters.pop(last.number))
        cluster = self._clusters.get(unit)
        if cluster is None:
            cluster = self._clusters[unit] = Cluster(unit, self._shape, self._paths, self._findings, self._grid)
            if self._dependent:
                cluster.depends()
        self._current = cluster
        return cluster

    def conclude(self, reported: Sequence[Finding]) -> tuple[Finding, ...]:
        """All findings of the launch: the machine's, a deadlock traced to its cause where that is
        known, and the checker's own."""
        if self._grid is not None:
            self._grid.judge()
        self._usage.ran(self._paths.ran_lines)
        self._usage.need(self._paths.ran_lines if self._paths.full else self._paths.needed_lines)
        kept = _once([one for each in reported if (one := self._explained(each)) is not None])
        while self._clusters:
            _release(self._clusters.popitem()[1])
        self._current = None
        told = {(one.rule, one.line) for one in kept}
        found = (*kept, *(one for one in self._findings.all() if (one.rule, one.line) not in told))
        return tuple(replace(one, message=self._findings.with_operands(one.message)) for one in found)

    def _explained(self, found: Finding) -> Finding | None:
        """None for a deadlock whose cause has a rule of its own; another one says who has arrived where."""
        cluster = self._clusters.get(found.unit)
        if found.rule != "deadlock" or cluster is None:
            return found
        if explain(cluster, found):
            return None
        return replace(found, message=found.message + last_arrivals(cluster, self._source))


def _once(reported: Sequence[Finding]) -> list[Finding]:
    """What the machine says of one line by one rule, CTA after CTA, as the first says it, and how often."""
    times: dict[tuple[str, int | None], int] = {}
    first: list[Finding] = []
    for one in reported:
        key = one.rule, one.line
        if one.line is None or key not in times:
            first.append(one)
        times[key] = times.get(key, 0) + 1
    return [replace(one, times=times[one.rule, one.line] if one.line is not None else 1) for one in first]


def _release(cluster: Cluster) -> None:
    if cluster.ended:
        phases.left_open(cluster)
    cluster.release()
