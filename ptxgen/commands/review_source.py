"""What `explain` and `report` share: a kernel from one of many sources, and the size of its small run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ptxgen.commands.options import spec_from, spec_options
from ptxgen.errors import LaunchError

if TYPE_CHECKING:
    from ptxgen.review.sources import Source

_Command = TypeVar("_Command", bound=Callable[..., Any])


def review_options(command: _Command) -> _Command:
    """A source or --step, a launch description, and a problem size."""
    for option in (
        click.option("-k", type=click.IntRange(min=1), help="Columns of A and of B."),
        click.option("-n", type=click.IntRange(min=1), help="Rows of B, columns of D."),
        click.option("-m", type=click.IntRange(min=1), help="Rows of A and of D in the run."),
        click.option(
            "--launch",
            "launch_file",
            type=click.Path(path_type=Path),
            metavar="FILE.json",
            help="Launch description, instead of the one in the PTX file's header.",
        ),
    ):
        command = option(command)
    argument = click.argument("source", required=False, metavar="[SOURCE]")
    return argument(spec_options(command))


def source_from(
    source: str | None, step_number: int | None, target: str, settings: tuple[str, ...], launch_file: Path | None
) -> tuple[Source, Source | None]:
    """The text that the options name, and its launch description where one is given."""
    from ptxgen.files import read_text
    from ptxgen.review.sources import Source, read_source

    if (source is None) == (step_number is None):
        raise click.UsageError("which kernel? give a source or --step N")
    if source is not None and settings:
        raise click.UsageError("--set goes with --step; a source is taken as it is")
    if source is None:
        from ptxgen.render import emit

        spec = spec_from(step_number, target, settings)
        text = Source(name=f"step {spec.step} ({spec.target})", text=emit(spec))
    else:
        text = read_source(source)
    launch = None if launch_file is None else Source(name=str(launch_file), text=read_text(launch_file))
    return text, launch


def problem_size(m: int | None, n: int | None, k: int | None) -> dict[str, int] | None:
    """The problem that -m, -n and -k give, None for the usual one."""
    if m is None and n is None and k is None:
        return None
    if m is None or n is None or k is None:
        raise LaunchError("a size takes all of -m, -n and -k")
    return {"M": m, "N": n, "K": k}
