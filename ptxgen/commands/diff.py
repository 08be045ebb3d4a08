"""`ptxgen diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptxgen.commands import EXIT_NO

if TYPE_CHECKING:
    from ptxgen.review.comparison import Comparison, FolderComparison


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--summary", is_flag=True, help="Only what changed in words, without the lines.")
@click.option("--format", "form", type=click.Choice(["text", "md", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with both sides to a file.")
@click.option("--run/--no-run", default=True, show_default=True, help="Run both on the emulator, checked.")
@click.option("--ptxas/--no-ptxas", "use_ptxas", default=True, show_default=True, help="Assemble both.")
@click.option("--sass", is_flag=True, help="Compare machine code too.")
@click.option(
    "--ptxas-path",
    "ptxas_paths",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    metavar="FILE",
    help="Assembler for --sass; twice: one for each side.",
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 where the texts differ.")
def diff(
    old: str,
    new: str,
    summary: bool,
    form: str,
    as_json: bool,
    html: Path | None,
    run: bool,
    use_ptxas: bool,
    sass: bool,
    ptxas_paths: tuple[Path, ...],
    exit_code: bool,
) -> None:
    """Say what changed between two kernels: in words, then line by line, then the strongest equality that holds.

    OLD and NEW are PTX files of any compiler, JSON files of a spec, step:N[@TARGET][,KEY=VALUE...],
    git:REVISION:PATH, or two folders. The texts may be identical; the same up to names and comments; the same in
    machine code; or the same in behaviour, which the emulator finds out at a small size.
    """
    from ptxgen.files import write_file
    from ptxgen.review import writing
    from ptxgen.review.comparison import Comparison, compare_words

    if len(ptxas_paths) > 2 or (ptxas_paths and not sass):
        raise click.UsageError("--ptxas-path goes with --sass, once or twice")
    comparison = compare_words(old, new, ptxas=use_ptxas, run=run)
    if html is not None:
        from ptxgen.review.diff_page import diff_page

        write_file(html, diff_page(comparison))
        click.echo(f"{html} written", err=True)
    if as_json or form == "json":
        click.echo(json.dumps(writing.as_json(comparison), indent=2))
    elif form == "md":
        click.echo(writing.markdown(comparison))
    elif html is None:
        if not isinstance(comparison, Comparison):
            lines = writing.folder_lines(comparison)
        else:
            lines = writing.summary_lines(comparison) if summary else writing.text_lines(comparison)
        for line in lines:
            click.echo(_coloured(line))
    if sass:
        _echo_sass(comparison, ptxas_paths)
    if exit_code and not comparison.identical:
        raise click.exceptions.Exit(EXIT_NO)


def _coloured(line: str) -> str:
    """Colours for a terminal; click leaves them out elsewhere."""
    if line[:1] == "-" and line[1:2] == " ":
        return click.style(line, fg="red")
    if line[:1] == "+":
        return click.style(line, fg="green")
    return click.style(line, bold=True) if line.startswith(("==", "@@", "####")) else line


def _echo_sass(comparison: Comparison | FolderComparison, ptxas_paths: tuple[Path, ...]) -> None:
    from ptxgen.review.comparison import Comparison
    from ptxgen.review.sass import sass_lines

    if not isinstance(comparison, Comparison):
        raise click.UsageError("--sass compares two kernels, not folders")
    for line in sass_lines(comparison.old.source, comparison.new.source, ptxas_paths):
        click.echo(_coloured(line))
