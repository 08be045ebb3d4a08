"""`ptxgen verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from ptxgen.commands import EXIT_NO
from ptxgen.commands.emulation import device_options, kernel_options, open_device, open_kernel, size_text
from ptxgen.commands.progress import Progress
from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.emulated import POLICIES, EmulatedDevice
from ptxgen.device.interface import Device, LaunchReport
from ptxgen.device.kernel import Kernel
from ptxgen.device.launch import Extent
from ptxgen.device.reference import Comparison, compare
from ptxgen.errors import LaunchError

HARDWARE = "hardware"  # the schedule of a GPU, which nobody chooses
HARDWARE_NOTE = "run on a GPU: only numbers, and memory around the outputs, were checked"
RACES_NOTE = "races within a CTA and missing fences are not checked in this version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One launch and what is to be said about it. `comparison` is None where numbers cannot be checked."""

    problem: dict[str, int]
    policy: str
    seed: int
    report: LaunchReport
    comparison: Comparison | None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.report.errors and (self.comparison is None or self.comparison.matches)


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
    as_json: bool,
) -> None:
    """Execute a kernel at small sizes, under several schedules of its asynchronous work, and report every
    broken rule of the machine and every wrong number.

    The sizes are those of the launch description, or the one given by -m, -n and -k; a persistent kernel
    also runs with grids of 1 and 2 CTAs. On a GPU (--device) only wrong numbers show. Exit code 1 if anything
    was found.
    """
    open_on = partial(open_device, device_name, compiler=compiler, timeout_seconds=timeout_seconds, workers=workers)
    kernel, device = open_kernel(file, launch_file, step_number, target, settings, open_on)
    emulated = isinstance(device, EmulatedDevice)
    if policies and not emulated:
        raise click.UsageError("--policy goes with the emulator; a GPU has a schedule of its own")
    runs = []
    for problem in _problems(kernel, {"M": m, "N": n, "K": k}):
        for extent in _grids(kernel, grid):
            for policy in policies or (POLICIES if emulated else (HARDWARE,)):
                runs.append(_run(kernel, device, problem, extent, policy, seed))
                if not as_json:
                    _show(runs[-1])
    clean = all(run.clean for run in runs)
    if as_json:
        click.echo(json.dumps(_json(kernel, runs), indent=2))
    else:
        if kernel.description.expect is None:
            click.echo('numbers not checked: the launch description has no "expect"')
        click.echo(RACES_NOTE if emulated else HARDWARE_NOTE)
        found = sum(not run.clean for run in runs)
        click.echo(f"{kernel.name}: {len(runs)} runs, " + ("nothing found" if clean else f"{found} with findings"))
    if not clean:
        raise click.exceptions.Exit(EXIT_NO)


def _problems(kernel: Kernel, sizes: dict[str, int | None]) -> Iterator[dict[str, int]]:
    if any(size is not None for size in sizes.values()):
        yield kernel.description.problem(**sizes)
        return
    if not kernel.description.verify:
        raise LaunchError(f"the launch description of {kernel.name} has no sizes to verify; give -m, -n and -k")
    for m, n, k in kernel.description.verify:
        yield kernel.description.problem(M=m, N=n, K=k)


def _grids(kernel: Kernel, grid: Extent | None) -> tuple[Extent | None, ...]:
    """With one CTA a persistent kernel carries its phases over all tiles; with many, some have no tile."""
    if grid is not None or not kernel.description.persistent:
        return (grid,)
    return ((1, 1, 1), (2, 1, 1), None)


def _run(kernel: Kernel, device: Device, problem: dict[str, int], grid: Extent | None, policy: str, seed: int) -> Run:
    progress = Progress(f"{size_text(problem)} {policy}: CTAs done")
    if isinstance(device, EmulatedDevice):
        device.policy, device.seed, device.progress = policy, seed, progress
    launch = kernel.plan(problem, grid=grid)
    # Integers: every order of summation gives the same sum, so one wrong element in a thousand shows.
    inputs: dict[str, Matrix] = {
        buffer.name: make_matrix("integers", buffer.rows, buffer.columns, buffer.element_type, (seed, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    execution = kernel.run(launch, inputs)
    progress.close()
    expect, comparison = kernel.description.expect, None
    if expect is not None:
        comparison = compare(inputs[expect.a], inputs[expect.b], execution.outputs[expect.d])
    return Run(problem=problem, policy=policy, seed=seed, report=execution.report, comparison=comparison)


def _show(run: Run) -> None:
    state = "ok  " if run.clean else "FAIL"
    grid = ",".join(str(extent) for extent in run.report.grid)
    click.echo(f"{state}  {size_text(run.problem)}  grid {grid}  {run.policy}")
    for finding in run.report.findings:
        click.echo(f"      {finding}")
    for damage in run.report.guard_damage:
        click.echo(f"      {damage}")
    if run.comparison is not None and not run.comparison.matches:
        click.echo("      " + run.comparison.summary().replace("\n", "\n      "))


def _json(kernel: Kernel, runs: list[Run]) -> dict[str, object]:
    return {
        "kernel": kernel.name,
        "clean": all(run.clean for run in runs),
        "numbers_checked": kernel.description.expect is not None,
        "races_checked": False,
        "runs": [
            {
                **{name: run.problem[name] for name in ("M", "N", "K")},
                "grid": run.report.grid,
                "policy": run.policy,
                "seed": run.seed,
                "clean": run.clean,
                "seconds": round(run.report.seconds, 3),
                "instructions": run.report.instructions,
                "findings": [
                    {
                        "rule": finding.rule,
                        "severity": finding.severity,
                        "message": finding.message,
                        "line": finding.line,
                        "cta": finding.cta,
                        "warp": finding.warp,
                    }
                    for finding in run.report.findings
                ],
                "guard_damage": run.report.guard_damage,
                "wrong_elements": None if run.comparison is None else run.comparison.wrong,
            }
            for run in runs
        ],
    }
