"""Choices of the sm_90a kernels side by side with cuBLAS on one GPU, all arms in turn.

    python -m benchmarks.hopper_variants --size 4096 --size 8192 [--only NAME ...] [--json FILE]

Each variant is checked first: small problems of integers against their exact product, and every measured
size against float64, on outputs that were filled with NaN; a wrong variant is named and not timed. Burst is
the work of 30 TFLOP after a pause; sustained is a window of lasting load that goes from arm to arm, so that
all of them meet the clocks that the power limit leaves. Ratios are medians over the rounds of an arm's rate
over cuBLAS's in the same round.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import machine
from ptxgen.files import write_file

SMALL = ((128, 256, 64), (1, 8, 8), (257, 507, 448), (130, 264, 200), (700, 1000, 328), (1300, 1100, 200))
_PAUSE_SECONDS = 0.15
_BURST_FLOP = 30e12
_LOAD_SECONDS = 0.25
_WINDOW_SECONDS = 0.25
_USUAL_RATE = 7e14
_STUCK_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A step with settings, and the number of CTAs it is launched with (None: one an SM)."""

    step: int = 10
    settings: tuple[str, ...] = ()
    ctas: int | None = None


def _variant(text: str, *, step: int = 10, ctas: int | None = None) -> Variant:
    return Variant(step=step, settings=tuple(text.split()), ctas=ctas)


_SLICES = "pipe_depth=4 epilogue.staging=slices"
VARIANTS = {
    "step 7": _variant("", step=7),
    "alone": _variant("dependent_launch=false"),
    "along m": _variant("dependent_launch=false cluster=2x1x1"),
    "along n": _variant("dependent_launch=false cluster=1x2x1"),
    "along m, 128 CTAs": _variant("dependent_launch=false cluster=2x1x1", ctas=128),
    "along m, 128 CTAs, group 4": _variant("dependent_launch=false cluster=2x1x1 scheduler.group=4", ctas=128),
    "along m, 128 CTAs, group 16": _variant("dependent_launch=false cluster=2x1x1 scheduler.group=16", ctas=128),
    "along m, 128 CTAs, group 32": _variant("dependent_launch=false cluster=2x1x1 scheduler.group=32", ctas=128),
    "alone, 128 CTAs": _variant("dependent_launch=false", ctas=128),
    "alone, 128 CTAs, 6 stages of K 32": _variant("dependent_launch=false tile.k=32 pipe_depth=6", ctas=128),
    "alone, 128 CTAs, 4 stages, 2 buffers": _variant(
        f"dependent_launch=false {_SLICES} epilogue.staging_buffers=2", ctas=128
    ),
    "alone, group 4": _variant("dependent_launch=false scheduler.group=4"),
    "alone, group 16": _variant("dependent_launch=false scheduler.group=16"),
    "along m, group 4": _variant("dependent_launch=false cluster=2x1x1 scheduler.group=4"),
    "along m, group 16": _variant("dependent_launch=false cluster=2x1x1 scheduler.group=16"),
    "along m, Hilbert 16": _variant("dependent_launch=false cluster=2x1x1 scheduler.order=hilbert scheduler.group=16"),
    "along m, 4 stages, 2 buffers": _variant(
        f"dependent_launch=false cluster=2x1x1 {_SLICES} epilogue.staging_buffers=2"
    ),
    "along m, 4 buffers": _variant(
        "dependent_launch=false cluster=2x1x1 epilogue.staging=slices epilogue.staging_buffers=4"
    ),
    "along m, K 128": _variant("dependent_launch=false cluster=2x1x1 tile.k=128 pipe_depth=2 epilogue.staging=slices"),
    "256 x 128, along m": _variant("dependent_launch=false cluster=2x1x1 tile=256x128x64"),
    "256 x 128, along n, 4 stages": _variant(f"dependent_launch=false cluster=1x2x1 tile=256x128x64 {_SLICES}"),
    "turns, 128 x 128": _variant(
        "dependent_launch=false cluster=2x1x1 consumer_tiles=own tile=128x128x64 pipe_depth=5"
    ),
    "turns, 64 x 256": _variant("dependent_launch=false cluster=2x1x1 consumer_tiles=own tile=64x256x64 pipe_depth=4"),
    "along m, A stays in L2": _variant("dependent_launch=false cluster=2x1x1 a_cache=evict_last b_cache=evict_first"),
    "along m, B stays in L2": _variant("dependent_launch=false cluster=2x1x1 a_cache=evict_first b_cache=evict_last"),
    "along m, sleep 1 us": _variant("dependent_launch=false cluster=2x1x1 suspend_ns=1000"),
    "along m, dependent": _variant("cluster=2x1x1"),
    "along m, 128 CTAs, dependent": _variant("cluster=2x1x1", ctas=128),
    "alone, dependent": _variant(""),
    "256 x 128, along m, dependent, slices": _variant(
        "cluster=2x1x1 tile=256x128x64 l2_promotion=256 epilogue.staging=slices epilogue.staging_buffers=2"
    ),
    "alone, dependent, group 16": _variant("scheduler.group=16"),
    "alone, dependent, 4 buffers": _variant("epilogue.staging=slices epilogue.staging_buffers=4"),
}


