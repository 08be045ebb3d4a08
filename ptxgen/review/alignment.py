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
from functools import lru_cache

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
        anchors = []
    for what, a, a_stop, b, b_stop in _stretches(*keys, anchors):
        if what == "equal":
            pairs += zip(range(a, a_stop), range(b, b_stop), strict=True)
        else:
            pairs += _within(old, new, range(a, a_stop), range(b, b_stop))
    names = _renaming(old, new, [(a, b) for a, b in pairs if a is not None and b is not None])
    return tuple(_pair(old, new, a, b, names) for a, b in pairs)


_Stretch = tuple[str, int, int, int, int]
"""What difflib calls an opcode: equal or not, and where on both sides."""


_DEEPEST = 16
"""Times that stretches between anchors are anchored again; texts need three or four."""


def _stretches(old: list[str], new: list[str], anchors: list[tuple[int, int]], depth: int = 0) -> Iterator[_Stretch]:
    """Both texts from end to end, held together by pairs of lines that are known to match."""
    a = b = 0
    for anchor_a, anchor_b in (*anchors, (len(old), len(new))):
        for what, i, i_stop, j, j_stop in _matched(old[a:anchor_a], new[b:anchor_b], depth):
            yield what, a + i, a + i_stop, b + j, b + j_stop
        if anchor_a < len(old):
            yield "equal", anchor_a, anchor_a + 1, anchor_b, anchor_b + 1
        a, b = anchor_a + 1, anchor_b + 1


def _matched(old: list[str], new: list[str], depth: int) -> Iterator[_Stretch]:
    """The same for texts of which nothing is known. What they begin and end with alike is set aside, then lines that
    are the only ones of their kind on both sides hold the rest together, and in what lies between them again: the
    search for the longest common stretch takes the square of the time where many lines are alike."""
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    a_stop, b_stop = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    if head or tail:
        for what, i, i_stop, j, j_stop in _matched(old[head:a_stop], new[head:b_stop], depth):
            yield what, head + i, head + i_stop, head + j, head + j_stop
    elif depth < _DEEPEST and (anchors := _anchors(old, new)):
        yield from _stretches(old, new, anchors, depth + 1)
    elif old or new:
        yield from difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    if tail:
        yield "equal", a_stop, len(old), b_stop, len(new)


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


@lru_cache(maxsize=1 << 14)
def code_of(line: str) -> str:
    """A line without its comment, spaces made one."""
    return " ".join(line.partition("//")[0].split())


@lru_cache(maxsize=1 << 14)
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
