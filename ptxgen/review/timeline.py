"""When things happen: a trace of the emulator replayed with the costs of a chip.

The emulator says what each warp does, in order, and what waits for what; the costs say how long each thing
takes. Of the warps that can go on, the one furthest behind does its next event; engines serve one request after
the other. Times are clock cycles from the start of the cluster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxgen.emulator import events
from ptxgen.review import kinds
from ptxgen.review.barriers import uses_of
from ptxgen.review.costs import Costs
from ptxgen.review.paths import Paths
from ptxgen.review.products import multiply_of
from ptxgen.review.spans import EPILOGUE, LOAD, MULTIPLY, STORE, WAIT, PhaseTime, Span, Timeline
from ptxgen.review.structure import Structure
from ptxgen.review.trace import Trace, smem_offset
from ptxgen.review.work import Visit, Visits, batch_size, tile_at

_WARPS_OF_GROUP = 4
_LONG_MEETING = 100.0
"""Cycles at a barrier that count as a wait."""


@dataclass(slots=True)
class _Operation:
    """Asynchronous work: when its source has been read, and when it is done."""

    kind: str
    issued: float
    line: int
    warp: int
    read: float = 0.0
    done: float = 0.0
    detail: Any = None
    arrived: int = 0


@dataclass(slots=True)
class _Phase:
    start: float = -1.0
    latest: float = 0.0
    done: float = -1.0


@dataclass(slots=True)
class _Warp:
    time: float
    line: int | None = None
    meeting: tuple[Any, ...] | None = None
    epilogue: list[float] = field(default_factory=list)
    epilogue_line: int = 0
    multiplied: float = 0.0


def replay(structure: Structure, trace: Trace, costs: Costs, *, sharing: int = 1) -> Timeline:
    """The timeline of the first cluster of a trace, with `sharing` such CTAs on an SM."""
    return _Replay(structure, trace, costs, sharing).run()


class _Replay:
    def __init__(self, structure: Structure, trace: Trace, costs: Costs, sharing: int) -> None:
        self._structure, self._costs, self._trace, self._sharing = structure, costs, trace, sharing
        self._flying: dict[int, list[tuple[float, int]]] = {}
        self._paths = Paths(structure, float(costs.instruction), float(costs.conversion))
        self._visits = Visits(structure, trace, trace.first_unit, uses_of(structure)[0])
        self._warps: dict[tuple[int, int], _Warp] = {}
        self._operations: dict[int, _Operation] = {}
        self._phases: dict[tuple[int, int, int], _Phase] = {}
        self._meetings: dict[tuple[Any, ...], float] = {}
        self._expected: Counter[tuple[Any, ...]] = Counter()
        self._free: dict[tuple[str, int], float] = {}
        self._spans: list[Span] = []
        multiplies = [site.line for site in structure.sites if site.kind == kinds.MMA]
        self._first_store = max(multiplies, default=0)  # staging of results stands below the products
        self._sizes = {
            event.async_id: event.tx_bytes
            for event in trace.first_unit
            if isinstance(event, events.MbarrierComplete) and event.async_id
        }

    def run(self) -> Timeline:
        """All events in turn."""
        handlers: Mapping[type[events.Event], Callable[[Any, _Warp], None]] = {
            events.AsyncIssue: self._issue,
            events.Access: self._access,
            events.MbarrierArrive: self._arrive,
            events.MbarrierComplete: self._bytes,
            events.MbarrierWait: self._wait,
            events.NamedBarrier: self._named_barrier,
            events.ClusterBarrier: self._cluster_barrier,
            events.WaitGroup: self._wait_group,
            events.WarpExit: self._exit,
        }
        queues: dict[tuple[int, int], deque[events.Event]] = {}
        for event in self._trace.first_unit:
            if type(event) in handlers:
                queues.setdefault((event.cta, event.warp), deque()).append(event)
            if isinstance(event, events.NamedBarrier | events.ClusterBarrier) and event.action != "wait":
                self._expected[_meeting(event)] += 1
        while queues:
            ready = [key for key, queue in queues.items() if self._ready(queue[0])]
            key = min(ready or queues, key=lambda key: self._warps[key].time if key in self._warps else 0.0)
            event = queues[key].popleft()
            handlers[type(event)](event, self._warp(event))
            if not queues[key]:
                del queues[key]
        ends = [warp.time for warp in self._warps.values()]
        ends += [operation.done for operation in self._operations.values()]
        phases = [
            PhaseTime(cta=owner, address=smem_offset(barrier), phase=number, start=phase.start, stop=phase.done)
            for (owner, barrier, number), phase in self._phases.items()
            if phase.done >= 0
        ]
        return Timeline(spans=tuple(self._spans), phases=tuple(phases), end=max(ends, default=0.0))

    def _ready(self, event: events.Event) -> bool:
        """Whether what an event waits for is known."""
        warp = self._warps.get((event.cta, event.warp))
        if warp is not None and warp.meeting is not None and self._expected[warp.meeting]:
            return False
        if isinstance(event, events.MbarrierWait) and event.success and event.phase > 0:
            phase = self._phases.get((event.owner, event.barrier, event.phase - 1))
            return phase is not None and phase.done >= 0
        if isinstance(event, events.WaitGroup) and event.mechanism == "wgmma-group":
            return all(self._operations[one].done > 0 for one in event.covered if one in self._operations)
        return True

    # -- warps ----------------------------------------------------------------------------------

    def _warp(self, event: events.Event) -> _Warp:
        """The warp of an event; what it met before is over."""
        key = (event.cta, event.warp)
        warp = self._warps.setdefault(key, _Warp(0.0))
        if warp.meeting is not None:
            met = self._meetings[warp.meeting]
            if met - warp.time > _LONG_MEETING:
                self._close_epilogue(warp, event)
                self._until(warp, event, met, warp.line or event.line)
            warp.time = max(warp.time, met) + float(self._costs.barrier)
            warp.meeting = None
        return warp

    def _advance(self, warp: _Warp, event: events.Event) -> float:
        """The warp's time behind the instruction of an event that it executes itself."""
        if warp.line != event.line:
            warp.time += self._paths.cycles(event.warp, warp.line, event.line)
            warp.line = event.line
        return warp.time

    def _until(self, warp: _Warp, event: events.Event, time: float, line: int | None = None) -> None:
        """Lets a warp wait, in the event's line if no other is given."""
        line = event.line if line is None else line
        if time > warp.time:
            self._spans.append(
                Span(
                    cta=event.cta,
                    track=f"warp {event.warp}",
                    kind=WAIT,
                    start=warp.time,
                    stop=time,
                    line=line,
                    label=self._structure.comment(line),
                )
            )
            warp.time = time

    def _close_epilogue(self, warp: _Warp, event: events.Event) -> None:
        if warp.epilogue:
            self._spans.append(
                Span(
                    cta=event.cta,
                    track=f"warp {event.warp}",
                    kind=EPILOGUE,
                    start=warp.epilogue[0],
                    stop=warp.epilogue[1],
                    line=warp.epilogue_line,
                )
            )
            warp.epilogue = []

    def _in_epilogue(self, warp: _Warp, event: events.Event, start: float) -> None:
        if not warp.epilogue:
            warp.epilogue, warp.epilogue_line = [start, start], event.line
        warp.epilogue[1] = max(warp.epilogue[1], warp.time)

    def _exit(self, event: events.WarpExit, warp: _Warp) -> None:
        self._close_epilogue(warp, event)

    # -- asynchronous work ----------------------------------------------------------------------

    def _serve(self, engine: str, cta: int, start: float, cycles: float) -> float:
        """When an engine that serves in turn has done something; it can begin at `start`."""
        end = max(start, self._free.get((engine, cta), 0.0)) + cycles
        self._free[engine, cta] = end
        return end

    def _issue(self, event: events.AsyncIssue, warp: _Warp) -> None:
        now = self._advance(warp, event)
        operation = self._operations.setdefault(
            event.async_id,
            _Operation(kind=event.kind, issued=now, line=event.line, warp=event.warp, detail=event.detail),
        )
        costs = self._costs
        if event.kind in ("tensor-load", "bulk-load"):
            self._close_epilogue(warp, event)
            size = self._sizes.get(event.async_id, 0)
            operation.done = self._loaded(event.cta, now, size)
            visit = self._visits.of_operation.get(event.async_id)
            self._span(event, "TMA load", LOAD, now, operation.done, visit)
        elif event.kind == "mma":
            self._close_epilogue(warp, event)
            self._multiply(event, operation, now, event.detail or 1)
        elif event.kind == "wgmma":
            operation.arrived += 1
            operation.issued = max(operation.issued, now)
            if operation.arrived == _WARPS_OF_GROUP:
                self._multiply(event, operation, operation.issued, 0)
        elif event.kind == "tmem-load":
            self._in_epilogue(warp, event, now)
            operation.done = now + float(costs.tmem_latency)
        elif event.kind == "tmem-store":
            operation.done = now + float(costs.tmem_latency)

    def _loaded(self, cta: int, now: float, size: int) -> float:
        """When a load has landed, which depends on the bytes in flight, those of CTAs that share the SM included."""
        flying = [(done, bytes_) for done, bytes_ in self._flying.get(cta, []) if done > now]
        in_flight = size + sum(bytes_ for _, bytes_ in flying)
        done = now + self._costs.tma_load.at(in_flight * self._sharing)
        self._flying[cta] = [*flying, (done, size)]
        return done

    def _multiply(self, event: events.AsyncIssue, operation: _Operation, now: float, count: int) -> None:
        site = self._structure.at(event.line)
        shape = None if site is None else multiply_of(site)
        if site is None or shape is None:
            return
        count = count or batch_size(site, self._structure)
        ctas = (event.cta, event.cta ^ 1) if shape.pair else (event.cta,)
        start = max(now, *(self._free.get(("multiply", cta), 0.0) for cta in ctas))
        end = start + count * shape.cycles(self._costs)
        for cta in ctas:
            self._free["multiply", cta] = end
        drain = self._costs.mma_pair_drain if shape.pair else self._costs.mma_drain
        operation.done = operation.read = end + float(drain)
        operation.detail = (start, end, ctas)

    def _span(self, event: events.Event, track: str, kind: str, start: float, stop: float, visit: Visit | None) -> None:
        label = "" if visit is None or visit.k_tile < 0 else f"k {visit.k_tile}"
        self._spans.append(
            Span(
                cta=event.cta,
                track=track,
                kind=kind,
                start=start,
                stop=stop,
                line=event.line,
                label=label,
                stage=-1 if visit is None else visit.stage,
                k_tile=-1 if visit is None else visit.k_tile,
                tile=(-1, -1) if visit is None else visit.tile,
            )
        )

    def _access(self, event: events.Access, warp: _Warp) -> None:
        operation = self._operations.get(event.async_id) if event.async_id else None
        size = sum(stop - start for start, stop in event.ranges) if event.space == "shared" else 0
        if operation is None:
            self._generic_access(event, warp, size)
        elif operation.kind == "tensor-load" and event.space == "shared":
            visit = self._visits.of_operation.get(event.async_id)
            if visit is not None:
                for start, stop in event.ranges:
                    self._visits.hold(event.owner, start, stop, visit)
        elif operation.kind in ("mma", "wgmma") and event.space == "shared" and isinstance(operation.detail, tuple):
            start, end, ctas = operation.detail
            visit = self._visits.holding(event.owner, event.ranges[0][0])
            for cta in ctas:
                self._spans.append(
                    Span(
                        cta=cta,
                        track="tensor core",
                        kind=MULTIPLY,
                        start=start,
                        stop=end,
                        line=operation.line,
                        label="" if visit is None or visit.k_tile < 0 else f"k {visit.k_tile}",
                        stage=-1 if visit is None else visit.stage,
                        k_tile=-1 if visit is None else visit.k_tile,
                        tile=(-1, -1) if visit is None else visit.tile,
                    )
                )
            operation.detail = None
        elif operation.kind in ("tensor-store", "bulk-store") and event.space == "shared" and not operation.done:
            served = self._serve("store", event.cta, operation.issued, size / float(self._costs.smem_bytes_per_clk))
            operation.read = served + float(self._costs.store_read_latency)
            operation.done = served + float(self._costs.store_latency)
            place = operation.detail if isinstance(operation.detail, tuple) else ()
            self._spans.append(
                Span(
                    cta=event.cta,
                    track="TMA store",
                    kind=STORE,
                    start=operation.issued,
                    stop=operation.done,
                    line=operation.line,
                    tile=tile_at(self._trace.description, place[1], place[0]) if len(place) == 2 else (-1, -1),
                )
            )

    def _generic_access(self, event: events.Access, warp: _Warp, size: int) -> None:
        before = warp.time
        now = self._advance(warp, event)
        site = self._structure.at(event.line)
        if event.space == "shared" and size:
            sharing = 1 if site is None else len(site.warps)  # warps that do the same share the banks
            warp.time = now + size * sharing / float(self._costs.smem_bytes_per_clk)
            stages = site is not None and site.kind == kinds.SHARED_STORE
            if stages and (warp.epilogue or event.line >= self._first_store):
                self._in_epilogue(warp, event, before)

    # -- synchronisation ------------------------------------------------------------------------

    def _phase(self, event: events.MbarrierArrive | events.MbarrierComplete) -> _Phase:
        return self._phases.setdefault((event.owner, event.barrier, event.phase), _Phase())

    def _note(self, phase: _Phase, time: float, completed: bool) -> None:
        phase.start = time if phase.start < 0 else min(phase.start, time)
        phase.latest = max(phase.latest, time)
        if completed:
            phase.done = phase.latest

    def _arrive(self, event: events.MbarrierArrive, warp: _Warp) -> None:
        if event.async_id:  # a commit: when everything multiplied before is done
            now = max(
                (one.done for one in self._operations.values() if one.kind == "mma" and one.warp == event.warp),
                default=warp.time,
            )
        else:
            now = self._advance(warp, event)
        self._note(self._phase(event), now, event.completed)

    def _bytes(self, event: events.MbarrierComplete, warp: _Warp) -> None:
        operation = self._operations.get(event.async_id)
        self._note(self._phase(event), warp.time if operation is None else operation.done, event.completed)

    def _wait(self, event: events.MbarrierWait, warp: _Warp) -> None:
        if not event.success:
            return
        self._close_epilogue(warp, event)
        self._advance(warp, event)
        phase = self._phases.get((event.owner, event.barrier, event.phase - 1))
        if phase is not None:
            self._until(warp, event, phase.done + float(self._costs.wake_up))

    def _named_barrier(self, event: events.NamedBarrier, warp: _Warp) -> None:
        self._meet(event, warp)
        if event.action != "arrive":
            warp.meeting = _meeting(event)

    def _cluster_barrier(self, event: events.ClusterBarrier, warp: _Warp) -> None:
        if event.action == "arrive":
            self._meet(event, warp)
        else:
            self._advance(warp, event)
            warp.meeting = _meeting(event)

    def _meet(self, event: events.NamedBarrier | events.ClusterBarrier, warp: _Warp) -> None:
        now, key = self._advance(warp, event), _meeting(event)
        self._meetings[key] = max(self._meetings.get(key, 0.0), now)
        self._expected[key] -= 1

    def _wait_group(self, event: events.WaitGroup, warp: _Warp) -> None:
        self._advance(warp, event)
        covered = [self._operations[one] for one in event.covered if one in self._operations]
        times = [one.read if event.read_only else one.done for one in covered]
        self._until(warp, event, max(times, default=0.0))
        if event.mechanism == "tmem-load":
            self._in_epilogue(warp, event, warp.time)


def _meeting(event: events.NamedBarrier | events.ClusterBarrier) -> tuple[Any, ...]:
    """What warps that meet have in common."""
    if isinstance(event, events.NamedBarrier):
        return ("named", event.cta, event.barrier, event.generation)
    return ("cluster", event.generation)
