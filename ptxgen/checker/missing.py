"""What stands between two accesses, and what is missing there, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.checker.operations import BULK_LOADS, MATRIX_KINDS, Operation
from ptxgen.checker.order import Access, Agent

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster

_TEXT_LIMIT = 110
_WAITS = {
    "tmem-load": "tcgen05.wait::ld",
    "tmem-store": "tcgen05.wait::st",
    "cp-async": "cp.async.wait_group",
}


class Source:
    """The PTX text, for quoting."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def text(self, line: int) -> str:
        """The instruction on a line: without its comment, and not too long."""
        if not 1 <= line <= len(self._lines):
            return ""
        text = " ".join(self._lines[line - 1].partition("//")[0].split())
        if len(text) <= _TEXT_LIMIT:
            return text
        head, brace, tail = text.partition("{")
        _, _, end = tail.rpartition("}")
        return f"{head}{brace}…}}{end}" if brace and len(head) + len(end) < _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"

    def quote(self, line: int) -> str:
        return f"`{self.text(line)}` (line {line})"


def nearest(cluster: Cluster, source: Source, first: Agent, second: Agent) -> str:
    """The synchronisation next to both accesses; of a wait for an mbarrier, also who arrived there."""
    mine, theirs = cluster.warps[first.warp], cluster.warps[second.warp]
    after = next((line for order, line in mine.synchronised if order > first.order), 0)
    before = next((line for order, line in reversed(theirs.synchronised) if order < second.order), 0)
    parts = []
    if after:
        parts.append(f"after the first, warp {mine.index} next ran {source.quote(after)}")
    if before:
        parts.append(f"before the second, warp {theirs.index} last ran {source.quote(before)}")
    return "nearest synchronisation: " + ("; ".join(parts) or "none")


def missing(cluster: Cluster, source: Source, rule: str, first: Agent, second: Agent) -> str:
    """What would order the two, or order them enough."""
    if rule == "missing-proxy-fence":
        return f"fence.proxy.async by the threads of line {first.line}, after it and before they synchronise"
    if rule == "proxy-fence-by-reader":
        return f"fence.proxy.async by the writing threads (line {first.line}), before they synchronise"
    if rule == "missing-cluster-scope":
        return "a release and an acquire of .cluster scope, fences included, on the way from one CTA to the other"
    if rule == "generic-read-then-async-write":
        return f"fence.proxy.async by the reading threads (line {first.line}), before they synchronise"
    if rule == "missing-tcgen05-fence":
        return _tensor_fence(cluster, first, second)
    mine, theirs = cluster.warps[first.warp], cluster.warps[second.warp]
    if isinstance(first, Access):
        return f"a barrier, or an mbarrier arrive after line {first.line} and a wait for it before line {second.line}"
    if any(view.clock.read & first.bit for _, view in mine.views(first.lanes)) and mine is not theirs:
        return f"a barrier, or an mbarrier arrive and wait, from warp {mine.index} to warp {theirs.index}"
    if first.kind in MATRIX_KINDS:
        return _commit(cluster, source, first, second)
    then = "" if mine is theirs else f", and a barrier from warp {mine.index} to warp {theirs.index}"
    if first.kind in BULK_LOADS or first.kind == "try-cancel":
        return f"a wait for the phase of the mbarrier that line {first.line} signals"
    if first.kind in _WAITS:
        return f"{_WAITS[first.kind]} after line {first.line}" + then
    read = ".read" if rule == "source-overwritten-in-flight" else ""
    return f"cp.async.bulk.wait_group{read} by the thread that issued the copy" + then


def _tensor_fence(cluster: Cluster, first: Agent, second: Agent) -> str:
    """Of the two fences around a synchronisation, those that are not there."""
    mine, theirs = cluster.warps[first.warp], cluster.warps[second.warp]
    after = f"tcgen05.fence::after_thread_sync by warp {theirs.index} after the synchronisation"
    if isinstance(first, Access) or first.kind in MATRIX_KINDS:
        return after
    known = second.view.clock if isinstance(second, Access) else second.clock
    if known.fenced & first.bit:
        return after
    before = f"tcgen05.fence::before_thread_sync by warp {mine.index} before the synchronisation"
    if isinstance(second, Access) or (second.after is not None and second.after.done & first.bit):
        return before
    return f"{before}, and {after}"


def _commit(cluster: Cluster, source: Source, first: Operation, second: Agent) -> str:
    """Of a matrix product: a commit, or a wait for the one that is there. Where the second waited for a plain arrive of
    the thread that multiplies, that is in the commit's place."""
    mine, theirs = cluster.warps[first.warp], cluster.warps[second.warp]
    wait = next(
        (line for order, line in reversed(theirs.synchronised) if order < second.order and line in theirs.waited), 0
    )
    wanted = (
        f"a wait for the commit of line {first.commit_line} before line {second.line}"
        if first.commit_line
        else f"a commit after line {first.line} and a wait for it before line {second.line}"
    )
    if not wait or first.kind != "mma":
        return wanted
    arrivals = cluster.paths.lines(theirs.waited[wait])
    plain = {line for order, line in mine.synchronised if order > first.order and line in arrivals}
    plain = {line for line in plain if "mbarrier.arrive" in source.text(line)}
    if not plain:
        return wanted
    return f"tcgen05.commit in place of {source.quote(min(plain))}, for which line {wait} waits; or {wanted}"
