"""Step 4: TMA loads and stores, mbarriers and bulk groups; one buffer of A and B.

One thread issues the loads of a K tile and announces their bytes on an mbarrier; the walker waits
for them, multiplies, and waits for the MMAs before it loads again.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.gemm import GemmKernel


def build(spec: GemmSpec) -> Program:
    kernel = GemmKernel(spec, ring=False)
    kernel.set_up()
    kernel.set_up_epilogue()
    load = kernel.walker_of("load", waits=False)
    mma = kernel.walker_of("mma", waits=True)
    released = kernel.release_cursor()
    with kernel.tiles():
        with kernel.walker(), kernel.k_loop():
            kernel.load_stage(load, "load_issued")
            kernel.wait_loaded(mma)
            kernel.issue_mma(mma)
            kernel.wait_released(released)
            kernel.advance(mma)
        kernel.store_tile()
    return kernel.finish()
