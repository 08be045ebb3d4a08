"""What a kernel is made of: maps, ledger, descriptors, outline, and what nobody can know from its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.device.description import LaunchDescription, TensorMapArgument, launch_in_header, parse_launch
from ptxgen.errors import LaunchError, NotSupportedError, PtxError
from ptxgen.review import kinds
from ptxgen.review.barriers import Barriers, Use, uses_of
from ptxgen.review.descriptors import Decoded, decoded_operands
from ptxgen.review.facts import expression_text
from ptxgen.review.ledger import Account, ledger
from ptxgen.review.maps import Region, box_bytes, smem_map, tmem_columns, tmem_map
from ptxgen.review.outline import RoleOutline, outline
from ptxgen.review.sources import Source
from ptxgen.review.structure import Structure, analyse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptxgen.review.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorUse:
    """A descriptor and the first line that uses it; of those that differ in their start alone, all starts."""

    line: int
    decoded: Decoded
    starts: tuple[int, ...]

    @property
    def text(self) -> str:
        """In words."""
        starts = ", ".join(str(start) for start in self.starts)
        place = f"from {starts}" + (f" + {self.decoded.step} x i" if self.decoded.step else "") if starts else ""
        value = self.decoded.value if len(self.starts) < 2 else f"{self.decoded.value} and on"
        return ": ".join((self.decoded.operand, ", ".join(filter(None, (value, place, self.decoded.meaning)))))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything that is known of a kernel. `trace` is None where it was not run; `unknown` says what cannot
    be known, and why."""

    source: Source
    structure: Structure
    description: LaunchDescription | None
    trace: Trace | None
    barriers: tuple[Barriers, ...]
    uses: tuple[Use, ...]
    accounts: tuple[Account, ...]
    smem: tuple[Region, ...]
    tmem: tuple[Region, ...]
    tmem_columns: int | None
    descriptors: tuple[DescriptorUse, ...]
    tensor_maps: tuple[str, ...]
    roles: tuple[RoleOutline, ...]
    unknown: tuple[str, ...]

    @property
    def provenance(self) -> str:
        """Where maps and ledger come from."""
        if self.trace is None:
            return "maps and ledger are read off the text; nothing was run"
        problem = " ".join(f"{name}={size}" for name, size in self.trace.problem.items())
        grid, cluster = self.trace.launch.grid, self.trace.launch.cluster
        ctas, size = grid[0] * grid[1] * grid[2], cluster[0] * cluster[1] * cluster[2]
        which = "of the one CTA" if ctas == 1 else f"of the first of {ctas} CTAs"
        if size > 1:
            which = f"of the first cluster of {size}, of {ctas} CTAs"
        return f"maps and ledger are those {which} of a run on the emulator, {problem}"


def explain(
    source: Source,
    *,
    launch: Source | None = None,
    problem: Mapping[str, int] | None = None,
    run: bool = True,
    check: bool = False,
) -> Explanation:
    """Explains a text. `launch` is a launch description to use instead of the header's; with `run` a small launch
    on the emulator fills maps and ledger, where there is a description. Raises PtxError for text that is not PTX."""
    if launch is not None:
        description: LaunchDescription | None = parse_launch(launch.text, launch.name)
    else:
        description = launch_in_header(source.text, source.name)
    threads = None if description is None else description.block[0] * description.block[1] * description.block[2]
    structure = analyse(
        source.text, source.name, entry=None if description is None else description.entry, threads=threads
    )
    unknown: list[str] = []
    trace = None
    if description is None:
        unknown.append(
            "There is no launch description: sizes of copies, trip counts and what happens phase by phase are not"
            " known. `ptxgen launch-template` prints a description to fill in; give it with --launch."
        )
    elif run:
        trace = _run(source, description, problem, check, unknown)
    barriers, uses = uses_of(structure)
    unknown += _unknown(structure, uses, trace)
    return Explanation(
        source=source,
        structure=structure,
        description=description,
        trace=trace,
        barriers=barriers,
        uses=uses,
        accounts=ledger(structure, barriers, uses, description, trace),
        smem=smem_map(structure, barriers, description, trace),
        tmem=tmem_map(structure, trace),
        tmem_columns=tmem_columns(structure, trace),
        descriptors=_descriptors(structure),
        tensor_maps=_tensor_maps(structure, description),
        roles=outline(structure, uses),
        unknown=tuple(unknown),
    )


