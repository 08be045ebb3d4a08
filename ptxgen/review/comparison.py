"""A comparison of two sources: facts, changes, hunks, and the strongest equality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.review.differences import Change, changes
from ptxgen.review.equality import Equality, static_equality
from ptxgen.review.facts import Facts, facts_of
from ptxgen.review.hunks import Hunks, hunks_of
from ptxgen.review.sources import Source, is_folder, read_folder, read_source

if TYPE_CHECKING:
    from ptxgen.review.behaviour import Behaviour


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two texts side by side. `behaviour` is None where they were not run."""

    old: Facts
    new: Facts
    changes: tuple[Change, ...]
    hunks: Hunks
    equality: Equality
    behaviour: Behaviour | None

    @property
    def title(self) -> str:
        """Both names."""
        return f"{self.old.source.name} -> {self.new.source.name}"

    @property
    def identical(self) -> bool:
        """Whether the texts are the same."""
        return self.equality.level == "text"


@dataclass(frozen=True, kw_only=True)
class FolderComparison:
    """Every PTX file of two folders: pairs that differ, paths of one side alone, and the number of equal files."""

    title: str
    changed: tuple[tuple[str, Comparison], ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    same: int

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not (self.changed or self.removed or self.added)


def compare(old: Source, new: Source, *, ptxas: bool = True, run: bool = True) -> Comparison:
    """Compares two texts; with `ptxas` also their cubins and registers, with `run` what they do.

    Behaviour is compared where no equality of the texts holds; both sides are checked whenever they run.
    """
    before, after = facts_of(old, ptxas=ptxas), facts_of(new, ptxas=ptxas)
    equality = static_equality(before, after)
    behaviour = None
    if not run and equality.level == "none":
        equality = Equality(level="none", notes=(*equality.notes, "behaviour was not compared"))
    if run and equality.level != "text":
        from ptxgen.review.behaviour import compare_behaviour

        behaviour = compare_behaviour(before, after)
        notes = (*equality.notes, behaviour.note) if behaviour.note else equality.notes
        level = behaviour.level if equality.level == "none" else equality.level
        equality = Equality(level=level, notes=notes)
    hunks = hunks_of(before.structure, after.structure)
    return Comparison(
        old=before,
        new=after,
        changes=changes(before, after, hunks.pairs),
        hunks=hunks,
        equality=equality,
        behaviour=behaviour,
    )


def compare_words(old: str, new: str, *, ptxas: bool = True, run: bool = True) -> Comparison | FolderComparison:
    """Compares what two words of the command line name: texts, or folders."""
    if not (is_folder(old) and is_folder(new)):
        return compare(read_source(old), read_source(new), ptxas=ptxas, run=run)
    before, after = read_folder(old), read_folder(new)
    changed = tuple(
        (path, compare(source, after[path], ptxas=ptxas, run=run))
        for path, source in before.items()
        if path in after and source.text != after[path].text
    )
    return FolderComparison(
        title=f"{old} -> {new}",
        changed=changed,
        removed=tuple(path for path in before if path not in after),
        added=tuple(path for path in after if path not in before),
        same=sum(path in after and source.text == after[path].text for path, source in before.items()),
    )
