"""Facts of a PTX text that a reviewer compares: choices, launch, resources, barriers, instruction counts.

They come from the text, its launch description and ptxas; nothing is run for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ptxgen.device.description import LaunchDescription, TensorMapArgument, launch_in_header
from ptxgen.device.expression import Expression
from ptxgen.errors import PtxgenError, ToolchainError
from ptxgen.hardware.targets import TARGETS, target
from ptxgen.review import kinds
from ptxgen.review.barriers import uses_of
from ptxgen.review.descriptors import decoded_operands
from ptxgen.review.maps import tmem_columns
from ptxgen.review.occupancy import occupancy
from ptxgen.review.sources import Source, spec_of
from ptxgen.review.structure import Structure, analyse
from ptxgen.spec import GemmSpec, setting_text
from ptxgen.toolchain import Assembly, assemble

Group = dict[str, str]
"""A fact's name and its value, both in words."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One side of a comparison. `assembly` is None where ptxas is not asked, absent or refuses the text."""

    source: Source
    structure: Structure
    description: LaunchDescription | None
    assembly: Assembly | None
    assembly_error: str

    @cached_property
    def spec(self) -> GemmSpec | None:
        """The spec that the text's header names."""
        return spec_of(self.source.text)

    @cached_property
    def edited(self) -> bool:
        """Whether the text is not what its spec generates now."""
        return self.spec is not None and _generated(self.spec) != self.source.text

    @cached_property
    def groups(self) -> dict[str, Group]:
        """All facts but instruction counts, by subject."""
        return {
            "spec": self._spec(),
            "launch": self._launch(),
            "memory": self._memory(),
            "resources": self._resources(),
            "barriers": self._barriers(),
            "MMA": self._mma(),
        }

    @cached_property
    def counts(self) -> dict[str, Counter[str]]:
        """Instructions by place (role and loops) and opcode."""
        found: dict[str, Counter[str]] = {}
        for site in self.structure.sites:
            found.setdefault(site.place or "all warps", Counter())[site.instruction.name] += 1
        return found

    def _spec(self) -> Group:
        if self.spec is None:
            return {}
        return {name: setting_text(name, value).partition("=")[2] for name, value in self.spec.settings().items()}

    def _launch(self) -> Group:
        module, function, description = self.structure.module, self.structure.function, self.description
        found = {".version": "{}.{}".format(*module.version), ".target": module.target, "entry": function.name}
        for directive in ("reqntid", "maxntid", "cluster", "maxnreg", "minnctapersm"):
            value = getattr(function, directive)
            if value is not None:
                found[f".{directive}"] = _extent(value) if isinstance(value, tuple) else str(value)
        if description is None:
            for parameter in function.parameters:
                found[f"parameter {parameter.name}"] = f"{parameter.size_bytes} bytes"
            return found
        found["grid"] = ", ".join(expression_text(extent) for extent in description.grid)
        found["cluster of CTAs"] = _extent(description.cluster)
        for argument in description.arguments:
            if isinstance(argument, TensorMapArgument):
                box = " x ".join(str(extent) for extent in argument.box)
                text = f"tensor map of {argument.buffer}, box {box}, swizzle {argument.swizzle or 'none'}"
            else:
                value = getattr(argument, "value", None)
                text = f"{getattr(argument, 'kind', 'buffer')}" + (
                    f" = {expression_text(value)}" if isinstance(value, int | str | tuple) else ""
                )
            found[f"argument {argument.name}"] = text
        for buffer in description.buffers:
            found[f"buffer {buffer.name}"] = (
                f"{buffer.element_type}, {expression_text(buffer.rows)} x {expression_text(buffer.columns)}"
            )
        for rule in description.preconditions:
            low = "" if rule.at_least is None else f"{rule.at_least} <= "
            high = "" if rule.below is None else f" < {rule.below}"
            found[f"precondition: {rule.rule}"] = f"{low}{expression_text(rule.expression)}{high}"
        return found

    def _memory(self) -> Group:
        found = {}
        if self.description is not None:
            found["SMEM, dynamic"] = f"{expression_text(self.description.dynamic_smem_bytes)} bytes"
        if self.structure.static_smem_bytes:
            found["SMEM, static"] = f"{self.structure.static_smem_bytes} bytes"
        columns = tmem_columns(self.structure, None)
        if columns != 0:
            found["TMEM"] = "not known" if columns is None else f"{columns} columns"
        return found

    def _resources(self) -> Group:
        if self.assembly is None:
            return {}
        entry = next((found for found in self.assembly.entries if found.entry == self.structure.function.name), None)
        if entry is None:
            return {}
        found = {"registers": str(entry.registers)}
        if entry.spill_store_bytes or entry.spill_load_bytes:
            found["spills"] = f"{entry.spill_store_bytes} bytes stored, {entry.spill_load_bytes} loaded"
        for advice in self.assembly.advisories:
            found[f"ptxas: {advice}"] = "said"
        text = self._occupancy(entry.registers)
        return found | ({"CTAs per SM": text} if text else {})

    def _occupancy(self, registers: int) -> str:
        description, columns = self.description, tmem_columns(self.structure, None)
        name = self.structure.module.target
        if description is None or columns is None or name not in TARGETS:
            return ""
        dynamic = description.dynamic_smem_bytes
        if not isinstance(dynamic, int):
            return ""
        threads = description.block[0] * description.block[1] * description.block[2]
        smem = self.structure.static_smem_bytes + dynamic
        return str(
            occupancy(chip=target(name), threads=threads, registers=registers, smem_bytes=smem, tmem_columns=columns)
        )

    def _barriers(self) -> Group:
        """mbarriers that have no name but their address are numbered, so that one that only moved is the same."""
        groups, uses = uses_of(self.structure)
        found: Group = {}
        names: dict[str, str] = {}
        for group in groups:
            size = f"{len(group.addresses)} barriers, " if len(group.addresses) > 1 else ""
            place = f", at {group.addresses[0]}" if group.nameless else ""
            name = f"mbarrier {sum(one.startswith('mbarrier ') for one in names.values()) + 1}"
            names[group.name] = name if group.nameless else group.name
            plural = "" if group.count_text == "1" else "s"
            found[names[group.name]] = f"{size}{group.count_text} arrival{plural} a phase{place}"
        for use in uses:
            if use.action == "expect":
                name = "an mbarrier" if use.barriers is None else names[use.barriers.name]
                count = "bytes not known" if use.number is None else f"{use.number} bytes"
                found[f"{name}, announced by {use.site.role or 'all warps'}"] = count
        return found

    def _mma(self) -> Group:
        found: Group = {}
        for site in self.structure.sites:
            for one in decoded_operands(site):
                if one.operand == "instruction descriptor":
                    found.setdefault("instruction descriptor", f"{one.value} ({one.meaning})")
                elif one.operand not in found:
                    found[one.operand] = one.meaning
        return found


