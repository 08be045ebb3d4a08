"""What differs between two texts, in words: each fact that changed, and no other."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from ptxgen.review import kinds
from ptxgen.review.alignment import Pair, code_of
from ptxgen.review.facts import Facts, significance
from ptxgen.review.structure import Site

_MOST_OPCODES = 8
"""Opcodes that a summary names for one place before it counts the others."""
_MOST_PASSED = 3
"""Instructions that a moved one is said to have passed before the others are counted."""

_NUMBER = re.compile(r"(?<![\w%.$])-?(?:0[xX][0-9a-fA-F]+|\d+)(?![\w.])")
_EVERYWHERE = "all warps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One fact of a group, before and after; None where a side has no such fact. Where `old` is empty, `new`
    says what changed."""

    group: str
    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if not self.old and self.old is not None:
            return f"{self.name}: {self.new}"
        if self.old is None:
            return f"{self.name}: new, {self.new}" if self.new else f"{self.name}: new"
        if self.new is None:
            return f"{self.name}: gone, was {self.old}" if self.old else f"{self.name}: gone"
        return f"{self.name}: {self.old} -> {self.new}"


def changes(old: Facts, new: Facts, pairs: tuple[Pair, ...]) -> tuple[Change, ...]:
    """All changes, in the order in which a reviewer asks for them. `pairs` are the lines of both texts."""
    found = []
    for group, before in old.groups.items():
        after = new.groups[group]
        if group == "spec" and not (before and after):
            continue  # a text that no spec accounts for has no choices to compare
        found += _between(group, before, after)
    roles = [{role.name: role.title for role in side.structure.roles} for side in (old, new)]
    return (*found, *_between("roles", *roles), *_Instructions(old, new, pairs).changes())


def _between(group: str, before: dict[str, str], after: dict[str, str]) -> list[Change]:
    return [
        Change(group=group, name=name, old=before.get(name), new=after.get(name))
        for name in [*before, *(name for name in after if name not in before)]
        if before.get(name) != after.get(name)
    ]


@dataclass(frozen=True, slots=True)
class _One:
    """An instruction of one side alone: its pair's number, and what tells whether it is on the other side elsewhere."""

    number: int
    opcode: str
    code: str


