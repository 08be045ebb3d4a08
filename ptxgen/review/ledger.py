"""The barrier ledger: who initialises each mbarrier, who arrives, how many bytes it expects, who waits.

With a trace it is written phase by phase, from what happened; without one it holds what the text shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxgen.emulator import events
from ptxgen.review.barriers import Barriers, Use
from ptxgen.review.kinds import short_name
from ptxgen.review.maps import tensor_map_of
from ptxgen.review.roles import warps_text
from ptxgen.review.structure import Structure

if TYPE_CHECKING:
    from ptxgen.device.description import LaunchDescription
    from ptxgen.review.trace import Trace


_BEFORE = "before 0"
"""Where a wait asks for the phase before the first, which counts as complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What happens in some phases of a barrier, in words. `phases` says which, "" for all."""

    phases: str
    arrives: tuple[str, ...]
    bytes: tuple[str, ...]
    waits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One mbarrier, or several of an array with the same entries. `phases` counts completed ones, None
    without a trace; `owner` is the rank of the CTA in whose memory it lies."""

    name: str
    addresses: tuple[int, ...]
    owner: int
    count: str
    init: str
    phases: tuple[int, ...] | None
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class _Phase:
    arrives: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """By line, bytes expected, CTA rank: arrivals."""
    bytes: Counter[int] = field(default_factory=Counter)
    """By line: bytes brought."""
    waits: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """By line and CTA rank: warps."""
    complete: bool = False


@dataclass(slots=True)
class _Book:
    count: int
    line: int
    warp: int
    phases: dict[int, _Phase] = field(default_factory=dict)

    def at(self, phase: int) -> _Phase:
        return self.phases.setdefault(phase, _Phase())


def ledger(
    structure: Structure,
    barriers: Sequence[Barriers],
    uses: Sequence[Use],
    description: LaunchDescription | None,
    trace: Trace | None,
) -> tuple[Account, ...]:
    """The accounts of all mbarriers, in the order of their addresses."""
    if trace is None:
        return _from_text(structure, barriers, uses, description)
    return _Ledger(structure, barriers, description).write(trace)


class _Ledger:
    def __init__(
        self, structure: Structure, barriers: Sequence[Barriers], description: LaunchDescription | None
    ) -> None:
        self._structure, self._description = structure, description
        self._barriers = barriers
        self._group_of = {address: group for group in barriers for address in group.addresses}

    def write(self, trace: Trace) -> tuple[Account, ...]:
        """From the events of the first cluster."""
        from ptxgen.review.trace import smem_offset

        ranks = len({event.cta for event in trace.first_unit})
        books: dict[tuple[int, int], _Book] = {}
        for event in trace.first_unit:
            if isinstance(event, events.MbarrierInit):
                books.setdefault((event.owner, smem_offset(event.barrier)), _Book(event.count, event.line, event.warp))
            elif isinstance(event, events.MbarrierArrive | events.MbarrierComplete | events.MbarrierWait):
                book = books.get((event.owner, smem_offset(event.barrier)))
                if book is not None:
                    _enter(book, event)
        accounts: dict[tuple[object, ...], list[tuple[int, int, _Book]]] = {}
        for (owner, address), book in sorted(books.items()):
            entries = self._entries(book, ranks > 1)
            group = self._group_of.get(address)
            key = (owner, group.name if group else address, book.count, entries)
            accounts.setdefault(key, []).append((owner, address, book))
        return tuple(self._account(members, ranks > 1) for members in accounts.values())

    def _account(self, members: list[tuple[int, int, _Book]], cluster: bool) -> Account:
        owner, _, book = members[0]
        addresses = tuple(address for _, address, _ in members)
        return Account(
            name=_label(addresses, self._group_of) + (f" of CTA {owner}" if cluster else ""),
            addresses=addresses,
            owner=owner,
            count=str(book.count),
            init=f"warp {book.warp}, line {', '.join(str(one.line) for _, _, one in members)}",
            phases=tuple(sum(phase.complete for phase in one.phases.values()) for _, _, one in members),
            entries=self._entries(book, cluster),
        )

    def _entries(self, book: _Book, cluster: bool) -> tuple[Entry, ...]:
        """Phases with the same bookings together; the last ones may go without a wait."""
        found: dict[tuple[tuple[str, ...], ...], list[int]] = {}
        for number, phase in sorted(book.phases.items()):
            arrives = tuple(self._arrive(key, count, cluster) for key, count in sorted(phase.arrives.items()))
            brought = tuple(self._brought(line, size) for line, size in sorted(phase.bytes.items()))
            waits = tuple(self._wait(key, warps, cluster) for key, warps in sorted(phase.waits.items()))
            if arrives or brought or waits:
                found.setdefault((arrives, brought, waits), []).append(number)
        return tuple(
            Entry(phases="" if len(found) == 1 else _ranges(numbers), arrives=arrives, bytes=brought, waits=waits)
            for (arrives, brought, waits), numbers in found.items()
        )

    def _arrive(self, key: tuple[int, int, int], count: int, cluster: bool) -> str:
        line, expected, rank = key
        what = f"{count} by {self._who(line)}" + (f" of CTA {rank}" if cluster else "")
        return f"{what}, line {line}" + (f", {expected} bytes expected" if expected else "")

    def _brought(self, line: int, size: int) -> str:
        site = self._structure.at(line)
        name = tensor_map_of(site, self._structure, self._description)[0] if site is not None else ""
        return f"{size} by {name or 'a copy'}, line {line}"

    def _wait(self, key: tuple[int, int], warps: set[int], cluster: bool) -> str:
        line, rank = key
        place = f" of CTA {rank}" if cluster else ""
        return f"{self._who(line, warps)}{place}, line {line}"

    def _who(self, line: int, warps: set[int] | None = None) -> str:
        site = self._structure.at(line)
        role = site.role if site is not None else ""
        if role:
            return role
        return warps_text(sorted(warps)) if warps else warps_text(site.warps if site is not None else ())


