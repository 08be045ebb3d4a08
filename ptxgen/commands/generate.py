"""`ptxgen generate`."""

from __future__ import annotations

from pathlib import Path

import click

from ptxgen.commands import EXIT_NO


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; print what differs.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("generated"),
    show_default=True,
    help="Where manifest.json and the generated files are.",
)
def generate(check: bool, folder: Path) -> None:
    """Write the committed PTX from its manifest, or check that it is fresh.

    Exit code 1 if --check finds a file that is stale or missing, or a file that the manifest does not know.
    """
    from ptxgen.review.goldens import generate as write_goldens

    goldens = write_goldens(folder, check=check)
    for golden in goldens:
        if golden.status != "fresh":
            click.echo(f"{golden.status}: {golden.path}")
        if golden.diff:
            click.echo(golden.diff)
    wrong = [golden for golden in goldens if golden.status in ("stale", "missing", "orphaned")]
    if wrong:
        click.echo(f"{len(wrong)} of {len(goldens)} files are not what the manifest says; run `ptxgen generate`")
        raise click.exceptions.Exit(EXIT_NO)
    files = "1 file" if len(goldens) == 1 else f"{len(goldens)} files"
    click.echo(f"{files} {'is' if len(goldens) == 1 else 'are'} fresh" if check else f"{files}, all fresh now")
