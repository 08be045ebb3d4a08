"""`ptxgen diff --html`: both sides of a comparison next to each other, unchanged lines folded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from ptxgen.review.alignment import Pair
from ptxgen.review.comparison import Comparison, FolderComparison
from ptxgen.review.hunks import UNCHANGED
from ptxgen.review.pages import page
from ptxgen.review.writing import groups_of, verdicts

_WORD = re.compile(r"\s+|[\w%.:$]+|.")
Parts = tuple[tuple[str, bool], ...]
"""Pieces of a line, and whether each is new or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: "heading" or "fold" with a text, or a "line" of either side. Lines with a `fold`
    are hidden until that fold is opened."""

    kind: str
    text: str = ""
    fold: str = ""
    old_line: str = ""
    new_line: str = ""
    old_class: str = ""
    new_class: str = ""
    old_parts: Parts = ()
    new_parts: Parts = ()


@dataclass(slots=True)
class _Role:
    name: str
    rows: list[Row] = field(default_factory=list)


def diff_page(comparison: Comparison | FolderComparison) -> str:
    """The page."""
    if isinstance(comparison, Comparison):
        return page("diff.html.j2", title=comparison.title, files=[_file("", comparison, "f")])
    files = [_file(path, one, f"f{number}") for number, (path, one) in enumerate(comparison.changed)]
    for word, paths in (("gone", comparison.removed), ("new", comparison.added)):
        files += [{"path": path, "verdicts": [("", word)], "groups": [], "roles": []} for path in paths]
    return page("diff.html.j2", title=comparison.title, files=files)


def _file(path: str, comparison: Comparison, prefix: str) -> dict[str, object]:
    return {
        "path": path,
        "verdicts": verdicts(comparison),
        "groups": list(groups_of(comparison).items()),
        "roles": _roles(comparison, prefix),
    }


def _roles(comparison: Comparison, prefix: str) -> list[_Role]:
    """Hunks by role; what lies between two hunks is folded into the later one."""
    pairs = comparison.hunks.pairs
    place = {id(pair): number for number, pair in enumerate(pairs)}
    shown = {id(pair) for _, hunks in comparison.hunks.by_role for hunk in hunks for pair in hunk.pairs}
    found = []
    for role, hunks in comparison.hunks.by_role:
        rows = _Role(role)
        for number, hunk in enumerate(hunks):
            first = place[id(hunk.pairs[0])]
            fold = f"{prefix}-{role}-{number}".replace(" ", "-")
            start = first
            while start and id(pairs[start - 1]) not in shown:
                start -= 1
            if first > start:
                rows.rows.append(Row(kind="fold", text=f"{first - start} unchanged lines", fold=fold))
                rows.rows += [_row(pair, comparison, fold) for pair in pairs[start:first]]
            if hunk.heading:
                rows.rows.append(Row(kind="heading", text=hunk.heading))
            rows.rows += [_row(pair, comparison, "") for pair in _side_by_side(hunk.pairs)]
        found.append(rows)
    return found


def _side_by_side(pairs: tuple[Pair, ...]) -> Iterator[Pair]:
    """Lines that went next to lines that came in their place."""
    gone: list[int | None] = []
    come: list[int | None] = []
    for pair in (*pairs, None):
        if pair is not None and pair.state == "removed":
            gone.append(pair.old)
        elif pair is not None and pair.state == "added":
            come.append(pair.new)
        else:
            yield from (Pair(old, new, "changed") for old, new in zip_longest(gone, come))
            gone, come = [], []
            if pair is not None:
                yield pair


def _row(pair: Pair, comparison: Comparison, fold: str) -> Row:
    old = "" if pair.old is None else comparison.old.structure.lines[pair.old - 1]
    new = "" if pair.new is None else comparison.new.structure.lines[pair.new - 1]
    changed = pair.state not in UNCHANGED
    old_parts: Parts = ((old, False),)
    new_parts: Parts = ((new, False),)
    if pair.old is not None and pair.new is not None and changed:
        old_parts, new_parts = _marked(old, new)
    return Row(
        kind="line",
        fold=fold,
        old_line="" if pair.old is None else str(pair.old),
        new_line="" if pair.new is None else str(pair.new),
        old_class="none" if pair.old is None else "gone" if changed else "",
        new_class="none" if pair.new is None else "come" if changed else "",
        old_parts=old_parts,
        new_parts=new_parts,
    )


def _marked(old: str, new: str) -> tuple[Parts, Parts]:
    """Two lines in pieces, those marked that the other lacks."""
    mine, theirs = _WORD.findall(old), _WORD.findall(new)
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for what, a, a_stop, b, b_stop in difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        if a_stop > a:
            before.append(("".join(mine[a:a_stop]), what != "equal"))
        if b_stop > b:
            after.append(("".join(theirs[b:b_stop]), what != "equal"))
    if sum(len(text) for text, marked in before if not marked) * 2 < len(old.strip()):
        return ((old, False),), ((new, False),)  # too little in common for marks to help
    return tuple(before), tuple(after)
