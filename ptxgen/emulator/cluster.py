"""The barrier of a cluster: every thread of all its CTAs arrives, then waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
