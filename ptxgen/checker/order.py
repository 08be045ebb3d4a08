"""Does one access come before another? The judgements that every memory shares.

Two accesses to the same cell, one of them a write, need an order: the second one's agent has to
know the first (see clocks.py). Agents are threads, whose access happens at once, and asynchronous
operations, whose access happens at some time between issue and completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from ptxgen.checker.clocks import Clock, Paths, epoch_of, path_of
from ptxgen.checker.operations import Operation
from ptxgen.checker.provenance import Provenance
from ptxgen.checker.threads import View, Warp


class Verdict(Enum):
    """How a first access stands to a second one."""

    ORDERED = 0
    UNORDERED = 1
    UNPROXIED = 2
    """Ordered, but no proxy fence lies between the generic and the asynchronous access."""
    BRIDGED = 3
    """Ordered, and the only proxy fence is the second agent's own."""
    UNFENCED = 4
    """Ordered, but without tcgen05.fence on both sides."""
    UNSCOPED = 5
    """Ordered, but only by synchronisation of .cta scope, and they are of different CTAs."""


ORDERED = Verdict.ORDERED
"""By itself, for the paths that are taken most: Python looks up the member of an Enum each time."""


class Access:
    """An access by threads. `number` counts those of a cluster, `order` all events. `uniform`: all
    `lanes` access the same cells, else each its own. `strong`: an atomic or otherwise
    morally strong access, which does not race with others of that kind. `all_proxies`: the store of
    tcgen05.alloc, which keeps its order with all accesses to the address (PTX ISA 9.1 §9.7.16.6.1).
    `value` is what all lanes write, where it is one; `verb` says what is done in a message."""

    __slots__ = (
        "all_proxies", "cta", "epoch", "lanes", "line", "number", "order", "strong", "uniform", "value", "verb",
        "view", "warp", "write",
    )  # fmt: skip

    def __init__(
        self, number: int, warp: Warp, view: View, lanes: int, line: int, order: int, *, uniform: bool, write: bool,
        strong: bool,
    ) -> None:  # fmt: skip
        self.number, self.warp, self.cta, self.view, self.lanes = number, warp.number, warp.cta, view, lanes
        self.epoch, self.line, self.order = warp.epoch, line, order
        self.uniform, self.write, self.strong = uniform, write, strong
        self.all_proxies = False
        self.value: tuple[int, ...] | None = None
        self.verb = "writes" if write else "reads"

    def same_store(self, other: Access) -> bool:
        """Whether both write one value by one instruction: several warps may store what all of them know."""
        return self.write and other.write and self.line == other.line and self.value == other.value is not None


Agent = Access | Operation
SameLane = Callable[[int], bool]
"""Whether only the lane itself follows, in every cell, what this lane of the same warp did."""


def _never(lane: int) -> bool:
    return False


class Order:
    """Judges pairs of agents, and notes which synchronisation each judgement rests on."""

    def __init__(self, paths: Paths, provenance: Provenance) -> None:
        self._paths, self._provenance = paths, provenance

    def knows_whole(self, clock: Clock, first: Access) -> bool:
        """Whether every lane of the first access's warp is known."""
        value = clock.warps[first.warp]
        if epoch_of(value) < first.epoch:
            return False
        self._paths.need(path_of(value))
        return True

    def knows_whole_proxied(self, clock: Clock, first: Access) -> bool:
        """The same, and that a proxy fence came after it."""
        value = clock.proxied[first.warp]
        if epoch_of(value) < first.epoch:
            return False
        self._paths.need(path_of(value))
        return self.knows_whole(clock, first)

    def _knows(self, clock: Clock, first: Access, lane: int) -> bool:
        value = clock.knows(first.warp, lane)
        if epoch_of(value) < first.epoch:
            return False
        self._paths.need(path_of(value))
        return True

    # -- first is a thread's access --------------------------------------------------------------

    def thread_then_thread(
        self, first: Access, lanes: Iterable[int], second: Access, same_lane: SameLane = _never
    ) -> Verdict:
        clock = second.view.clock
        if self.knows_whole(clock, first):
            return self._in_scope(first, second, clock.warps[first.warp])
        mine = first.warp == second.warp
        worst = ORDERED
        for lane in lanes:
            if mine and same_lane(lane):
                continue
            if not self._knows(clock, first, lane):
                return Verdict.UNORDERED
            if worst is ORDERED:
                worst = self._in_scope(first, second, clock.knows(first.warp, lane))
        return worst

    def _in_scope(self, first: Access, second: Agent, value: int) -> Verdict:
        """Whether the way by which a stamp was learned reaches from one CTA to the other."""
        if first.cta == second.cta or not self._paths.cta_scoped:
            return ORDERED
        return Verdict.UNSCOPED if self._paths.crosses_in_cta_scope(path_of(value)) else ORDERED

    def thread_then_operation(self, first: Access, lanes: Iterable[int], second: Operation) -> Verdict:
        """Asynchronous operations that use the async proxy also need a proxy fence; for their tensor maps see
        tensor_maps.py."""
        clock = second.clock
        if self.knows_whole_proxied(clock, first):
            return self._in_scope(first, second, clock.warps[first.warp])
        worst = ORDERED
        if second.reads_map and first.uniform and first.warp == second.warp and first.lanes >> second.lane & 1:
            return worst  # tensormap.cp_fenceproxy: its warp copies as one, and each lane comes after that
        for lane in lanes:
            own = first.warp << 5 | lane == second.of_thread and first.order < second.order
            if not own and not self._knows(clock, first, lane):
                return Verdict.UNORDERED
            if worst is ORDERED and not own:
                worst = self._in_scope(first, second, clock.knows(first.warp, lane))
            if first.all_proxies or second.reads_map:
                continue
            proxied = max(clock.knows_proxied(first.warp, lane), second.proxied if own else 0)
            if epoch_of(proxied) >= first.epoch:
                self._paths.need(path_of(proxied))
            elif second.bridge is not None and epoch_of(second.bridge.knows(first.warp, lane)) >= first.epoch:
                worst = Verdict.BRIDGED if worst is ORDERED else worst
            else:
                worst = Verdict.UNPROXIED
        return worst

    # -- first is an operation -------------------------------------------------------------------

    def operation_then_agent(self, first: Operation, first_writes: bool, second: Agent) -> Verdict:
        clock = second.view.clock if isinstance(second, Access) else second.clock
        known = clock.done if first_writes else clock.read
        if not known & first.bit:
            return Verdict.UNORDERED
        self._provenance.need(first, second.warp)
        return ORDERED
