"""A CTA outlives what the others of its cluster do to its memory and barriers.

Its memory goes when its last warp ends. Everything that other CTAs did to it has to be known, by then, to
one of its own warps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.checker.clocks import epoch_of, members, path_of
from ptxgen.checker.operations import BULK_LOADS, STORES, Operation

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster
    from ptxgen.checker.threads import Warp
    from ptxgen.emulator.events import Event


OUTLIVED = STORES | BULK_LOADS | {"commit", "tmem-copy"}
"""Operations that the CTA which issued them has to outlive."""


class Visitors:
    """What other CTAs have done to one: the bits of their operations, and of each warp and its lanes the last
    epoch, with the line. `met`: the last epoch of each warp before a cluster barrier that the CTA has waited for."""

    def __init__(self) -> None:
        self.operations = 0
        self.threads: dict[tuple[int, int], tuple[int, int]] = {}
        self.met: dict[int, int] = {}


def operates(cluster: Cluster, owner: int, operation: Operation) -> None:
    """An asynchronous operation accesses memory, or signals an mbarrier, of the CTA `owner`."""
    if operation.cta != owner:
        cluster.visitors[owner].operations |= operation.bit


def visits(cluster: Cluster, owner: int, event: Event) -> None:
    """A warp accesses shared memory, or arrives on an mbarrier, of the CTA `owner`."""
    if event.cta != owner:
        warp = cluster.warp(event)
        for lanes, _ in warp.views(event.lanes):
            cluster.visitors[owner].threads[warp.number, lanes] = warp.mark(), event.line


def met(cluster: Cluster, cta: int, epochs: dict[int, int]) -> None:
    """A warp of the CTA has waited for a cluster barrier, at which other warps arrived after these epochs."""
    known = cluster.visitors[cta].met
    for warp, epoch in epochs.items():
        known[warp] = max(known.get(warp, 0), epoch)


def exits(cluster: Cluster, warp: Warp) -> None:
    """A warp has ended; if it is the last of its CTA, what others did there must be known in that CTA."""
    mine = [one for one in cluster.warps if one.cta == warp.cta]
    if any(one.live for one in mine):
        return
    _needs_waits(cluster, warp.cta, mine)
    visitors = cluster.visitors[warp.cta]
    if not (visitors.operations or visitors.threads):
        return
    missing = visitors.operations
    for one in mine:
        for _, view in one.groups:
            for number in members(missing & view.clock.done):
                cluster.provenance.need(cluster.facts[number], one.number)
            missing &= ~view.clock.done
    _report_operations(cluster, warp, visitors.operations & ~missing, missing)
    for (number, lanes), (epoch, line) in visitors.threads.items():
        lane = (lanes & -lanes).bit_length() - 1
        known = max(view.clock.knows(number, lane) for one in mine for _, view in one.groups)
        if epoch_of(known) >= epoch:
            cluster.paths.need(path_of(known))
        else:
            relaxed = visitors.met.get(number, 0) >= epoch
            cluster.findings.outlived(cluster, warp, cluster.warps[number], lanes, line, relaxed=relaxed)


def _needs_waits(cluster: Cluster, cta: int, mine: list[Warp]) -> None:
    """What a CTA waited for because it was to end: its stores, and whatever no access depended on."""
    ending = [one for one in cluster.operations.values() if one.cta == cta and one.kind in OUTLIVED]
    ending.sort(key=lambda one: one.kind not in STORES)
    for operation in ending:
        if not cluster.paths.open_lines:
            return
        if operation.kind in STORES:
            cluster.provenance.need(operation, operation.warp)
        elif not operation.needed:
            knows = (one for one in mine if any(view.clock.done & operation.bit for _, view in one.groups))
            holder = next(knows, None)
            if holder is not None:
                cluster.provenance.need(operation, holder.number)


def _report_operations(cluster: Cluster, warp: Warp, known: int, missing: int) -> None:
    """Of a thread's commits, one that is known to have arrived speaks for the earlier ones in practice."""
    last = {
        operation.of_thread: number
        for number in members(known)
        if (operation := cluster.operations[number]).kind == "commit"
    }
    for number in members(missing):
        operation = cluster.operations[number]
        overtaken = operation.kind == "commit" and last.get(operation.of_thread, 0) > number
        cluster.findings.outlived(
            cluster, warp, cluster.warps[operation.warp], operation.lanes, operation.line, operation.kind,
            overtaken=overtaken,
        )  # fmt: skip
