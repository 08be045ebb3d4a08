"""Step 8: a cluster of two CTAs computes a 256-row tile with one cta_group::2 MMA at a time.

Half of B is enough in each CTA, so a stage brings the same bytes for twice the tile. The roles are step
7's; both CTAs load and store, the leader multiplies for both.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.pair import PairKernel


def build(spec: GemmSpec) -> Program:
    kernel = PairKernel(spec)
    kernel.set_up()
    with kernel.producer():
        load = kernel.walker_of("load", waits=True, start_phase=1)
        with kernel.tiles(), kernel.load_loop():
            kernel.wait_free(load)
            kernel.load_stage(load, "load_issued")
        kernel.wait_all_released(load)
    with kernel.multiplier():
        mma = kernel.walker_of("mma", waits=True)
        accumulator = kernel.accumulator_cursor("fill", start_phase=1)
        with kernel.tiles():
            kernel.wait_accumulator_empty(accumulator)
            with kernel.k_loop():
                kernel.wait_loaded(mma)
                kernel.multiply(mma, accumulator)
                kernel.advance(mma)
            kernel.report_accumulator(accumulator)
    with kernel.storers():
        accumulator = kernel.accumulator_cursor("drain")
        with kernel.tiles():
            kernel.wait_accumulator_full(accumulator)
            kernel.store_accumulator(accumulator)
    return kernel.finish()
