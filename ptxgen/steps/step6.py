"""Step 6: step 5's pipeline in persistent CTAs that walk the tiles in a grouped order.

What differs is the scheduler, so the pipeline is step 5's: barriers, tensor memory and cursors are
set up once per CTA, stage and phases carry over from tile to tile, and a CTA with no tile left ends.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps import step5


def build(spec: GemmSpec) -> Program:
    return step5.build(spec)
