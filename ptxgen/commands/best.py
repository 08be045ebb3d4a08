"""`ptxgen best`."""

from __future__ import annotations

import json
from pathlib import Path

import click

_OTHERS = 4


@click.command()
@click.option("-m", type=click.IntRange(min=1), required=True)
@click.option("-n", type=click.IntRange(min=1), required=True)
@click.option("-k", type=click.IntRange(min=1), required=True)
@click.option("--target", default="sm_100a", show_default=True, help="PTX target.")
@click.option("--type", "operand_type", default="f16", show_default=True, help="Of A and B: f16 or bf16.")
@click.option("--output-type", help="Of D: f16, bf16 or f32 (default: as A and B).")
@click.option("--json", "as_json", is_flag=True, help="Print the choice as JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE.ptx", help="Write the kernel to a file.")
def best(
    m: int,
    n: int,
    k: int,
    target: str,
    operand_type: str,
    output_type: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Choose the kernel for a problem size, and say why.

    From a table that `ptxgen tune` measured on the target's GPU, else by a model. Needs no GPU.
    """
    from ptxgen.steps.launch import changed, reproduce_command
    from ptxgen.tuning.best import best as choose

    choice = choose(m, n, k, target=target, operand_type=operand_type, output_type=output_type)
    command = reproduce_command(choice.spec)
    if as_json:
        data = {
            "command": command,
            "step": choice.spec.step,
            "settings": list(changed(choice.spec)),
            "grid": choice.grid,
            "basis": choice.basis,
            "seconds": choice.seconds,
            "tflops": round(choice.tflops, 1),
            "why": choice.why,
            "others": [reproduce_command(spec) for spec in choice.others[:_OTHERS]],
        }
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(f"{command}\n{choice.why}")
        if choice.grid is not None:
            click.echo(f"Launch it on {choice.grid[0]} CTAs (--grid {choice.grid[0]}; grid= in Python).")
        click.echo("Next by the model:")
        for spec in choice.others[:_OTHERS]:
            click.echo(f"  {reproduce_command(spec)}")
    if output is not None:
        from ptxgen.files import write_file
        from ptxgen.render import emit

        write_file(output, emit(choice.spec))
