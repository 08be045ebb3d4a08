"""ptxgen beside cuBLAS, the best of cuBLASLt's heuristics, Triton and pyptx, on the same tensors in turns.

    python -m benchmarks.compare --type bf16 --cubes --json benchmarks/results/compare_h200.json
    python -m benchmarks.compare --type bf16 --others --mode burst --json benchmarks/results/compare_h200.json
    python -m benchmarks.compare --show benchmarks/results/compare_h200.json [--plot FILE.svg] [--markdown FILE.md]

Needs torch and a GPU; arms that are not installed are left out, and the file says so. Every arm's result is checked
on an output of NaN before it is timed. A file that exists is added to, a case at a time, so that a comparison may be
broken off and split over several runs. Ratios are of arms of one case, which ran side by side;
docs/performance.md discusses them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.comparison.arms import DENSE, NAMES, Bench
from benchmarks.comparison.summary import CUBES, USUAL, bars, conditions, merge, table
from ptxgen import __version__
from ptxgen.bench.libraries import TorchLibrary
from ptxgen.bench.report import Case, Report
from ptxgen.bench.telemetry import Reading, Telemetry
from ptxgen.bench.timing import MODES, Arm, Stopwatch, Timing, compare
from ptxgen.device.cuda import CudaDevice
from ptxgen.files import read_text, write_file
from ptxgen.hardware.element_types import element_type

OTHERS = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (4096, 4096, 14336),
    (8192, 28672, 8192),
    (128, 8192, 8192),
    (16, 8192, 8192),
    (4096, 4096, 1024),
    (4095, 4097, 4104),
    (1000, 1000, 1000),
)
"""Small, skewed and unaligned problems; 4097 columns take rows of 4104."""
COLD_L2S = 3
GRAPH_SECONDS = 100e-6
"""Launches below this are timed in CUDA graphs, or the host's part would be what is timed."""
GRAPH_LAUNCHES = 20
GATED_GRAPHS = 8
"""Replays queued while the stream is held; each takes longer than the host needs for the next."""


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", dest="types", action="append", choices=["bf16", "f16"], help="default: bf16")
    parser.add_argument("--size", dest="sizes", action="append", type=int, default=[], help="M = N = K")
    parser.add_argument("--shape", dest="shapes", action="append", type=_shape, default=[], metavar="MxNxK")
    parser.add_argument("--cubes", action="store_true", help=f"the sizes {', '.join(map(str, CUBES))}")
    parser.add_argument("--others", action="store_true", help="small, skewed and unaligned shapes")
    parser.add_argument("--mode", dest="modes", action="append", choices=MODES, help="default: both")
    parser.add_argument("--input", dest="inputs", action="append", choices=["normal", "uniform", "zeros"])
    parser.add_argument("--cold", action="store_true", help="buffers in turn, 3 times the L2 cache")
    parser.add_argument("--arm", dest="arms", action="append", choices=NAMES, help="default: all")
    parser.add_argument("--rounds", type=int, default=6, help="of each arm, rounded up to be even")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before a burst")
    parser.add_argument("--load", type=float, default=2.0, help="seconds of load before a sustained round")
    parser.add_argument("--minutes", type=float, help="begin no case after this time")
    parser.add_argument("--json", type=Path, help="the file to write or to add to")
    parser.add_argument("--show", type=Path, help="measure nothing; show this file")
    parser.add_argument("--plot", type=Path, help="write TFLOP/s over size as SVG, a file for each type")
    parser.add_argument("--markdown", type=Path, help="write the tables")
    options = parser.parse_args()
    data = _measured(options) if options.show is None else json.loads(read_text(options.show))
    _show(data, options.plot, options.markdown)


