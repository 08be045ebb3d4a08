# mypy: ignore-errors
"""Matrix products in Triton, D[M, N] = A[M, K] · B[N, K]ᵀ, with tensor descriptors for all three."""

import triton
import triton.language as tl


@triton.jit
def plain(
    a, b, d, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, ROLES: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    """One tile a program. ROLES: warps of their own load and multiply. CHAINED: as a programmatic dependent launch."""
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    for step in tl.range(tl.cdiv(k, BK), warp_specialize=ROLES):
        x = a.load([row, step * BK])
        y = b.load([column, step * BK])
        total = tl.dot(x, y.T, total)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    d.store([row, column], total.to(OUT))


@triton.jit
def persistent(
    a, b, d, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, ROLES: tl.constexpr, FLATTEN: tl.constexpr
):  # fmt: skip
    """A program walks tiles in steps of the grid, in groups of four rows of tiles.

    FLATTEN lets the loads of the next tile start before this one is stored.
    """
    rows = tl.cdiv(m, BM)
    columns = tl.cdiv(n, BN)
    tiles = rows * columns
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=ROLES):
        first = tile // (4 * columns) * 4
        height = min(rows - first, 4)
        row = (first + tile % (4 * columns) % height) * BM
        column = tile % (4 * columns) // height * BN
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            x = a.load([row, step * BK])
            y = b.load([column, step * BK])
            total = tl.dot(x, y.T, total)
        d.store([row, column], total.to(OUT))


@triton.jit
def described(
    a_pointer, b_pointer, d_pointer, m, n, k, a_pitch, b_pitch, d_pitch,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, FLATTEN: tl.constexpr
):  # fmt: skip
    """Persistent, and it makes its tensor maps itself."""
    a = tl.make_tensor_descriptor(a_pointer, [m, k], [a_pitch, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_pointer, [n, k], [b_pitch, 1], [BN, BK])
    d = tl.make_tensor_descriptor(d_pointer, [m, n], [d_pitch, 1], [BM, BN])
    columns = tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM) * columns, tl.num_programs(0), flatten=FLATTEN):
        row = tile // columns * BM
        column = tile % columns * BN
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            total = tl.dot(a.load([row, step * BK]), b.load([column, step * BK]).T, total)
        d.store([row, column], total.to(OUT))
