"""Step 3: a CTA for every output tile. Only where a CTA finds its tile differs from step 2."""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps import step2


def build(spec: GemmSpec) -> Program:
    return step2.build(spec)
