"""`ptxgen report`: one self-contained page about a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.device.description import LaunchDescription, TensorMapArgument
from ptxgen.errors import PtxgenError
from ptxgen.hardware.swizzle import Swizzle, swizzle_of_span
from ptxgen.hardware.targets import TARGETS
from ptxgen.review import kinds
from ptxgen.review.costs import COSTS, Cost, Costs
from ptxgen.review.explain import Explanation, explain
from ptxgen.review.explain_line import line_lines
from ptxgen.review.facts import Facts, facts_of
from ptxgen.review.order import tile_order
from ptxgen.review.pages import page
from ptxgen.review.pictures import (
    Picture,
    order_picture,
    phase_picture,
    smem_picture,
    swizzle_picture,
    timeline_picture,
    tmem_picture,
)
from ptxgen.review.sources import Source
from ptxgen.review.spans import Timeline
from ptxgen.review.timeline import replay

if TYPE_CHECKING:
    from ptxgen.emulator import Finding
    from ptxgen.review.predict import Prediction

_PREDICTED = (4096, 4096, 4096)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page shows. `timeline` is None where the kernel was not run."""

    facts: Facts
    explanation: Explanation
    costs: Costs | None
    timeline: Timeline | None
    prediction: Prediction | None
    order: Picture | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """A line of the annotated text: code and comment, a class for its sort, its role's number, and what is found
    on it."""

    number: int
    code: str
    comment: str
    style: str
    role: int
    title: str
    findings: tuple[Finding, ...]


def make_report(
    source: Source,
    *,
    launch: Source | None = None,
    problem: Mapping[str, int] | None = None,
    predicted: bool = True,
) -> Report:
    """Runs and checks a kernel at a small size, and puts everything together."""
    facts = facts_of(source)
    description = facts.description
    if problem is None and launch is None and description is not None:
        problem = timeline_problem(description)
    found = explain(source, launch=launch, problem=problem, check=True)
    costs = COSTS.get(found.structure.module.target)
    timeline = None
    if found.trace is not None and costs is not None:
        timeline = replay(found.structure, found.trace, costs)
    prediction = None
    if predicted and facts.spec is not None and not facts.edited and costs is not None:
        from ptxgen.review.predict import predict

        try:
            prediction = predict(facts.spec, *_PREDICTED)
        except PtxgenError:
            prediction = None  # a kernel of one tile, say, cannot run that problem
    order = None
    if found.trace is not None and found.description is not None:
        order = order_picture(tile_order(source, found.description))
    return Report(facts=facts, explanation=found, costs=costs, timeline=timeline, prediction=prediction, order=order)


def timeline_problem(description: LaunchDescription) -> dict[str, int] | None:
    """Two output tiles side by side (one, where a CTA has but one) and as many K tiles as the longest small size."""
    if not description.verify:
        return None
    m, n, _ = description.verify[0]
    longest = max(k for _, _, k in description.verify)
    return description.problem(M=m, N=n * (2 if description.persistent else 1), K=longest)


def report_page(report: Report) -> str:
    """The page as HTML."""
    found, facts = report.explanation, report.facts
    clock = 1.0 if report.costs is None else float(report.costs.clock_hz)
    return page(
        "report.html.j2",
        report=report,
        found=found,
        structure=found.structure,
        badges=_badges(report),
        groups={name: group for name, group in facts.groups.items() if group},
        timeline=None if report.timeline is None else timeline_picture(report.timeline, found.structure, clock),
        phases=None if report.timeline is None else phase_picture(report.timeline, _labels(found)),
        smem=_smem(found),
        tmem=_tmem(found),
        swizzles=[(_swizzle_name(one), swizzle_picture(one)) for one in _swizzles(found)],
        costs=_cost_rows(report.costs),
        findings=() if found.trace is None else found.trace.findings,
        lines=_lines(found),
        role_of={role.name: number for number, role in enumerate(found.structure.roles)},
    )


