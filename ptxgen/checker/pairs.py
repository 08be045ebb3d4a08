"""What the two CTAs of a pair run together: tcgen05.alloc, .dealloc and .relinquish_alloc_permit of cta_group::2.

One half may wait for the other (PTX ISA 9.1 §9.7.16.5). So neither may come only after the other is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptxgen.checker.clocks import epoch_of, path_of

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster
    from ptxgen.emulator import events


class _Half(NamedTuple):
    warp: int
    epoch: int
    line: int


class Pairs:
    """The halves that have been run, by pair and instruction, each CTA's in its order."""

    def __init__(self) -> None:
        self._halves: dict[tuple[int, str], tuple[list[_Half], list[_Half]]] = {}

    def run(self, cluster: Cluster, event: events.TmemAllocation) -> None:
        """One CTA's half; if it is the second, the first must not be known to be over."""
        warp = cluster.warp(event)
        halves = self._halves.setdefault((event.cta >> 1, event.action), ([], []))
        mine, theirs = halves[event.cta & 1], halves[~event.cta & 1]
        mine.append(_Half(warp.number, warp.mark(), event.line))
        if len(theirs) < len(mine):
            return
        first = theirs[len(mine) - 1]
        known = warp.views(event.lanes)[0][1].clock.warps[first.warp]
        if epoch_of(known) >= first.epoch:
            by_way_of = cluster.paths.lines(path_of(known))
            cluster.findings.pair_in_turn(cluster, cluster.warps[first.warp], first.line, event.line, by_way_of)
