"""`ptxgen report`."""

from __future__ import annotations

from pathlib import Path

import click

from ptxgen.commands.review_source import problem_size, review_options, source_from


@click.command()
@review_options
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The page, self-contained HTML.")
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Write the timeline for Perfetto or chrome://tracing too."
)
@click.option("--predict/--no-predict", default=True, show_default=True, help="Predict the time at 4096 cubed.")
def report(
    source: str | None,
    step_number: int | None,
    target: str,
    settings: tuple[str, ...],
    launch_file: Path | None,
    m: int | None,
    n: int | None,
    k: int | None,
    output: Path,
    trace: Path | None,
    predict: bool,
) -> None:
    """Write a page about a kernel: its pipeline over time, memory, barriers, findings, and annotated PTX.

    SOURCE is what `ptxgen explain` takes. The page is driven by a small run on the emulator, which is checked; how
    long things take is a model (docs/model.md).
    """
    from ptxgen.errors import PtxgenError
    from ptxgen.files import check_writable, write_file
    from ptxgen.review.chrome_trace import chrome_trace
    from ptxgen.review.report import make_report, report_page

    for path in (output, trace):
        if path is not None:
            check_writable(path)
    text, launch = source_from(source, step_number, target, settings, launch_file)
    made = make_report(text, launch=launch, problem=problem_size(m, n, k), predicted=predict)
    write_file(output, report_page(made))
    click.echo(f"{output} written: {made.explanation.provenance}")
    if trace is not None:
        if made.timeline is None or made.costs is None:
            raise PtxgenError(f"there is no timeline of {text.name} to write: it was not run")
        name = made.explanation.structure.function.name
        write_file(trace, chrome_trace(made.timeline, float(made.costs.clock_hz), name))
        click.echo(f"{trace} written")