class _Instructions:
    """Instructions that came, went, moved, or got other operands, by place (role and loops)."""

    def __init__(self, old: Facts, new: Facts, pairs: tuple[Pair, ...]) -> None:
        self._old, self._new = old, new
        self._pairs = pairs
        self._came = defaultdict[str, list[_One]](list)
        self._went = defaultdict[str, list[_One]](list)
        self._moved: Counter[tuple[str, str]] = Counter()
        self._constants: dict[tuple[str, str, str], None] = {}
        self._operands: dict[str, Counter[str]] = {}
        for number, pair in enumerate(pairs):
            mine = old.structure.by_line.get(pair.old or 0, ())
            theirs = new.structure.by_line.get(pair.new or 0, ())
            if pair.state == "changed" and [s.instruction.name for s in mine] == [s.instruction.name for s in theirs]:
                if theirs:
                    self._other_operands(pair, theirs[0])
            elif pair.state in ("changed", "added", "removed"):
                for sites, ones, side in ((mine, self._went, old), (theirs, self._came, new)):
                    for site in sites:
                        code = code_of(side.structure.lines[site.line - 1])
                        ones[_place(site)].append(_One(number, site.instruction.name, code))
                continue
            for site, other in zip(mine, theirs, strict=False):
                if _place(site) != _place(other):
                    self._moved[_place(site), _place(other)] += 1

    def changes(self) -> list[Change]:
        """In words: moves, constants, operands, then counts of synchronisation and of the rest."""
        found = [
            Change(group="structure", name=_several(count, "instruction"), old=f"in {before}", new=f"in {after}")
            for (before, after), count in self._moved.items()
        ]
        found += [
            Change(group="constants", name=name, old=before, new=after) for name, before, after in self._constants
        ]
        found += [
            Change(group="operands", name=place, old="", new=f"other operands in {_listed(counts)}")
            for place, counts in self._operands.items()
        ]
        for group, synchronising in (("synchronisation", True), ("instructions", False)):
            for place in dict.fromkeys([*self._went, *self._came]):
                found += self._moves(group, place, synchronising)
                change = self._counts(group, place, synchronising)
                found += [change] if change else []
        return found

    def _moves(self, group: str, place: str, synchronising: bool) -> list[Change]:
        """Instructions that stand elsewhere among those of the same place. Each of those that synchronise is told,
        with what it has passed; of others, and of those that others of their opcode stand for, how many there are."""
        went, came = (
            [one for one in ones[place] if _synchronises(one.opcode) == synchronising]
            for ones in (self._went, self._came)
        )
        stands = defaultdict[str, list[_One]](list)
        for other in came:
            stands[other.code].append(other)
        told: list[tuple[_One, _One]] = []
        for one in went if synchronising else ():
            if len(told) < _MOST_OPCODES and (again := stands[one.code]):
                told.append((one, min(again, key=lambda other: abs(other.number - one.number))))
                again.remove(told[-1][1])
        found = [
            f"{kinds.short_name(one.opcode)} moved {self._passed(one.number, other.number)}" for one, other in told
        ]
        opcodes = [Counter(one.opcode for one in ones) for ones in (went, came)]
        others = (opcodes[0] & opcodes[1]) - Counter(one.opcode for one, _ in told)
        if others:
            found.append(f"in other places or replaced: {_listed(others)}")
        return [Change(group=group, name=place, old="", new=text) for text in found]

    def _passed(self, before: int, after: int) -> str:
        """Up or down, and past which instructions of the new text."""
        first, last = sorted((before, after))
        sites = [
            site
            for pair in self._pairs[first + 1 : last]
            for site in self._new.structure.by_line.get(pair.new or 0, ())
        ]
        names = [kinds.short_name(site.instruction.name) for site in sites[:_MOST_PASSED]]
        shown = [f"past {', '.join(names)}"] if names else []
        if len(sites) > _MOST_PASSED:
            shown.append(f"and {len(sites) - _MOST_PASSED} more")
        return " ".join(["up" if after < before else "down", *shown])

    def _other_operands(self, pair: Pair, site: Site) -> None:
        """A line with the same opcode: one other number is worth naming."""
        assert pair.old is not None and pair.new is not None
        before, after = (
            code_of(side.structure.lines[line - 1]) for side, line in ((self._old, pair.old), (self._new, pair.new))
        )
        mine, theirs = (list(_NUMBER.finditer(text)) for text in (before, after))
        differ = [(a, b) for a, b in zip(mine, theirs, strict=False) if a[0] != b[0]]
        if _NUMBER.sub("#", before) == _NUMBER.sub("#", after) and len(differ) == 1:
            was, now = differ[0]
            name = f"{after[: now.start()]}…{after[now.end() :]}".rstrip(";")
            place = f" ({site.place})" if site.place else ""
            self._constants[f"{name}{place}", was[0], now[0]] = None
        else:
            self._operands.setdefault(_place(site), Counter())[site.instruction.name] += 1

    def _counts(self, group: str, place: str, synchronising: bool) -> Change | None:
        came, went = (Counter(one.opcode for one in ones[place]) for ones in (self._came, self._went))
        signed = [(opcode, came[opcode] - went[opcode]) for opcode in came | went if came[opcode] != went[opcode]]
        short = Counter(kinds.short_name(opcode) for opcode, _ in signed)
        texts = [
            f"{count:+} {opcode if short[kinds.short_name(opcode)] > 1 else kinds.short_name(opcode)}"
            for opcode, count in sorted(signed, key=_rank)
            if _synchronises(opcode) == synchronising
        ]
        if not texts:
            return None
        totals = [_total(side, place, synchronising) for side in (self._old, self._new)]
        listed = _cut(texts)
        grown = sum(
            sign * count
            for sign, counts in ((1, came), (-1, went))
            for opcode, count in counts.items()
            if _synchronises(opcode) == synchronising
        )
        if place in self._new.counts and totals[1] - totals[0] != grown:  # others moved here, or away
            return Change(group=group, name=place, old="" if place in self._old.counts else None, new=listed)
        return Change(
            group=group,
            name=place,
            old=str(totals[0]) if place in self._old.counts else None,
            new=f"{totals[1]} ({listed})" if place in self._new.counts else None,
        )


def _rank(item: tuple[str, object]) -> int:
    return significance(item[0])


def _total(side: Facts, place: str, synchronising: bool) -> int:
    return sum(count for opcode, count in side.counts.get(place, {}).items() if _synchronises(opcode) == synchronising)


def _synchronises(opcode: str) -> bool:
    return kinds.kind_of(opcode) in kinds.SYNCHRONISATION


def _place(site: Site) -> str:
    return site.place or _EVERYWHERE


def _listed(counts: Counter[str]) -> str:
    """Opcodes, each with its number where there are several."""
    ranked = sorted(counts.items(), key=_rank)
    return _cut(
        [f"{count} {kinds.short_name(opcode)}" if count > 1 else kinds.short_name(opcode) for opcode, count in ranked]
    )


def _cut(texts: list[str]) -> str:
    shown = ", ".join(texts[:_MOST_OPCODES])
    return shown + (
        f" and {_several(len(texts) - _MOST_OPCODES, 'other opcode')}" if len(texts) > _MOST_OPCODES else ""
    )


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
