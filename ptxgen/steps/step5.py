"""Step 5: a ring of PIPE_DEPTH stages of A and B, each with an mbarrier of its own.

The first PIPE_DEPTH loads are issued before the loop; inside it the walker waits for a stage,
multiplies it, waits for the MMAs and refills the stage with K tile k + PIPE_DEPTH. The phase of the
loads flips when the stage index wraps, the phase of the MMAs with every K tile.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.gemm import GemmKernel


def build(spec: GemmSpec) -> Program:
    kernel = GemmKernel(spec, ring=True)
    kernel.set_up()
    kernel.set_up_epilogue()
    load = kernel.walker_of("load", waits=False)
    mma = kernel.walker_of("mma", waits=True)
    released = kernel.release_cursor()
    with kernel.tiles():
        with kernel.walker():
            with kernel.first_loads():
                kernel.load_stage(load, "fill_issued")
            with kernel.k_loop():
                kernel.wait_loaded(mma)
                kernel.issue_mma(mma)
                kernel.wait_released(released)
                with kernel.if_loads_remain():
                    kernel.load_stage(load, "refill_issued")
                kernel.advance(mma)
        kernel.store_tile()
    return kernel.finish()
