"""What a warp knows to be over while a Program's synchronisation is played through.

Something that ends has a key, such as ("phase", barrier) or ("rows", warp), and a count: known[key]
is how many of them the warp knows to be over. Barriers pass knowledge on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ptxgen.ir.declarations import Hex, Operand, Register
from ptxgen.ir.program import WARP_THREADS


class Place(NamedTuple):
    """A stage of a buffer or of a group of mbarriers, in one CTA of the cluster."""

    name: str
    stage: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.name}[{self.stage}]" + (f" of CTA {self.rank}" if self.rank else "")


class Elected:
    """The value of a predicate that holds in one lane of the warp."""


ELECTED = Elected()
Value: TypeAlias = int | bool | Place | Elected
Key: TypeAlias = tuple[str, Any]
Knowledge: TypeAlias = dict[Key, int]


class ProtocolError(Exception):
    """One broken rule, in words."""


@dataclass(slots=True)
class Warp:
    """One warp: its registers, what it knows, and what it has begun.

    `index` counts through the cluster; `rank` is its CTA there and `cta_warp` its number in it.
    `fenced` is what it knew at its last tcgen05.fence::after_thread_sync, and so what its tcgen05
    operations come after. `waits` counts, for each mbarrier, the phases that it has waited for, `passed`
    its waits on any; others know of them under ("waits", warp). `withheld` is what relaxed waits have brought
    of accesses to shared memory: it counts from the next acquiring proxy fence on.
    """

    index: int
    env: dict[str, Value]
    rank: int = 0
    cta_warp: int = 0
    known: Knowledge = field(default_factory=dict)
    withheld: Knowledge = field(default_factory=dict)
    fenced: Knowledge = field(default_factory=dict)
    waits: dict[Place, int] = field(default_factory=dict)
    passed: int = 0
    uncommitted: list[Place] = field(default_factory=list)
    open_stores: list[Place] = field(default_factory=list)
    groups: int = 0
    inits: int = 0
    rows: int = 0
    loads: int = 0
    tmem_loads: int = 0
    tmem_delivered: int = 0
    batches: int = 0
    batches_done: int = 0
    wgmma_fenced: bool = False
    blocked: str = ""

    def value(self, operand: Operand) -> Any:
        """What an operand holds; 0 where that steers nothing."""
        if isinstance(operand, int):
            return operand
        return operand.value if isinstance(operand, Hex) else self.env.get(operand.name, 0)

    def address(self, base: Register, shown: object) -> Place:
        """The place whose address a register holds; `shown` names the address in the error."""
        value = self.env.get(base.name)
        if not isinstance(value, Place):
            raise ProtocolError(f"{shown} is not the address of a declared buffer or barrier")
        return value

    def require(self, key: Key, count: int, doing: str, place: object, what: str) -> None:
        """Raises ProtocolError unless the warp knows the `count` things of this key to be over."""
        if self.known.get(key, 0) < count:
            raise ProtocolError(
                f"warp {self.index} {doing} {place} without knowing that {what} (nothing that it waited for says so)"
            )

    def require_fenced(self, key: Key, count: int, doing: str, place: object, what: str) -> None:
        """As `require`, and a tcgen05.fence::after_thread_sync must have followed."""
        if self.fenced.get(key, 0) < count:
            self.require(key, count, doing, place, what)
            raise ProtocolError(
                f"warp {self.index} {doing} {place} with no tcgen05.fence::after_thread_sync since it"
                f" learnt that {what}"
            )


def learn(known: Knowledge, more: Knowledge) -> None:
    """Add `more` to `known`."""
    for key, count in more.items():
        if count > known.get(key, -1):
            known[key] = count


def require_one(lanes: int, doing: str) -> None:
    if lanes != 1:
        raise ProtocolError(f"{lanes} lanes {doing}; one elected lane must")


def require_warp(lanes: int, doing: str) -> None:
    if lanes != WARP_THREADS:
        raise ProtocolError(f"{lanes} of {WARP_THREADS} lanes {doing}; the whole warp must")
