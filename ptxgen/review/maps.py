"""Maps of shared and tensor memory: which bytes and columns serve what.

With a trace the maps are those of a launch; without one they hold what the text alone tells, where an
address that a loop computes is known as a start and a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ptxgen.device.description import LaunchDescription, TensorMapArgument
from ptxgen.hardware.tmem import access_shape
from ptxgen.review import kinds
from ptxgen.review.barriers import MBARRIER_BYTES, Barriers
from ptxgen.review.products import multiply_of
from ptxgen.review.structure import Site, Structure
from ptxgen.review.values import Number

if TYPE_CHECKING:
    from ptxgen.emulator import events
    from ptxgen.review.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Bytes of shared memory, or columns of tensor memory: [start, stop), repeated every `step` where
    that is not 0. `stop` is None where the text does not say how much is used. `uses` say what for, by `lines`."""

    start: int
    stop: int | None
    name: str
    uses: tuple[str, ...]
    lines: tuple[int, ...]
    step: int = 0

    @property
    def size(self) -> int | None:
        """Bytes, or columns."""
        return None if self.stop is None else self.stop - self.start


@dataclass(slots=True)
class _Draft:
    name: str
    uses: dict[str, None] = field(default_factory=dict)
    lines: dict[int, None] = field(default_factory=dict)


class _Regions:
    """Collects uses by extent."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int | None, int], _Draft] = {}

    def add(self, start: int, stop: int | None, step: int, name: str, use: str, line: int) -> None:
        draft = self._found.setdefault((start, stop, step), _Draft(name))
        draft.name = draft.name or name
        draft.uses[use] = None
        draft.lines[line] = None

    def all(self) -> tuple[Region, ...]:
        return tuple(
            Region(start=start, stop=stop, step=step, name=draft.name, uses=tuple(draft.uses), lines=tuple(draft.lines))
            for (start, stop, step), draft in sorted(
                self._found.items(), key=lambda item: (item[0][0], item[0][1] or 0, item[0][2])
            )
        )


def tensor_map_of(
    site: Site, structure: Structure, description: LaunchDescription | None
) -> tuple[str, TensorMapArgument | None]:
    """The name of the tensor map that a copy uses ("" where the text does not say) and its description."""
    for value in site.values:
        if isinstance(value, Number) and value.of is not None:
            names = [parameter.name for parameter in structure.function.parameters]
            place = names.index(value.of.name) if value.of.name in names else -1
            if description is not None and 0 <= place < len(description.arguments):
                argument = description.arguments[place]
                if isinstance(argument, TensorMapArgument):
                    return argument.name, argument
            return value.of.name, None
    return "", None


def box_bytes(argument: TensorMapArgument, description: LaunchDescription) -> int:
    """Bytes of a tensor map's box."""
    size = description.buffer(argument.buffer).element_type.bytes
    for extent in argument.box:
        size *= extent
    return size


_MMA_OPERAND = "MMA operand"

# -- shared memory --------------------------------------------------------------------------------


def smem_map(
    structure: Structure,
    barriers: Iterable[Barriers],
    description: LaunchDescription | None,
    trace: Trace | None,
) -> tuple[Region, ...]:
    """Shared memory by use, in the order of addresses."""
    regions = _Regions()
    for group in barriers:
        last = group.addresses[-1] + MBARRIER_BYTES
        regions.add(group.addresses[0], last, 0, group.name, f"{len(group.addresses)} x mbarrier", group.lines[0])
    if trace is None:
        _smem_from_text(regions, structure, description)
    else:
        _smem_from_trace(regions, structure, description, trace)
    return _operands_named(regions.all())


