"""Step 10: beyond the tutorial, what made each target faster.

On sm_90a a cluster of two CTAs shares an operand by multicast; the roles are step 7's. Consumers split each
tile, or take turns with tiles of their own: one multiplies while the other stores.

On sm_100a the roles are those of steps 8 and 9: one or two multiplying warps a pair of CTAs, of which a
single one may alternate between two accumulators. The storers hand an accumulator back as soon as its
last slice is in registers, and their staging goes on from tile to tile. Tiles come from a walk over ids,
or from pairs of the grid that never start.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.multicast import MulticastKernel
from ptxgen.steps.step7 import load_tiles, multiply_and_store
from ptxgen.steps.streaming import StreamingPairKernel
from ptxgen.steps.turns import TurnsKernel


def build(spec: GemmSpec) -> Program:
    if spec.target == "sm_90a":
        return _wgmma(TurnsKernel(spec) if spec.consumer_tiles == "own" else MulticastKernel(spec))
    return _tcgen05(StreamingPairKernel(spec))


def _tcgen05(kernel: StreamingPairKernel) -> Program:
    kernel.set_up()
    kernel.wait_for_predecessor()
    kernel.give_up_registers()
    with kernel.producer():
        load = load_tiles(kernel)
        kernel.let_successor_start()
        kernel.wait_all_released(load)
    multiply_and_store(kernel)
    kernel.claim_tiles()
    return kernel.finish()


def _wgmma(kernel: MulticastKernel) -> Program:
    kernel.set_up()
    kernel.wait_for_predecessor()
    with kernel.producer():
        load = load_tiles(kernel)
        kernel.let_successor_start()
        kernel.end_loads(load)
    with kernel.consumers():
        mma = kernel.walker_of("mma", waits=True)
        release = kernel.release_cursor()
        with kernel.consumer_tiles(mma, release):
            with kernel.k_loop():
                kernel.wait_loaded(mma)
                kernel.issue_batch(mma)
                kernel.release_previous(release)
                kernel.advance(mma)
            kernel.end_turn(mma)
            kernel.prepare_store()
            kernel.release_last(release)
            kernel.store_tile()
    return kernel.finish()
