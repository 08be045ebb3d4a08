# mypy: ignore-errors
"""A matrix product in Triton with the operands in either order, in memory or in registers."""

import triton
import triton.language as tl


@triton.jit
def product(
    a, b, d, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr,
    A_BY_K: tl.constexpr, B_BY_K: tl.constexpr, DOUBLED: tl.constexpr
):  # fmt: skip
    """D = A · Bᵀ. A_BY_K: A is stored as [K, M]; B_BY_K: B as [K, N]. DOUBLED: 2 A, added up in registers."""
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), SUM)
    for step in range(tl.cdiv(k, BK)):
        x = a.load([step * BK, row]).T if A_BY_K else a.load([row, step * BK])
        if DOUBLED:
            x = x + x
        y = b.load([step * BK, column]) if B_BY_K else b.load([column, step * BK]).T
        total = tl.dot(x, y, total, out_dtype=SUM)
    d.store([row, column], total.to(OUT))
