"""`ptxgen bench`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.commands import EXIT_NO
from ptxgen.commands.options import modes_option, only_one_source, sizes_option, source_options

if TYPE_CHECKING:
    from ptxgen.bench.libraries import Library
    from ptxgen.bench.report import Case
    from ptxgen.bench.timing import Stopwatch
    from ptxgen.device.cuda import CudaDevice
    from ptxgen.device.kernel import Kernel

_DEFAULT_SIZES = (4096, 8192)
_COLD_L2S = 3  # buffers that are used in turn exceed the L2 cache this many times


@click.command()
@source_options
@click.option("--launch", "launch_file", type=click.Path(path_type=Path), metavar="FILE.json", help="As for `run`.")
@sizes_option
@click.option("-m", type=click.IntRange(min=1))
@click.option("-n", type=click.IntRange(min=1))
@click.option("-k", type=click.IntRange(min=1))
@click.option(
    "--input",
    "inputs",
    type=click.Choice(["normal", "uniform", "zeros"]),
    multiple=True,
    default=["normal"],
    show_default=True,
    help="N(0, 1), U(-1, 1) or zeros. The data set the power, and that the clock.",
)
@modes_option("After a pause, or under lasting load.")
@click.option("--cold", is_flag=True, help="Use several sets of buffers in turn, together 3 times the L2 cache.")
@click.option("--rounds", type=click.IntRange(min=1), default=6, show_default=True, help="Rounded up to be even.")
@click.option("--device", "ordinal", type=click.IntRange(min=0), help="GPU (default: the first that fits).")
@click.option("--compiler", type=click.Choice(["driver", "ptxas"]), default="driver", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything that was measured.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Write TFLOP/s over size as SVG.")
def bench(
    file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    launch_file: Path | None,
    sizes: tuple[int, ...],
    m: int | None,
    n: int | None,
    k: int | None,
    inputs: tuple[str, ...],
    modes: tuple[str, ...],
    cold: bool,
    rounds: int,
    ordinal: int | None,
    compiler: str,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Time a kernel on a GPU beside cuBLAS, through torch or cupy where one is installed.

    Each arm's result is checked first, on an output that was filled with NaN; a wrong one is not timed, and
    makes exit code 1. Arms take turns (A B B A); figures are medians with their range.
    """
    from ptxgen.bench.libraries import open_library
    from ptxgen.bench.report import Report, environment_lines
    from ptxgen.bench.telemetry import Telemetry
    from ptxgen.bench.timing import Stopwatch
    from ptxgen.files import check_writable, write_file

    only_one_source(file, step_number, settings)
    for path in (json_file, plot_file):
        if path is not None:
            check_writable(path)
    kernel, device = _open(file, launch_file, step_number, target, settings, ordinal, compiler)
    expect, description = kernel.expectation, kernel.description
    types = tuple(description.buffer(name).element_type for name in (expect.a, expect.b, expect.d))
    library = open_library(device, types)
    telemetry = Telemetry(device.pci_address)
    stopwatch = Stopwatch(device, telemetry)
    environment = _environment(kernel, device, library) | telemetry.limits()
    for line in environment_lines(environment, ("gpu", "driver", "library", "blas", "kernel", "compiler")):
        click.echo(line)
    cases: list[Case] = []
    for size in _problems(kernel, sizes, {"M": m, "N": n, "K": k}):
        for kind in inputs:
            cases += _measure(kernel, device, library, stopwatch, size, kind, modes, rounds, cold)
    blas = library.blas if any(library.blas in case.timings for case in cases) else None
    report = Report(environment=environment, arms=_arms(kernel, library), baseline=blas, cases=tuple(cases))
    for line in report.table():
        click.echo(line)
    if json_file is not None:
        write_file(json_file, json.dumps(report.to_json(), indent=2) + "\n")
    if plot_file is not None:
        write_file(plot_file, report.svg())
    if any(case.mistakes for case in cases):
        raise click.exceptions.Exit(EXIT_NO)


