"""Asynchronous operations of one cluster: issued, pending, completed when the policy says so.

Operations on the same pipe (the tensor core, per issuing thread) complete in their order, but for
the arrivals of a commit in other CTAs, which come at some time after the work that they report; all
others complete in any order. The tensor queue of a warp gathers consecutive MMAs on one accumulator, which
then run as one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.emulator import events
from ptxgen.emulator.smem_layout import check_reach
from ptxgen.emulator.tensor_core import mma, mma_accesses
from ptxgen.errors import MachineError

if TYPE_CHECKING:
    from ptxgen.emulator.cta import Cta
    from ptxgen.emulator.policy import Policy
    from ptxgen.emulator.unit import Unit
    from ptxgen.emulator.warp import Warp


_NO_SOURCE_READ = ("commit", "tensor-load", "bulk-load")
"""Operations of which observers hear no AsyncSourceRead."""


class AsyncOp:
    """One operation. `perform` does its work; a bulk store splits it into `read` (its source) and
    `perform` (its writes). `barrier` is the (CTA rank, offset) of the mbarrier that it signals,
    `reaches` the ranks of the CTAs whose memory or barriers it uses: the issuing one, unless given.
    `lags`: later operations of its pipe may complete before it."""

    __slots__ = (
        "barrier",
        "cta",
        "done",
        "id",
        "kind",
        "lags",
        "lane",
        "line",
        "perform",
        "pipe",
        "place",
        "reaches",
        "read",
        "source_read",
        "waited",
        "warp",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        warp: Warp,
        lane: int,
        line: int,
        perform: Callable[[AsyncOp], None],
        *,
        barrier: tuple[int, int] | None = None,
        read: Callable[[AsyncOp], None] | None = None,
        pipe: tuple[int, int, int] | None = None,
        reaches: tuple[int, ...] = (),
        lags: bool = False,
    ) -> None:
        self.kind, self.warp, self.lane, self.line = kind, warp, lane, line
        self.cta: Cta = warp.cta
        self.perform, self.read, self.pipe, self.barrier = perform, read, pipe, barrier
        self.reaches = reaches or (self.cta.rank,)
        self.lags = lags
        self.id = 0
        self.place: events.Place | None = None
        self.source_read = read is None
        self.done = False
        self.waited = False  # some wait covered at least its source


class MmaKey(NamedTuple):
    """What the instructions of one batch have in common."""

    d_address: int
    idesc: int
    kind: str
    a_in_tmem: bool
    disabled_lanes: tuple[int, ...]
    scale_d: int
    lane: int
    cta_group: int


class MmaRequest(NamedTuple):
    """A tcgen05.mma as issued."""

    key: MmaKey
    a: int
    b: int
    accumulate: bool
    line: int


class Engine:
    """The asynchronous units of one cluster."""

    def __init__(self, unit: Unit, policy: Policy) -> None:
        self._unit = unit
        self.policy = policy
        self.eager = policy.eager
        self.fast = policy.eager and not unit.observed
        """Operations take effect at once and nobody watches: ops may skip the AsyncOp."""
        self.pending: list[AsyncOp] = []
        self._next_id = 0
        self._lagging: dict[tuple[object, object], int] = {}  # the last to end, by pipe and what it reached

    # -- issue and completion -------------------------------------------------------------------

    @property
    def issued(self) -> int:
        """Operations so far, where all get an id."""
        return self._next_id

    def reserve(self) -> int:
        """An id for an operation whose issue takes several steps."""
        self._next_id += 1
        return self._next_id

    def issue(self, op: AsyncOp, event: Callable[[int], events.Event] | None = None) -> AsyncOp:
        """Starts an operation; under `eager` it is complete on return."""
        op.id = op.id or self.reserve()
        self._unit.activity += 1
        if event is not None:
            self._unit.emit(event(op.id))
        if self.eager:
            self._finish(op)
        else:
            self.pending.append(op)
        return op

    def _finish(self, op: AsyncOp) -> None:
        try:
            if not op.source_read:
                self.read_source(op)
            op.perform(op)
        except MachineError as error:
            raise self._unit.fault(error, op.warp, op.line) from error
        op.done = True
        self._unit.activity += 1
        if op.lags:
            self._lagging[op.pipe, op.reaches] = max(op.id, self._lagging.get((op.pipe, op.reaches), 0))
        if self._unit.observed:
            where = self._unit.place(op)
            if op.read is None and op.kind not in _NO_SOURCE_READ:
                self._unit.emit(events.AsyncSourceRead(*where, async_id=op.id))
            self._unit.emit(events.AsyncComplete(*where, async_id=op.id))

    def read_source(self, op: AsyncOp) -> None:
        """The first half of a bulk store: its source may be overwritten afterwards."""
        if op.source_read:
            return
        assert op.read is not None
        try:
            op.read(op)
        except MachineError as error:
            raise self._unit.fault(error, op.warp, op.line) from error
        op.source_read = True
        if self._unit.observed:
            self._unit.emit(events.AsyncSourceRead(*self._unit.place(op), async_id=op.id))

    def complete(self, op: AsyncOp) -> None:
        """Completes an operation, after those before it on its pipe."""
        if op.done:
            return
        if op.pipe is not None:
            for earlier in [o for o in self.pending if o.pipe == op.pipe and o.id < op.id and not o.lags]:
                self.pending.remove(earlier)
                self._finish(earlier)
        self.pending.remove(op)
        self._finish(op)

    def overtaken(self, op: AsyncOp) -> bool:
        """Whether a later operation of the same pipe, with the same destination, is complete."""
        return op.lags and self._lagging.get((op.pipe, op.reaches), 0) > op.id

    def advance(self) -> bool:
        """Completes one pending operation of the policy's choice; False when there is none."""
        if not self.pending:
            return False
        op = self.policy.choose(self.pending, self._unit.awaited())
        if self.policy.random and not op.source_read and self.policy.completes_now():
            self.read_source(op)
        else:
            self.complete(op)
        return True

    def drain(self) -> None:
        while self.pending:
            self.complete(self.pending[0])

    # -- tensor core ----------------------------------------------------------------------------

    def flush_tensor(self, warp: Warp) -> None:
        """Starts the queued MMAs of a warp, those on one accumulator together."""
        queue = warp.tensor_queue
        warp.tensor_queue = []
        start, count = 0, len(queue)
        while start < count:
            key = queue[start].key
            stop = start + 1
            while stop < count and queue[stop].accumulate and queue[stop].key == key and not key.scale_d:
                stop += 1
            self._tensor_batch(warp, queue if stop - start == count else queue[start:stop])
            start = stop

    def _tensor_batch(self, warp: Warp, batch: list[MmaRequest]) -> None:
        first = batch[0]
        if self.fast:
            try:
                self._mma(warp.cta, batch)
            except MachineError as error:
                raise self._unit.fault(error, warp, first.line) from error
            return
        event = None
        lane = first.key.lane
        if self._unit.observed:
            event = partial(_mma_event, self._unit.where(warp, 1 << lane, first.line), len(batch))
        op = AsyncOp(
            "mma", warp, lane, first.line, lambda op: self._mma(warp.cta, batch, op),
            pipe=(warp.cta.rank, warp.index, lane), reaches=sides(warp.cta, first.key.cta_group),
        )  # fmt: skip
        self.issue(op, event)

    def _mma(self, cta: Cta, batch: list[MmaRequest], op: AsyncOp | None = None) -> None:
        key = batch[0].key
        steps = [(request.a, request.b) for request in batch]
        ctas = [self._unit.ctas[rank] for rank in sides(cta, key.cta_group)]
        if op is not None and self._unit.observed:
            for number, side in enumerate(ctas):
                self._report_mma(side, number, batch, steps, op)
        memories = [(side.tmem, side.smem.data) for side in ctas]
        mma(
            *memories[0], d_address=key.d_address, steps=steps, idesc=key.idesc, accumulate=batch[0].accumulate,
            kind=key.kind, a_in_tmem=key.a_in_tmem, scale_d=key.scale_d, disabled_lanes=key.disabled_lanes,
            peer=memories[1] if len(memories) > 1 else None,
        )  # fmt: skip

    def _report_mma(
        self, cta: Cta, side: int, batch: list[MmaRequest], steps: list[tuple[int, int]], op: AsyncOp
    ) -> None:
        """The accesses of one CTA, which is the `side`-th of those that take part."""
        key = batch[0].key
        accesses = mma_accesses(
            d_address=key.d_address, steps=tuple(steps), idesc=key.idesc, accumulate=batch[0].accumulate,
            kind=key.kind, a_in_tmem=key.a_in_tmem, disabled_lanes=key.disabled_lanes[4 * side : 4 * side + 4],
            cta_group=key.cta_group,
        )  # fmt: skip
        where = self._unit.place(op)
        for ranges in (accesses.a_smem, accesses.b_smem):
            check_reach(ranges, cta.smem.size)
        for spans in accesses.spans:
            self._unit.emit(
                events.Access(
                    *where, space="shared", kind="read", proxy="async", ranges=spans, owner=cta.rank, async_id=op.id
                )
            )
        if accesses.a_tmem is not None:
            self._unit.emit_tmem(where, "read", accesses.a_tmem, cta.rank, op.id)
        if accesses.reads_d:
            self._unit.emit_tmem(where, "read", accesses.d, cta.rank, op.id)
        self._unit.emit_tmem(where, "write", accesses.d, cta.rank, op.id)


def sides(cta: Cta, cta_group: int) -> tuple[int, ...]:
    """Ranks of the CTAs that a tensor instruction of `cta` works on, the even one first."""
    return (cta.rank,) if cta_group == 1 else (cta.rank & ~1, cta.rank | 1)


def _mma_event(where: events.Place, count: int, async_id: int) -> events.Event:
    return events.AsyncIssue(*where, kind="mma", async_id=async_id, mechanism="commit", detail=count)
