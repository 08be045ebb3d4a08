"""`ptxgen steps`."""

from __future__ import annotations

import click


@click.command()
def steps() -> None:
    """List the steps that can be built, one line each, and for which targets."""
    from ptxgen.steps import STEPS

    for number, step in STEPS.items():
        click.echo(f"{number:>2}  {step.title} ({', '.join(step.targets)})")
