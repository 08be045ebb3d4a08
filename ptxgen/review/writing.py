"""A comparison as text for a terminal, as Markdown for a pull request, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.review.comparison import Comparison, FolderComparison
from ptxgen.review.differences import Change
from ptxgen.review.hunks import UNCHANGED, Hunk

_COMMENT_LIMIT = 60_000
"""Characters of a comment; GitHub takes 65,536."""


def groups_of(comparison: Comparison) -> dict[str, list[Change]]:
    """The changes by group."""
    found: dict[str, list[Change]] = {}
    for change in comparison.changes:
        found.setdefault(change.group, []).append(change)
    return found


def verdicts(comparison: Comparison) -> list[tuple[str, str]]:
    """What holds for both sides together: equality, and what the checker says of each."""
    found = [("equality", str(comparison.equality))]
    found += [("", note) for note in comparison.equality.notes]
    if comparison.behaviour is not None:
        runs = comparison.behaviour
        size = runs.new.problem_text or runs.old.problem_text
        where = f" ({size}, policy eager)" if size else ""
        found.append(("checked", f"{runs.old.status} -> {runs.new.status}{where}"))
    for side in (comparison.old, comparison.new):
        if side.edited:
            found.append(("", f"{side.source.name} is not what its spec generates now: edited, or of another version"))
    return found


# -- text -----------------------------------------------------------------------------------------


def summary_lines(comparison: Comparison) -> Iterator[str]:
    """The summary in words."""
    yield comparison.title
    for group, found in groups_of(comparison).items():
        yield f"{group}"
        yield from (f"  {change}" for change in found)
    if not comparison.changes and not comparison.identical:
        yield "no fact changed"
    for name, text in verdicts(comparison):
        yield f"{name}: {text}" if name else f"  {text}"


def hunk_lines(hunk: Hunk, comparison: Comparison) -> Iterator[tuple[str, int, str]]:
    """A hunk's lines: sign (" ", "-" or "+"), line number, text. Runs of changes show the old side first."""
    old, new = comparison.old.structure.lines, comparison.new.structure.lines
    gone: list[tuple[str, int, str]] = []
    come: list[tuple[str, int, str]] = []
    for pair in hunk.pairs:
        if pair.state in UNCHANGED:
            yield from (*gone, *come)
            gone, come = [], []
            assert pair.new is not None
            yield " ", pair.new, new[pair.new - 1]
            continue
        if pair.old is not None:
            gone.append(("-", pair.old, old[pair.old - 1]))
        if pair.new is not None:
            come.append(("+", pair.new, new[pair.new - 1]))
    yield from (*gone, *come)


def text_lines(comparison: Comparison) -> Iterator[str]:
    """All of a comparison: summary, then hunks by role."""
    yield from summary_lines(comparison)
    for role, hunks in comparison.hunks.by_role:
        yield ""
        yield f"== {role} =="
        for hunk in hunks:
            if hunk.skipped:
                yield f"      ... {_lines(hunk.skipped)} unchanged"
            yield f"@@ {hunk.heading} @@" if hunk.heading else "@@"
            yield from (f"{sign}{number:>5} {line}" for sign, number, line in hunk_lines(hunk, comparison))
    if comparison.hunks.renamed:
        yield ""
        yield f"{_lines(comparison.hunks.renamed)} differ in the numbers of registers and labels alone, not shown"


def folder_lines(comparison: FolderComparison) -> Iterator[str]:
    """Two folders: a list of files, then each that changed."""
    yield comparison.title
    yield from (f"  gone: {path}" for path in comparison.removed)
    yield from (f"  new: {path}" for path in comparison.added)
    yield from (f"  changed: {path}" for path, _ in comparison.changed)
    yield f"  {comparison.same} files are the same"
    for path, one in comparison.changed:
        yield ""
        yield f"#### {path}"
        yield from text_lines(one)


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


# -- Markdown -------------------------------------------------------------------------------------


def markdown(comparison: Comparison | FolderComparison) -> str:
    """A pull-request comment, cut to what one may hold."""
    if isinstance(comparison, Comparison):
        parts = list(_markdown(comparison, f"### `{comparison.title}`"))
    else:
        parts = [f"### `{comparison.title}`\n"]
        parts += [f"- gone: `{path}`" for path in comparison.removed]
        parts += [f"- new: `{path}`" for path in comparison.added]
        parts.append(f"- changed: {len(comparison.changed)}, the same: {comparison.same}\n")
        for path, one in comparison.changed:
            parts += _markdown(one, f"#### `{path}`")
    text, left = "", len(parts)
    for part in parts:
        if len(text) + len(part) > _COMMENT_LIMIT:
            return text + f"\n_{left} parts are left out; run `ptxgen diff` to see all._\n"
        text += part + "\n"
        left -= 1
    return text


def _markdown(comparison: Comparison, heading: str) -> Iterator[str]:
    yield f"{heading}\n"
    for name, text in verdicts(comparison):
        yield f"**{name}**: {_escaped(text)}  " if name else f"{_escaped(text)}  "
    yield ""
    if comparison.changes:
        rows = [
            "| "
            + " | ".join((change.group if number == 0 else "", *map(_cell, (change.name, change.old, change.new))))
            + " |"
            for found in groups_of(comparison).values()
            for number, change in enumerate(found)
        ]
        yield "\n".join(["| | | before | after |", "|---|---|---|---|", *rows, ""])
    for role, hunks in comparison.hunks.by_role:
        body = []
        for hunk in hunks:
            body.append(f"@@ {hunk.heading} @@")
            body += [f"{sign}{line}" for sign, _, line in hunk_lines(hunk, comparison)]
        summary = f"<summary>{role}: {len(hunks)} hunk{'' if len(hunks) == 1 else 's'}</summary>"
        yield "\n".join(["<details>" + summary, "", "```diff", *body, "```", "</details>", ""])


def _cell(text: str | None) -> str:
    return "" if text is None else _escaped(text)


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


# -- JSON -----------------------------------------------------------------------------------------


def as_json(comparison: Comparison | FolderComparison) -> dict[str, object]:
    """Everything that the other forms show."""
    if isinstance(comparison, FolderComparison):
        return {
            "identical": comparison.identical,
            "removed": list(comparison.removed),
            "added": list(comparison.added),
            "same": comparison.same,
            "changed": {path: as_json(one) for path, one in comparison.changed},
        }
    behaviour = comparison.behaviour
    return {
        "old": comparison.old.source.name,
        "new": comparison.new.source.name,
        "identical": comparison.identical,
        "equality": comparison.equality.level,
        "notes": list(comparison.equality.notes),
        "checked": None if behaviour is None else {"old": behaviour.old.status, "new": behaviour.new.status},
        "changes": [
            {"group": change.group, "name": change.name, "old": change.old, "new": change.new}
            for change in comparison.changes
        ],
        "renamed_lines": comparison.hunks.renamed,
        "hunks": [
            {
                "role": role,
                "loops": list(hunk.loops),
                "section": hunk.section,
                "ops": list(hunk.ops),
                "lines": [
                    {"sign": sign, "line": number, "text": line} for sign, number, line in hunk_lines(hunk, comparison)
                ],
            }
            for role, hunks in comparison.hunks.by_role
            for hunk in hunks
        ],
    }
