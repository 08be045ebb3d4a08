"""What fills and empties shared memory: TMA, and threads with the proxy fence between the two."""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.knowledge import Place, ProtocolError, Warp, learn, require_one


def tma_load(cluster: Cluster, warp: Warp, op: ir.TmaLoad, lanes: int) -> None:
    target, signal = cluster.place(warp, op.dst), cluster.place(warp, op.barrier)
    require_one(lanes, f"issue the load into {target}")
    _check_range(cluster, target, op.dst.offset, op.box_bytes)
    if target.rank != warp.rank or (signal.rank != warp.rank and op.cta_group == 1):
        raise ProtocolError(f"a load by CTA {warp.rank} into {target} cannot signal {signal}")
    copies = [(target, signal)]
    if op.mask is not None:
        ranks = cluster.ranks(warp, op.mask, "a load")
        copies = [(target._replace(rank=rank), signal._replace(rank=rank)) for rank in ranks]
    for place, told in copies:
        barrier = cluster.mbarrier(warp, told, "async init")
        cluster.smem.load(warp, place, barrier.end_of_phase)
        barrier.bring(op.box_bytes, warp)


def store_shared(cluster: Cluster, warp: Warp, op: ir.StoreShared | ir.StoreMatrix, lanes: int) -> None:
    cluster.smem.write(warp, cluster.place(warp, op.address))


def fence_proxy_async(cluster: Cluster, warp: Warp, op: ir.FenceProxyAsync, lanes: int) -> None:
    if op.cluster == "acquire":
        learn(warp.known, warp.withheld)
        warp.withheld.clear()
        return
    warp.known["rows", warp.index] = warp.rows
    warp.known["loads", warp.index] = warp.loads


def tma_store(cluster: Cluster, warp: Warp, op: ir.TmaStore, lanes: int) -> None:
    place = cluster.place(warp, op.src)
    require_one(lanes, f"issue the store from {place}")
    _check_range(cluster, place, op.src.offset, op.box_bytes)
    cluster.smem.store(warp, place)


def commit_stores(cluster: Cluster, warp: Warp, op: ir.CommitStores, lanes: int) -> None:
    cluster.smem.commit_stores(warp)


def wait_stores(cluster: Cluster, warp: Warp, op: ir.WaitStores, lanes: int) -> None:
    finished = warp.groups - op.pending
    for kind in ("read",) if op.read else ("read", "done"):
        key = (kind, warp.index)
        warp.known[key] = max(warp.known.get(key, 0), finished)


def _check_range(cluster: Cluster, place: Place, offset: int, nbytes: int) -> None:
    declared = cluster.declared[place.name]
    if offset < 0 or offset + nbytes > declared.nbytes:
        raise ProtocolError(
            f"bytes {offset} to {offset + nbytes - 1} are outside a stage of {place.name} ({declared.nbytes} bytes)"
        )


HANDLERS: dict[type[ir.Op], Handler] = {
    ir.TmaLoad: tma_load,
    ir.StoreShared: store_shared,
    ir.StoreMatrix: store_shared,
    ir.FenceProxyAsync: fence_proxy_async,
    ir.TmaStore: tma_store,
    ir.CommitStores: commit_stores,
    ir.WaitStores: wait_stores,
}
