# mypy: ignore-errors
# ruff: noqa: RUF005, SIM113
"""Gluon kernels in which pairs of CTAs multiply together. Their text is what Triton's compiler makes of it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    cluster,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tma,
)


@gluon.jit
def _tile(pid, M, bm: gl.constexpr, bn: gl.constexpr):
    rows = gl.cdiv(M, bm)
    return pid % rows * bm, pid // rows * bn


@gluon.jit
def _ring(a_map, b_map, STAGES: gl.constexpr):
    """Buffers of A and B, and for each stage the mbarrier of its loads and that of its readers."""
    a = gl.allocate_shared_memory(a_map.dtype, [STAGES] + a_map.block_shape, a_map.layout)
    b = gl.allocate_shared_memory(b_map.dtype, [STAGES] + b_map.block_shape, b_map.layout)
    readers: gl.constexpr = tcgen05_mma_barrier_count([a.index(0), b.index(0).permute((1, 0))], True, True)
    loaded = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    released = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(loaded.index(i), count=1)
        mbarrier.init(released.index(i), count=readers)
    return a, b, loaded, released


@gluon.jit
def _load_stage(a_map, b_map, a, b, loaded, released, m, n, k, count):
    stages: gl.constexpr = a.shape[0]
    stage = count % stages
    mbarrier.wait(released.index(stage), (count // stages + 1) & 1, pred=count >= stages)
    mbarrier.expect(loaded.index(stage), a_map.nbytes_per_cta + b_map.nbytes_per_cta)
    tma.async_load(a_map, [m, k], loaded.index(stage), a.index(stage), multicast=True)
    tma.async_load(b_map, [n, k], loaded.index(stage), b.index(stage), multicast=True)


@gluon.jit
def _multiply_stage(a, b, sums, loaded, released, accumulate, count):
    stages: gl.constexpr = a.shape[0]
    stage = count % stages
    mbarrier.wait(loaded.index(stage), (count // stages) & 1)
    tcgen05_mma(
        a.index(stage), b.index(stage).permute((1, 0)), sums, use_acc=accumulate, multicast=True,
        mbarriers=[released.index(stage)],
    )  # fmt: skip


@gluon.jit
def cancelling(a_map, b_map, d_map, M, N, K, STAGES: gl.constexpr, ROWS: gl.constexpr, CTAS: gl.constexpr):
    """One way of control. Tiles come from clusters that are cancelled; loads run STAGES ahead within a tile."""
    bm: gl.constexpr = a_map.block_shape[0]
    bk: gl.constexpr = a_map.block_shape[1]
    bn: gl.constexpr = b_map.block_shape[0]
    a, b, loaded, released = _ring(a_map, b_map, STAGES)
    readers: gl.constexpr = tcgen05_mma_barrier_count([a.index(0), b.index(0).permute((1, 0))], True, True)
    sums = allocate_tensor_memory(gl.float32, [bm, bn], TensorMemoryLayout((ROWS, bn), 1, CTAS, two_ctas=True))
    d = gl.allocate_shared_memory(d_map.dtype, d_map.block_shape, d_map.layout)
    half: gl.constexpr = d_map.block_shape[1]
    finished = mbarrier.allocate_mbarrier()
    mbarrier.init(finished, count=readers)
    asked = mbarrier.allocate_mbarrier()
    mbarrier.init(asked, count=1)
    everywhere: gl.constexpr = [[0]] * (gl.num_ctas().bit_length() - 1)
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=everywhere))
    pid = gl.program_id(0)
    loads = 0
    products = 0
    phase = 0
    more = gl.to_tensor(True)
    while more:
        mbarrier.expect(asked, 16)
        clc.try_cancel(answer, asked)
        m, n = _tile(pid, M, bm, bn)
        for step in range(gl.cdiv(K, bk) + STAGES - 1):
            if step < gl.cdiv(K, bk):
                _load_stage(a_map, b_map, a, b, loaded, released, m, n, step * bk, loads)
                loads += 1
            if step >= STAGES - 1:
                _multiply_stage(a, b, sums, loaded, released, step > STAGES - 1, products)
                products += 1
        tcgen05_commit(finished, descs=[a.index(0), b.index(0).permute((1, 0))])
        mbarrier.wait(finished, phase)
        for part in gl.static_range(bn // half):
            values = sums.slice(part * half, half).load().to(d_map.dtype)
            tma.store_wait(0)
            d.store(values)
            fence_async_shared()
            tma.async_store(d_map, [m, n + part * half], d)
        mbarrier.wait(asked, phase)
        response = clc.load_result(answer)
        more = response.is_canceled()
        pid = response.program_id(0)
        phase ^= 1
        cluster.barrier()
    tma.store_wait(0)


@gluon.jit
def _loader(a_map, b_map, a, b, loaded, released, M, N, K):
    bm: gl.constexpr = a_map.block_shape[0]
    bk: gl.constexpr = a_map.block_shape[1]
    bn: gl.constexpr = b_map.block_shape[0]
    count = 0
    for pid in range(gl.program_id(0), gl.cdiv(M, bm) * gl.cdiv(N, bn), gl.num_programs(0)):
        m, n = _tile(pid, M, bm, bn)
        for k in range(0, K, bk):
            _load_stage(a_map, b_map, a, b, loaded, released, m, n, k, count)
            count += 1


@gluon.jit
def _multiplier(a, b, sums, loaded, released, full, empty, M, N, K):
    bm: gl.constexpr = sums.shape[1]
    bk: gl.constexpr = a.shape[2]
    bn: gl.constexpr = sums.shape[2]
    slots: gl.constexpr = sums.shape[0]
    count = 0
    tiles = 0
    for _ in range(gl.program_id(0), gl.cdiv(M, bm) * gl.cdiv(N, bn), gl.num_programs(0)):
        slot = tiles % slots
        mbarrier.wait(empty.index(slot), (tiles // slots + 1) & 1, pred=tiles >= slots)
        for k in range(0, K, bk):
            _multiply_stage(a, b, sums.index(slot), loaded, released, k > 0, count)
            count += 1
        tcgen05_commit(full.index(slot), descs=[a.index(0), b.index(0).permute((1, 0))])
        tiles += 1


@gluon.jit
def _storer(d_map, sums, full, empty, M, N):
    bm: gl.constexpr = sums.shape[1]
    bn: gl.constexpr = sums.shape[2]
    half: gl.constexpr = d_map.block_shape[1]
    slots: gl.constexpr = sums.shape[0]
    d = gl.allocate_shared_memory(d_map.dtype, d_map.block_shape, d_map.layout)
    tiles = 0
    for pid in range(gl.program_id(0), gl.cdiv(M, bm) * gl.cdiv(N, bn), gl.num_programs(0)):
        m, n = _tile(pid, M, bm, bn)
        slot = tiles % slots
        mbarrier.wait(full.index(slot), (tiles // slots) & 1)
        for part in gl.static_range(bn // half):
            values = sums.index(slot).slice(part * half, half).load().to(d_map.dtype)
            tma.store_wait(0)
            d.store(values)
            fence_async_shared()
            tma.async_store(d_map, [m, n + part * half], d)
        mbarrier.arrive(empty.index(slot))
        tiles += 1
    tma.store_wait(0)


@gluon.jit
def roles(a_map, b_map, d_map, M, N, K, STAGES: gl.constexpr, ROWS: gl.constexpr, CTAS: gl.constexpr):
    """Persistent, with a warp that loads, one that multiplies, four that store, and two accumulators."""
    bm: gl.constexpr = a_map.block_shape[0]
    bn: gl.constexpr = b_map.block_shape[0]
    a, b, loaded, released = _ring(a_map, b_map, STAGES)
    readers: gl.constexpr = tcgen05_mma_barrier_count([a.index(0), b.index(0).permute((1, 0))], True, True)
    sums = allocate_tensor_memory(gl.float32, [2, bm, bn], TensorMemoryLayout((ROWS, bn), 1, CTAS, two_ctas=True))
    full = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2, two_ctas=True)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=readers)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize([
        (_storer, (d_map, sums, full, empty, M, N)),
        (_loader, (a_map, b_map, a, b, loaded, released, M, N, K)),
        (_multiplier, (a, b, sums, loaded, released, full, empty, M, N, K)),
    ], [1, 1], [24, 24])  # fmt: skip
