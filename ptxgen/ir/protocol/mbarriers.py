"""What initialises mbarriers, and arrives on them by itself."""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.hazards import Mbarrier
from ptxgen.ir.protocol.knowledge import ProtocolError, Warp, require_one


def init_barrier(cluster: Cluster, warp: Warp, op: ir.InitBarrier, lanes: int) -> None:
    place = cluster.place(warp, op.address)
    if place.name != op.barrier.name:
        raise ProtocolError(f"init of {op.barrier.name} at the address of {place.name}")
    if place in cluster.mbarriers:
        raise ProtocolError(f"barrier {place} is initialised twice")
    require_one(lanes, f"initialise barrier {place}")
    warp.inits += 1
    warp.known["init", warp.index] = warp.inits
    cluster.mbarriers[place] = Mbarrier(
        place=place, declared=op.barrier, init=(warp.index, warp.inits), pending=op.barrier.arrivals
    )


def fence_barrier_init(cluster: Cluster, warp: Warp, op: ir.FenceBarrierInit, lanes: int) -> None:
    warp.known["async init", warp.index] = warp.inits


def arrive(cluster: Cluster, warp: Warp, op: ir.Arrive, lanes: int) -> None:
    place = cluster.place(warp, op.address)
    if place.rank != warp.rank and not op.remote:
        raise ProtocolError(f"warp {warp.index} arrives on {place} as if it were in its own CTA {warp.rank}")
    barrier = cluster.mbarrier(warp, place)
    if place.rank != warp.rank:
        count = warp.known["arrival", warp.index] = warp.known.get(("arrival", warp.index), 0) + 1
        barrier.from_afar["arrival", warp.index] = (count, barrier.completed + 1)
    barrier.arrive(lanes, warp)


def arrive_expect(cluster: Cluster, warp: Warp, op: ir.ArriveExpect, lanes: int) -> None:
    barrier = cluster.mbarrier(warp, cluster.place(warp, op.address))
    barrier.expect(warp.value(op.transaction_bytes) * lanes)
    barrier.arrive(lanes, warp)


HANDLERS: dict[type[ir.Op], Handler] = {
    ir.InitBarrier: init_barrier,
    ir.FenceBarrierInit: fence_barrier_init,
    ir.Arrive: arrive,
    ir.ArriveExpect: arrive_expect,
}
