"""Why a launch hangs, where the barriers' ledgers tell."""

from __future__ import annotations

from ptxgen.checker.cluster import Cluster
from ptxgen.checker.missing import Source
from ptxgen.emulator.report import Finding


def explain(cluster: Cluster, deadlock: Finding) -> bool:
    """Whether the deadlock has a cause with a rule of its own, which then is a finding: a wait whose
    phase is over, or an mbarrier on which all have arrived, and whose bytes do not add up. No byte at all may
    also mean that who is to ask for them waits for arrivals elsewhere: that stays a deadlock."""
    explained = False
    lacks_arrivals = any(barrier.asked and barrier.pending for barrier in cluster.mbarriers.values())
    for barrier in cluster.mbarriers.values():
        if barrier.missed and not barrier.asked.keys().isdisjoint(barrier.missed):
            explained = True
            continue
        if not barrier.asked or barrier.pending or not barrier.outstanding_bytes:
            continue
        if lacks_arrivals and not barrier.arrived:
            continue
        number = min(barrier.asked)
        line = barrier.expected[0].line if barrier.expected else deadlock.line
        cluster.findings.bytes_mismatch(cluster, barrier, cluster.warps[number], line or 0, deadlock.message)
        explained = True
    return explained


def last_arrivals(cluster: Cluster, source: Source) -> str:
    """Who has arrived on the mbarriers that lack arrivals: where nobody has, or one that waits itself, is the fault."""
    lines = []
    for _, barrier in sorted(cluster.mbarriers.items()):
        if barrier.asked and barrier.pending:
            arrived = sorted(barrier.phase_lines or cluster.paths.lines(barrier.published_path))
            quoted = ", ".join(source.quote(line) for line in arrived) or "none so far"
            lines.append(f"\n  last arrivals on {barrier.place}: {quoted}")
    return "".join(lines)