def _run(
    source: Source,
    description: LaunchDescription,
    problem: Mapping[str, int] | None,
    check: bool,
    unknown: list[str],
) -> Trace | None:
    from ptxgen.review.trace import record

    try:
        trace = record(source.text, source.name, description, problem=problem, check=check)
    except (LaunchError, NotSupportedError, PtxError) as error:
        unknown.append(f"It was not run, so what happens phase by phase is not known: {error}")
        return None
    for finding in trace.findings:
        if finding.severity == "error":
            unknown.append(f"The run ended early, so that maps and ledger may lack its rest: {finding.rule}.")
            break
    return trace


def _unknown(structure: Structure, uses: tuple[Use, ...], trace: Trace | None) -> list[str]:
    found = []
    if not structure.threads_known:
        found.append(
            "The entry has neither .reqntid nor .maxntid: roles are told for"
            f" {structure.threads} threads a CTA, which is a guess."
        )
    if not all(role.certain for role in structure.roles):
        found.append(
            "Some roles are chosen by an indexed branch on a value in memory: which warp takes which is not in the"
            " text."
        )
    nameless = [use.site.line for use in uses if use.barriers is None]
    if nameless:
        found.append(f"The mbarrier used in line {_numbers(nameless)} is not known from the text.")
    if structure.unreached:
        found.append(f"{structure.unreached} instructions are never reached.")
    if trace is None:
        sizes = [
            site.line
            for site in structure.sites
            if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE) and "prefetch" not in site.instruction.name
        ]
        if sizes:
            found.append(
                f"The boxes of the tensor copies in line {_numbers(sizes)} are made by whoever launches the kernel."
            )
    return found


def _descriptors(structure: Structure) -> tuple[DescriptorUse, ...]:
    found: dict[tuple[str, str, int], tuple[int, Decoded, dict[int, None]]] = {}
    for site in structure.sites:
        for one in decoded_operands(site):
            _, _, starts = found.setdefault((one.operand, one.meaning, one.step), (site.line, one, {}))
            if one.start is not None:
                starts.update(dict.fromkeys((one.start, *one.others)))
    return tuple(DescriptorUse(line=line, decoded=one, starts=tuple(starts)) for line, one, starts in found.values())


def _tensor_maps(structure: Structure, description: LaunchDescription | None) -> tuple[str, ...]:
    if description is None:
        return tuple(
            f"{parameter.name}: 128 bytes, made by the launch"
            for parameter in structure.function.parameters
            if parameter.size_bytes == 128 and parameter.align >= 64
        )
    texts = []
    for argument in description.arguments:
        if isinstance(argument, TensorMapArgument):
            buffer = description.buffer(argument.buffer)
            dims = " x ".join(expression_text(size) for size in argument.dims)
            box = " x ".join(str(size) for size in argument.box)
            texts.append(
                f"{argument.name}: {argument.buffer}, {buffer.element_type}, {dims} (innermost first), box {box}"
                f" = {box_bytes(argument, description)} bytes, swizzle {argument.swizzle or 'none'},"
                f" outside {argument.oob_fill}"
            )
    return tuple(texts)


def _numbers(lines: list[int]) -> str:
    lines = list(dict.fromkeys(lines))
    shown = ", ".join(str(line) for line in lines[:6])
    return shown + (f" and {len(lines) - 6} more" if len(lines) > 6 else "")
