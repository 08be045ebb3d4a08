"""Step 7: warp specialization. A producer fills the ring, consumers multiply and store.

The producer waits for released stages, starting at phase 1 because all are free; a consumer waits
for loaded stages, keeps one batch of MMAs in flight and releases the stage of the one before it.
Producer and consumers walk the same tiles; while a consumer stores one, the producer loads the next.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.specialized import SpecializedKernel


def build(spec: GemmSpec) -> Program:
    kernel = SpecializedKernel(spec)
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
