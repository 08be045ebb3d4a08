"""Step 7: warp specialization. A producer fills the ring; others multiply and store.

The producer waits for released stages, starting at phase 1 because all are free. All roles walk the
same tiles, so while one tile is stored the next is loaded and, on sm_100a, multiplied.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.gemm import Walker
from ptxgen.steps.specialized import SpecializedKernel, TmemKernel, WarpgroupKernel


def build(spec: GemmSpec) -> Program:
    return _wgmma(WarpgroupKernel(spec)) if spec.target == "sm_90a" else _tcgen05(TmemKernel(spec))


def _tcgen05(kernel: TmemKernel) -> Program:
    kernel.set_up()
    with kernel.producer():
        load_tiles(kernel)
    multiply_and_store(kernel)
    return kernel.finish()


def _wgmma(kernel: WarpgroupKernel) -> Program:
    kernel.set_up()
    with kernel.producer():
        load_tiles(kernel)
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


def load_tiles(kernel: SpecializedKernel) -> Walker:
    """The producer's loops; its cursor, as they leave it."""
    load = kernel.walker_of("load", waits=True, start_phase=1)
    with kernel.tiles(), kernel.load_loop():
        kernel.wait_free(load)
        kernel.load_stage(load, "load_issued")
    return load


def multiply_and_store(kernel: TmemKernel) -> None:
    """The other roles of sm_100a, which hand the accumulator to and fro."""
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
