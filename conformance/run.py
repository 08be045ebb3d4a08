"""Runs the probes on the emulator and on a GPU, and compares.

    python conformance/run.py                       exit code 1 where they differ, 2 where nothing could be run
    python conformance/run.py --only emulator       the emulator alone
    python conformance/run.py --against FILE.json   the emulator alone, with the GPU's outcomes of an earlier run
    python conformance/run.py -k tensor_load        the questions whose name contains a text
    python conformance/run.py --write-docs          docs/hardware-facts.md from the recorded report

The recorded report, benchmarks/results/conformance.json, is what `--output` writes; tests and docs rest on it.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # processes are many, and their matrices small

import ptxgen  # noqa: E402
from conformance import report as reports  # noqa: E402
from conformance.execution import Outcome  # noqa: E402
from conformance.probe import Probe, Question, load_probes  # noqa: E402
from conformance.recorded import RECORD, read_report, recorded_report  # noqa: E402
from conformance.steps import step_probes  # noqa: E402
from conformance.workers import Lane, OpenDevice, cuda, emulator  # noqa: E402
from ptxgen.errors import PtxgenError  # noqa: E402
from ptxgen.files import check_writable, write_file  # noqa: E402

DOCS = ROOT / "docs" / "hardware-facts.md"
_GPU_LANES = 4  # several processes share the GPU well: most of their time goes into compilation


class Failure(click.ClickException):
    """No comparison took place."""

    exit_code = 2


class Lanes:
    """Worker processes of one kind, one for every thread of a pool."""

    def __init__(self, open_device: OpenDevice, count: int) -> None:
        self._own = threading.local()
        self._all: list[Lane] = []
        self._open_device = open_device
        self._pool = ThreadPoolExecutor(count)

    def ask(self, probe: Probe, question: Question) -> Future[list[Outcome]]:
        """The outcomes of a question's cases, when they are there."""
        return self._pool.submit(self._ask, probe, question)

    def _ask(self, probe: Probe, question: Question) -> list[Outcome]:
        lane = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = Lane(self._open_device)
            self._all.append(lane)
        return lane.ask(probe, question)

    def close(self) -> None:
        """End all workers."""
        self._pool.shutdown(cancel_futures=True)
        for lane in self._all:
            lane.close()


def all_probes(match: str, steps: bool) -> Iterator[Probe]:
    """The steps, which take longest, then the hand-written probes; what has `match` in its name or a question's."""
    for probe in itertools.chain(step_probes() if steps else (), load_probes()):
        chosen = tuple(question for question in probe.questions if match in reports.key(probe, question))
        if chosen:
            yield replace(probe, questions=chosen)


