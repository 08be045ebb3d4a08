"""From options to a kernel on a device, and numbers to text: what `run` and `verify` share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ptxgen.commands.options import only_one_source, source_options, spec_from
from ptxgen.device.choice import chip_for
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.interface import Device
from ptxgen.device.kernel import Kernel, compile, load
from ptxgen.device.launch import Extent
from ptxgen.errors import DeviceError
from ptxgen.files import read_text
from ptxgen.toolchain import ptx_target

DEFAULT_TIMEOUT_SECONDS = 60.0

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Device = TypeVar("_Device", bound=Device)


def _parse_grid(ctx: click.Context, param: click.Parameter, value: str | None) -> Extent | None:
    """X, X,Y or X,Y,Z as an extent."""
    if value is None:
        return None
    parts = value.split(",")
    if len(parts) > 3 or not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise click.BadParameter(f"{value!r} is no grid: give X, X,Y or X,Y,Z CTAs, each at least 1", ctx, param)
    x, y, z = (int(part) for part in [*parts, "1", "1"][:3])
    return x, y, z


def kernel_options(command: _Command) -> _Command:
    """The kernel (file or step), its problem size, and how it is launched and emulated."""
    for option in (
        click.option("--workers", type=click.IntRange(min=1), help="Processes of the emulator (default: one per CPU)."),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For inputs and policy."),
        click.option("--grid", callback=_parse_grid, metavar="X[,Y,Z]", help="CTAs of a persistent kernel."),
        click.option("-k", type=click.IntRange(min=1), help="Columns of A and of B."),
        click.option("-n", type=click.IntRange(min=1), help="Rows of B, columns of D."),
        click.option("-m", type=click.IntRange(min=1), help="Rows of A and of D."),
        click.option(
            "--launch",
            "launch_file",
            type=click.Path(path_type=Path),
            metavar="FILE.json",
            help="Launch description, instead of the one in the PTX file's header.",
        ),
    ):
        command = option(command)
    return source_options(command)


def _parse_device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if re.fullmatch(r"auto|emulator|cuda(:\d+)?", value) is None:
        raise click.BadParameter(f"{value!r} is no device: give auto, emulator, cuda or cuda:N", ctx, param)
    return value


def device_options(default: str) -> Callable[[_Command], _Command]:
    """Where the kernel runs, and what holds for a GPU only."""

    def decorate(command: _Command) -> _Command:
        for option in (
            click.option(
                "--timeout",
                "timeout_seconds",
                type=click.FloatRange(min=0, min_open=True),
                default=DEFAULT_TIMEOUT_SECONDS,
                show_default=True,
                metavar="SECONDS",
                help="How long a kernel on a GPU may run before it counts as hung.",
            ),
            click.option(
                "--compiler",
                type=click.Choice(["driver", "ptxas"]),
                default="driver",
                show_default=True,
                help="What makes a GPU's machine code from PTX.",
            ),
            click.option(
                "--device",
                "device_name",
                callback=_parse_device,
                default=default,
                show_default=True,
                metavar="auto|cuda|cuda:N|emulator",
                help="auto is a GPU that fits the kernel's target, else the emulator.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def open_device(
    device_name: str, target_name: str, *, compiler: str, timeout_seconds: float, **emulator_options: Any
) -> Device:
    """The device that the options name, for PTX of a target."""
    if device_name != "emulator":
        from ptxgen.device.cuda import CudaDevice, fitting_ordinal

        gpu: dict[str, Any] = {"compiler": compiler, "timeout_seconds": timeout_seconds}
        if device_name.startswith("cuda:"):
            return CudaDevice(int(device_name.removeprefix("cuda:")), **gpu)
        try:
            return CudaDevice(fitting_ordinal(target_name), **gpu)
        except DeviceError as error:
            if device_name == "cuda":
                raise
            reason = re.split(r" \(|; |: |\n", str(error))[0]
            click.echo(f"ptxgen: running on the emulator: {reason}", err=True)
    return EmulatedDevice(chip_for(target_name), **emulator_options)


def open_kernel(
    file: Path | None,
    launch_file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    open_on: Callable[[str], _Device],
) -> tuple[Kernel, _Device]:
    """The kernel that the options name, and the device that `open_on` gives for its target."""
    only_one_source(file, step_number, settings)
    if file is not None:
        device = open_on(ptx_target(read_text(file), str(file)))
        return load(file, launch=launch_file, device=device), device
    if launch_file is not None:
        raise click.UsageError("--launch goes with a PTX file; a step brings its own launch description")
    spec = spec_from(step_number, target, settings)
    device = open_on(spec.target)
    return compile(spec, device), device


def size_text(problem: dict[str, int]) -> str:
    """M=... N=... K=..."""
    return " ".join(f"{name}={problem[name]}" for name in ("M", "N", "K"))
