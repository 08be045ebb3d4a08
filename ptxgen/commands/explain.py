"""`ptxgen explain`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ptxgen.commands.review_source import problem_size, review_options, source_from

_WITH_LINE = re.compile(r"(?P<source>step:\d[^:]*|(?!step:).+):(?P<line>\d+)$")


@click.command()
@review_options
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
    from ptxgen.review.explain import explain as explain_source
    from ptxgen.review.explain_line import line_lines
    from ptxgen.review.explain_text import explanation_lines

    line = None
    if source is not None and (match := _WITH_LINE.match(source)):
        source, line = match["source"], int(match["line"])
    text, launch = source_from(source, step_number, target, settings, launch_file)
    found = explain_source(text, launch=launch, problem=problem_size(m, n, k), run=run)
    for one in explanation_lines(found) if line is None else line_lines(found, line):
        click.echo(one)
