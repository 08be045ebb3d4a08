"""Which line of one text is which line of another, so that what compilers count out does not matter.

Lines are matched by their code with numbered registers and labels left open; a renaming of these is then
read off all matches. A match whose names do not follow the renaming, or whose constants differ, is a change.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_NUMBERED = re.compile(r"%[a-z]{1,3}\d+\b|\$[A-Za-z_]\w*\d+\b")
_COUNTED = re.compile(r"(%[a-z]{1,3})<\d+>")
"""How many registers of a numbered name there are, which says as little as the numbers."""
_DIGITS = re.compile(r"\d+$|\d+_\d+$")


@dataclass(frozen=True, slots=True)
class Pair:
    """Line numbers (1-based) of the two sides, None where a side has no such line. state: "same",
    "renamed" (but for the names of registers and labels), "comment" (but for comments), "changed" (one line became the
    other), "removed" or "added"."""

    old: int | None
    new: int | None
    state: str


def align(old: Sequence[str], new: Sequence[str]) -> tuple[Pair, ...]:
    """Every line of both texts, in order."""
    keys = [_key(line) for line in old], [_key(line) for line in new]
    pairs: list[tuple[int | None, int | None]] = []
    anchors = _anchors([code_of(line) for line in old], [code_of(line) for line in new])
    if len(anchors) < min(len(old), len(new)) / 3:  # numbered anew, or quite different: whole names would mislead
        anchors = _anchors(*keys)
    for what, a, a_stop, b, b_stop in _stretches(*keys, anchors):
        if what == "equal":
            pairs += zip(range(a, a_stop), range(b, b_stop), strict=True)
        else:
            pairs += _within(old, new, range(a, a_stop), range(b, b_stop))
    names = _renaming(old, new, [(a, b) for a, b in pairs if a is not None and b is not None])
    return tuple(_pair(old, new, a, b, names) for a, b in pairs)


def _stretches(
    old: list[str], new: list[str], anchors: list[tuple[int, int]]
) -> Iterator[tuple[str, int, int, int, int]]:
    """What difflib calls opcodes. Lines that are the only ones of their kind on both sides hold the texts together,
    so that long texts with many alike lines take little time."""
    a = b = 0
    for anchor_a, anchor_b in (*anchors, (len(old), len(new))):
        matcher = difflib.SequenceMatcher(None, old[a:anchor_a], new[b:anchor_b], autojunk=False)
        for what, i, i_stop, j, j_stop in matcher.get_opcodes():
            yield what, a + i, a + i_stop, b + j, b + j_stop
        if anchor_a < len(old):
            yield "equal", anchor_a, anchor_a + 1, anchor_b, anchor_b + 1
        a, b = anchor_a + 1, anchor_b + 1


def _anchors(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Places of lines that occur once on each side, the longest run of them that rises on both (patience diff)."""
    counts = Counter(old), Counter(new)
    place = {key: number for number, key in enumerate(new)}
    unique = [(a, place[key]) for a, key in enumerate(old) if counts[0][key] == counts[1][key] == 1]
    tops: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for number, (_, b) in enumerate(unique):
        pile = bisect(tops, b)
        before.append(heads[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [b]
        heads[pile : pile + 1] = [number]
    found = []
    number = heads[-1] if heads else -1
    while number >= 0:
        found.append(unique[number])
        number = before[number]
    return found[::-1]


def code_of(line: str) -> str:
    """A line without its comment, spaces made one."""
    return " ".join(line.partition("//")[0].split())


def _key(line: str) -> str:
    code = code_of(line)
    if not code:
        comment = line.strip()
        return "" if "%bb." in comment or "-- " in comment else comment
    if code.startswith((".loc", ".file")):
        return ".loc"
    if code.startswith(".reg"):
        return _COUNTED.sub(r"\1<#>", code)
    return _NUMBERED.sub(lambda match: _DIGITS.sub("#", match[0]), code)


def _within(old: Sequence[str], new: Sequence[str], before: range, after: range) -> list[tuple[int | None, int | None]]:
    """Lines of a changed stretch that became one another: the same opcode, in the same order."""
    matcher = difflib.SequenceMatcher(
        None, [_opcode(old[a]) for a in before], [_opcode(new[b]) for b in after], autojunk=False
    )
    pairs: list[tuple[int | None, int | None]] = []
    for what, a, a_stop, b, b_stop in matcher.get_opcodes():
        if what == "equal":
            pairs += [(before[i], after[j]) for i, j in zip(range(a, a_stop), range(b, b_stop), strict=True)]
        else:
            pairs += [(before[i], None) for i in range(a, a_stop)]
            pairs += [(None, after[j]) for j in range(b, b_stop)]
    return pairs


def _opcode(line: str) -> str:
    words = code_of(line).split()
    if not words:
        return line.strip()
    if words[0].startswith("@"):
        words = words[1:] or words
    return words[0] if not words[0].startswith(".reg") else " ".join(words)


def _names(line: str) -> list[str]:
    return _NUMBERED.findall(code_of(line))


def _renaming(old: Sequence[str], new: Sequence[str], matches: list[tuple[int, int]]) -> dict[str, str]:
    """The new name of each numbered one, by what most matches say; no two get the same."""
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for a, b in matches:
        mine, theirs = _names(old[a]), _names(new[b])
        if len(mine) == len(theirs):
            for name, other in zip(mine, theirs, strict=True):
                votes[name][other] += 1
    claims = sorted(
        ((count, name, other) for name, found in votes.items() for other, count in found.items()),
        key=lambda claim: -claim[0],
    )
    names: dict[str, str] = {}
    taken: set[str] = set()
    for _, name, other in claims:
        if name not in names and other not in taken:
            names[name] = other
            taken.add(other)
    return names


def _pair(old: Sequence[str], new: Sequence[str], a: int | None, b: int | None, names: dict[str, str]) -> Pair:
    if a is None or b is None:
        return Pair(None if a is None else a + 1, None if b is None else b + 1, "added" if a is None else "removed")
    if old[a] == new[b]:
        state = "same" if all(names.get(name, name) == name for name in _names(old[a])) else "changed"
    elif code_of(old[a]) == code_of(new[b]):
        state = "comment" if _comment(old[a]) != _comment(new[b]) else "same"
    elif _key(old[a]) == ".loc" == _key(new[b]):
        state = "same"
    elif code_of(old[a]).startswith(".reg") and _key(old[a]) == _key(new[b]):
        state = "renamed"
    else:
        renamed = _NUMBERED.sub(lambda match: names.get(match[0], match[0]), code_of(old[a]))
        state = "renamed" if renamed == code_of(new[b]) else "changed"
    return Pair(a + 1, b + 1, state)


def _comment(line: str) -> str:
    return " ".join(line.partition("//")[2].split())