def _shape(text: str) -> tuple[int, int, int]:
    if re.fullmatch(r"\d+x\d+x\d+", text) is None:
        raise argparse.ArgumentTypeError(f"a shape is MxNxK, got {text!r}")
    m, n, k = map(int, text.split("x"))
    return m, n, k


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases asked for, after those in the file."""
    torch: Any = importlib.import_module("torch")
    device = CudaDevice(torch.cuda.current_device())
    telemetry = Telemetry(device.pci_address)
    bench = Bench(
        torch=torch,
        device=device,
        stopwatch=Stopwatch(device, telemetry),
        graph_stopwatch=Stopwatch(device, telemetry, gated_launches=GATED_GRAPHS),
        names=tuple(options.arms or NAMES),
    )
    library = TorchLibrary(device)
    data: dict[str, Any] = {"runs": [], "cases": []}
    if options.json is not None and options.json.exists():
        data = json.loads(read_text(options.json))
    data["runs"].append(_environment(torch, device, telemetry, options))
    sizes = [(size, size, size) for size in options.sizes] + options.shapes
    sizes += [(size, size, size) for size in CUBES] if options.cubes else []
    sizes += OTHERS if options.others else ()
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    for kind in options.types or ["bf16"]:
        for inputs in options.inputs or ["normal"]:
            for size in sizes:
                if end is not None and time.monotonic() > end:
                    print(f"out of time before {kind} {size}")
                    continue
                for case in _cases(bench, library, kind, inputs, size, options):
                    print(_line(case), flush=True)
                    data["cases"] = merge(data["cases"], [case])
                    if options.json is not None:
                        write_file(options.json, json.dumps(data, indent=1) + "\n")
    return data


def _cases(
    bench: Bench, library: TorchLibrary, kind: str, inputs: str, size: tuple[int, int, int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A case for each mode, on one set of inputs."""
    m, n, k = size
    element = element_type(kind)
    set_bytes = (m * k + n * k + m * n) * element.bytes
    sets = 1 + (COLD_L2S * bench.device.properties.chip.l2_bytes // set_bytes if options.cold else 0)
    operands = [
        (library.matrix(m, k, element, inputs, 2 * turn), library.matrix(n, k, element, inputs, 2 * turn + 1))
        for turn in range(sets)
    ]
    made = bench.arms(operands, partial(library.matrix, m, n, element, "nan", 0))
    mistakes, arms = {}, []
    once: dict[str, float] = {}
    check = library.checker(*operands[0])
    for name, launches in made.launches.items():
        made.outputs[name].fill_(float("nan"))
        launches[0]()
        mistake = check(made.outputs[name])
        if mistake is not None:
            mistakes[name] = mistake
            continue
        once[name], _ = bench.stopwatch.seconds(lambda turn, launches=launches: launches[turn % sets](), 10)
    in_graphs = bool(once) and min(once.values()) < GRAPH_SECONDS
    repeats = max(GRAPH_LAUNCHES, sets) if in_graphs else 1
    for name in once:
        launches = made.launches[name]
        if in_graphs:
            graph = _graph(bench.torch, [launches[turn % sets] for turn in range(repeats)])
            arms.append(Arm(name=name, launch=lambda turn, graph=graph: graph.replay()))
        else:
            arms.append(Arm(name=name, launch=lambda turn, launches=launches: launches[turn % sets]()))
    stopwatch = bench.graph_stopwatch if in_graphs else bench.stopwatch
    found = []
    for mode in options.modes or MODES:
        timings = compare(
            stopwatch,
            arms,
            flop=2.0 * m * n * k * repeats,
            mode=mode,
            rounds=options.rounds,
            pause_seconds=options.pause,
            load_seconds=options.load,
        )
        found.append(
            {
                "type": kind,
                "m": m,
                "n": n,
                "k": k,
                "inputs": inputs,
                "buffers": "cold" if options.cold else "hot",
                "mode": mode,
                "launches_per_graph": repeats if in_graphs else None,
                "arms": {name: _arm_json(timing, 2.0 * m * n * k, repeats) for name, timing in timings.items()},
                "mistakes": mistakes,
                "notes": made.notes,
            }
        )
    return found


def _graph(torch: Any, launches: list[Callable[[], None]]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


def _arm_json(timing: Timing, flop: float, repeats: int) -> dict[str, Any]:
    rounds = [seconds / repeats for seconds in timing.rounds]
    seconds = timing.seconds / repeats
    return {
        "tflops": round(flop / seconds / 1e12, 2),
        "seconds": {"median": seconds, "min": min(rounds), "max": max(rounds), "rounds": rounds},
        "launches_per_round": timing.launches * repeats,
        **asdict(timing.reading),
    }


def _line(case: dict[str, Any]) -> str:
    speeds = "  ".join(f"{name} {arm['tflops']:.1f}" for name, arm in case["arms"].items())
    clocks = "/".join("-" if arm["sm_mhz"] is None else f"{arm['sm_mhz']:.0f}" for arm in case["arms"].values())
    said = "".join(f"; {name}: {text}" for name, text in {**case["notes"], **case["mistakes"]}.items())
    return f"{case['type']} {case['m']}x{case['n']}x{case['k']} {case['mode']}: {speeds}  MHz {clocks}{said}"


def _environment(torch: Any, device: CudaDevice, telemetry: Telemetry, options: argparse.Namespace) -> dict[str, Any]:
    versions = {}
    for name in ("triton", "pyptx"):
        try:
            versions[name] = importlib.import_module(name).__version__
        except (ImportError, AttributeError):
            versions[name] = None
    return {
        "date": date.today().isoformat(),
        "gpu": device.properties.chip.chip,
        "sm_count": device.properties.chip.sm_count,
        "compiler": device.driver.version_text,
        "ptxgen": __version__,
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        **versions,
        **telemetry.limits(),
        "rounds": options.rounds,
        "pause_seconds": options.pause,
        "load_seconds": options.load,
    }


def _show(data: dict[str, Any], plot: Path | None, markdown: Path | None) -> None:
    cases, sm_count = data["cases"], data["runs"][-1]["sm_count"]
    lines: list[str] = []
    for kind in sorted({case["type"] for case in cases}):
        for (inputs, buffers), group in groupby((case for case in cases if case["type"] == kind), conditions):
            own = list(group)
            usual = (inputs, buffers) == USUAL
            title = kind if usual else f"{kind}, {inputs} inputs, {buffers} buffers"
            lines += [f"### {title}", "", *table(own, (*NAMES, DENSE), sm_count), ""]
            if usual and plot is not None:
                write_file(plot.with_name(f"{plot.stem}_{kind}{plot.suffix}"), _report(own).svg())
    lines += bars(cases)
    print("\n".join(lines))
    if markdown is not None:
        write_file(markdown, "\n".join(lines) + "\n")


def _report(cases: list[dict[str, Any]]) -> Report:
    """The same as `ptxgen bench` would have it, for its plot."""

    def timing(arm: dict[str, Any]) -> Timing:
        reading = Reading(sm_mhz=arm["sm_mhz"], watts=arm["watts"])
        return Timing(rounds=tuple(arm["seconds"]["rounds"]), launches=arm["launches_per_round"], reading=reading)

    names = ("m", "n", "k", "inputs", "buffers", "mode", "mistakes")
    found = tuple(
        Case(timings={name: timing(arm) for name, arm in case["arms"].items()}, **{name: case[name] for name in names})
        for case in cases
    )
    return Report(environment={}, arms=NAMES, baseline=None, cases=found)


if __name__ == "__main__":
    main()
