"""Triton's persistent matrix product with tensor descriptors (TMA): D = A @ B.T, grouped tile order."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGURATIONS = ((128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (64, 128, 128, 4, 4))
"""BM, BN, BK, stages, warps."""
GROUP = 8


@triton.jit
def persistent(
    a, b, d, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, PROGRAMS: tl.constexpr,
    OUT: tl.constexpr,
):  # fmt: skip
    """Each program computes tiles program, program + PROGRAMS, ..."""
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    band = GROUP_M * columns
    for tile in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        first = tile // band * GROUP_M
        height = min(rows - first, GROUP_M)
        row = (first + tile % band % height) * BM
        column = tile % band // height * BN
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            x = a.load([row, step * BK])
            y = b.load([column, step * BK])
            total = tl.dot(x, y.T, total)
        d.store([row, column], total.to(OUT))


def launches(a, b, d, programs):
    """A launch on the current stream for each configuration that compiles, and what became of the others."""
    (m, k), n = a.shape, b.shape[0]
    out = {"torch.float16": tl.float16, "torch.bfloat16": tl.bfloat16, "torch.float32": tl.float32}[str(d.dtype)]
    found, failed = [], []
    for bm, bn, bk, stages, warps in CONFIGURATIONS:
        maps = (
            TensorDescriptor.from_tensor(a, [bm, bk]),
            TensorDescriptor.from_tensor(b, [bn, bk]),
            TensorDescriptor.from_tensor(d, [bm, bn]),
        )

        def launch(maps=maps, bm=bm, bn=bn, bk=bk, stages=stages, warps=warps):
            grid = (min(programs, triton.cdiv(m, bm) * triton.cdiv(n, bn)),)
            persistent[grid](
                *maps, m, n, k, BM=bm, BN=bn, BK=bk, GROUP_M=GROUP, PROGRAMS=grid[0], OUT=out,
                num_stages=stages, num_warps=warps,
            )  # fmt: skip

        try:
            launch()
        except Exception as error:  # what a compiler can raise is not a closed set
            failed.append(f"{bm}x{bn}x{bk}: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            found.append(launch)
    return found, failed
