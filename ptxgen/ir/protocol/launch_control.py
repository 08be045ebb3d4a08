"""Cluster launch control: claims of tiles, and the answers that shared memory gets."""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.knowledge import ProtocolError, Warp, require_one


def claim_cluster(cluster: Cluster, warp: Warp, op: ir.ClaimCluster, lanes: int) -> None:
    """The answer is written, and its bytes complete, in every CTA."""
    slot, signal = cluster.place(warp, op.slot), cluster.place(warp, op.barrier)
    require_one(lanes, f"claim a cluster into {slot}")
    if slot.rank != warp.rank or signal.rank != warp.rank:
        raise ProtocolError(f"a claim of CTA {warp.rank} names {slot} and {signal}: both must be its own")
    if cluster.unclaimed < 0:
        raise ProtocolError(f"warp {warp.index} claims a cluster after an answer that none is left")
    cluster.unclaimed -= 1
    for rank in range(cluster.ctas):
        place, barrier = slot._replace(rank=rank), cluster.mbarrier(warp, signal._replace(rank=rank), "async init")
        cluster.smem.load(warp, place, barrier.end_of_phase)
        cluster.answers[place] = cluster.unclaimed >= 0
        barrier.bring(cluster.declared[slot.name].nbytes, warp)


def read_answer(cluster: Cluster, warp: Warp, op: ir.ReadAnswer, lanes: int) -> None:
    place = cluster.place(warp, op.address)
    cluster.smem.read(warp, place)
    warp.env[op.dst.name] = cluster.answers.get(place, False)


def is_claimed(cluster: Cluster, warp: Warp, op: ir.IsClaimed, lanes: int) -> None:
    warp.env[op.dst.name] = warp.value(op.answer)


def claimed_cta(cluster: Cluster, warp: Warp, op: ir.ClaimedCta, lanes: int) -> None:
    if warp.env[op.predicate.name]:
        warp.env[op.dst.name] = 0


HANDLERS: dict[type[ir.Op], Handler] = {
    ir.ClaimCluster: claim_cluster,
    ir.ReadAnswer: read_answer,
    ir.IsClaimed: is_claimed,
    ir.ClaimedCta: claimed_cta,
}
