"""When asynchronous work takes effect, and which lane elect.sync picks.

- eager: at once.
- late: only when no warp can go on without it, one operation at a time; of those that can unblock a
  waiting warp the oldest first, else the oldest.
- random: operations, warps and the lengths of their turns are drawn; the seed and the cluster's
  number alone decide the draws, so results do not depend on the number of workers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.emulator.values import lanes_of
from ptxgen.errors import UnknownNameError

if TYPE_CHECKING:
    from ptxgen.emulator.asynchrony import AsyncOp

POLICIES = ("eager", "late", "random")
ELECTIONS = ("first", "last", "random")

_TURN = 20_000
"""Instructions that a warp may run before the others get their turn."""


class Policy:
    """One cluster's draws. `elect` is "first", "last", "random" or a lane number."""

    def __init__(self, name: str, seed: int, unit: int, elect: str | int) -> None:
        if name not in POLICIES:
            raise UnknownNameError("policy", name, POLICIES)
        if isinstance(elect, str) and elect not in ELECTIONS:
            raise UnknownNameError("election", elect, ELECTIONS)
        self.name = name
        self.eager = name == "eager"
        self.random = name == "random"
        self._elect = elect
        self._seed = seed
        self._draw = random.Random((seed << 40) ^ unit)
        self._elected: dict[int, int] = {}

    def elect(self, mask: int) -> int:
        """The lane that elect.sync picks of a mask; always the same one for the same mask."""
        if self._elect == "first":
            return (mask & -mask).bit_length() - 1
        if self._elect == "last":
            return mask.bit_length() - 1
        if isinstance(self._elect, int):
            if mask >> self._elect & 1:
                return self._elect
            return (mask & -mask).bit_length() - 1
        if mask not in self._elected:
            self._elected[mask] = random.Random((self._seed << 32) ^ mask).choice(list(lanes_of(mask)))
        return self._elected[mask]

    def turn(self) -> int:
        """How many instructions the next warp may run."""
        if not self.random:
            return _TURN
        return int(self._draw.expovariate(1 / 60)) + 1

    def order(self, count: int) -> Sequence[int]:
        """The order in which `count` warps get their turns."""
        if not self.random:
            return range(count)
        order = list(range(count))
        self._draw.shuffle(order)
        return order

    def goes_ahead(self) -> bool:
        """Whether a warp's part of what a pair of CTAs runs together does not wait for the other part."""
        return self.eager or (self.random and self._draw.random() < 0.5)

    def gives_up(self) -> bool:
        """Whether a failed test or try of an mbarrier gives false at once, and not when its phase completes."""
        return self.random and self._draw.random() < 0.1

    def completes_now(self) -> bool:
        """random: whether one pending operation completes before the next turn."""
        return self._draw.random() < 0.4

    def choose(self, pending: Sequence[AsyncOp], awaited: set[tuple[int, int]]) -> AsyncOp:
        """The next operation to complete; `awaited` are the (CTA rank, mbarrier) that warps wait for."""
        if self.random:
            return self._draw.choice(pending)
        for op in pending:
            if op.barrier is not None and op.barrier in awaited:
                return op
        return pending[0]
