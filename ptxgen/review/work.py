"""What the operations of a trace are about: tiles, stages, and the shapes of matrix products."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ptxgen.emulator import events
from ptxgen.errors import PtxgenError
from ptxgen.hardware.instruction_descriptor import decode
from ptxgen.review import kinds
from ptxgen.review.barriers import Barriers
from ptxgen.review.costs import Costs
from ptxgen.review.maps import tensor_map_of
from ptxgen.review.structure import Site, Structure
from ptxgen.review.trace import Trace, smem_offset
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


def batch_size(site: Site, structure: Structure) -> int:
    """wgmma instructions from `site` to the next commit."""
    count = 0
    for other in structure.sites[structure.sites.index(site) :]:
        if other.kind == kinds.COMMIT:
            break
        count += other.kind == kinds.MMA
    return count


@dataclass(slots=True)
class Visit:
    """A stage while it holds one K tile. `tile` are the first row of A and of B that it holds parts of."""

    stage: int
    barrier: tuple[int, int]
    rows: dict[str, int] = field(default_factory=dict)
    k_tile: int = -1
    tile: tuple[int, int] = (-1, -1)


class Visits:
    """The visits of a cluster's stages in the order of their loads, by asynchronous operation.

    A visit is a phase of the mbarrier that its loads complete on.
    """

    def __init__(
        self, structure: Structure, trace: Trace, happened: Iterable[events.Event], barriers: Sequence[Barriers]
    ) -> None:
        self.of_operation: dict[int, Visit] = {}
        self._held: dict[int, list[tuple[int, int, Visit]]] = {}
        stage_of = {address: number for group in barriers for number, address in enumerate(group.addresses)}
        known: dict[tuple[int, int, int, int], Visit] = {}
        phases: dict[tuple[int, int], int] = {}
        for event in happened:
            if isinstance(event, events.MbarrierArrive | events.MbarrierComplete) and event.completed:
                phases[event.owner, event.barrier] = event.phase + 1
            elif isinstance(event, events.AsyncIssue) and event.kind == "tensor-load":
                phase = phases.get((event.owner, event.barrier), 0)
                address = smem_offset(event.barrier)
                key = (event.cta, event.owner, event.barrier, phase)
                visit = known.setdefault(key, Visit(stage_of.get(address, 0), (event.owner, event.barrier)))
                self.of_operation[event.async_id] = visit
                site = structure.at(event.line)
                argument = None if site is None else tensor_map_of(site, structure, trace.description)[1]
                if argument is not None and isinstance(event.detail, tuple) and len(event.detail) > 1:
                    visit.rows.setdefault(argument.buffer, event.detail[1])
        self.all = tuple(known.values())
        self._number(trace)

    def _number(self, trace: Trace) -> None:
        expect = trace.description.expect
        last: dict[int, tuple[tuple[int, int], int]] = {}
        if expect is None:
            return
        for visit in self.all:
            tile = (visit.rows.get(expect.a, -1), visit.rows.get(expect.b, -1))
            owner = visit.barrier[0]
            known, number = last.get(owner, ((-2, -2), -1))
            number = number + 1 if tile == known else 0
            visit.tile, visit.k_tile = tile, number
            last[owner] = (tile, number)

    def hold(self, cta: int, start: int, stop: int, visit: Visit) -> None:
        """Says that bytes of a CTA's shared memory now belong to a visit."""
        kept = [one for one in self._held.get(cta, []) if one[1] <= start or one[0] >= stop]
        self._held[cta] = [*kept, (start, stop, visit)]

    def holding(self, cta: int, address: int) -> Visit | None:
        """Whose K tile a byte of shared memory belongs to."""
        return next((visit for start, stop, visit in self._held.get(cta, []) if start <= address < stop), None)
