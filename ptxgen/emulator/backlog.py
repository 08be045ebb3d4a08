"""The clusters of a launch that have not started: the chip starts them, and clusterlaunchcontrol takes
them (PTX ISA 9.1 §9.7.13.17)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.emulator.machine import Launch

_START = 0.2
"""random: how likely a cluster starts before the next round while the chip has room."""


class Backlog:
    """Numbers of clusters, in the order of their start.

    Where clusters can be cancelled, how many of them start is policy, as it is up to what else the chip
    does: eager, as many as the chip has SMs for; late, one at a time; random, now and then another one,
    and any may be cancelled. All others start as soon as there is room.
    """

    def __init__(self, launch: Launch) -> None:
        self._left = list(range(launch.units - 1, -1, -1))
        self._capacity = max(1, launch.chip.sm_count // launch.cluster_size)
        self._policy = launch.policy if launch.code.cancels_clusters else "eager"
        self._draw = random.Random((launch.seed << 40) ^ 0xC1C)

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self, resident: int, wanted: bool = False) -> int | None:
        """The cluster that starts now beside `resident` others, or None. `wanted`: none of those can go on."""
        if not self._left or resident >= self._capacity:
            return None
        waits = self._policy == "late" or (self._policy == "random" and self._draw.random() > _START)
        if waits and resident and not wanted:
            return None
        return self._left.pop()

    def cancel(self) -> int | None:
        """Takes a cluster away that will then not start; None when all have started or were cancelled."""
        if not self._left:
            return None
        at = self._draw.randrange(len(self._left)) if self._policy == "random" else len(self._left) - 1
        return self._left.pop(at)
