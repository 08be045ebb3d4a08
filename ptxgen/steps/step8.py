"""Step 8: a cluster of two CTAs computes a 256-row tile with one cta_group::2 MMA at a time.

Half of B is enough in each CTA, so a stage brings the same bytes for twice the tile. The roles are step
7's; both CTAs load and store, the leader multiplies for both.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps.pair import PairKernel
from ptxgen.steps.step7 import load_tiles, multiply_and_store


def build(spec: GemmSpec) -> Program:
    kernel = PairKernel(spec)
    kernel.set_up()
    with kernel.producer():
        kernel.wait_all_released(load_tiles(kernel))
    multiply_and_store(kernel)
    return kernel.finish()