@lru_cache(maxsize=4)
def _generated(spec: GemmSpec) -> str:
    """The text of a spec; both sides of a comparison often have the same one."""
    from ptxgen.render import render
    from ptxgen.steps import unchecked

    return render(unchecked(spec))


def facts_of(source: Source, *, ptxas: bool = True) -> Facts:
    """The facts of a text. Raises PtxError for text that is not PTX."""
    description = launch_in_header(source.text, source.name)
    threads = None if description is None else description.block[0] * description.block[1] * description.block[2]
    structure = analyse(source.text, source.name, entry=_entry(description), threads=threads)
    assembly, error = None, ""
    if ptxas:
        try:
            assembly = assemble(source.text, name=source.name, line_info=False)
        except (ToolchainError, PtxgenError) as problem:
            error = str(problem)
    return Facts(source=source, structure=structure, description=description, assembly=assembly, assembly_error=error)


def _entry(description: LaunchDescription | None) -> str | None:
    return None if description is None else description.entry


def _extent(extent: tuple[int, int, int]) -> str:
    return " x ".join(str(size) for size in extent)


def expression_text(expression: Expression | float) -> str:
    """An expression of a launch description as people write it."""
    if not isinstance(expression, tuple):
        return str(expression)
    name, *operands = expression
    texts = [expression_text(operand) for operand in operands]
    if name == "product":
        return " · ".join(texts)
    if name == "ceil_div":
        return f"ceil({texts[0]} / {texts[1]})"
    return f"{name}({', '.join(texts)})"


def significance(opcode: str) -> int:
    """Rank of an opcode in a summary: work and synchronisation before arithmetic."""
    kind = kinds.kind_of(opcode)
    if kind in kinds.WORK:
        return 0
    return 1 if kind in kinds.SYNCHRONISATION else 2 if kind != kinds.ARITHMETIC else 3
