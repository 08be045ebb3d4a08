"""`ptxgen emit`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ptxgen.commands.options import spec_from, spec_options


@click.command()
@spec_options
@click.option("--format", "form", type=click.Choice(["ptx", "ir", "launch"]), default="ptx", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file instead of stdout.")
def emit(step_number: int | None, target: str, settings: tuple[str, ...], form: str, output: Path | None) -> None:
    """Print the PTX of a kernel (or its program or launch description as JSON)."""
    spec = spec_from(step_number, target, settings)
    if form == "ptx":
        from ptxgen.render import emit as emit_ptx

        text = emit_ptx(spec)
    elif form == "ir":
        from ptxgen.steps import build

        text = build(spec).to_json() + "\n"
    else:
        from ptxgen.steps.launch import launch_description

        text = json.dumps(launch_description(spec), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        from ptxgen.files import write_file

        write_file(output, text)
