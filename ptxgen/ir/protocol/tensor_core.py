"""Tensor cores and tensor memory: MMAs, their commits, and the life of an accumulator."""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Register
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.knowledge import Place, ProtocolError, Warp, require_one, require_warp


def mma(cluster: Cluster, warp: Warp, op: ir.Mma, lanes: int) -> None:
    require_one(lanes, "issue an MMA")
    ranks = (warp.rank,) if op.cta_group == 1 else (warp.rank & ~1, warp.rank | 1)
    for rank in ranks:
        for operand in (op.a, op.b):
            cluster.smem.multiply(warp, _operand(warp, operand)._replace(rank=rank))
        cluster.tmem[rank].multiply(warp, warp.value(op.tmem), warp.value(op.instruction), op.cta_group)


def commit_mma(cluster: Cluster, warp: Warp, op: ir.CommitMma, lanes: int) -> None:
    place = cluster.place(warp, op.address)
    require_one(lanes, f"commit MMAs to {place}")
    ranks = cluster.ranks(warp, op.mask, "a commit")
    barriers = [cluster.mbarrier(warp, place._replace(rank=rank), "async init") for rank in ranks]
    ends = {rank: barrier.end_of_phase for rank, barrier in zip(ranks, barriers, strict=True)}
    cluster.smem.commit(warp, ends)
    for rank, tmem in enumerate(cluster.tmem):
        tmem.commit(warp, ends.get(rank) or ends[ranks[0]])
    for barrier in barriers:
        if barrier.place.rank != warp.rank:
            barrier.from_afar["commit", warp.index] = (1, barrier.completed + 1)
        barrier.arrive(1, warp)


def wgmma_fence(cluster: Cluster, warp: Warp, op: ir.WgmmaFence, lanes: int) -> None:
    warp.wgmma_fenced = True


def wgmma(cluster: Cluster, warp: Warp, op: ir.Wgmma, lanes: int) -> None:
    """The next commit ends it, of which the warp learns by waiting for its batches."""
    require_warp(lanes, "issue a wgmma")
    if not warp.wgmma_fenced:
        raise ProtocolError(f"warp {warp.index} begins a wgmma batch with no wgmma.fence")
    for operand in (op.a, op.b):
        cluster.smem.multiply(warp, _operand(warp, operand))


def wgmma_commit(cluster: Cluster, warp: Warp, op: ir.WgmmaCommit, lanes: int) -> None:
    warp.wgmma_fenced = False
    warp.batches += 1
    cluster.smem.commit(warp, {warp.rank: (("batch", warp.index), warp.batches)})


def wgmma_wait(cluster: Cluster, warp: Warp, op: ir.WgmmaWait, lanes: int) -> None:
    warp.batches_done = max(warp.batches_done, warp.batches - op.pending)
    warp.known["batch", warp.index] = warp.batches_done


def _operand(warp: Warp, descriptor: Register) -> Place:
    place = warp.value(descriptor)
    if not isinstance(place, Place):
        raise ProtocolError(f"{descriptor} does not describe a declared buffer")
    return place


def alloc_tmem(cluster: Cluster, warp: Warp, op: ir.AllocTmem, lanes: int) -> None:
    require_warp(lanes, "allocate TMEM")
    cluster.tmem[warp.rank].allocate(warp, str(op.address), op.columns)


def read_tmem_address(cluster: Cluster, warp: Warp, op: ir.ReadTmemAddress, lanes: int) -> None:
    warp.env[op.dst.name] = cluster.tmem[warp.rank].read_address(warp, str(op.address))


def dealloc_tmem(cluster: Cluster, warp: Warp, op: ir.DeallocTmem, lanes: int) -> None:
    require_warp(lanes, "free TMEM")
    cluster.tmem[warp.rank].free(warp, op.columns)


def load_tmem(cluster: Cluster, warp: Warp, op: ir.LoadTmem, lanes: int) -> None:
    require_warp(lanes, "read TMEM")
    cluster.tmem[warp.rank].load(warp, warp.value(op.address.base) + op.address.offset, op.count)


def wait_tmem_load(cluster: Cluster, warp: Warp, op: ir.WaitTmemLoad, lanes: int) -> None:
    warp.tmem_delivered = warp.tmem_loads


def fence_before_sync(cluster: Cluster, warp: Warp, op: ir.FenceBeforeSync, lanes: int) -> None:
    warp.known["tmem", warp.index] = warp.tmem_delivered


def fence_after_sync(cluster: Cluster, warp: Warp, op: ir.FenceAfterSync, lanes: int) -> None:
    warp.fenced = warp.known.copy()


HANDLERS: dict[type[ir.Op], Handler] = {
    ir.Mma: mma,
    ir.CommitMma: commit_mma,
    ir.WgmmaFence: wgmma_fence,
    ir.Wgmma: wgmma,
    ir.WgmmaCommit: wgmma_commit,
    ir.WgmmaWait: wgmma_wait,
    ir.AllocTmem: alloc_tmem,
    ir.ReadTmemAddress: read_tmem_address,
    ir.DeallocTmem: dealloc_tmem,
    ir.LoadTmem: load_tmem,
    ir.WaitTmemLoad: wait_tmem_load,
    ir.FenceBeforeSync: fence_before_sync,
    ir.FenceAfterSync: fence_after_sync,
}
