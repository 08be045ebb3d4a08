"""What single operations take on an H200: the inputs of the time model (docs/model.md).

    python benchmarks/microbenchmarks.py [--json FILE]

Each kernel of benchmarks/microbenchmarks/ times itself with %clock and leaves its figures in D; this prints their
medians. One GPU of compute capability 9.0 is needed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ptxgen
from ptxgen.bench.telemetry import Telemetry
from ptxgen.bench.timing import Stopwatch
from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.cuda import CudaDevice, fitting_ordinal
from ptxgen.device.kernel import Kernel
from ptxgen.files import write_file

FOLDER = Path(__file__).parent / "microbenchmarks"
TURNS = 64
SMALL_BYTES, LARGE_BYTES = 1024, 16384
STREAM_LOADS, DEPTHS = 256, (1, 2, 3, 4, 6, 8)
PLACES = {"l2": (1 << 15, 128), "l2_shared_by_22": (1 << 18, 6), "memory_shared_by_5": (1 << 20, 26)}
"""Rows of A and starts: 4 MiB, 24 MiB of 32 of which 22 SMs read the same, 104 MiB of 128 of which five do."""
FLOP_OF_BATCH = 2 * 4 * 2 * 64 * 256 * 16
"""Two warpgroups, four m64n256k16 each."""
BURST_BATCHES, LASTING_BATCHES = 40_000, 400_000
PAUSE_SECONDS = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()
    device = CudaDevice(fitting_ordinal("sm_90a"))
    figures = {
        "gpu": device.properties.name,
        **_loads(device),
        **_stores(device),
        **_synchronisation(device),
        **_products(device),
        **_launch(device),
    }
    text = json.dumps(figures, indent=2) + "\n"
    print(text, end="")
    if options.json is not None:
        write_file(options.json, text)


def _run(device: CudaDevice, name: str, kind: str = "normal", **problem: int) -> Matrix:
    """D of one launch, after one to warm up."""
    kernel: Kernel = ptxgen.load(FOLDER / f"{name}.ptx", device=device)
    launch = kernel.plan(kernel.description.problem(**problem))
    inputs = {
        buffer.name: make_matrix(kind, buffer.rows, buffer.columns, buffer.element_type, (1, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    kernel.run(launch, inputs)
    return kernel.run(launch, inputs).outputs["D"]


def _loads(device: CudaDevice) -> dict[str, float]:
    small, large = (float(np.median(row[1:])) for row in _run(device, "tma_load"))
    streams = {}
    for place, (rows, starts) in PLACES.items():
        for depth in DEPTHS:
            clocks = _run(device, "tma_stream", "ramp", M=rows, N=starts, K=depth).ravel()
            streams[f"tma_load_{place}_{depth}_in_flight_clk_per_load"] = float(np.median(clocks)) / STREAM_LOADS
    return {
        f"tma_load_{SMALL_BYTES}_bytes_clk": small,
        f"tma_load_{LARGE_BYTES}_bytes_clk": large,
        "tma_load_alone_bytes_per_clk": (LARGE_BYTES - SMALL_BYTES) / (large - small),
        **streams,
    }


def _stores(device: CudaDevice) -> dict[str, float]:
    read, done = (float(np.median(row[1:])) for row in _run(device, "tma_store"))
    return {f"tma_store_{LARGE_BYTES}_bytes_read_clk": read, f"tma_store_{LARGE_BYTES}_bytes_done_clk": done}


def _synchronisation(device: CudaDevice) -> dict[str, float]:
    barrier, hand_over, chain, convert = (float(value) / TURNS for value in _run(device, "synchronise")[0, :4])
    return {
        "bar_sync_128_clk": barrier,
        "mbarrier_hand_over_clk": hand_over / 2,
        "dependent_integer_instruction_clk": chain / 16,
        "eight_conversions_clk": convert,
    }


def _products(device: CudaDevice) -> dict[str, float]:
    figures: dict[str, float] = {}
    for word, batches, pause in (("burst", BURST_BATCHES, PAUSE_SECONDS), ("lasting", LASTING_BATCHES, 0.0)):
        for kind in ("normal", "zeros"):
            time.sleep(pause)
            d = _zeros(device, batches) if kind == "zeros" else _run(device, "multiply", K=batches)
            clocks, nanoseconds = d[:, 1].astype(np.float64), d[:, 2].astype(np.float64)
            if word == "burst" and kind == "normal":
                figures["wgmma_alone_clk"] = float(np.median(d[:, 0])) / TURNS
                figures["wgmma_m64n256k16_interval_clk"] = float(np.median(clocks)) / (8 * batches)
            figures[f"multiply_{word}_{kind}_mhz"] = float(np.median(clocks / nanoseconds)) * 1e3
            figures[f"multiply_{word}_{kind}_tflops"] = (
                FLOP_OF_BATCH * batches * len(d) / float(nanoseconds.max()) / 1e3
            )
    return figures


def _zeros(device: CudaDevice, batches: int) -> Matrix:
    kernel: Kernel = ptxgen.load(FOLDER / "multiply.ptx", device=device)
    launch = kernel.plan(kernel.description.problem(K=batches))
    inputs = {
        buffer.name: make_matrix("normal", buffer.rows, buffer.columns, buffer.element_type, (1, 1)) * 0
        for buffer in launch.buffers
        if buffer.fill == "input"
    }
    return kernel.run(launch, inputs).outputs["D"]


def _launch(device: CudaDevice) -> dict[str, Any]:
    """Seconds of a launch that does nothing, back to back."""
    kernel: Kernel = ptxgen.load(FOLDER / "empty.ptx", device=device)
    launch = kernel.plan(kernel.description.problem())
    module = device.load(kernel.text, name="empty")
    buffer = device.allocate(256, name="D")
    prepared = device.plan(module, launch).at({"D": buffer.address})
    stopwatch = Stopwatch(device, Telemetry(""))
    rounds = [stopwatch.seconds(lambda turn: prepared.launch(), 200)[0] for _ in range(5)]
    return {"empty_launch_us": median(rounds) * 1e6}


if __name__ == "__main__":
    main()
