"""A kernel's outline: what each role does, loop by loop, with the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.review import kinds
from ptxgen.review.barriers import Use
from ptxgen.review.maps import tensor_map_of
from ptxgen.review.roles import warps_text
from ptxgen.review.structure import Site, Structure

_SHOWN = (
    *kinds.WORK, *kinds.SYNCHRONISATION, kinds.TMEM_ALLOCATION, kinds.REGISTER_BUDGET, kinds.SHARED_STORE,
    kinds.GLOBAL_ACCESS, kinds.CONVERSION,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that a role does: `count` instructions of a sort, on `lines`, `depth` loops deep. A loop is an item of
    its own, with the kind "loop"."""

    kind: str
    text: str
    count: int
    lines: tuple[int, int]
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOutline:
    """A role's items in the order of the text; `title` "all warps" holds what all do."""

    title: str
    items: tuple[Item, ...]
    instructions: int


def outline(structure: Structure, uses: Sequence[Use]) -> tuple[RoleOutline, ...]:
    """The outlines of all roles."""
    names = {use.site.index: use.barriers.name for use in uses if use.barriers is not None}
    found = []
    titles = {role.name: role.title for role in structure.roles} if len(structure.roles) > 1 else {}
    everything = dict.fromkeys(site.role for site in structure.sites)
    for role in everything:
        sites = [site for site in structure.sites if site.role == role]
        title = titles.get(role) or role or ("all warps" if titles else warps_text(structure.roles[0].warps))
        found.append(RoleOutline(title=title, items=tuple(_items(sites, structure, names)), instructions=len(sites)))
    return tuple(found)


def _items(sites: Sequence[Site], structure: Structure, names: dict[int, str]) -> list[Item]:
    lines_of = {(*loop.parents, loop.name): (loop.first_line, loop.last_line) for loop in structure.loops}
    items: list[Item] = []
    inside: tuple[str, ...] = ()
    for site in sites:
        if site.loops != inside:
            common = sum(a == b for a, b in zip(site.loops, inside, strict=False))
            for depth in range(common, len(site.loops)):
                name = site.loops[depth]
                lines = lines_of[site.loops[: depth + 1]]
                items.append(Item(kind="loop", text=name, count=1, lines=lines, depth=depth))
            inside = site.loops
        if site.kind not in _SHOWN:
            continue
        text, depth = describe(site, structure, names.get(site.index, "")), len(site.loops)
        last = items[-1] if items else None
        if last is not None and (last.kind, last.text, last.depth) == (site.kind, text, depth):
            items[-1] = Item(
                kind=site.kind, text=text, count=last.count + 1, lines=(last.lines[0], site.line), depth=depth
            )
        else:
            items.append(Item(kind=site.kind, text=text, count=1, lines=(site.line, site.line), depth=depth))
    return items


def describe(site: Site, structure: Structure, barrier: str) -> str:
    """An instruction in a few words: opcode, and what it works on as far as the text says."""
    words = [kinds.short_name(site.instruction.name)]
    if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE):
        name, _ = tensor_map_of(site, structure, None)
        words = [site.kind, name] if name else [site.kind]
    elif site.kind == kinds.NAMED_BARRIER:
        words = [_unguarded(structure.text(site.line))]
    if barrier:
        words.append(f"on {barrier}")
    if site.one:
        words.append("(one lane)")
    return " ".join(words)


def _unguarded(text: str) -> str:
    """An instruction without its guard and semicolon."""
    return (text.split(" ", 1)[1] if text.startswith("@") else text).rstrip(";")
