"""Findings in words: both accesses, the synchronisation that was there, and what is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.checker.missing import Source, missing, nearest
from ptxgen.checker.operations import Observation
from ptxgen.checker.order import Access, Agent, Verdict
from ptxgen.checker.rules import RULES, rule_of
from ptxgen.emulator.report import Finding

if TYPE_CHECKING:
    from ptxgen.checker.barriers import Mbarrier
    from ptxgen.checker.cluster import Cluster
    from ptxgen.checker.operations import Operation
    from ptxgen.checker.threads import Warp
    from ptxgen.emulator.events import Event

Extent = tuple[int, int, int]
_OPERAND = re.compile(r"\[%[\w$]+(\+\d+)?\]")


@dataclass(slots=True)
class _Found:
    rule: str
    message: str
    line: int
    cta: Extent
    warp: int
    unit: int
    times: int = 1


class Findings:
    """What the checker has found in one launch; the same pair of lines is told once."""

    def __init__(self, source: Source, grid: Extent, cluster: Extent) -> None:
        self.source = source
        self._grid, self._cluster = grid, cluster
        self._found: dict[tuple[str, int, int], _Found] = {}
        self._initialisations: dict[int, set[int]] = {}

    def all(self) -> tuple[Finding, ...]:
        """In the order in which they were found."""
        return tuple(
            Finding(
                rule=one.rule,
                severity=RULES[one.rule].severity,
                message=one.message,
                line=one.line,
                text=self.source.text(one.line),
                cta=one.cta,
                warp=one.warp,
                unit=one.unit,
                other_line=other or None,
                times=one.times,
            )
            for (_, _, other), one in self._found.items()
        )

    def initialised(self, offset: int, line: int) -> None:
        """An mbarrier, which messages then also call as its initialisation does."""
        self._initialisations.setdefault(offset, set()).add(line)

    def with_operands(self, message: str) -> str:
        """A message with the operands by which mbarriers were initialised, where each line initialises one."""
        lines = Counter(line for lines in self._initialisations.values() for line in lines)

        def call(match: re.Match[str]) -> str:
            known = self._initialisations.get(int(match[1], 16), set())
            if len(known) != 1 or lines[min(known)] > 1:
                return match[0]
            operand = _OPERAND.search(self.source.text(min(known)))
            return f"mbarrier {operand[0]} ({match[1]})" if operand is not None else match[0]

        return re.sub(r"mbarrier (0x[0-9a-f]+)", call, message)

    def _add(self, rule: str, cluster: Cluster, warp: Warp, line: int, other: int, message: Callable[[], str]) -> None:
        key = (rule, line, other)
        known = self._found.get(key)
        if known is not None:
            known.times += 1
            return
        place = self.place(cluster.number, warp.cta)
        self._found[key] = _Found(rule, message(), line, place, warp.index, cluster.number)

    def place(self, unit: int, rank: int) -> Extent:
        """Grid coordinates of a CTA, by the number of its cluster and its rank there (x fastest)."""
        across = [g // c for g, c in zip(self._grid, self._cluster, strict=True)]
        corner = (unit % across[0], unit // across[0] % across[1], unit // (across[0] * across[1]))
        size = self._cluster
        inner = (rank % size[0], rank // size[0] % size[1], rank // (size[0] * size[1]))
        x, y, z = (c * s + i for c, s, i in zip(corner, size, inner, strict=True))
        return x, y, z

    # -- pairs of accesses -----------------------------------------------------------------------

    def conflict(
        self,
        cluster: Cluster,
        space: str,
        first: Agent,
        second: Agent,
        first_writes: bool,
        second_writes: bool,
        verdict: Verdict,
        where: Callable[[], str],
    ) -> None:
        """Two accesses in the order in which they were made or issued."""
        rule = rule_of(space, first, second, first_writes, second_writes, verdict)
        if not rule:
            return

        def message() -> str:
            return "\n  ".join(
                (
                    f"{self._who(cluster, first)} {_does(first, first_writes)} {where()}:"
                    f" {self.source.quote(first.line)}",
                    f"{self._who(cluster, second)} {_does(second, second_writes)} them afterwards:"
                    f" {self.source.quote(second.line)}",
                    nearest(cluster, self.source, first, second),
                    f"missing: {missing(cluster, self.source, rule, first, second)}",
                )
            )

        self._add(rule, cluster, cluster.warps[second.warp], second.line, first.line, message)

    def _who(self, cluster: Cluster, agent: Agent) -> str:
        warp = cluster.warps[agent.warp]
        place = f"warp {warp.index}" if cluster.shape.ctas == 1 else f"warp {warp.index} of CTA rank {warp.cta}"
        lanes = lanes_text(agent.lanes)
        return f"{place} ({lanes})" if isinstance(agent, Access) else f"the {agent.kind} of {place} ({lanes})"

    def between_clusters(
        self,
        cluster: Cluster,
        first: Agent,
        first_writes: bool,
        other: Cluster,
        second: Agent,
        second_writes: bool,
        span: tuple[int, int],
    ) -> None:
        """Two accesses to bytes `span` of global memory by agents of two clusters, in the order of this run."""

        def message() -> str:
            places = [self.place(one.number, agent.cta) for one, agent in ((cluster, first), (other, second))]
            end = next((line for order, line in cluster.warps[first.warp].synchronised if order > first.order), 0)
            return "\n  ".join(
                (
                    f"{self._who(cluster, first)} of CTA {places[0]} {_does(first, first_writes)} bytes"
                    f" [{span[0]:#x}, {span[1]:#x}) of global memory: {self.source.quote(first.line)}",
                    f"{self._who(other, second)} of CTA {places[1]} {_does(second, second_writes)} them, and nothing"
                    f" orders the two: {self.source.quote(second.line)}",
                    "nearest synchronisation: "
                    + (f"after the first, its warp next ran {self.source.quote(end)}" if end else "none"),
                    "missing: a release of .gpu scope by the first, after it has synchronised with the threads that it"
                    " speaks for, and an acquire of .gpu scope from the same place before the second",
                )
            )

        self._add("global-race", other, other.warps[second.warp], second.line, first.line, message)

    # -- pairs -----------------------------------------------------------------------------------

    def pair_in_turn(
        self, cluster: Cluster, first: Warp, line: int, second_line: int, by_way_of: frozenset[int]
    ) -> None:
        """The half of one CTA is over before the other's, on `second_line`, begins; `by_way_of` has the lines of the
        synchronisation between them."""

        def message() -> str:
            return (
                f"warp {first.index} of CTA rank {first.cta} runs its half of {self.source.quote(line)}\n"
                f"  the other CTA of the pair runs its half only after that: {self.source.quote(second_line)}\n"
                f"  between them: {self._lines(set(by_way_of))}\n"
                "  missing: the same order in both CTAs; where the first half waits for the second, this hangs"
            )

        self._add("pair-order", cluster, first, line, second_line, message)

    # -- starts and exits ------------------------------------------------------------------------

    def not_started(self, cluster: Cluster, warp: Warp, owner: int, event: Event, verb: str) -> None:
        """A warp reaches the CTA of rank `owner`, which may not have started."""

        def message() -> str:
            return (
                f"warp {warp.index} of CTA rank {warp.cta} ({lanes_text(event.lanes)}) {verb} CTA rank {owner}:"
                f" {self.source.quote(event.line)}\n  nothing shows that that CTA has started by then\n"
                "  missing: barrier.cluster.arrive (.relaxed will do) and barrier.cluster.wait before it"
            )

        self._add("peer-not-started", cluster, warp, event.line, 0, message)

    def outlived(
        self,
        cluster: Cluster,
        ended: Warp,
        warp: Warp,
        lanes: int,
        line: int,
        kind: str = "",
        *,
        overtaken: bool = False,
        relaxed: bool = False,
    ) -> None:
        """The CTA of `ended` may be gone when another's access, or operation of `kind`, comes to it; `overtaken`: a
        later commit of the same thread is known to have come; `relaxed`: a cluster barrier lies between, at which the
        other arrived relaxed."""

        def message() -> str:
            who = f"the {kind} of warp {warp.index}" if kind else f"warp {warp.index}"
            missing = (
                "barrier.cluster.arrive.release in place of .relaxed"
                if relaxed
                else f"a wait in CTA rank {ended.cta} that comes after it (an mbarrier's, or barrier.cluster)"
            )
            then = (
                f"\n  a later commit of the same thread is known in CTA rank {ended.cta}; that commits arrive in their"
                " order is not in the manual"
                if overtaken
                else ""
            )
            return (
                f"{who} of CTA rank {warp.cta} ({lanes_text(lanes)}) reaches CTA rank {ended.cta}:"
                f" {self.source.quote(line)}\n  that CTA may have ended by then{then}\n"
                f"  missing: {missing}"
            )

        rule = "relaxed-barrier-before-exit" if relaxed else "exit-with-pending-async"
        rule = "commit-after-exit" if overtaken else rule
        self._add(rule, cluster, warp, line, 0, message)

    # -- tensor maps -----------------------------------------------------------------------------

    def map_not_fenced(self, cluster: Cluster, write: Access, operation: Operation, release_line: int) -> None:
        """An operation goes by a tensor map that this launch wrote; `release_line`: 0 where nothing releases it."""

        def message() -> str:
            missing = (
                f"fence.proxy.tensormap::generic.acquire of the map, after line {release_line} is known and before"
                f" line {operation.line}"
                if release_line
                else f"tensormap.cp_fenceproxy or fence.proxy.tensormap::generic.release by the threads of line"
                f" {write.line}, after it"
            )
            return (
                f"{self._who(cluster, operation)} goes by a tensor map: {self.source.quote(operation.line)}\n"
                f"  {self._who(cluster, write)} wrote it: {self.source.quote(write.line)}\n"
                f"  missing: {missing}"
            )

        warp = cluster.warps[operation.warp]
        self._add("missing-tensormap-fence", cluster, warp, operation.line, write.line, message)

    # -- mbarriers -------------------------------------------------------------------------------

    def init_not_visible(self, cluster: Cluster, barrier: Mbarrier, event: Event) -> None:
        def message() -> str:
            return (
                f"warp {event.warp} ({lanes_text(event.lanes)}) uses {barrier.place}: {self.source.quote(event.line)}\n"
                f"  {self._initialised(cluster, barrier)}\n"
                "  missing: a barrier between the two (bar.sync after the initialisation)"
            )

        rule = "barrier-init-not-visible"
        self._add(rule, cluster, cluster.warp(event), event.line, barrier.init_line, message)

    def init_not_fenced(self, cluster: Cluster, barrier: Mbarrier, event: Event) -> None:
        def message() -> str:
            return (
                f"an asynchronous unit signals {barrier.place}: {self.source.quote(event.line)}\n"
                f"  {self._initialised(cluster, barrier)}\n"
                "  missing: fence.mbarrier_init.release.cluster by the initialising thread, before the barrier"
            )

        rule = "missing-mbarrier-init-fence"
        self._add(rule, cluster, cluster.warp(event), event.line, barrier.init_line, message)

    def _initialised(self, cluster: Cluster, barrier: Mbarrier) -> str:
        warp = cluster.warps[barrier.init_warp]
        return f"warp {warp.index} initialises it: {self.source.quote(barrier.init_line)}"

    def barrier_ended(self, cluster: Cluster, barrier: Mbarrier, event: Event, warp: int, line: int) -> None:
        def message() -> str:
            return (
                f"warp {event.warp} ({lanes_text(event.lanes)}) ends {barrier.place}: {self.source.quote(event.line)}\n"
                f"  warp {cluster.warps[warp].index} may still use it: {self.source.quote(line)}\n"
                "  missing: a barrier between the two"
            )

        self._add("barrier-overwritten", cluster, cluster.warp(event), event.line, line, message)

    def overrun(self, cluster: Cluster, barrier: Mbarrier, event: Event, seen: Observation) -> None:
        warp = cluster.warps[seen.warp]

        def message() -> str:
            return (
                f"warp {warp.index} waits for phase {barrier.phase - 1} of {barrier.place}:"
                f" {self.source.quote(seen.line)}\n"
                f"  phase {barrier.phase} ends by {self.source.quote(event.line)}, and nothing makes that come after"
                " the wait: a slower warp would find the barrier two phases ahead, and miss its phase\n"
                f"  arrivals of phase {barrier.phase}: {self._lines(barrier.phase_lines)}\n"
                "  missing: an arrive by the waiting warp (or by one that synchronises with it) in every phase"
            )

        self._add("phase-overrun", cluster, warp, seen.line, event.line, message)

    def missed_phase(self, cluster: Cluster, barrier: Mbarrier, event: Event, last: int) -> None:
        def message() -> str:
            return (
                f"warp {event.warp} ({lanes_text(event.lanes)}) asks {barrier.place} for phase {last + 1}, which is"
                f" long over: {self.source.quote(event.line)}\n"
                f"  the barrier is in phase {barrier.phase} by now; a test of parity tells only the last phase apart\n"
                "  missing: what keeps the barrier from running two phases ahead of this wait"
            )

        barrier.missed.add(cluster.warp(event).number)
        self._add("phase-overrun", cluster, cluster.warp(event), event.line, 0, message)

    def in_two_phases(self, cluster: Cluster, barrier: Mbarrier, event: Event) -> None:
        """An arrive of several lanes, of which the lanes before these have ended a phase."""

        def message() -> str:
            return (
                f"warp {event.warp} arrives on {barrier.place}: {self.source.quote(event.line)}\n"
                f"  some of its lanes end phase {barrier.phase - 1}, those from {lanes_text(event.lanes)} on arrive in"
                f" phase {barrier.phase}, which nobody can have waited for\n"
                f"  {self._initialised(cluster, barrier)}, with {barrier.count} arrivals\n"
                "  missing: a count that all lanes which arrive fit into"
            )

        self._add("arrive-in-two-phases", cluster, cluster.warp(event), event.line, barrier.init_line, message)

    def left_open(self, cluster: Cluster, barrier: Mbarrier) -> None:
        """All CTAs of the cluster have ended, and a phase has some of its arrivals."""
        line = max(barrier.phase_lines)

        def message() -> str:
            return (
                f"the CTA ends, and phase {barrier.phase} of {barrier.place} has {barrier.count - barrier.pending} of"
                f" {barrier.count} arrivals: {self._lines(barrier.phase_lines)}\n"
                f"  {self._initialised(cluster, barrier)}\n"
                "  missing: a count that is the number of arrivals of each phase"
            )

        warp = cluster.warps[barrier.owner * cluster.shape.warps_per_cta]
        self._add("phase-left-open", cluster, warp, line, barrier.init_line, message)

    # -- launches --------------------------------------------------------------------------------

    def grid_not_awaited(self, cluster: Cluster, agent: Agent, writes: bool) -> None:
        """An access to global memory by one that does not know that the launch before has ended."""

        def message() -> str:
            return (
                f"{self._who(cluster, agent)} {_does(agent, writes)} global memory: {self.source.quote(agent.line)}\n"
                "  the kernel before may still write there, or read: this launch may begin before that one has ended\n"
                "  missing: griddepcontrol.wait by this thread before it, or by one that synchronises with it"
            )

        self._add("missing-grid-wait", cluster, cluster.warps[agent.warp], agent.line, 0, message)

    def requested_again(self, cluster: Cluster, warp: Warp, other: Warp, line: int, last: int) -> None:
        """A second setmaxnreg of a warp that does not know another of its warpgroup to have run the first."""

        def message() -> str:
            return (
                f"warp {warp.index} runs {self.source.quote(line)}\n"
                f"  nothing orders it after the one before, {self.source.quote(last)}, of warp {other.index} of its"
                " warpgroup\n"
                "  missing: a barrier of the warpgroup between the two"
            )

        self._add("missing-warpgroup-sync", cluster, warp, line, last, message)

    def bytes_mismatch(self, cluster: Cluster, barrier: Mbarrier, warp: Warp, line: int, state: str) -> None:
        """An mbarrier on which all have arrived and the bytes do not add up, so that the launch hangs."""

        def message() -> str:
            expected, arrived = (
                ", ".join(f"{one.times} x {one.nbytes} by {self.source.quote(one.line)}" for one in transfers) or "none"
                for transfers in (barrier.expected, barrier.arrived)
            )
            return (
                f"phase {barrier.phase} of {barrier.place} cannot end:"
                f" {barrier.outstanding_bytes} bytes are outstanding\n"
                f"  expected: {expected}\n  arrived: {arrived}\n  {state}"
            )

        self._add("tx-count-mismatch", cluster, warp, line, 0, message)

    def _lines(self, lines: set[int]) -> str:
        return ", ".join(self.source.quote(line) for line in sorted(lines))


def lanes_text(bits: int) -> str:
    """A lane mask as ranges."""
    lanes = [lane for lane in range(32) if bits >> lane & 1]
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane - 1:
            runs[-1][1] = lane
        else:
            runs.append([lane, lane])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"lane {text}" if len(lanes) == 1 else f"lanes {text}"


def _does(agent: Agent, writes: bool) -> str:
    if isinstance(agent, Access):
        return agent.verb
    return "writes" if writes else "reads"
