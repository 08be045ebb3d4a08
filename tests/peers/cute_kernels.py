# mypy: ignore-errors
# ruff: noqa: SIM102
"""A kernel in CuTe DSL in which the two CTAs of a cluster multiply together. No GPU is needed to compile it.

    python cute_kernels.py M N K FOLDER

writes FOLDER/kernel.ptx. D[M, N] = A[M, K] · B[N, K]ᵀ in f16, with M a multiple of 256, N of 128 and K of 64.
Warps 0 to 3 store, warp 4 loads, warp 5 multiplies.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ |= {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": sys.argv[-1]}

import cutlass
from cutlass import cute, memory, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cute.runtime import make_fake_tensor
from cutlass.utils import blackwell_helpers

TILE, STAGES, PARTS = (256, 128, 64), 4, 2
STORERS, LOADER, MULTIPLIER = 4, 4, 5
THREADS = 192


@cute.struct
class Storage:
    """What lies in shared memory besides the ring."""

    ring: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    sums: cute.struct.MemRange[cutlass.Int64, 2]
    freed: cutlass.Int64
    address: cutlass.Int32


@cute.kernel
def pair(tiled, a_atom, a_map, b_atom, b_map, d, a_layout, b_layout, ctas):
    tid, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    bx, by, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    leads = rank == 0
    where = (bx // 2, by, None)

    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    a_ring = smem.allocate_tensor(cutlass.Float16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    b_ring = smem.allocate_tensor(cutlass.Float16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    stage_bytes = sum(
        cute.size_in_bytes(cutlass.Float16, cute.select(layout, mode=[0, 1, 2])) for layout in (a_layout, b_layout)
    )
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    filler, reader = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=2 * stage_bytes,
        barrier_storage=storage.ring.data_ptr(), cta_layout_vmnk=ctas,
    ).make_participants()  # fmt: skip
    summer, storer = pipeline.PipelineUmmaAsync.create(
        num_stages=1, producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * 32 * STORERS),
        barrier_storage=storage.sums.data_ptr(), cta_layout_vmnk=ctas,
    ).make_participants()  # fmt: skip

    mine = tiled.get_slice(rank)
    a_parts = mine.partition_A(cute.local_tile(a_map, TILE, where, proj=(1, None, 1)))
    b_parts = mine.partition_B(cute.local_tile(b_map, TILE, where, proj=(None, 1, 1)))
    d_parts = mine.partition_C(cute.local_tile(d, TILE, where, proj=(1, 1, None)))
    alone = cute.make_layout(1)
    a_to, a_from = cpasync.tma_partition(
        a_atom, 0, alone, cute.group_modes(a_ring, 0, 3), cute.group_modes(a_parts, 0, 3)
    )
    b_to, b_from = cpasync.tma_partition(
        b_atom, 0, alone, cute.group_modes(b_ring, 0, 3), cute.group_modes(b_parts, 0, 3)
    )
    a_operand, b_operand = tiled.make_fragment_A(a_ring), tiled.make_fragment_B(b_ring)

    tensor_memory = memory.TmemAllocator(
        storage.address.ptr,
        barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
        allocator_warp_id=0,
        is_two_cta=True,
        two_cta_tmem_dealloc_mbar_ptr=storage.freed.ptr,
    )
    tensor_memory.allocate(TILE[1])
    tensor_memory.wait_for_alloc()
    shape = tiled.partition_shape_C(TILE[:2])
    address = tensor_memory.retrieve_ptr(cutlass.Float32)
    sums = cute.make_tensor(address, tiled.make_fragment_C(shape).layout)
    steps = cute.size(a_from, mode=[1])

    if warp == LOADER:
        for step in cutlass.range(steps):
            free = filler.acquire_and_advance()
            cute.copy(a_atom, a_from[(None, step)], a_to[(None, free.index)], tma_bar_ptr=free.barrier)
            cute.copy(b_atom, b_from[(None, step)], b_to[(None, free.index)], tma_bar_ptr=free.barrier)
        filler.tail()

    if warp == MULTIPLIER:
        if leads:
            summer.acquire_and_advance()
            for _ in cutlass.range(steps):
                full = reader.wait_and_advance()
                for block in cutlass.range_constexpr(cute.size(a_operand, mode=[2])):
                    stage = (None, None, block, full.index)
                    cute.gemm(tiled, sums, a_operand[stage], b_operand[stage], sums)
                    tiled.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            summer.commit()
            summer.tail()

    if warp < STORERS:
        tensor_memory.relinquish_alloc_permit()
        part = ((cute.size(sums, mode=[0, 0]), cute.size(sums, mode=[0, 1]) // PARTS),)
        sums_by_part, d_by_part = cute.zipped_divide(sums, part), cute.zipped_divide(d_parts, part)
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(load, sums_by_part[None, 0])
        thread = copy.get_slice(tid)
        source, target = thread.partition_S(sums_by_part), thread.partition_D(d_by_part)
        wide = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
        narrow = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float16)
        done = storer.wait_and_advance()
        for i in cutlass.range(PARTS):
            cute.copy(copy, source[None, None, i], wide)
            narrow.store(wide.load().to(cutlass.Float16))
            cute.autovec_copy(narrow, target[None, None, i])
        done.release()

    pipeline.sync(barrier_id=1)
    tensor_memory.free(address)


@cute.jit
def launch(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    kind = tcgen05.MmaF16BF16Op(
        cutlass.Float16, cutlass.Float32, (*TILE[:2], 16), tcgen05.CtaGroup.TWO, tcgen05.OperandSource.SMEM,
        OperandMajorMode.K, OperandMajorMode.K,
    )  # fmt: skip
    tiled = cute.make_tiled_mma(kind)
    a_layout = blackwell_helpers.make_smem_layout_a(tiled, TILE, cutlass.Float16, STAGES)
    b_layout = blackwell_helpers.make_smem_layout_b(tiled, TILE, cutlass.Float16, STAGES)
    ctas = cute.tiled_divide(cute.make_layout((2, 1, 1)), (tiled.thr_id,))
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO)
    a_one, b_one = (cute.select(layout, mode=[0, 1, 2]) for layout in (a_layout, b_layout))
    a_atom, a_map = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_one, TILE, tiled, ctas.shape)
    b_atom, b_map = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_one, TILE, tiled, ctas.shape)
    m, n = d.shape
    pair(tiled, a_atom, a_map, b_atom, b_map, d, a_layout, b_layout, ctas).launch(
        grid=[m // TILE[0] * 2, n // TILE[1], 1], block=[THREADS, 1, 1], cluster=[2, 1, 1]
    )


def main(m, n, k, folder):
    m, n, k = int(m), int(n), int(k)
    shapes = ((m, k), (n, k), (m, n))
    tensors = [make_fake_tensor(cutlass.Float16, shape, (shape[1], 1), assumed_align=16) for shape in shapes]
    cute.compile(launch, *tensors)
    (text,) = Path(folder).glob("*.ptx")
    text.rename(text.with_name("kernel.ptx"))


if __name__ == "__main__":
    main(*sys.argv[1:])
