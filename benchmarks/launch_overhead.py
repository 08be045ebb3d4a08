"""Host time of a launch: ours in its forms, beside torch.matmul's own, on one GPU.

    python benchmarks/launch_overhead.py [--json FILE]

The problem is so small that the GPU is done before the host has issued the next launch; what is timed is the
host. Arms take turns; figures are medians over rounds, in microseconds a call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import ptxgen
from ptxgen.device.cuda import CudaDevice, fitting_ordinal

ROUNDS = 21
CALLS = 300
TARGETS_US = {
    "prepared.launch()": 10,
    "kernel.launch(a, b, out=d)": 10,
    "kernel(a, b)": 25,
    "kernel(a, b), new maps": 60,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()

    torch = importlib.import_module("torch")
    target = "sm_90a"
    device = CudaDevice(fitting_ordinal(target))
    kernel = ptxgen.compile(ptxgen.step(7, target=target), device)
    m = n = k = 128
    a, b = (torch.randn((rows, k), device="cuda").half() for rows in (m, n))
    d = torch.empty((m, n), device="cuda", dtype=torch.float16)
    prepared = kernel.prepare(a, b, out=d)
    # Operands at addresses that no call has seen: their tensor maps are encoded anew.
    pool = torch.randn((ROUNDS * CALLS + CALLS + m, k), device="cuda").half()
    turn = iter(range(len(pool) - m))

    def with_new_maps() -> None:
        first = next(turn)
        kernel(pool[first : first + m], b)

    def slice_only() -> None:
        pool[5 : 5 + m]

    arms: dict[str, Callable[[], Any]] = {
        "prepared.launch()": prepared.launch,
        "prepared.launch(stream)": lambda: prepared.launch(0),
        "kernel.launch(a, b, out=d)": lambda: kernel.launch(a, b, out=d),
        "kernel(a, b)": lambda: kernel(a, b),
        "kernel(a, b), new maps": with_new_maps,
        "(the slice in it)": slice_only,
        "torch.mm(a, b.T, out=d)": lambda: torch.mm(a, b.T, out=d),
        "torch.matmul(a, b.T)": lambda: torch.matmul(a, b.T),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turns in range(ROUNDS + 1):
        for name, call in list(arms.items())[:: 1 if turns % 2 else -1]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds = time.perf_counter() - start
            torch.cuda.synchronize()
            if turns:  # the first round warms up
                times[name].append(seconds / CALLS * 1e6)

    print(f"{device.properties.name}, {device.driver.version_text}, Python {platform.python_version()}, "
          f"torch {torch.__version__}; {m} x {n} x {k}")  # fmt: skip
    print(f"{'':28} {'median':>8} {'min':>8} {'max':>8}   us a call")
    for name, rounds in times.items():
        limit = TARGETS_US.get(name)
        verdict = "" if limit is None else f"   {'within' if median(rounds) <= limit else 'ABOVE'} {limit}"
        print(f"{name:28} {median(rounds):8.2f} {min(rounds):8.2f} {max(rounds):8.2f}{verdict}")
    if options.json:
        figures = {
            "gpu": device.properties.name,
            "driver": device.driver.version_text,
            "python": platform.python_version(),
            "processor": platform.processor(),
            "torch": torch.__version__,
            "problem": [m, n, k],
            "calls_per_round": CALLS,
            "microseconds": {
                name: {"median": median(rounds), "min": min(rounds), "max": max(rounds)}
                for name, rounds in times.items()
            },
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
