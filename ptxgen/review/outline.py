"""A kernel's outline: what each role does, loop by loop, with the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.review import kinds
from ptxgen.review.barriers import Use
from ptxgen.review.maps import tensor_map_of
from ptxgen.review.roles import Role, warps_text
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
    warps = {role.name: role.warps for role in structure.roles}
    everything = dict.fromkeys(site.role for site in structure.sites)
    for role in everything:
        sites = [site for site in structure.sites if site.role == role]
        all_of_it = warps.get(role) or tuple(dict.fromkeys(warp for site in sites for warp in site.warps))
        title = titles.get(role) or role or ("all warps" if titles else warps_text(structure.roles[0].warps))
        found.append(
            RoleOutline(title=title, items=tuple(_items(sites, structure, names, all_of_it)), instructions=len(sites))
        )
    return tuple(found)


_WORK = {
    kinds.TENSOR_LOAD: "TMA loads", kinds.BULK_COPY: "bulk copies", kinds.MMA: "MMAs", kinds.TMEM_STORE: "TMEM stores",
    kinds.TMEM_LOAD: "TMEM loads", kinds.SHARED_STORE: "SMEM stores", kinds.TENSOR_STORE: "TMA stores",
    kinds.GLOBAL_ACCESS: "GMEM accesses", kinds.CLAIM: "cluster claims",
}  # fmt: skip


def work_of(structure: Structure, role: Role) -> str:
    """What a role does, in the order of a pipeline; in brackets who, where not all of its warps do it."""
    mine = [
        site
        for site in structure.sites
        if (set(site.warps) & set(role.warps) if role.certain else site.role == role.name)
    ]
    texts = []
    for kind, name in _WORK.items():
        warps = {warp for site in mine if site.kind == kind for warp in site.warps} & set(role.warps)
        if warps:
            few = f" ({warps_text(sorted(warps))})" if len(warps) < len(role.warps) else ""
            texts.append(f"{name}{few}")
    return ", ".join(texts)


def _items(sites: Sequence[Site], structure: Structure, names: dict[int, str], warps: tuple[int, ...]) -> list[Item]:
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
        text, depth = describe(site, structure, names.get(site.index, ""), warps), len(site.loops)
        last = items[-1] if items else None
        if last is not None and (last.kind, last.text, last.depth) == (site.kind, text, depth):
            items[-1] = Item(
                kind=site.kind, text=text, count=last.count + 1, lines=(last.lines[0], site.line), depth=depth
            )
        else:
            items.append(Item(kind=site.kind, text=text, count=1, lines=(site.line, site.line), depth=depth))
    return items


def describe(site: Site, structure: Structure, barrier: str, warps: tuple[int, ...] = ()) -> str:
    """An instruction in a few words: opcode, and what it works on as far as the text says. Where it is run by fewer
    than `warps`, by whom."""
    words = [kinds.short_name(site.instruction.name)]
    if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE):
        name, _ = tensor_map_of(site, structure, None)
        words = [site.kind, name] if name else [site.kind]
    elif site.kind == kinds.NAMED_BARRIER:
        words = [_unguarded(structure.text(site.line))]
    if barrier:
        words.append(f"on {barrier}")
        if site.kind == kinds.MBARRIER_ARRIVE and "shared::cluster" in site.instruction.name:
            words.append("of a CTA of the cluster")
    who = warps_text(site.warps) if len(site.warps) < len(warps) else ""
    if site.one:
        who = f"one lane of {who}" if who else "one lane"
    return " ".join([*words, f"({who})"] if who else words)


def _unguarded(text: str) -> str:
    """An instruction without its guard and semicolon."""
    return (text.split(" ", 1)[1] if text.startswith("@") else text).rstrip(";")