def progress(what: str) -> None:
    """Say on stderr what begins; where nothing new has begun after a while, the process ends."""
    print(f"\r{what:60}", end="", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)


class Arms:
    """The variants on one GPU, compiled and checked, and cuBLAS."""

    def __init__(self, names: Sequence[str], kind: str) -> None:
        import torch

        import ptxgen
        from ptxgen.bench.libraries import open_library
        from ptxgen.bench.telemetry import Telemetry
        from ptxgen.bench.timing import Stopwatch
        from ptxgen.device.cuda import CudaDevice, fitting_ordinal
        from ptxgen.hardware.element_types import element_type
        from ptxgen.spec import parse_settings

        self.torch: Any = torch
        self.device = CudaDevice(fitting_ordinal("sm_90a"))
        self.type = element_type(kind)
        self.library = open_library(self.device, (self.type,) * 3)
        telemetry = Telemetry(self.device.pci_address)
        self.stopwatch = Stopwatch(self.device, telemetry)
        self.environment = {"gpu": self.device.properties.name, "driver": self.device.driver.version_text}
        self.environment |= {"type": kind, "cublas": self.library.blas, **telemetry.limits()}
        self.kernels: dict[str, Any] = {}
        self.mistakes: dict[str, str] = {}
        for name in names:
            variant = VARIANTS[name]
            base = ptxgen.step(variant.step, target="sm_90a").replace(operand_type=kind, output_type=kind)
            spec = parse_settings(base, variant.settings)
            progress(name)
            try:
                self.kernels[name] = ptxgen.compile(spec, self.device)
                self._check_small(name)
            except ptxgen.PtxgenError as error:
                self._refuse(name, str(error))

    def _grid(self, name: str) -> tuple[int, int, int] | None:
        ctas = VARIANTS[name].ctas
        return None if ctas is None else (ctas, 1, 1)

    def _refuse(self, name: str, why: str) -> None:
        self.mistakes[name] = why
        self.kernels.pop(name, None)
        print(f"{name}: {why}", flush=True)

    def _check_small(self, name: str) -> None:
        torch = self.torch
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[self.type.name]
        for m, n, k in SMALL:
            generator = torch.Generator(device="cuda").manual_seed(m + n + k)
            pitch, columns = -(-k // 8) * 8, -(-n // 8) * 8
            a, b = (
                torch.randint(-2, 3, (rows, pitch), generator=generator, device="cuda").to(dtype)[:, :k]
                for rows in (m, n)
            )
            d = torch.full((m, columns), float("nan"), dtype=dtype, device="cuda")[:, :n]
            self.kernels[name].prepare(a, b, out=d, grid=self._grid(name)).launch()
            if not torch.equal(d, (a.float() @ b.float().T).to(dtype)):
                wrong = int((d != (a.float() @ b.float().T).to(dtype)).sum())
                self._refuse(name, f"{wrong} of {m * n} elements are wrong at {m} x {n} x {k}")
                return

    def prepare(self, m: int, n: int, k: int) -> dict[str, Callable[[int], None]]:
        """The launches of every arm on one set of operands, checked; cuBLAS's is named as such."""
        a = self.library.matrix(m, k, self.type, "normal", 0)
        b = self.library.matrix(n, k, self.type, "normal", 1)
        launches: dict[str, Callable[[int], None]] = {}
        right: Any = None
        for name in list(self.kernels):
            d = self.library.matrix(m, n, self.type, "nan", 0)
            call = self.kernels[name].prepare(a, b, out=d, grid=self._grid(name))
            call.launch()
            progress(f"{name} at {m} x {n} x {k}")
            self.torch.cuda.synchronize()
            if right is None or not self.torch.equal(d, right):
                mistake = self.library.mistake(a, b, d)
                if mistake is not None:
                    self._refuse(name, f"{mistake} at {m} x {n} x {k}")
                    continue
                right = d
            launches[name] = lambda turn, call=call: call.launch()  # type: ignore[misc]
        d = self.library.matrix(m, n, self.type, "nan", 0)
        # Its first launch loads code, for which the driver waits for the stream: not behind a closed gate.
        self.library.multiply(a, b, d)
        if (mistake := self.library.mistake(a, b, d)) is not None:
            raise SystemExit(f"cuBLAS: {mistake} at {m} x {n} x {k}")
        launches["cuBLAS"] = lambda turn: self.library.multiply(a, b, d)
        return launches

    def time(self, launches: dict[str, Callable[[int], None]], flop: float, mode: str, rounds: int) -> dict[str, Any]:
        """TFLOP/s of each arm in each round, clocks and power."""
        found: dict[str, Any] = {name: {"tflops": [], "clock_mhz": [], "watts": []} for name in launches}
        for launch in launches.values():
            self.stopwatch.seconds(launch, 10)
        for turn in range(rounds):
            for name in list(launches) if turn % 2 == 0 else list(launches)[::-1]:
                launch = launches[name]
                if mode == "burst":
                    time.sleep(_PAUSE_SECONDS)
                    count = max(10, min(2000, int(_BURST_FLOP / flop)))
                else:
                    once = flop / _USUAL_RATE
                    self.stopwatch.load(launch, max(4, int(0.05 / once)), _LOAD_SECONDS)
                    count = max(4, int(_WINDOW_SECONDS / once))
                progress(f"{name}, {mode}")
                seconds, reading = self.stopwatch.seconds(launch, count)
                found[name]["tflops"].append(round(flop / seconds / 1e12, 1))
                found[name]["clock_mhz"].append(reading.sm_mhz)
                found[name]["watts"].append(reading.watts)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--size", type=int, action="append", required=True)
    parser.add_argument("--only", action="append", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--type", default="bf16", choices=("f16", "bf16"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no further size after these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    options = parser.parse_args()
    began = time.monotonic()
    arms = Arms(options.only or list(VARIANTS), options.type)
    print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
    cases = []
    for size in options.size:
        if time.monotonic() - began > options.seconds:
            break
        launches, flop = arms.prepare(size, size, size), 2.0 * size**3
        for mode in ("burst", "sustained"):
            timings = arms.time(launches, flop, mode, options.rounds)
            reference = timings["cuBLAS"]["tflops"]
            for name, timing in timings.items():
                ratios = [mine / theirs for mine, theirs in zip(timing["tflops"], reference, strict=True)]
                timing["ratio"] = round(median(ratios), 4)
                print(
                    f"{size:6} {mode:9} {name:36} {median(timing['tflops']):7.1f} TFLOP/s"
                    f" ({min(timing['tflops']):.1f} ... {max(timing['tflops']):.1f})  {timing['ratio']:.3f}",
                    flush=True,
                )
            cases.append({"m": size, "n": size, "k": size, "mode": mode, "arms": timings})
        print(f"after {time.monotonic() - began:.0f} s", flush=True)
    result = {
        "environment": arms.environment,
        "inputs": "normal, hot",
        "variants": {
            name: {"step": v.step, "settings": list(v.settings), "ctas": v.ctas} for name, v in VARIANTS.items()
        },
        "mistakes": arms.mistakes,
        "cases": cases,
    }
    if options.json:
        write_file(options.json, json.dumps({"machine": machine(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
