"""`ptxgen verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from ptxgen.checker import RULES
from ptxgen.commands import EXIT_ERROR, EXIT_NO
from ptxgen.commands.emulation import device_options, kernel_options, open_device, open_kernel, size_text
from ptxgen.commands.progress import Progress
from ptxgen.device.emulated import POLICIES, EmulatedDevice
from ptxgen.device.interface import Device
from ptxgen.device.kernel import Kernel
from ptxgen.device.launch import Extent
from ptxgen.device.verification import HARDWARE, Case, Run, cases, run_case, run_cases, totals
from ptxgen.emulator import Finding
from ptxgen.errors import PtxgenError

HARDWARE_NOTE = "run on a GPU: only numbers, and memory around the outputs, were checked"
CHECKED_NOTE = "checked as executed: machine rules, races, proxy and tcgen05 fences, barrier phases, numbers"
DEFAULT_BUDGET = 5_000_000


@click.command()
@kernel_options
@device_options(default="emulator")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    help="When async work takes effect; may be given several times (default: each of them).",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=DEFAULT_BUDGET,
    show_default=True,
    metavar="INSTRUCTIONS",
    help="Warp instructions after which a cluster is given up as undecided.",
)
@click.option("--strict", is_flag=True, help="Warnings count: exit code 1 for them, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def verify(
    file: Path | None,
    launch_file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    m: int | None,
    n: int | None,
    k: int | None,
    grid: Extent | None,
    seed: int,
    workers: int | None,
    device_name: str,
    compiler: str,
    timeout_seconds: float,
    policies: tuple[str, ...],
    budget: int,
    strict: bool,
    as_json: bool,
) -> None:
    """Execute a kernel at small sizes, under several schedules of its asynchronous work, and report every
    race, missing fence and broken rule of the machine, and every wrong number.

    The sizes are those of the launch description, or the one given by -m, -n and -k; a persistent kernel
    also runs with grids of 1 and 2 clusters. On a GPU (--device) only wrong numbers show. Exit code 1 if
    anything was found (of warnings: with --strict), 2 if something could not be decided. docs/checker.md
    explains every rule.
    """
    open_on = partial(
        open_device,
        device_name,
        compiler=compiler,
        timeout_seconds=timeout_seconds,
        workers=workers,
        check=True,
        instruction_budget=budget,
    )
    kernel, device = open_kernel(file, launch_file, step_number, target, settings, open_on)
    emulated = isinstance(device, EmulatedDevice)
    if policies and not emulated:
        raise click.UsageError("--policy goes with the emulator; a GPU has a schedule of its own")
    schedules = policies or (POLICIES if emulated else (HARDWARE,))
    todo = cases(kernel, {"M": m, "N": n, "K": k}, grid, schedules, (seed,))
    runs: list[Run] = []
    try:
        for run in _execute(kernel, device, todo, workers):
            if not as_json:
                _show(run, runs)
            runs.append(run)
    except PtxgenError as error:
        if as_json:
            click.echo(json.dumps({"kernel": kernel.name, "error": str(error)}, indent=2))
        raise
    idle = _idle(kernel, device) if all(run.clean for run in runs) else []
    if as_json:
        click.echo(json.dumps(_json(kernel, runs, idle, emulated), indent=2))
    else:
        _conclude(kernel, runs, idle, emulated)
    if any(not run.clean and not run.undecided for run in runs) or (strict and _warnings(runs)):
        raise click.exceptions.Exit(EXIT_NO)
    if any(run.undecided for run in runs):
        raise click.exceptions.Exit(EXIT_ERROR)


def _execute(kernel: Kernel, device: Device, todo: list[Case], workers: int | None) -> Iterator[Run]:
    if isinstance(device, EmulatedDevice):
        progress = Progress("runs done")
        for done, run in enumerate(run_cases(kernel, todo, workers), start=1):
            progress.close()
            yield run
            progress(done, len(todo))
        progress.close()
        return
    for case in todo:
        progress = Progress(f"{size_text(case.problem)} {case.policy}: CTAs or clusters done")
        run = run_case(kernel, case, progress)
        progress.close()
        yield run


def _idle(kernel: Kernel, device: Device) -> list[tuple[int, str]]:
    """Line and text of the synchronisation that ordered nothing in any run, where all came to a clean end."""
    if not isinstance(device, EmulatedDevice):
        return []
    lines = kernel.text.splitlines()
    return [(line, lines[line - 1].partition("//")[0].strip()) for line in device.usage.idle_lines()]


# -- for people ---------------------------------------------------------------------------------

_HEADER = f"{'':9}  {'M':>6} {'N':>6} {'K':>6}  {'grid':>8}  {'schedule':8}  {'CTAs':>5} {'instructions':>12} {'s':>6}"


def _verdict(run: Run) -> str:
    if run.undecided or not run.clean:
        return "undecided" if run.undecided else "FAIL"
    return "warnings" if run.report.findings else "ok"


def _warnings(runs: list[Run]) -> int:
    """How many warnings there are, by rule and line."""
    return len({_key(one) for run in runs for one in run.report.findings if one.severity == "warning"})


def _show(run: Run, earlier: list[Run]) -> None:
    if not earlier:
        click.echo(_HEADER)
    case, report = run.case, run.report
    grid = ",".join(str(extent) for extent in report.grid).removesuffix(",1").removesuffix(",1")
    counted = "" if report.instructions is None else f"{report.instructions:,}"
    sizes = " ".join(f"{case.problem[name]:>6}" for name in ("M", "N", "K"))
    click.echo(
        f"{_verdict(run):9}  {sizes}  {grid:>8}  {case.policy:8}  {run.ctas:>5} {counted:>12} {report.seconds:6.2f}"
    )
    told = {_key(finding) for one in earlier for finding in one.report.findings}
    for finding, alike in _folded([one for one in report.findings if _key(one) not in told]):
        click.echo("    " + str(finding).replace("\n", "\n    "))
        for line, others in alike.items():
            click.echo(f"      likewise line {line}" + (f" with {_lines(others)}" if any(others) else ""))
    for severity, rule in dict.fromkeys((one.severity, one.rule) for one in report.findings if _key(one) in told):
        again = [one.line for one in report.findings if one.rule == rule and _key(one) in told]
        click.echo(f"    {severity} {rule} ({_lines(again)}), as above")
    for damage in report.guard_damage:
        click.echo(f"    {damage}")
    if run.comparison is not None and not run.comparison.matches:
        click.echo("    " + run.comparison.summary().replace("\n", "\n    "))


def _folded(findings: list[Finding]) -> list[tuple[Finding, dict[int | None, list[int | None]]]]:
    """Findings, each with those of the same rule that share a line with it or with each other, or that the same would
    mend where no other line is named: (line, other lines)."""
    folded: list[tuple[Finding, dict[int | None, list[int | None]]]] = []
    seen: list[set[int | None]] = []
    for one in findings:
        places = {one.line, one.other_line}
        for (first, alike), lines in zip(folded, seen, strict=True):
            same = one.missing == first.missing != "" if one.other_line is None else bool(places & lines)
            if one.rule == first.rule and same:
                alike.setdefault(one.line, []).append(one.other_line)
                lines |= places
                break
        else:
            folded.append((one, {}))
            seen.append(places - {None})
    return folded


def _lines(lines: list[int | None]) -> str:
    numbers = sorted({line for line in lines if line is not None})
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _key(finding: Finding) -> tuple[str, int | None]:
    return finding.rule, finding.line


def _conclude(kernel: Kernel, runs: list[Run], idle: list[tuple[int, str]], emulated: bool) -> None:
    if kernel.description.expect is None:
        click.echo('numbers not checked: the launch description has no "expect"')
    click.echo(CHECKED_NOTE if emulated else HARDWARE_NOTE)
    if idle:
        click.echo("maybe not needed: synchronisation that ordered nothing in any run")
        for line, text in idle:
            click.echo(f"    line {line}: {text}")
    for rule in sorted({finding.rule for run in runs for finding in run.report.findings}):
        if rule in RULES:
            click.echo(f"{rule}: {RULES[rule].meaning}")
    ctas, instructions = totals(runs)
    schedules = ", ".join(dict.fromkeys(run.case.policy for run in runs))
    found = sum(not run.clean and not run.undecided for run in runs)
    undecided = sum(run.undecided for run in runs)
    warnings = _warnings(runs)
    told = f"{warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    verdict = ", ".join(filter(None, (f"{found} with findings" if found else "", told))) or "nothing found"
    if undecided:
        verdict += f", {undecided} undecided (which is no pass: give a larger --budget)"
    counted = f", {instructions:,} warp instructions" if instructions else ""
    click.echo(
        f"{kernel.name}: {len(runs)} runs ({schedules}; seed {runs[0].case.seed}), {ctas} CTAs{counted}: {verdict}"
    )


# -- for programs -------------------------------------------------------------------------------


def _json(kernel: Kernel, runs: list[Run], idle: list[tuple[int, str]], emulated: bool) -> dict[str, object]:
    ctas, instructions = totals(runs)
    lines = kernel.text.splitlines()

    def text_of(line: int | None) -> str:
        return "" if line is None else lines[line - 1].partition("//")[0].strip()

    return {
        "kernel": kernel.name,
        "clean": all(run.clean for run in runs),
        "warnings": _warnings(runs),
        "undecided": any(run.undecided for run in runs),
        "numbers_checked": kernel.description.expect is not None,
        "races_checked": emulated,
        "ctas": ctas,
        "instructions": instructions,
        "idle_synchronisation": [{"line": line, "text": text} for line, text in idle],
        "runs": [
            {
                **{name: run.case.problem[name] for name in ("M", "N", "K")},
                "grid": run.report.grid,
                "policy": run.case.policy,
                "seed": run.case.seed,
                "clean": run.clean,
                "undecided": run.undecided,
                "seconds": round(run.report.seconds, 3),
                "ctas": run.ctas,
                "instructions": run.report.instructions,
                "findings": [
                    {
                        "rule": finding.rule,
                        "severity": finding.severity,
                        "message": finding.message,
                        "line": finding.line,
                        "text": finding.text,
                        "cta": finding.cta,
                        "warp": finding.warp,
                        "other_line": finding.other_line,
                        "other_text": text_of(finding.other_line),
                        "nearest_synchronisation": finding.nearest_synchronisation,
                        "missing": finding.missing,
                        "times": finding.times,
                    }
                    for finding in run.report.findings
                ],
                "guard_damage": run.report.guard_damage,
                "wrong_elements": None if run.comparison is None else run.comparison.wrong,
            }
            for run in runs
        ],
    }
