"""The structure of a PTX text: roles by warp, loops, sections, and what each line works on.

Everything here follows from the text alone, whoever wrote it: roles are told apart by branches on the
warp index, loops by the flow of control. What a text does not say stays unknown.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ptxgen.emulator.module import (
    Address,
    Function,
    Instruction,
    Operand,
    ParsedModule,
    Symbol,
    Variable,
)
from ptxgen.emulator.parser.modules import parse
from ptxgen.errors import PtxgenError
from ptxgen.review import kinds
from ptxgen.review.flow import Circle, Walk, blocks_of, circles_of, is_wait
from ptxgen.review.roles import Role, Roles, Spot
from ptxgen.review.values import Context, Known, State, address_value, of_threads, operand_value

_DEFAULT_THREADS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`name` is its label where that says something, else its place among its siblings ("2.1")."""

    name: str
    first_line: int
    last_line: int
    wait: bool
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An instruction in its place. `warps` may execute it, `one` lane of each at most; `values` are
    what is known of its operands by those who execute it, addresses with their offsets."""

    index: int
    line: int
    instruction: Instruction
    kind: str
    role: str
    warps: tuple[int, ...]
    one: bool
    loops: tuple[str, ...]
    section: str
    values: tuple[Known, ...]

    @property
    def place(self) -> str:
        """Role and loops, as a path."""
        return " > ".join(part for part in (self.role, *self.loops) if part)


@dataclass(frozen=True, kw_only=True)
class Structure:
    """One entry of a text. `role` of a site is "" where all warps meet."""

    name: str
    lines: tuple[str, ...]
    module: ParsedModule
    function: Function
    threads: int
    threads_known: bool
    roles: tuple[Role, ...]
    loops: tuple[Loop, ...]
    sites: tuple[Site, ...]
    unreached: int
    static_smem_bytes: int

    @cached_property
    def by_line(self) -> dict[int, tuple[Site, ...]]:
        """The instructions of each line."""
        found: dict[int, tuple[Site, ...]] = {}
        for site in self.sites:
            found[site.line] = (*found.get(site.line, ()), site)
        return found

    def at(self, line: int) -> Site | None:
        """The first instruction on a line, or the next one below (labels and comments precede their code)."""
        if line in self.by_line:
            return self.by_line[line][0]
        below = bisect(self._lines_with_code, line)
        return self.by_line[self._lines_with_code[below]][0] if below < len(self._lines_with_code) else None

    @cached_property
    def _lines_with_code(self) -> list[int]:
        return sorted(self.by_line)

    def text(self, line: int) -> str:
        """A line without comment and indentation."""
        return " ".join(self.lines[line - 1].partition("//")[0].split())

    def comment(self, line: int) -> str:
        """The comment that ends a line."""
        return self.lines[line - 1].partition("//")[2].strip()


def analyse(text: str, name: str, *, entry: str | None = None, threads: int | None = None) -> Structure:
    """The structure of an entry of a PTX text (as a rule its only one).

    `threads` per CTA are taken from .reqntid where it is there. Raises PtxError for text that is not
    PTX, PtxgenError where there is no such entry.
    """
    module = parse(text, name)
    entries = {found.name: found for found in module.functions.values() if found.is_entry}
    if not entries:
        raise PtxgenError(f"{name} has no .entry; only kernels have roles, maps and barriers")
    if entry is not None and entry not in entries:
        raise PtxgenError(f"{name} has no entry {entry!r}; it has {', '.join(entries)}")
    return _Analysis(module, entries[entry] if entry else next(iter(entries.values())), name, threads).structure()


class _Analysis:
    def __init__(self, module: ParsedModule, function: Function, name: str, threads: int | None) -> None:
        self._module, self._function, self._name = module, function, name
        declared = function.reqntid or function.maxntid
        known = declared[0] * declared[1] * declared[2] if declared else threads
        self._threads_known = known is not None
        places, self._static_bytes = shared_places(function.instructions)
        self._context = Context(threads=known or _DEFAULT_THREADS, places=places, allocations=set())
        self._blocks = blocks_of(function)
        self._circles = circles_of(self._blocks)
        self._walk = Walk(function, self._blocks, self._context)
        self._block_of = {index: block.number for block in self._blocks for index in range(block.start, block.stop)}

    def structure(self) -> Structure:
        """All of it."""
        visited = [
            (index, item, self._values(item, state, reach.threads), reach)
            for index, item, state, reach in self._walk.each()
        ]
        loops, path_of = self._loops()
        spots = {
            index: Spot(
                block=self._block_of[index],
                opcode=item.name,
                loops=path_of.get(self._block_of[index], ()),
                warps=warps_of(reach.threads),
            )
            for index, item, _, reach in visited
        }
        roles = Roles(tuple(spots.values()), *self._regions())
        sections = _sections(self._module.lines, self._function.line)
        sites = tuple(
            Site(
                index=index,
                line=item.line,
                instruction=item,
                kind=kinds.kind_of(item.name),
                role=roles.of(spots[index]),
                warps=spots[index].warps,
                one=reach.one or _single_lanes(reach.threads),
                loops=spots[index].loops,
                section=sections[item.line - 1],
                values=values,
            )
            for index, item, values, reach in visited
        )
        return Structure(
            name=self._name,
            lines=self._module.lines,
            module=self._module,
            function=self._function,
            threads=self._context.threads,
            threads_known=self._threads_known,
            roles=roles.all,
            loops=loops,
            sites=sites,
            unreached=len(self._function.instructions) - len(sites),
            static_smem_bytes=self._static_bytes,
        )

    def _values(self, item: Instruction, state: State, threads: int) -> tuple[Known, ...]:
        """What is known of the operands for those who execute the instruction."""

        def value(operand: Operand) -> Known:
            if isinstance(operand, Address):
                return of_threads(address_value(operand, state, self._context), threads)
            return of_threads(operand_value(operand, state, self._context), threads)

        return tuple(value(operand) for operand in item.operands)

    # -- loops ----------------------------------------------------------------------------------

    def _loops(self) -> tuple[tuple[Loop, ...], dict[int, tuple[str, ...]]]:
        found: list[Loop] = []
        path_of: dict[int, tuple[str, ...]] = {}

        def visit(circles: Sequence[Circle], parents: tuple[str, ...], number: str) -> None:
            place = 0
            for circle in circles:
                wait = is_wait(self._function, self._blocks, circle)
                place += not wait
                name = self._loop_name(circle, f"{number}{place}")
                lines = [
                    self._function.instructions[index].line
                    for block in circle.blocks
                    for index in range(self._blocks[block].start, self._blocks[block].stop)
                ]
                found.append(Loop(name=name, first_line=min(lines), last_line=max(lines), wait=wait, parents=parents))
                if wait:
                    continue
                for block in circle.blocks:
                    path_of[block] = (*parents, name)
                visit(circle.inner, (*parents, name), f"{number}{place}.")

        visit(self._circles, (), "")
        return tuple(found), path_of

    def _loop_name(self, circle: Circle, number: str) -> str:
        start = self._blocks[circle.header].start
        names = [name for name in self._labels.get(start, ()) if name[0] not in "$_" and not name[-1].isdigit()]
        return names[-1] if names else f"loop {number}"

    @cached_property
    def _labels(self) -> dict[int, list[str]]:
        """Label names by instruction index, read off the text, since a parsed function keeps no names."""
        found: dict[int, list[str]] = {}
        code = self._function.instructions
        starts = sorted(set(self._function.labels))
        for start in starts:
            if start >= len(code):
                continue
            above = code[start - 1].line if start else self._function.line
            for line in range(code[start].line - 1, above, -1):
                text = self._module.lines[line - 1].partition("//")[0].strip()
                if text.endswith(":") and " " not in text:
                    found.setdefault(start, []).insert(0, text[:-1])
        return found

    # -- roles ----------------------------------------------------------------------------------

    def _regions(self) -> tuple[int, list[frozenset[int]]]:
        """A block that ends in an indexed branch, and the blocks that belong to one target of it alone: roles
        chosen by a number in memory."""
        for block in self._blocks:
            targets = sorted(set(block.jumps))
            if not self._function.instructions[block.stop - 1].name.startswith("brx") or len(targets) < 2:
                continue
            reached = [self._from(target, block.number) for target in targets]
            return block.number, [
                frozenset(mine - set().union(*(other for other in reached if other is not mine))) for mine in reached
            ]
        return -1, []

    def _from(self, start: int, barrier: int) -> set[int]:
        seen, work = {start}, [start]
        while work:
            for to in self._blocks[work.pop()].successors:
                if to not in seen and to != barrier:
                    seen.add(to)
                    work.append(to)
        return seen


def shared_places(code: Iterable[Instruction]) -> tuple[dict[Variable, int], int]:
    """Offsets of shared variables from the start of the CTA's shared memory, and their bytes.

    As the emulator lays them out: in order of first use, the dynamic array last.
    """
    places: dict[Variable, int] = {}
    unsized: list[Variable] = []
    end = 0
    for item in code:
        for variable in _shared_variables(item.operands):
            if variable in places:
                continue
            if variable.size_bytes == 0:
                unsized.append(variable)
                places[variable] = 0
                continue
            places[variable] = -(-end // variable.align) * variable.align
            end = places[variable] + variable.size_bytes
    start = end
    for variable in unsized:
        start = -(-start // variable.align) * variable.align
    places.update(dict.fromkeys(unsized, start))
    return places, end


def _shared_variables(operands: Iterable[Operand]) -> Iterable[Variable]:
    for operand in operands:
        base = operand.base if isinstance(operand, Address) else operand
        if isinstance(base, Symbol) and base.variable.space == "shared":
            yield base.variable


def _sections(lines: Sequence[str], start: int) -> list[str]:
    """For each line the last heading above it, in the body of the function that begins on line `start`: a comment
    alone on a line, after an empty one."""
    found, current = [], ""
    for number, line in enumerate(lines):
        text = line.strip()
        if number > start and text.startswith("//") and line[:1].isspace() and not lines[number - 1].strip():
            heading = text.strip("/ ").strip()
            current = current if heading.endswith("inline asm") else heading
        found.append(current)
    return found


@lru_cache(maxsize=256)
def warps_of(threads: int) -> tuple[int, ...]:
    """The warps that have a thread in a bit mask."""
    return tuple(warp for warp in range((threads.bit_length() + 31) // 32) if threads >> 32 * warp & 0xFFFFFFFF)


@lru_cache(maxsize=256)
def _single_lanes(threads: int) -> bool:
    """Whether no warp has more than one thread in a bit mask."""
    words = [threads >> 32 * warp & 0xFFFFFFFF for warp in warps_of(threads)]
    return bool(words) and all(word & (word - 1) == 0 for word in words)
