"""The mbarriers of a kernel as its text shows them: which there are, and who does what to each.

Barriers are known by the addresses that are initialised. An address that a loop computes is known as a
start and a step; such starts also tell where one array of barriers ends and the next begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptxgen.emulator.module import Address, Register, Symbol
from ptxgen.review import kinds
from ptxgen.review.structure import Site, Structure
from ptxgen.review.values import Number

MBARRIER_BYTES = 8
_NAMELESS = "mbarrier at "
_NUMBERED = re.compile(r"%[a-z]{1,3}\d+$")
"""A register name that a compiler counted out, and that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barriers:
    """One mbarrier or an array of them, one for each stage. `counts` are the arrivals that each expects,
    None where the text does not say; `lines` initialise them."""

    name: str
    addresses: tuple[int, ...]
    counts: tuple[int | None, ...]
    lines: tuple[int, ...]

    @property
    def count_text(self) -> str:
        """Arrivals a phase, once where all agree."""
        texts = ["?" if count is None else str(count) for count in self.counts]
        return texts[0] if len(set(texts)) == 1 else ", ".join(texts)

    @property
    def nameless(self) -> bool:
        """Whether the text has no name for it, but only its address."""
        return self.name.startswith(_NAMELESS)

    def label(self, address: int) -> str:
        """The name of one of them."""
        if len(self.addresses) == 1:
            return self.name
        return f"{self.name}[{self.addresses.index(address)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An instruction that works on an mbarrier. action: "init", "arrive", "expect", "commit", "bytes"
    (a copy that will complete bytes on it), "wait" or "end". `barriers` is None where the text does not say which;
    `number` are arrivals, or bytes, where known."""

    site: Site
    action: str
    barriers: Barriers | None
    number: int | None = None


def uses_of(structure: Structure) -> tuple[tuple[Barriers, ...], tuple[Use, ...]]:
    """The mbarriers and every instruction that uses one, in the order of the text."""
    found = [(site, *use) for site in structure.sites for use in _uses(site)]
    inits = [(site, place, number) for site, action, place, number in found if action == "init"]
    starts = {
        place.value
        for _, action, place, _ in found
        if action != "init" and place is not None and place.step and isinstance(place.value, int)
    }
    groups = _groups(inits, starts)
    uses = _assigned(found, groups)
    while lone := next((at for at in range(1, len(groups)) if _only_waited_for(groups, at, uses)), 0):
        groups = (*groups[: lone - 1], _joined(groups[lone - 1], groups[lone]), *groups[lone + 1 :])
        uses = _assigned(found, groups)
    return groups, uses


def _assigned(
    found: Sequence[tuple[Site, str, Number | None, int | None]], groups: Sequence[Barriers]
) -> tuple[Use, ...]:
    at = {address: group for group in groups for address in group.addresses}
    return tuple(
        Use(
            site=site,
            action=action,
            barriers=_common(at, place),
            number=number,
        )
        for site, action, place, number in found
    )


def _common(at: Mapping[int, Barriers], place: Number | None) -> Barriers | None:
    """The array in which a place lies for everyone, None where that is not known."""
    if place is None:
        return None
    found = [at.get(address) for address in ([place.value] if isinstance(place.value, int) else place.value)]
    return found[0] if all(group is found[0] for group in found) else None


def _only_waited_for(groups: Sequence[Barriers], at: int, uses: Sequence[Use]) -> bool:
    """Whether a nameless group, at which nobody arrives, is really the end of the array before it: a waiter whose
    index does not begin at 0 looks as if it walked an array of its own."""
    before, here = groups[at - 1], groups[at]
    return (
        not any(use.barriers is here and use.action not in ("init", "end", "wait") for use in uses)
        and any(use.barriers is here and use.action == "wait" for use in uses)
        and here.addresses[0] == before.addresses[-1] + MBARRIER_BYTES
        and here.nameless
        and before.nameless
        and before.counts[0] == here.counts[0]
    )


def _joined(one: Barriers, other: Barriers) -> Barriers:
    return Barriers(
        name=one.name,
        addresses=one.addresses + other.addresses,
        counts=one.counts + other.counts,
        lines=one.lines + other.lines,
    )


_Init = tuple[Site, Number | None, int | None]


def _groups(inits: list[_Init], starts: set[int]) -> tuple[Barriers, ...]:
    """Arrays of barriers: side by side, of one count, and named as one or begun at a start."""
    placed: dict[int, _Init] = {}
    for init in inits:
        if init[1] is not None and isinstance(init[1].value, int) and not init[1].step:
            placed.setdefault(init[1].value, init)
    groups: list[list[int]] = []
    names: list[str] = []  # "" for barriers whose registers have no telling name
    for address in sorted(placed):
        name = _base_name(placed[address][0])
        last = groups[-1][-1] if groups else None
        joined = (
            last is not None
            and address == last + MBARRIER_BYTES
            and placed[address][2] == placed[last][2]
            and name == names[-1]
            and (bool(name) or address not in starts)
        )
        if joined:
            groups[-1].append(address)
        else:
            groups.append([address])
            names.append(name)
    return tuple(
        Barriers(
            name=name or f"{_NAMELESS}{addresses[0]}",
            addresses=tuple(addresses),
            counts=tuple(placed[address][2] for address in addresses),
            lines=tuple(placed[address][0].line for address in addresses),
        )
        for name, addresses in zip(names, groups, strict=True)
    )


def _base_name(site: Site) -> str:
    """What the register of an initialisation is called, "" where that says nothing."""
    operand = site.instruction.operands[0]
    base = operand.base if isinstance(operand, Address) else None
    if isinstance(base, Register) and not _NUMBERED.match(base.name):
        return base.name.lstrip("%")
    return base.variable.name if isinstance(base, Symbol) else ""


def _uses(site: Site) -> list[tuple[str, Number | None, int | None]]:
    name = site.instruction.name
    values = site.values

    def place(index: int) -> Number | None:
        value = values[index] if index < len(values) else None
        return value if isinstance(value, Number) and value.of is None else None

    def whole(index: int) -> int | None:
        value = place(index)
        return value.value if value is not None and isinstance(value.value, int) and not value.step else None

    if name.startswith("mbarrier.init"):
        return [("init", place(0), whole(1))]
    if name.startswith("mbarrier.inval"):
        return [("end", place(0), None)]
    if site.kind == kinds.MBARRIER_WAIT:
        return [("wait", place(1), None)]
    if name.startswith("mbarrier.arrive.expect_tx"):
        return [("expect", place(1), whole(2)), ("arrive", place(1), 1)]
    if name.startswith("mbarrier.expect_tx"):
        return [("expect", place(0), whole(1))]
    if name.startswith(("mbarrier.arrive", "mbarrier.arrive_drop")):
        return [("arrive", place(1), whole(2) if len(values) > 2 else 1)]
    if name.startswith("mbarrier.complete_tx"):
        return [("bytes", place(0), whole(1))]
    if name.startswith("cp.async.mbarrier.arrive"):
        return [("arrive", place(0), 1)]
    if name.startswith("tcgen05.commit"):
        return [("commit", place(0), 1)]
    if "mbarrier::complete_tx" in name and len(values) > 2:
        index = 3 if name.startswith("cp.async.bulk.shared") else 2
        return [("bytes", place(index), None)]
    return []
