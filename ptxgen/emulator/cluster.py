"""What the CTAs of a cluster do together: the cluster's barrier, and the work of a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError

if TYPE_CHECKING:
    from ptxgen.emulator.policy import Policy
    from ptxgen.emulator.unit import Unit
    from ptxgen.emulator.warp import Fragment, Warp


class ClusterBarrier:
    """barrier.cluster.arrive and .wait. `generation` counts its completions; a warp that has
    arrived passes once the generation that it arrived in is complete."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.generation = 0
        self._arrived: dict[Warp, int] = {}  # lanes that arrived in this generation
        self._awaits: dict[Warp, int] = {}  # the generation that a warp's wait is for
        self.waiting: list[Fragment] = []

    def arrive(self, warp: Warp) -> None:
        lanes = self._arrived.get(warp, 0)
        if lanes & warp.bits or (warp in self._awaits and not lanes):
            raise MachineError("named-barrier-mismatch", "barrier.cluster.arrive twice without barrier.cluster.wait")
        self._arrived[warp] = lanes | warp.bits
        if self._arrived[warp] == warp.live:
            self._awaits[warp] = self.generation
        self.settle()

    def passed(self, warp: Warp) -> bool:
        """Whether the warp's wait is over; forgets its arrival then."""
        if warp not in self._awaits and not self._arrived.get(warp, 0) & warp.bits:
            raise MachineError("named-barrier-mismatch", "barrier.cluster.wait without barrier.cluster.arrive")
        if warp in self._awaits and self._awaits[warp] < self.generation:
            if warp.bits == warp.live:
                del self._awaits[warp]
            return True
        return False

    def settle(self) -> None:
        """Completes the barrier when every live thread of the cluster has arrived."""
        live = [warp for cta in self._unit.ctas for warp in cta.warps if warp.live]
        if not live or any(self._arrived.get(warp, 0) != warp.live for warp in live):
            return
        self.generation += 1
        self._arrived.clear()
        for fragment in self.waiting:
            fragment.wait = None
        self.waiting.clear()
        self._unit.activity += 1


Perform = Callable[["Warp", Any], Any]
"""Runs a warp's half of an operation; gets (None: nothing yet) and gives what the first half to run settles for
both. None: not possible yet."""


class Half:
    """One CTA's part of an operation of the pair: its operands, the fragment that runs it, and what came of it
    if it went ahead of the other part (None: it waits)."""

    __slots__ = ("_perform", "fragment", "line", "operands", "result")

    def __init__(self, fragment: Fragment, line: int, operands: Any, perform: Perform) -> None:
        self.fragment, self.line, self.operands = fragment, line, operands
        self._perform = perform
        self.result: Any = None

    @property
    def warp(self) -> Warp:
        return self.fragment.warp

    def run(self, settled: Any = None) -> bool:
        self.result = self._perform(self.warp, settled)
        return self.result is not None


class Pair:
    """The CTAs of ranks 2i and 2i + 1. tcgen05.alloc, .dealloc and .relinquish_alloc_permit under
    cta_group::2 are run by one warp of each, and the first to come may or may not wait for the other
    (PTX ISA 9.1 §9.7.16.5, Tables 46 to 48): which of the two is policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._halves: dict[str, tuple[list[Half], list[Half]]] = {}
        self._done: set[Fragment] = set()

    def together(self, what: str, warp: Warp, line: int, operands: Any, perform: Perform) -> bool:
        """Runs the warp's half, and the other CTA's if that waits; False: the warp waits, and asks again."""
        fragment, rank = warp.current, warp.cta.rank & 1
        if fragment in self._done:
            self._done.remove(fragment)
            return True
        queues = self._halves.setdefault(what, ([], []))
        mine, theirs = queues[rank], queues[1 - rank]
        half = next((half for half in mine if half.fragment is fragment and half.result is None), None)
        if half is None:
            half = Half(fragment, line, operands, perform)
            mine.append(half)
        if mine[0] is not half or not theirs:
            if not theirs and self._policy.goes_ahead():
                return half.run()
            return warp.wait(Wait("pair", line, detail=what))
        other = theirs[0]
        _check_same(what, half, other)
        if other.result is None:
            if not other.run():  # it asks again once it can, for both
                return warp.wait(Wait("pair", line, detail=what))
            self._done.add(other.fragment)
            other.fragment.wait = None
        half.run(other.result)
        for queue in queues:
            queue.pop(0)
            if queue:
                queue[0].fragment.wait = None
        warp.cta.unit.activity += 1
        return True

    def unmatched(self) -> tuple[str, Half] | None:
        """An operation that only one of the two CTAs has run."""
        for what, queues in self._halves.items():
            for queue in queues:
                if queue:
                    return what, queue[0]
        return None


def _check_same(what: str, first: Half, second: Half) -> None:
    if first.operands != second.operands:
        even, odd = sorted((first, second), key=lambda half: half.warp.cta.rank)
        raise MachineError(
            "illegal-tmem-allocation",
            f"the CTAs of a pair run {what} (lines {even.line} and {odd.line}) with different operands: "
            f"{even.operands} and {odd.operands}",
        )
