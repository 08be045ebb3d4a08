"""From options to a kernel on a device, and numbers to text: what `run` and `verify` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ptxgen.commands.options import only_one_source, source_options, spec_from
from ptxgen.device.choice import chip_for
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel, compile, load
from ptxgen.device.launch import Extent
from ptxgen.files import read_text
from ptxgen.toolchain import ptx_target

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


def open_kernel(
    file: Path | None,
    launch_file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    **device_options: Any,
) -> tuple[Kernel, EmulatedDevice]:
    """The kernel that the options name, on an emulated chip of its target."""
    only_one_source(file, step_number, settings)
    if file is not None:
        device = EmulatedDevice(chip_for(ptx_target(read_text(file), str(file))), **device_options)
        return load(file, launch=launch_file, device=device), device
    if launch_file is not None:
        raise click.UsageError("--launch goes with a PTX file; a step brings its own launch description")
    spec = spec_from(step_number, target, settings)
    device = EmulatedDevice(chip_for(spec.target), **device_options)
    return compile(spec, device), device


def size_text(problem: dict[str, int]) -> str:
    """M=... N=... K=..."""
    return " ".join(f"{name}={problem[name]}" for name in ("M", "N", "K"))
