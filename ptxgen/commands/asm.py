"""`ptxgen asm`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptxgen.commands import EXIT_NO
from ptxgen.commands.options import only_one_source, source_options, spec_from

if TYPE_CHECKING:
    from ptxgen.toolchain import Assembly


@click.command()
@source_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the cubin in a file.")
@click.option(
    "--ptxas", "ptxas_path", type=click.Path(path_type=Path), help="Assembler to use instead of the one found."
)
@click.option("--no-line-info", is_flag=True, help="Leave out the table that leads from SASS to PTX lines.")
def asm(
    file: Path | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    output: Path | None,
    ptxas_path: Path | None,
    no_line_info: bool,
) -> None:
    """Assemble a kernel with ptxas and show what it needs: registers, shared memory, spills, advice.

    Exit code 1 if it spills, or if ptxas gave up speed to keep it right (C7xxx).
    """
    from ptxgen.files import read_text, write_file
    from ptxgen.toolchain import assemble

    only_one_source(file, step_number, settings)
    if file is not None:
        text, name = read_text(file), str(file)
    else:
        from ptxgen.render import emit

        spec = spec_from(step_number, target, settings)
        text, name = emit(spec), f"step{spec.step}.ptx"
    assembly = assemble(text, name=name, line_info=not no_line_info, path=ptxas_path)
    if output is not None:
        write_file(output, assembly.cubin)
    for line in _report(assembly, text, name):
        click.echo(line)
    if assembly.spill_bytes or assembly.advisories:
        raise click.exceptions.Exit(EXIT_NO)


def _report(assembly: Assembly, text: str, name: str) -> list[str]:
    from ptxgen.device.description import launch_in_header
    from ptxgen.device.expression import evaluate

    launch, dynamic = launch_in_header(text, name), {}
    if launch is not None:
        symbols = {**launch.defaults, "SM_COUNT": 1}
        dynamic[launch.entry] = evaluate(launch.dynamic_smem_bytes, symbols, "dynamic_smem_bytes")
    lines = [f"ptxas {assembly.ptxas.version} for {assembly.target}: {len(assembly.cubin)} bytes of cubin"]
    for entry in assembly.entries:
        lines += [
            f"{entry.entry}:",
            f"  registers       {entry.registers}",
            f"  shared memory   {entry.smem_bytes} bytes static"
            + (f", {dynamic[entry.entry]} dynamic" if entry.entry in dynamic else ""),
            f"  stack           {entry.stack_bytes} bytes",
            f"  spills          {entry.spill_store_bytes} bytes stored, {entry.spill_load_bytes} bytes loaded",
            f"  named barriers  {entry.barriers}",
        ]
    if "setmaxnreg" in text:
        ignored = any("setmaxnreg" in line and "ignored" in line for line in assembly.advisories)
        lines.append(
            "setmaxnreg: ignored; give the entry .reqntid and .minnctapersm, or .maxnreg"
            if ignored
            else "setmaxnreg: honoured"
        )
    lines += [f"warning: {line}" for line in assembly.warnings]
    lines += [f"advice: {line}" for line in assembly.infos]
    return lines
