"""`ptxgen run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ptxgen.commands import EXIT_NO
from ptxgen.commands.emulation import device_options, kernel_options, open_device, open_kernel, size_text
from ptxgen.commands.progress import Progress
from ptxgen.device.arrays import INPUT_KINDS, Matrix, as_matrix, load_matrix, make_matrix, save_matrix
from ptxgen.device.emulated import POLICIES, EmulatedDevice
from ptxgen.device.interface import LaunchReport
from ptxgen.device.kernel import Kernel
from ptxgen.device.launch import Extent
from ptxgen.device.reference import compare
from ptxgen.errors import LaunchError
from ptxgen.files import check_writable


@click.command()
@kernel_options
@click.option("--a", "a_file", type=click.Path(path_type=Path), metavar="A.npy", help="A, M x K; made up if not given.")
@click.option("--b", "b_file", type=click.Path(path_type=Path), metavar="B.npy", help="B, N x K; made up if not given.")
@click.option("--out", "out_file", type=click.Path(path_type=Path), metavar="D.npy", help="Keep D, M x N.")
@click.option(
    "--input",
    "input_kind",
    type=click.Choice(INPUT_KINDS),
    default="normal",
    show_default=True,
    help="What made-up operands hold.",
)
@click.option("--cast", is_flag=True, help="Round operands of another type to the kernel's.")
@device_options(default="auto")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="eager",
    show_default=True,
    help="When the emulator does async work.",
)
@click.option("--check", is_flag=True, help="Also look for races and missing fences (emulator only; slower).")
def run(
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
    a_file: Path | None,
    b_file: Path | None,
    out_file: Path | None,
    input_kind: str,
    cast: bool,
    device_name: str,
    compiler: str,
    timeout_seconds: float,
    policy: str,
    check: bool,
) -> None:
    """Run a kernel on matrices and compare with a float64 reference.

    D = A @ B.T with A (M x K) and B (N x K) from .npy files, or made up: then -m, -n and -k give the size.
    Exit code 1 if D is wrong or the kernel broke a rule of the machine, 2 if it did not end within --timeout
    on a GPU; `ptxgen verify` then tells what it waits for.
    """
    if out_file is not None:
        check_writable(out_file)
    progress = Progress("CTAs or clusters done")
    open_on = partial(
        open_device,
        device_name,
        compiler=compiler,
        timeout_seconds=timeout_seconds,
        policy=policy,
        seed=seed,
        workers=workers,
        progress=progress,
        check=check,
    )
    kernel, device = open_kernel(file, launch_file, step_number, target, settings, open_on)
    if check and not isinstance(device, EmulatedDevice):
        raise click.UsageError("--check goes with the emulator: give --device emulator")
    sizes = {"M": m, "N": n, "K": k}
    if kernel.description.expect is None:
        if a_file or b_file or out_file:
            raise click.UsageError(
                f"{kernel.name} does not say which buffers are A, B and D; --a, --b, --out need that"
            )
        report = _run_unchecked(kernel, sizes, grid, input_kind, seed)
        progress.close()
        click.echo('numbers not checked: the launch description has no "expect"')
        raise click.exceptions.Exit(EXIT_NO if report.errors else 0)

    a, b = _operands(kernel, sizes, a_file, b_file, input_kind, seed, cast)
    d, report = kernel.execute(a, b, grid=grid)
    progress.close()
    _show(kernel, {"M": a.shape[0], "N": b.shape[0], "K": a.shape[1]}, report)
    comparing = Progress("rows compared")
    comparison = compare(a, b, d, progress=comparing)
    comparing.close()
    click.echo(comparison.summary())
    if out_file is not None:
        save_matrix(out_file, d)
        if d.dtype.kind == "V":
            click.echo(f"ptxgen: NumPy reloads {out_file} as raw bytes; view them as {d.dtype.name}", err=True)
    if report.errors or not comparison.matches:
        raise click.exceptions.Exit(EXIT_NO)


def _operands(
    kernel: Kernel,
    sizes: dict[str, int | None],
    a_file: Path | None,
    b_file: Path | None,
    input_kind: str,
    seed: int,
    cast: bool,
) -> tuple[Matrix, Matrix]:
    """A and B from their files or made up, at the sizes that the options and the files agree on."""
    expect = kernel.expectation
    given: dict[str, Matrix] = {}
    for name, path, rows in ((expect.a, a_file, "M"), (expect.b, b_file, "N")):
        if path is None:
            continue
        kind = kernel.description.buffer(name).element_type
        given[name] = as_matrix(load_matrix(path), kind, f"{name} ({path})", cast=cast)
        for symbol, extent in zip((rows, "K"), given[name].shape, strict=True):
            if sizes[symbol] not in (None, extent) and (symbol != "K" or len(given) == 1):
                raise LaunchError(
                    f"{name} ({path}) has shape {given[name].shape}, which does not go with {symbol} = {sizes[symbol]}"
                )
            sizes[symbol] = extent
    if len(given) == 2:
        return given[expect.a], given[expect.b]
    problem = kernel.description.problem(**sizes)
    for name, rows, salt in ((expect.a, "M", 0), (expect.b, "N", 1)):
        if name not in given:
            kind = kernel.description.buffer(name).element_type
            given[name] = make_matrix(input_kind, problem[rows], problem["K"], kind, (seed, salt))
    return given[expect.a], given[expect.b]


def _run_unchecked(
    kernel: Kernel,
    sizes: dict[str, int | None],
    grid: Extent | None,
    input_kind: str,
    seed: int,
) -> LaunchReport:
    problem = kernel.description.problem(**sizes)
    launch = kernel.plan(problem, grid=grid)
    inputs = {
        buffer.name: make_matrix(input_kind, buffer.rows, buffer.columns, buffer.element_type, (seed, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    report = kernel.run(launch, inputs).report
    _show(kernel, problem, report)
    return report


def _show(kernel: Kernel, problem: dict[str, int], report: LaunchReport) -> None:
    grid = " x ".join(str(extent) for extent in report.grid if extent != 1) or "1"
    click.echo(f"{kernel.name} on {report.device}: {size_text(problem)}, grid {grid}")
    counted = "" if report.instructions is None else f", {report.instructions} warp instructions"
    click.echo(f"{_time_text(report.seconds)}{counted}")
    for finding in report.findings:
        click.echo(str(finding))
    for damage in report.guard_damage:
        click.echo(damage)


def _time_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e6:.1f} us"
