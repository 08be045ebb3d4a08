"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

_Command = TypeVar("_Command", bound=Callable[..., Any])


def spec_options(command: _Command) -> _Command:
    """--step, --target and --set: what `spec_from` needs."""
    for option in (
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a choice, e.g. pipe_depth=4."
        ),
        click.option("--target", default="sm_100a", show_default=True, help="PTX target."),
        click.option("--step", "step_number", type=int, metavar="N", help="Step of the ladder (see `ptxgen steps`)."),
    ):
        command = option(command)
    return command


sizes_option = click.option(
    "--size", "sizes", type=click.IntRange(min=1), multiple=True, help="M = N = K; may be given repeatedly."
)


def modes_option(help: str) -> Callable[[_Command], _Command]:
    """--mode: burst, sustained, or both."""
    choice, both = click.Choice(["burst", "sustained"]), ["burst", "sustained"]
    return click.option("--mode", "modes", type=choice, multiple=True, default=both, show_default=True, help=help)


def source_options(command: _Command) -> _Command:
    """A PTX file, or --step and its company."""
    argument = click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE.ptx]")
    return argument(spec_options(command))


def spec_from(step_number: int | None, target: str, settings: tuple[str, ...]) -> GemmSpec:
    """The spec that --step, --target and --set ask for."""
    from ptxgen.spec import parse_settings
    from ptxgen.steps import step

    if step_number is None:
        raise click.UsageError("which kernel? give --step N (see `ptxgen steps`)")
    return parse_settings(step(step_number, target=target), settings)


def only_one_source(file: Path | None, step_number: int | None, settings: tuple[str, ...]) -> None:
    """Refuse a file together with --step or --set, and neither of them."""
    if file is None and step_number is None:
        raise click.UsageError("which kernel? give a PTX file or --step N (see `ptxgen steps`)")
    if file is not None and step_number is not None and "=" in str(file) and not file.exists():
        raise click.UsageError(f"there is no file {file}; each choice needs a --set of its own: --set {file}")
    if file is not None and (step_number is not None or settings):
        raise click.UsageError("a PTX file is taken as it is: --step and --set do not go with it")
