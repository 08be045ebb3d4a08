"""Step 2: a loop over K. The mbarrier's phase flips with every K tile; from the second on the MMAs add.

Nobody overwrites the buffer before the MMAs have read it: all threads wait for them.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.threads import ThreadKernel


def build(spec: GemmSpec) -> Program:
    kernel = ThreadKernel(spec)
    kernel.set_up()
    kernel.set_up_copies()
    kernel.set_up_epilogue()
    done = kernel.release_cursor()
    with kernel.tiles():
        with kernel.k_loop():
            kernel.copy_tile(kernel.k_tile)
            kernel.multiply_buffer()
            kernel.wait_released(done)
        kernel.store_tile()
    return kernel.finish()