def _enter(book: _Book, event: events.MbarrierArrive | events.MbarrierComplete | events.MbarrierWait) -> None:
    if isinstance(event, events.MbarrierWait):
        if event.success:
            book.at(event.phase - 1).waits.setdefault((event.line, event.cta), set()).add(event.warp)
        return
    phase = book.at(event.phase)
    phase.complete |= event.completed
    if isinstance(event, events.MbarrierComplete):
        phase.bytes[event.line] += event.tx_bytes
    else:
        phase.arrives[event.line, event.expect_bytes, event.cta] += event.count


def _from_text(
    structure: Structure,
    barriers: Sequence[Barriers],
    uses: Sequence[Use],
    description: LaunchDescription | None,
) -> tuple[Account, ...]:
    accounts = []
    for group in (*barriers, None):
        own = [use for use in uses if use.barriers is group]
        if group is None and not own:
            continue
        waits, arrives, brought = [], [], []
        for use in own:
            who = use.site.role or warps_text(use.site.warps)
            if use.action == "wait":
                waits.append(f"{who}, line {use.site.line}")
            elif use.action in ("arrive", "commit"):
                lanes = "one lane" if use.site.one else "every lane"
                arrives.append(f"{lanes} of {who}, line {use.site.line}: {short_name(use.site.instruction.name)}")
            elif use.action == "expect":
                size = "a number of bytes not in the text" if use.number is None else f"{use.number} bytes"
                arrives.append(f"{who}, line {use.site.line}: {size} expected")
            elif use.action == "bytes":
                name = tensor_map_of(use.site, structure, description)[0] or "a copy"
                brought.append(f"{name}, line {use.site.line}")
        entry = Entry(phases="", arrives=tuple(arrives), bytes=tuple(brought), waits=tuple(waits))
        accounts.append(
            Account(
                name="an mbarrier that the text does not name" if group is None else _whole(group),
                addresses=() if group is None else group.addresses,
                owner=0,
                count="?" if group is None else group.count_text,
                init="" if group is None else f"line {', '.join(str(line) for line in group.lines)}",
                phases=None,
                entries=(entry,),
            )
        )
    return tuple(accounts)


def _whole(group: Barriers) -> str:
    return group.name if len(group.addresses) == 1 else f"{group.name}[0..{len(group.addresses) - 1}]"


def _label(addresses: tuple[int, ...], group_of: dict[int, Barriers]) -> str:
    group = group_of.get(addresses[0])
    if group is None:
        return f"mbarrier at {addresses[0]}"
    if len(addresses) == 1:
        return group.label(addresses[0])
    places = [group.addresses.index(address) for address in addresses]
    return f"{group.name}[{_ranges(places)}]"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: "0..3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in runs).replace("-1", _BEFORE)