def _open(
    file: Path | None,
    launch_file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    ordinal: int | None,
    compiler: Any,
) -> tuple[Kernel, CudaDevice]:
    from ptxgen.commands.emulation import open_kernel
    from ptxgen.device.cuda import CudaDevice, fitting_ordinal
    from ptxgen.errors import DeviceError

    def open_on(target_name: str) -> CudaDevice:
        try:
            number = fitting_ordinal(target_name) if ordinal is None else ordinal
        except DeviceError as error:
            reason = re.split(r" \(|; |: |\n", str(error))[0]
            raise DeviceError(f"bench times kernels on a GPU with .target {target_name}, and {reason}") from error
        return CudaDevice(number, compiler=compiler)

    return open_kernel(file, launch_file, step_number, target, settings, open_on)


def _problems(kernel: Kernel, sizes: tuple[int, ...], given: dict[str, int | None]) -> list[dict[str, int]]:
    cubes = [{"M": size, "N": size, "K": size} for size in sizes]
    if any(value is not None for value in given.values()):
        cubes.append(kernel.description.problem(**given))
    return cubes or [{"M": size, "N": size, "K": size} for size in _DEFAULT_SIZES]


def _arms(kernel: Kernel, library: Library) -> tuple[str, ...]:
    return (kernel.name, *([library.blas] if library.blas else []))


def _measure(
    kernel: Kernel,
    device: CudaDevice,
    library: Library,
    stopwatch: Stopwatch,
    problem: dict[str, int],
    kind: str,
    modes: tuple[str, ...],
    rounds: int,
    cold: bool,
) -> list[Case]:
    """A case for each mode, on one set of inputs."""
    from ptxgen.bench.report import Case
    from ptxgen.bench.timing import Arm, compare

    expect, description = kernel.expectation, kernel.description
    m, n, k = (problem[name] for name in "MNK")
    a_type, b_type, d_type = (description.buffer(name).element_type for name in (expect.a, expect.b, expect.d))
    set_bytes = m * k * a_type.bytes + n * k * b_type.bytes + m * n * d_type.bytes
    sets = 1 + (_COLD_L2S * device.properties.chip.l2_bytes // set_bytes if cold else 0)
    operands = [
        (library.matrix(m, k, a_type, kind, 2 * turn), library.matrix(n, k, b_type, kind, 2 * turn + 1))
        for turn in range(sets)
    ]
    arms, mistakes = [], {}
    for name in _arms(kernel, library):
        outputs = [library.matrix(m, n, d_type, "nan", 0) for _ in range(sets)]
        calls: list[Any]
        if name == library.blas:
            if a_type != d_type:
                continue  # torch and cupy multiply into the operands' type only
            calls = [partial(library.multiply, a, b, d) for (a, b), d in zip(operands, outputs, strict=True)]
        else:
            calls = [kernel.prepare(a, b, out=d).launch for (a, b), d in zip(operands, outputs, strict=True)]
        calls[0]()
        mistake = library.mistake(*operands[0], outputs[0])
        if mistake is None:
            arms.append(Arm(name=name, launch=partial(_call, calls)))
        else:
            mistakes[name] = mistake
    return [
        Case(
            m=m,
            n=n,
            k=k,
            inputs=kind,
            buffers="cold" if cold else "hot",
            mode=mode,
            timings=compare(stopwatch, arms, flop=2.0 * m * n * k, mode=mode, rounds=rounds),  # type: ignore[arg-type]
            mistakes=mistakes,
        )
        for mode in modes
    ]


def _call(calls: list[Any], turn: int) -> None:
    calls[turn % len(calls)]()


def _environment(kernel: Kernel, device: CudaDevice, library: Library) -> dict[str, object]:
    from ptxgen import __version__
    from ptxgen.toolchain import find_tool, ptxas

    major, minor = device.driver.cuda_version
    assembler = f"ptxas {ptxas().version}" if device.compiler == "ptxas" and find_tool("ptxas") else None
    return {
        "gpu": device.properties.name,
        "sm_count": device.properties.chip.sm_count,
        "cuda": f"{major}.{minor}",
        "ptxgen": __version__,
        "kernel": kernel.name,
        "settings": json.loads(kernel.spec.to_json()) if kernel.spec is not None else None,
        "compiler": assembler or device.driver.version_text,
        "library": library.name,
        "blas": library.blas,
    }
