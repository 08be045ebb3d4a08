"""The CTAs of a cluster are placed together, but each starts when it starts.

Before a thread touches the shared memory of another CTA, or allocates tensor memory with it, something has to show
that the other has started: a barrier of the cluster, or a word from one of its threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster
    from ptxgen.checker.threads import View
    from ptxgen.emulator.events import Event


def reaches(cluster: Cluster, owner: int, event: Event, views: Iterable[View], verb: str) -> None:
    """A warp does something to the CTA `owner`, as these views know it; `verb` says what, in a message."""
    warp = cluster.warp(event)
    if owner == warp.cta:
        return
    started = cluster.started[owner]
    if all(view.clock.done & started.bit for view in views):
        cluster.provenance.need(started, warp.number)
    else:
        cluster.findings.not_started(cluster, warp, owner, event, verb)
