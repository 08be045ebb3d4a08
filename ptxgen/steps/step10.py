"""Step 10: beyond the tutorial, what made each target faster.

On sm_90a a cluster of two CTAs shares an operand by multicast; the roles are step 7's.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.multicast import MulticastKernel


def build(spec: GemmSpec) -> Program:
    return _wgmma(MulticastKernel(spec))


def _wgmma(kernel: MulticastKernel) -> Program:
    kernel.set_up()
    with kernel.producer():
        load = kernel.walker_of("load", waits=True, start_phase=1)
        with kernel.tiles(), kernel.load_loop():
            kernel.wait_free(load)
            kernel.load_stage(load, "load_issued")
    with kernel.consumers():
        mma = kernel.walker_of("mma", waits=True)
        release = kernel.release_cursor()
        with kernel.tiles():
            with kernel.k_loop():
                kernel.wait_loaded(mma)
                kernel.issue_batch(mma)
                kernel.release_previous(release)
                kernel.advance(mma)
            kernel.release_last(release)
            kernel.store_tile()
    return kernel.finish()
