"""Roles: warps that walk the same loops, named after the work that they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptxgen.review import kinds

_NAMES = {
    frozenset({"load", "multiply", "store"}): "issuer",
    frozenset({"load", "multiply"}): "issuer",
    frozenset({"multiply", "store"}): "consumer",
    frozenset({"load", "store"}): "copier",
    frozenset({"load"}): "producer",
    frozenset({"multiply"}): "multiplier",
    frozenset({"store"}): "storer",
}
_IDLE = "idle"
_SCHEDULE = "schedule"
"""A job that a warp may do beside another."""
_HELP = (kinds.GLOBAL_ACCESS, kinds.SHARED_STORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """`certain`: the text says that these warps have the role; else only that each of them may."""

    name: str
    warps: tuple[int, ...]
    certain: bool = True

    @property
    def title(self) -> str:
        """Name and warps."""
        return f"{self.name} ({warps_text(self.warps)}{'' if self.certain else ', which of them is not in the text'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """What an instruction tells about who does what: its block, its opcode, its loops, its warps."""

    block: int
    opcode: str
    loops: tuple[str, ...]
    warps: tuple[int, ...]


class Roles:
    """The roles of a function. `regions` are the blocks of each target of an indexed branch, at the end
    of block `chooser`, whose warps a text does not tell apart."""

    def __init__(self, spots: Sequence[Spot], chooser: int, regions: Sequence[frozenset[int]]) -> None:
        self._region_roles: dict[int, Role] = {}
        self._warp_roles: dict[int, Role] = {}
        named: list[Role] = []
        everyone = {warp for spot in spots for warp in spot.warps}
        chosen = {warp for spot in spots if spot.block == chooser for warp in spot.warps}
        plain = _plain_jobs(spots)
        for warps in _groups(spots, sorted(everyone - chosen)):
            own = [spot for spot in spots if set(spot.warps) & set(warps)]
            named.append(Role(name=_name(own, plain), warps=warps))
        drafts = [(role, frozenset[int]()) for role in named]
        for region in regions:
            own = [spot for spot in spots if spot.block in region]
            if _jobs(own, plain):
                drafts.append((Role(name=_name(own, plain), warps=tuple(sorted(chosen)), certain=False), region))
        self.all = tuple(role for role, _ in _numbered(drafts))
        for role, region in _numbered(drafts):
            self._region_roles.update(dict.fromkeys(region, role))
            if role.certain:
                self._warp_roles.update(dict.fromkeys(role.warps, role))

    def of(self, spot: Spot) -> str:
        """The role of an instruction; "" where all of several roles meet, or there is but one."""
        if len(self.all) < 2:
            return ""
        if spot.block in self._region_roles:
            return self._region_roles[spot.block].name
        names = {self._warp_roles[warp].name if warp in self._warp_roles else "workers" for warp in spot.warps}
        everyone = {role.name if role.certain else "workers" for role in self.all}
        return "" if names >= everyone else " + ".join(sorted(names))


def _groups(spots: Sequence[Spot], warps: Sequence[int]) -> list[tuple[int, ...]]:
    """Warps with the same loops, the lowest first."""
    loops: dict[int, set[tuple[str, ...]]] = {warp: set() for warp in warps}
    for spot in spots:
        for warp in spot.warps:
            if warp in loops:
                loops[warp].add(spot.loops)
    groups: dict[frozenset[tuple[str, ...]], list[int]] = {}
    for warp in warps:
        groups.setdefault(frozenset(loops[warp]), []).append(warp)
    return [tuple(group) for group in groups.values()]


def _plain_jobs(spots: Sequence[Spot]) -> dict[str, str]:
    """What loads and stores of single threads are for, by opcode: the work itself, but where asynchronous copies do
    that they are something else, such as reading a table."""
    found = {kinds.kind_of(spot.opcode) for spot in spots}
    jobs = {} if found & {kinds.TENSOR_LOAD, kinds.BULK_COPY} else {"ld.global": "load"}
    return jobs if kinds.TENSOR_STORE in found else {**jobs, "st.global": "store"}


def _jobs(spots: Sequence[Spot], plain: Mapping[str, str]) -> set[str]:
    jobs = set()
    for spot in spots:
        kind = kinds.kind_of(spot.opcode)
        if kind == kinds.GLOBAL_ACCESS and (job := plain.get(spot.opcode[:9])):
            jobs.add(job)
        elif kind in (kinds.TENSOR_LOAD, kinds.BULK_COPY):
            jobs.add("load")
        elif kind == kinds.CLAIM:
            jobs.add(_SCHEDULE)
        elif kind == kinds.MMA:
            jobs.add("multiply")
        elif kind == kinds.TENSOR_STORE:
            jobs.add("store")
        elif kind == kinds.TMEM_LOAD:
            jobs.add("read")
    return jobs


def _name(spots: Sequence[Spot], plain: Mapping[str, str]) -> str:
    jobs = _jobs(spots, plain)
    if jobs == {_SCHEDULE}:
        return "scheduler"
    jobs -= {_SCHEDULE}
    if not jobs:
        busy = any(spot.loops or kinds.kind_of(spot.opcode) in _HELP for spot in spots)
        return "helper" if busy else _IDLE
    if jobs == {"read"}:
        return "epilogue"
    return _NAMES[frozenset(jobs - {"read"} | ({"store"} if "read" in jobs else set()))]


def _numbered(drafts: Sequence[tuple[Role, frozenset[int]]]) -> list[tuple[Role, frozenset[int]]]:
    """Roles of the same name get numbers."""
    total: Mapping[str, int] = {
        name: sum(role.name == name for role, _ in drafts) for name in {role.name for role, _ in drafts}
    }
    seen: dict[str, int] = {}
    found = []
    for role, region in drafts:
        seen[role.name] = seen.get(role.name, 0) + 1
        name = f"{role.name} {seen[role.name]}" if total[role.name] > 1 else role.name
        found.append((Role(name=name, warps=role.warps, certain=role.certain), region))
    return found


def warps_text(warps: Sequence[int]) -> str:
    """Warps as ranges: "warp 4", "warps 0 to 3"."""
    if not warps:
        return "no warp"
    runs: list[list[int]] = []
    for warp in warps:
        if runs and runs[-1][1] == warp - 1:
            runs[-1][1] = warp
        else:
            runs.append([warp, warp])
    text = ", ".join(str(a) if a == b else f"{a} to {b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)
    return f"warp {text}" if len(warps) == 1 else f"warps {text}"
