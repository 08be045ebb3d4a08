"""Changed lines with a little of what surrounds them, by role and by what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.review import kinds
from ptxgen.review.alignment import Pair, align
from ptxgen.review.structure import Structure

_CONTEXT = 2
HEADER, DECLARATIONS = "header", "declarations"
UNCHANGED = ("same", "renamed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """Lines that belong together. `role` and `loops` say where, `ops` what the changed instructions do;
    `skipped` counts unchanged lines left out before it."""

    role: str
    loops: tuple[str, ...]
    section: str
    ops: tuple[str, ...]
    pairs: tuple[Pair, ...]
    skipped: int

    @property
    def heading(self) -> str:
        """Loops or section, and the sort of work."""
        place = " > ".join(self.loops) or self.section
        return ": ".join(part for part in (place, ", ".join(self.ops)) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunks:
    """All changed lines of a text by role, in the order of the text; `renamed` counts lines that differ in
    numbered names alone, `after` the unchanged lines at the end."""

    by_role: tuple[tuple[str, tuple[Hunk, ...]], ...]
    pairs: tuple[Pair, ...]
    renamed: int
    after: int

    @property
    def changed_lines(self) -> tuple[int, int]:
        """Lines removed and added; a changed line is both."""
        removed = sum(pair.state in ("removed", "changed", "comment") for pair in self.pairs)
        added = sum(pair.state in ("added", "changed", "comment") for pair in self.pairs)
        return removed, added


def hunks_of(old: Structure, new: Structure) -> Hunks:
    """The hunks between two texts."""
    pairs = align(old.lines, new.lines)
    places = [_place(pair, old, new) for pair in pairs]
    hunks: list[Hunk] = []
    end = 0
    for start, stop in _runs(pairs, places):
        first, last = max(end, start - _CONTEXT), min(len(pairs), stop + _CONTEXT)
        while last > stop and pairs[last - 1].state not in UNCHANGED:
            last -= 1  # what comes next is a hunk of its own
        role, loops, section = places[start]
        hunks.append(
            Hunk(
                role=role,
                loops=loops,
                section=section,
                ops=_ops(pairs[start:stop], old, new),
                pairs=pairs[first:last],
                skipped=first - end,
            )
        )
        end = last
    roles = list(dict.fromkeys(hunk.role for hunk in hunks))
    return Hunks(
        by_role=tuple((role, tuple(hunk for hunk in hunks if hunk.role == role)) for role in roles),
        pairs=pairs,
        renamed=sum(pair.state == "renamed" for pair in pairs),
        after=len(pairs) - end,
    )


_Place = tuple[str, tuple[str, ...], str]


def _place(pair: Pair, old: Structure, new: Structure) -> _Place:
    side, line = (new, pair.new) if pair.new is not None else (old, pair.old)
    assert line is not None
    if line < side.function.line:
        return HEADER, (), ""
    first = side.sites[0].line if side.sites else line + 1
    if line < first:
        return DECLARATIONS, (), ""
    site = side.at(line)
    if site is None:
        return "", (), ""
    return site.role or "all warps", site.loops, site.section


def _runs(pairs: Sequence[Pair], places: Sequence[_Place]) -> list[tuple[int, int]]:
    """Stretches of changed lines with few unchanged ones between them, of one role and loop."""
    runs: list[tuple[int, int]] = []
    for number, pair in enumerate(pairs):
        if pair.state in UNCHANGED:
            continue
        near = runs and number - runs[-1][1] <= 2 * _CONTEXT and places[number][:2] == places[runs[-1][0]][:2]
        if near:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _ops(pairs: Sequence[Pair], old: Structure, new: Structure) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pair in pairs:
        if pair.state in UNCHANGED:
            continue
        for side, line in ((old, pair.old), (new, pair.new)):
            for site in side.by_line.get(line or 0, ()):
                found[site.kind] = None
    notable = [kind for kind in found if kind not in (kinds.ARITHMETIC, kinds.BRANCH)]
    return tuple(notable or found)