def _operands_named(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """MMAs of several warps read a stage of A in parts: what a load brought whole is shown whole. What several loads
    brought has their name."""
    loads = [region for region in regions if any(use.startswith(kinds.TENSOR_LOAD) for use in region.uses)]
    parts: dict[int, list[Region]] = {}
    kept = []
    for region in regions:
        whole = next((n for n, load in enumerate(loads) if region is not load and _inside(region, load)), None)
        names = {load.name for load in loads if _inside(load, region)}
        if region.uses == (_MMA_OPERAND,) and whole is not None:
            parts.setdefault(whole, []).append(region)
        elif region.uses == (_MMA_OPERAND,) and len(names) == 1:
            kept.append(replace(region, name=names.pop()))
        else:
            kept.append(region)
    wholes = {
        id(load): replace(
            load,
            uses=tuple(dict.fromkeys((*load.uses, f"{_MMA_OPERAND} in {len(parts[n])} parts"))),
            lines=tuple(dict.fromkeys((*load.lines, *(line for part in parts[n] for line in part.lines)))),
        )
        for n, load in enumerate(loads)
        if n in parts
    }
    return tuple(wholes.get(id(region), region) for region in kept)


def _inside(part: Region, whole: Region) -> bool:
    return (
        part.stop is not None
        and whole.stop is not None
        and not part.step
        and not whole.step
        and whole.start <= part.start
        and part.stop <= whole.stop
    )


def _smem_from_text(regions: _Regions, structure: Structure, description: LaunchDescription | None) -> None:
    spans: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for site in structure.sites:
        index = _smem_operand(site)
        value = site.values[index] if index is not None and index < len(site.values) else None
        if not isinstance(value, Number) or value.of is not None:
            continue
        use, name, size = site.kind, "", None
        if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE):
            name, argument = tensor_map_of(site, structure, description)
            use = f"{site.kind} {name}".strip()
            size = None if argument is None or description is None else box_bytes(argument, description)
        elif site.kind == kinds.TMEM_ALLOCATION:
            name, size, use = "TMEM address", 4, "written by tcgen05.alloc"
        elif isinstance(value.value, int):
            size = _width(site)
        else:
            spans.setdefault((use, value.step), []).append(
                (min(value.value), max(value.value) + _width(site), site.line)
            )
            continue
        start = value.value if isinstance(value.value, int) else min(value.value)
        regions.add(start, None if size is None else start + size, value.step, name, use, site.line)
    for (use, step), found in spans.items():
        for start, stop, lines in _merged(found):
            for line in lines:
                regions.add(start, stop, step, "", use, line)


def _smem_operand(site: Site) -> int | None:
    """Which operand is an address in shared memory that holds data."""
    if site.kind == kinds.TENSOR_LOAD and "prefetch" not in site.instruction.name:
        return 0
    if site.kind == kinds.TENSOR_STORE:
        return 1
    if site.kind == kinds.SHARED_STORE or site.instruction.name.startswith("tcgen05.alloc"):
        return 0
    return 1 if site.kind == kinds.SHARED_LOAD else None


def _width(site: Site) -> int:
    """Bytes that one thread of a shared access touches."""
    words = site.instruction.name.split(".")
    if words[0] in ("stmatrix", "ldmatrix"):
        return 16
    vector = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
    bits = next((int(word[1:]) for word in reversed(words) if word[1:].isdigit() and word[0] in "busf"), 32)
    return vector * bits // 8


def _smem_from_trace(
    regions: _Regions, structure: Structure, description: LaunchDescription | None, trace: Trace
) -> None:
    from ptxgen.emulator import events
    from ptxgen.review.trace import smem_offset

    kind_of_operation: dict[int, str] = {}
    spans: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for event in trace.first_unit:
        if isinstance(event, events.AsyncIssue):
            kind_of_operation[event.async_id] = event.kind
        elif isinstance(event, events.Access) and event.space == "shared" and event.owner == 0:
            name, use = _described(event, kind_of_operation.get(event.async_id, ""), structure, description)
            into = spans.setdefault((name, use), [])
            into += [(smem_offset(start), smem_offset(stop), event.line) for start, stop in event.ranges]
    for (name, use), found in spans.items():
        exact = use.startswith(("TMA", "MMA", "bulk"))
        for start, stop, lines in _boxes(found) if exact else _merged(found):
            for line in lines:
                regions.add(start, stop, 0, name, use, line)


def _described(
    event: events.Access, operation: str, structure: Structure, description: LaunchDescription | None
) -> tuple[str, str]:
    """A name for the bytes, and the use that an access makes of them."""
    site = structure.at(event.line)
    if site is None:
        return "", event.kind
    if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE):
        name, argument = tensor_map_of(site, structure, description)
        return ("" if argument is None else f"{argument.buffer}"), f"{site.kind} {name}".strip()
    if operation == "mma" or site.kind == kinds.MMA:
        return "operand", _MMA_OPERAND
    if site.kind == kinds.TMEM_ALLOCATION:
        return "TMEM address", "written by tcgen05.alloc"
    verb = "read" if event.kind == "read" else "written" if event.kind == "write" else "updated"
    return "", f"{verb} by {site.instruction.name.split('.')[0]}"


