"""Step 9: two multiplying warps a pair, 512 rows of D on one B.

Each of them has its own rows of A and its own columns of tensor memory, and its own warpgroup that
stores. A stage is released when both have read it.
"""

from __future__ import annotations

from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps import step8


def build(spec: GemmSpec) -> Program:
    return step8.build(spec)
