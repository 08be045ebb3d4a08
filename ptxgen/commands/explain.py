"""`ptxgen explain`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ptxgen.commands.options import spec_from, spec_options


@click.command()
@click.argument("source", required=False, metavar="[SOURCE[:LINE]]")
@spec_options
@click.option(
    "--launch", "launch_file", type=click.Path(path_type=Path), metavar="FILE.json", help="Launch description."
)
@click.option("-m", type=click.IntRange(min=1), help="Rows of A and of D in the run.")
@click.option("-n", type=click.IntRange(min=1), help="Rows of B, columns of D.")
@click.option("-k", type=click.IntRange(min=1), help="Columns of A and of B.")
@click.option("--run/--no-run", default=True, show_default=True, help="Fill maps and ledger from a small run.")
def explain(
    source: str | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    launch_file: Path | None,
    m: int | None,
    n: int | None,
    k: int | None,
    run: bool,
) -> None:
    """Explain a kernel: roles, shared and tensor memory, the barrier ledger, descriptors, an outline.

    SOURCE is a PTX file of any compiler, a spec's JSON file, step:N[@TARGET][,KEY=VALUE...] or
    git:REVISION:PATH; with :LINE behind it that line is explained. Where there is a launch description, a small
    run on the emulator tells what happens phase by phase.
    """
    from ptxgen.errors import LaunchError
    from ptxgen.files import read_text
    from ptxgen.review.explain import explain as explain_source
    from ptxgen.review.explain_line import line_lines
    from ptxgen.review.explain_text import explanation_lines
    from ptxgen.review.sources import Source, read_source

    if (source is None) == (step_number is None):
        raise click.UsageError("which kernel? give a source or --step N")
    line = None
    if source is None:
        from ptxgen.render import emit

        spec = spec_from(step_number, target, settings)
        text = Source(name=f"step {spec.step} ({spec.target})", text=emit(spec))
    else:
        if settings:
            raise click.UsageError("--set goes with --step; a source is taken as it is")
        match = re.match(r"(?P<source>.+):(?P<line>\d+)$", source)
        if match and not source.startswith("step:"):
            source, line = match["source"], int(match["line"])
        elif match and (inner := re.match(r"(?P<source>step:.+):(?P<line>\d+)$", source)):
            source, line = inner["source"], int(inner["line"])
        text = read_source(source)
    launch = None if launch_file is None else Source(name=str(launch_file), text=read_text(launch_file))
    problem = None
    if any(size is not None for size in (m, n, k)):
        if m is None or n is None or k is None:
            raise LaunchError("a size takes all of -m, -n and -k")
        problem = {"M": m, "N": n, "K": k}
    found = explain_source(text, launch=launch, problem=problem, run=run)
    for one in explanation_lines(found) if line is None else line_lines(found, line):
        click.echo(one)
