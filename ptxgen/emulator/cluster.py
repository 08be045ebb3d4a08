"""What the CTAs of a cluster do together: the cluster's barrier, and the work of a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.warp import Wait
from ptxgen.errors import MachineError

if TYPE_CHECKING:
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


class Half:
    """What one CTA's warp brings to an operation of the pair: its operands, and the fragment that waits."""

    __slots__ = ("fragment", "line", "operands")

    def __init__(self, fragment: Fragment, line: int, operands: Any) -> None:
        self.fragment, self.line, self.operands = fragment, line, operands


class Pair:
    """The CTAs of ranks 2i and 2i + 1. tcgen05.alloc, .dealloc and .relinquish_alloc_permit under
    cta_group::2 are run by one warp of each, and the first to come waits for the other (PTX ISA 9.1
    §9.7.16.5, Table 48)."""

    def __init__(self) -> None:
        self._halves: dict[str, tuple[list[Half], list[Half]]] = {}
        self._done: set[Fragment] = set()

    def together(
        self, what: str, warp: Warp, line: int, operands: Any, perform: Callable[[Half, Half], bool]
    ) -> bool:
        """Runs `perform`(even, odd) when both CTAs have come; False: the warp waits, and asks again.
        `perform` gives False when it has to be tried again later, once it has arranged to be woken."""
        fragment, rank = warp.current, warp.cta.rank & 1
        if fragment in self._done:
            self._done.remove(fragment)
            return True
        queues = self._halves.setdefault(what, ([], []))
        if all(half.fragment is not fragment for half in queues[rank]):
            queues[rank].append(Half(fragment, line, operands))
        if queues[rank][0].fragment is not fragment or not queues[1 - rank]:
            return warp.wait(Wait("pair", line, detail=what))
        even, odd = queues[0][0], queues[1][0]
        if not perform(even, odd):
            return False
        other = (even, odd)[1 - rank].fragment
        self._done.add(other)
        other.wait = None
        for queue in queues:
            queue.pop(0)
            if queue:
                queue[0].fragment.wait = None
        warp.cta.unit.activity += 1
        return True