def _boxes(found: list[tuple[int, int, int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """The same extents together."""
    lines: dict[tuple[int, int], dict[int, None]] = {}
    for start, stop, line in found:
        lines.setdefault((start, stop), {})[line] = None
    return [(start, stop, tuple(by)) for (start, stop), by in sorted(lines.items())]


def _merged(found: list[tuple[int, int, int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Extents that touch become one."""
    merged: list[tuple[int, int, dict[int, None]]] = []
    for start, stop, line in sorted(set(found)):
        if merged and start <= merged[-1][1]:
            first, last, lines = merged[-1]
            lines[line] = None
            merged[-1] = (first, max(last, stop), lines)
        else:
            merged.append((start, stop, {line: None}))
    return [(start, stop, tuple(lines)) for start, stop, lines in merged]


# -- tensor memory --------------------------------------------------------------------------------


def tmem_columns(structure: Structure, trace: Trace | None) -> int | None:
    """Columns that a CTA allocates; None where the text does not say, 0 where it allocates none."""
    if trace is not None:
        from ptxgen.emulator import events

        return sum(
            event.columns
            for event in trace.first_unit
            if isinstance(event, events.TmemAllocation) and event.action == "alloc" and event.cta == 0
        )
    total = 0
    for site in structure.sites:
        if site.instruction.name.startswith("tcgen05.alloc"):
            value = site.values[1]
            if not isinstance(value, Number) or not isinstance(value.value, int) or value.step:
                return None
            total += value.value
    return total


_TMEM_SHAPE = re.compile(r"\.(16x64b|16x128b|16x256b|32x32b)\.x(\d+)\b")


def _columns(name: str) -> int | None:
    """Columns side by side that a tcgen05.ld or .st touches; None for two halves apart."""
    found = _TMEM_SHAPE.search(name)
    return access_shape(found[1]).columns(int(found[2]), pack="pack::16b" in name) if found else None


def tmem_map(structure: Structure, trace: Trace | None) -> tuple[Region, ...]:
    """Tensor memory by use: columns, of all lanes that an access touches."""
    regions = _Regions()
    if trace is None:
        for site in structure.sites:
            index = {kinds.MMA: 0, kinds.TMEM_LOAD: 1, kinds.TMEM_STORE: 0}.get(site.kind)
            if index is None or not site.instruction.name.startswith("tcgen05"):
                continue
            value = site.values[index]
            if isinstance(value, Number) and value.of is None:
                first = value.value if isinstance(value.value, int) else min(value.value)
                start = first & 0xFFFF
                if site.kind == kinds.MMA:
                    shape = multiply_of(site)
                    stop, name = (None, "") if shape is None else (start + shape.n, "accumulator")
                else:
                    columns = _columns(site.instruction.name)
                    stop, name = None if columns is None else start + columns, ""
                regions.add(start, stop, value.step, name, site.kind, site.line)
        return regions.all()
    from ptxgen.emulator import events

    operation: dict[int, str] = {}
    spans: dict[str, list[tuple[int, int, int]]] = {}
    lanes: dict[str, tuple[int, int]] = {}
    for event in trace.first_unit:
        if isinstance(event, events.AsyncIssue):
            operation[event.async_id] = event.kind
        elif isinstance(event, events.TmemAccess) and event.owner == 0:
            kind = operation.get(event.async_id, "")
            use = "MMA accumulator" if kind == "mma" else f"{'read' if event.kind == 'read' else 'written'} by {kind}"
            spans.setdefault(use, []).append((*event.columns, event.line))
            low, high = lanes.get(use, event.tmem_lanes)
            lanes[use] = (min(low, event.tmem_lanes[0]), max(high, event.tmem_lanes[1]))
    for use, found in spans.items():
        exact = use == "MMA accumulator"
        for start, stop, lines in _boxes(found) if exact else _merged(found):
            for line in lines:
                name = "accumulator" if exact else ""
                regions.add(start, stop, 0, name, f"{use}, lanes {lanes[use][0]} to {lanes[use][1]}", line)
    return regions.all()
