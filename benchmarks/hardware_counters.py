"""What the GPU's own counters say about each arm of benchmarks.compare: one launch each, under Nsight Compute.

    python -m benchmarks.hardware_counters --size 4096 --size 8192 --json benchmarks/results/counters_h200.json
    python -m benchmarks.hardware_counters --size 8192 --variant "alone, 128 CTAs" ...

A variant is one of benchmarks.hopper_variants. Needs torch, a GPU whose counters may be read, and ncu on the PATH.
Clocks and caches are left as they are: the launch before the one that is counted was the same. Cycles are the
device's own, so what is said of the tensor cores needs no clock: the share of the cycles in which they would do the
FLOPs of the problem at SMs * 4096 FLOP a cycle.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import ptxgen
from benchmarks.comparison.arms import NAMES, Bench
from benchmarks.hopper_variants import VARIANTS
from ptxgen.bench.libraries import TorchLibrary
from ptxgen.bench.telemetry import Telemetry
from ptxgen.bench.timing import Stopwatch
from ptxgen.device.cuda import CudaDevice
from ptxgen.files import write_file
from ptxgen.hardware.element_types import element_type
from ptxgen.spec import parse_settings

FLOP_PER_SM_CYCLE = 4096
METRICS = {
    "cycles": "sm__cycles_elapsed.max",
    "nanoseconds": "gpu__time_duration.sum",
    "instructions": "smsp__inst_executed.sum",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "l2_miss_sectors": "lts__t_sectors_lookup_miss.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
SECTOR_BYTES = 32
_MARKER = "elementwise"
"""Part of the name of the kernel between two arms: torch's fill."""


def main() -> None:
    """Count, or be what is counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", dest="sizes", action="append", type=int, required=True, help="M = N = K")
    parser.add_argument("--type", default="bf16", choices=["bf16", "f16"])
    parser.add_argument("--arm", dest="arms", action="append", choices=NAMES, help="default: all")
    parser.add_argument("--variant", dest="variants", action="append", choices=VARIANTS, default=[], metavar="NAME")
    parser.add_argument("--json", type=Path, help="write what was counted")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        _launch(options.sizes[0], options.type, options.arms or list(NAMES), options.variants)
        return
    cases = []
    for size in options.sizes:
        case = _counted(size, options.type, options.arms or list(NAMES), options.variants)
        cases.append(case)
        for name, arm in case["arms"].items():
            print(
                f"{size}: {name:36} {arm['cycles']:>10.0f} cycles, tensor cores {arm['tensor_share']:.3f}, L2 reads"
                f" {arm['l2_read_bytes'] / 1e9:.2f} GB, DRAM reads {arm['dram_read_bytes'] / 1e9:.2f} GB,"
                f" {arm['instructions'] / 1e6:.2f} M warp instructions",
                flush=True,
            )
    if options.json is not None:
        environment = cases[0].pop("environment")
        write_file(options.json, json.dumps({**environment, "cases": cases}, indent=1) + "\n")


def _launch(size: int, kind: str, names: list[str], variants: list[str]) -> None:
    """Every arm a few times, the last time with the profiler on and a marker before it."""
    import torch

    device = CudaDevice(torch.cuda.current_device())
    telemetry = Telemetry(device.pci_address)
    stopwatch = Stopwatch(device, telemetry)
    bench = Bench(torch=torch, device=device, stopwatch=stopwatch, graph_stopwatch=stopwatch, names=tuple(names))
    library = TorchLibrary(device)
    element = element_type(kind)
    a, b = library.matrix(size, size, element, "normal", 0), library.matrix(size, size, element, "normal", 1)
    made = bench.arms([(a, b)], lambda: library.matrix(size, size, element, "nan", 0))
    for name in variants:
        base = ptxgen.step(VARIANTS[name].step, target="sm_90a").replace(operand_type=kind, output_type=kind)
        kernel, ctas = ptxgen.compile(parse_settings(base, VARIANTS[name].settings), device), VARIANTS[name].ctas
        d = library.matrix(size, size, element, "nan", 0)
        call = kernel.prepare(a, b, out=d, grid=None if ctas is None else (ctas, 1, 1))
        made.launches[name] = [call.launch]
    marked = torch.empty(32, device="cuda")
    profiler: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for launches in made.launches.values():
        for _ in range(3):
            launches[0]()
        torch.cuda.synchronize()
        profiler.cudaProfilerStart()
        marked.fill_(1.0)
        launches[0]()
        torch.cuda.synchronize()
        profiler.cudaProfilerStop()
    chip = device.properties.chip
    said = {
        "arms": list(made.launches),
        "notes": made.notes,
        "sm_count": chip.sm_count,
        "environment": {"date": date.today().isoformat(), "gpu": chip.chip, "driver": device.driver.version_text},
    }
    print("said " + json.dumps(said), flush=True)


def _counted(size: int, kind: str, names: list[str], variants: list[str]) -> dict[str, Any]:
    command = [
        *("ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"),
        *("--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS.values())),
        *(sys.executable, "-m", "benchmarks.hardware_counters", "--launch", "--size", str(size), "--type", kind),
        *(part for name in names for part in ("--arm", name)),
        *(part for name in variants for part in ("--variant", name)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    said = next((json.loads(line[5:]) for line in lines if line.startswith("said ")), None)
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if done.returncode or said is None or start is None:
        raise SystemExit(f"ncu ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    rows = list(csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))))
    groups: list[list[dict[str, str]]] = []
    for row in rows[1:]:  # the first has the units
        if _MARKER in row["Kernel Name"]:
            groups.append([])
        else:
            groups[-1].append(row)
    arms = {name: _arm(group, size, said["sm_count"]) for name, group in zip(said["arms"], groups, strict=True)}
    return {
        "m": size,
        "n": size,
        "k": size,
        "type": kind,
        "arms": arms,
        **{k: said[k] for k in ("notes", "environment")},
    }


def _arm(rows: list[dict[str, str]], size: int, sm_count: int) -> dict[str, Any]:
    """Sums over the kernels of one arm's launch."""
    sums = {key: sum(float(row[metric].replace(",", "")) for row in rows) for key, metric in METRICS.items()}
    for kind in ("read", "write", "miss"):
        sums[f"l2_{kind}_bytes"] = sums.pop(f"l2_{kind}_sectors") * SECTOR_BYTES
    share = 2.0 * size**3 / (sm_count * FLOP_PER_SM_CYCLE * sums["cycles"])
    return {"kernels": [row["Kernel Name"] for row in rows], "tensor_share": round(share, 4), **sums}


if __name__ == "__main__":
    main()
