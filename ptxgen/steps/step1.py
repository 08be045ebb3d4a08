"""Step 1: one output tile of one K tile, by one CTA.

Threads copy A and B to shared memory in 16-byte chunks, swizzled as the tensor core reads them; one
thread issues the MMAs and commits them to an mbarrier; every thread stores its row.
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
        kernel.copy_tile(0)
        kernel.multiply_buffer()
        kernel.wait_released(done)
        kernel.store_tile()
    return kernel.finish()
