"""What the operations of a trace are about: output tiles, K tiles, and the stages that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ptxgen.device.description import LaunchDescription
from ptxgen.emulator import events
from ptxgen.review import kinds
from ptxgen.review.barriers import Barriers
from ptxgen.review.maps import tensor_map_of
from ptxgen.review.structure import Site, Structure
from ptxgen.review.trace import Trace, smem_offset


def batch_size(site: Site, structure: Structure) -> int:
    """wgmma instructions from `site` to the next commit."""
    count = 0
    for other in structure.sites[structure.sites.index(site) :]:
        if other.kind == kinds.COMMIT:
            break
        count += other.kind == kinds.MMA
    return count


def tile_at(description: LaunchDescription, row: int, column: int) -> tuple[int, int]:
    """The output tile, by row and column of tiles, that holds an element; the first `verify` size is one tile."""
    m, n, _ = description.verify[0] if description.verify else (1, 1, 1)
    return row // m, column // n


@dataclass(slots=True)
class Visit:
    """A stage while it holds one K tile. `rows` are the first ones of A and of B that it holds
    parts of."""

    stage: int
    cta: int
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
        happened = tuple(happened)
        phase_of = {event.async_id: event.phase for event in happened if isinstance(event, events.MbarrierComplete)}
        for event in happened:
            if isinstance(event, events.AsyncIssue) and event.kind == "tensor-load":
                phase = phase_of.get(event.async_id, -1)
                stage = stage_of.get(smem_offset(event.barrier), 0)
                visit = known.setdefault((event.cta, event.owner, event.barrier, phase), Visit(stage, event.cta))
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
            rows = (visit.rows.get(expect.a, -1), visit.rows.get(expect.b, -1))
            tile = tile_at(trace.description, *rows) if min(rows) >= 0 else (-1, -1)
            known, number = last.get(visit.cta, ((-2, -2), -1))
            number = number + 1 if tile == known else 0
            visit.tile, visit.k_tile = tile, number
            last[visit.cta] = (tile, number)

    def hold(self, cta: int, start: int, stop: int, visit: Visit) -> None:
        """Says that bytes of a CTA's shared memory now belong to a visit."""
        kept = [one for one in self._held.get(cta, []) if one[1] <= start or one[0] >= stop]
        self._held[cta] = [*kept, (start, stop, visit)]

    def holding(self, cta: int, address: int) -> Visit | None:
        """Whose K tile a byte of shared memory belongs to."""
        return next((visit for start, stop, visit in self._held.get(cta, []) if start <= address < stop), None)
