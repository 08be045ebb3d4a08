"""Matrix products as a text shows them: shapes, and for how long they keep a tensor core."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxgen.errors import PtxgenError
from ptxgen.hardware.instruction_descriptor import decode
from ptxgen.review.costs import Costs
from ptxgen.review.structure import Site
from ptxgen.review.values import Number

_WGMMA = re.compile(r"\.m(\d+)n(\d+)k\d+")
_K_BYTES = 32
_FULL_RATE_ROWS = 128
"""Rows at which tcgen05.mma of one CTA reaches its rate; 64 rows take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """One MMA instruction: D is m x n, K is 32 bytes. `pair`: two CTAs do it together."""

    m: int
    n: int
    pair: bool
    tmem: bool

    def cycles(self, costs: Costs) -> float:
        """For how long it keeps its tensor core (or both) from the next one."""
        share = 2 if self.pair else 1
        rows = max(self.m // share, _FULL_RATE_ROWS) if self.tmem else self.m
        arithmetic = rows * self.n * _K_BYTES / float(costs.mma_flop_per_clk)
        operands = (self.m + self.n) // share * _K_BYTES / float(costs.smem_operand_bytes_per_clk)
        return max(arithmetic, operands)


def multiply_of(site: Site) -> Multiply | None:
    """The shape of an MMA; None where the text does not say."""
    name = site.instruction.name
    if match := _WGMMA.search(name):
        return Multiply(m=int(match[1]), n=int(match[2]), pair=False, tmem=False)
    if not name.startswith("tcgen05.mma") or len(site.values) < 4:
        return None
    value = site.values[3]
    if not isinstance(value, Number) or not isinstance(value.value, int):
        return None
    kind = next((word.removeprefix("kind::") for word in name.split(".") if word.startswith("kind::")), "f16")
    try:
        found = decode(value.value, kind)
    except PtxgenError:
        return None
    return Multiply(m=found.m, n=found.n, pair="cta_group::2" in name, tmem=True)