def compare(
    probes: Iterable[Probe],
    devices: dict[str, Lanes],
    earlier: dict[str, Any],
    dump: dict[str, bytes],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Ask every question on every device; the records by name. Steps of one name share a record.

    `earlier` are the records of a run whose GPU outcomes stand in where there is none. Into `dump` go the
    buffers of both devices where they were not found equal.
    """
    asked = [
        (probe, question, {name: lanes.ask(probe, question) for name, lanes in devices.items()})
        for probe in probes
        for question in probe.questions
    ]
    records: dict[str, Any] = {}
    began = time.monotonic()
    for done, (probe, question, futures) in enumerate(asked, 1):
        found = {name: future.result() for name, future in futures.items()}
        name = reports.key(probe, question)
        known = earlier.get(name, {"cases": {}})["cases"]
        nothing = [None] * len(question.cases)
        outcomes = zip(question.cases, found.get("emulator", nothing), found.get("cuda", nothing), strict=True)
        record = records.setdefault(
            name, {"area": probe.area, "ask": question.ask, "answer": question.answer, "cases": {}}
        )
        for case, mine, theirs in outcomes:
            entry = reports.case_record(question, case, mine, theirs, known.get(case.name))
            record["cases"][case.name] = entry
            if entry["verdict"] not in (reports.EQUAL, reports.ONE_DEVICE):
                for device, outcome in (("emulator", mine), ("cuda", theirs)):
                    for buffer, data in (outcome.buffers if outcome else {}).items():
                        dump[f"{name} {case.name} {buffer} {device}"] = data
        say(f"{done} of {len(asked)} questions, {time.monotonic() - began:.0f} s")
    return records


def gpu_environment() -> dict[str, Any]:
    """The GPU's name, driver, power limit and top clock."""
    from ptxgen.bench.telemetry import Telemetry
    from ptxgen.device.cuda import cuda_devices, fitting_ordinal
    from ptxgen.device.cuda_driver import cuda_driver

    driver, ordinal = cuda_driver(), fitting_ordinal("sm_90a")
    address = driver.call("cuDeviceGetPCIBusId", 32, driver.call("cuDeviceGet", ordinal))
    limits = Telemetry(address.split(b"\0", 1)[0].decode()).limits()
    return {
        "name": cuda_devices(driver)[ordinal].name,
        "driver": driver.version_text,
        "power_limit_watts": limits["power_limit_watts"],
        "max_sm_mhz": limits["max_sm_mhz"],
    }


def hardware_facts() -> str:
    """docs/hardware-facts.md; one width stands for all widths of a step."""
    return reports.write_docs([*load_probes(), *step_probes(widths=(64,))], recorded_report())


@click.command(help=(__doc__ or "").replace("\n\n    ", "\n\n\b\n    "))
@click.option("--only", type=click.Choice(["emulator", "cuda"]), help="Run on one of the two.")
@click.option("-k", "match", default="", help="Only questions whose name contains this.")
@click.option("--steps/--no-steps", default=True, show_default=True, help="Also ptxgen's own kernels.")
@click.option("--workers", type=click.IntRange(min=1), default=os.cpu_count(), help="Processes for the emulator.")
@click.option("--output", type=click.Path(path_type=Path), help=f"Write the report (recorded: {RECORD.name}).")
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Take the GPU's outcomes from a report.")
@click.option("--dump", type=click.Path(path_type=Path), help="Write the buffers of cases that differ (.npz).")
@click.option("--date", "day", default=None, help="The date in the report (default: today, or that of --against).")
@click.option("--write-docs", is_flag=True, help="Write docs/hardware-facts.md from the recorded report, and stop.")
def main(
    only: str | None,
    match: str,
    steps: bool,
    workers: int,
    output: Path | None,
    against: Path | None,
    dump: Path | None,
    day: str | None,
    write_docs: bool,
) -> None:
    if write_docs:
        write_file(DOCS, hardware_facts())
        return
    if against is not None:
        only = "emulator"
    try:
        if output is not None:
            check_writable(output)
        earlier = read_report(against) if against is not None else {"questions": {}}
        environment = {
            "date": day or earlier.get("date") or date.today().isoformat(),
            "ptxgen": ptxgen.__version__,
            "cuda": gpu_environment() if only != "emulator" else earlier.get("cuda"),
        }
    except PtxgenError as error:
        raise Failure(str(error)) from error
    devices: dict[str, Lanes] = {}
    if only != "emulator":
        devices["cuda"] = Lanes(cuda, _GPU_LANES)
    if only != "cuda":
        devices["emulator"] = Lanes(emulator, workers)
    buffers: dict[str, bytes] = {}
    began = time.monotonic()
    interactive = sys.stderr.isatty()
    try:
        records = compare(
            all_probes(match, steps),
            devices,
            earlier["questions"],
            buffers,
            lambda text: click.echo(f"\r{text}", nl=False, err=True) if interactive else None,
        )
    except PtxgenError as error:
        raise Failure(str(error)) from error
    finally:
        for lanes in devices.values():
            lanes.close()
    seconds = time.monotonic() - began
    if interactive:
        click.echo(err=True)
    click.echo(reports.table(records))
    if dump is not None:
        arrays: dict[str, Any] = {name: np.frombuffer(data, np.uint8) for name, data in buffers.items()}
        np.savez_compressed(dump, **arrays)
    if output is not None:
        write_file(output, reports.write_report({**environment, "seconds": round(seconds, 1)}, records))
    total = sum((reports.verdicts(record) for record in records.values()), start=reports.verdicts({"cases": {}}))
    click.echo(f"\n{sum(total.values())} cases in {seconds:.0f} s: " + ", ".join(f"{n} {v}" for v, n in total.items()))
    sys.exit(1 if total[reports.DIFFERS] else 0)


if __name__ == "__main__":
    main()