def _badges(report: Report) -> list[tuple[str, str]]:
    """Short facts for the top of the page: text and class."""
    found, trace = report.explanation, report.explanation.trace
    badges = [(found.structure.module.target, ""), (f"{found.structure.threads} threads", "")]
    for name in ("registers", "CTAs per SM"):
        value = report.facts.groups["resources"].get(name)
        if value is not None:
            badges.append((f"{name}: {value}", ""))
    for name, value in report.facts.groups["memory"].items():
        badges.append((f"{name}: {value}", ""))
    if trace is not None:
        errors = [finding for finding in trace.findings if finding.severity == "error"]
        warnings = len(trace.findings) - len(errors)
        badges.append(
            (f"checker: {len(errors)} errors" if errors else "checker: no errors", "bad" if errors else "good")
        )
        if warnings:
            badges.append((f"{warnings} warnings", ""))
        if trace.comparison is not None:
            right = trace.comparison.matches
            badges.append(("numbers right" if right else "numbers wrong", "good" if right else "bad"))
    return badges


def _labels(found: Explanation) -> dict[tuple[int, int], str]:
    """Names of mbarriers by CTA rank and address."""
    ranks = sorted({event.cta for event in found.trace.first_unit}) if found.trace is not None else [0]
    return {
        (rank, address): group.label(address) + (f", CTA {rank}" if len(ranks) > 1 else "")
        for rank in ranks
        for group in found.barriers
        for address in group.addresses
    }


def _smem(found: Explanation) -> Picture | None:
    sized = [region.stop for region in found.smem if region.stop is not None]
    total = found.structure.static_smem_bytes
    if found.trace is not None:
        total += found.trace.launch.dynamic_smem_bytes
    total = max([total, *sized])
    return smem_picture(found.smem, total) if sized else None


def _tmem(found: Explanation) -> Picture | None:
    chip = TARGETS.get(found.structure.module.target)
    if chip is None or not found.tmem_columns:
        return None
    return tmem_picture(found.tmem, found.tmem_columns, chip.tmem_columns)


def _swizzles(found: Explanation) -> list[Swizzle]:
    """The swizzles of the tensor maps and descriptors."""
    kinds_found: dict[Swizzle, None] = {}
    if found.description is not None:
        for argument in found.description.arguments:
            if isinstance(argument, TensorMapArgument) and argument.swizzle:
                kinds_found[swizzle_of_span(argument.swizzle)] = None
    for use in found.descriptors:
        for one in Swizzle:
            if f"swizzle {one.name}," in use.decoded.meaning and one.span_bytes > 16:
                kinds_found[one] = None
    return list(kinds_found)


def _swizzle_name(swizzle: Swizzle) -> str:
    return f"{swizzle.span_bytes}-byte swizzle"


def _cost_rows(costs: Costs | None) -> list[tuple[str, str, str, str]]:
    """Meaning, figure, source and basis of every cost."""
    if costs is None:
        return []
    rows = []
    for cost in costs.items().values():
        if isinstance(cost, Cost):
            value = f"{cost.value:,.4g} {cost.unit}" if cost.value < 1e6 else f"{cost.value:.3g} {cost.unit}"
        else:
            value = ", ".join(f"{size // 1024} KiB {clk:.0f}" for size, clk in cost.points) + f" {cost.unit}"
        rows.append((cost.meaning, value, cost.source, cost.basis))
    return rows


_STYLES = {
    kinds.TENSOR_LOAD: "load", kinds.BULK_COPY: "load", kinds.MMA: "multiply", kinds.TENSOR_STORE: "store",
    kinds.TMEM_LOAD: "store", kinds.SHARED_STORE: "store", kinds.GLOBAL_ACCESS: "store",
    **dict.fromkeys(kinds.SYNCHRONISATION, "sync"),
}  # fmt: skip


def _lines(found: Explanation) -> list[TextLine]:
    structure = found.structure
    numbers = {role.name: number for number, role in enumerate(structure.roles)}
    on_line: dict[int, list[Finding]] = {}
    if found.trace is not None:
        for finding in found.trace.findings:
            if finding.line is not None:
                on_line.setdefault(finding.line, []).append(finding)
    rows = []
    for number, text in enumerate(structure.lines, start=1):
        code, mark, comment = text.partition("//")
        sites = structure.by_line.get(number, ())
        style, role, title = "", -1, ""
        if sites:
            style = _STYLES.get(sites[0].kind, "")
            role = numbers.get(sites[0].role, -1)
            title = sites[0].place or "all warps"
            if style:
                title = "\n".join(line.strip() for line in list(line_lines(found, number))[1:])
        elif code.strip().endswith(":"):
            style = "label"
        rows.append(
            TextLine(
                number=number,
                code=code,
                comment=mark + comment,
                style=style,
                role=role,
                title=title,
                findings=tuple(on_line.get(number, ())),
            )
        )
    return rows
