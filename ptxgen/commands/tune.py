"""`ptxgen tune`."""

from __future__ import annotations

import re
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.commands.options import modes_option, sizes_option

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice
    from ptxgen.tuning.table import Entry, Problem, Table

_DEFAULT_SIZES = (1024, 2048, 4096, 8192)


@click.command()
@sizes_option
@click.option("--shape", "shapes", multiple=True, metavar="MxNxK", help="Another problem; may be given repeatedly.")
@click.option("--type", "types", multiple=True, default=["f16"], show_default=True, help="f16, bf16, or IN:OUT.")
@click.option("--target", help="PTX target (default: the one for the GPU).")
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Specs that are tried on a problem: those that the model ranks highest.",
)
@modes_option("How the last ones are timed; the least product of the times wins.")
@click.option("--rounds", type=click.IntRange(min=1), default=6, show_default=True, help="Of the final, in each mode.")
@click.option("--pause", type=click.FloatRange(min=0), help="Seconds before a burst of the final (default: 1).")
@click.option("--load", type=click.FloatRange(min=0), help="Seconds of load before a sustained round (default: 2).")
@click.option("--minutes", type=click.FloatRange(min=0), help="Begin no problem after this time; run again to go on.")
@click.option(
    "--device",
    "ordinals",
    type=click.IntRange(min=0),
    multiple=True,
    help="GPU (default: the first that fits); give several of one kind to share the problems among them.",
)
@click.option("--state", "state_file", type=click.Path(path_type=Path), help="Default: beside the table, .state.json.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="TABLE.json",
    help="The table to write or to add to (default: GPU.json, e.g. h200.json).",
)
def tune(
    sizes: tuple[int, ...],
    shapes: tuple[str, ...],
    types: tuple[str, ...],
    target: str | None,
    candidates: int,
    modes: tuple[Any, ...],
    rounds: int,
    pause: float | None,
    load: float | None,
    minutes: float | None,
    ordinals: tuple[int, ...],
    state_file: Path | None,
    output: Path | None,
) -> None:
    """Search the fastest kernels for problem sizes on a GPU, for `ptxgen best`.

    Every kernel is checked first, on an output of NaN. Those that are left take turns; the slower half leaves after
    each round. What is found is kept at once: run the same command again to go on. `ptxgen best` and ptxgen.best()
    read tables from the file or folder that PTXGEN_TUNED names.
    """
    from ptxgen.files import check_writable, write_file
    from ptxgen.tuning.campaign import State, Task, campaign
    from ptxgen.tuning.table import gpu_key

    problems = _problems(sizes, shapes, types)
    devices, target = _devices(target, ordinals)
    gpu = devices[0].properties.chip.chip
    output = output or Path(f"{gpu_key(gpu)}.json")
    state_file = state_file or output.with_suffix(".state.json")
    for path in (output, state_file):
        check_writable(path)
    table = _table(output, devices[0], target)
    state = State.open(state_file, gpu)
    tasks = [
        Task(
            problem=problem,
            target=target,
            ordinal=0,
            candidates=candidates,
            modes=modes,
            rounds=rounds,
            pause_seconds=pause,
            load_seconds=load,
        )
        for problem in problems
    ]
    environment = _environment(devices[0])

    def keep(entry: Entry) -> None:
        nonlocal table
        table = table.merged([entry], environment)
        write_file(output, table.to_json())

    until = None if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        executor: Executor | None = None
        if len(devices) > 1:
            executor = ProcessPoolExecutor(len(devices), mp_context=get_context("spawn"))
            # A worker whose kernel never ends cannot be waited for.
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        entries = campaign(
            tasks,
            state,
            ordinals=[device.ordinal for device in devices],
            executor=executor,
            report=click.echo,
            stop=lambda: until is not None and time.monotonic() > until,
            found=keep,
        )
    left = len(tasks) - len(entries)
    click.echo(f"{output}: {len(entries)} of {len(tasks)} problems" + ("; run again for the rest" if left else ""))


def _problems(sizes: tuple[int, ...], shapes: tuple[str, ...], types: tuple[str, ...]) -> list[Problem]:
    from ptxgen.tuning.table import Problem

    extents = [(size, size, size) for size in sizes]
    for shape in shapes:
        if re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", shape) is None:
            raise click.UsageError(f"a shape is three numbers joined by x, as in 4096x4096x1024; got {shape!r}")
        m, n, k = map(int, shape.split("x"))
        extents.append((m, n, k))
    found = []
    for kind in types:
        operand, _, output = kind.partition(":")
        for m, n, k in extents or [(size, size, size) for size in _DEFAULT_SIZES]:
            found.append(Problem(m=m, n=n, k=k, operand_type=operand, output_type=output or operand))
    return found


def _devices(target: str | None, ordinals: tuple[int, ...]) -> tuple[list[CudaDevice], str]:
    """The GPUs, all of one kind, and the target that they load."""
    from ptxgen.device.cuda import CudaDevice, cuda_devices
    from ptxgen.errors import DeviceError
    from ptxgen.hardware.targets import TARGETS, target_loads_on

    targets = [target] if target is not None else list(TARGETS)
    try:
        there = cuda_devices()
    except DeviceError as error:
        reason = re.split(r" \(|; |: |\n", str(error))[0]
        raise DeviceError(f"tune measures kernels on a GPU, and {reason}") from error
    fitting = [
        (info.ordinal, name)
        for info in there
        for name in targets
        if target_loads_on(name, info.capability) and (not ordinals or info.ordinal in ordinals)
    ]
    if not fitting:
        names = "\n".join(f"  {info}" for info in there)
        raise DeviceError(
            f"tune measures kernels for {' or '.join(targets)}, and no GPU loads them; there are\n{names}"
        )
    chosen = [CudaDevice(ordinal) for ordinal, _ in fitting][: len(ordinals) or 1]
    kinds = {(device.properties.chip.chip, device.properties.chip.sm_count) for device in chosen}
    if len(kinds) > 1 or (ordinals and len(chosen) < len(set(ordinals))):
        given = ", ".join(map(str, ordinals))
        raise DeviceError(f"devices {given} are not GPUs of one kind, and a table is of one kind of GPU")
    return chosen, fitting[0][1]


def _table(path: Path, device: CudaDevice, target: str) -> Table:
    """The table to add to; PtxgenError where the file is of another GPU."""
    from ptxgen.errors import PtxgenError
    from ptxgen.tuning.table import Table, load_table

    chip = device.properties.chip
    if not path.exists():
        return Table(gpu=chip.chip, target=target, sm_count=chip.sm_count)
    table = load_table(path)
    if not table.fits(chip.chip, chip.sm_count, target):
        raise PtxgenError(f"{path} is a table of {table.gpu} for {table.target}; this is {chip.chip}: give another -o")
    return table


def _environment(device: CudaDevice) -> dict[str, Any]:
    from ptxgen import __version__
    from ptxgen.bench.telemetry import Telemetry

    major, minor = device.driver.cuda_version
    limits = Telemetry(device.pci_address).limits()
    return {
        "ptxgen": __version__,
        "date": date.today().isoformat(),
        "driver": limits["driver"],
        "cuda": f"{major}.{minor}",
        "power_limit_watts": limits["power_limit_watts"],
    }
