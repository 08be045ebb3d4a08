"""How well the closed-form model ranks kernels: its choice beside the fastest that `ptxgen tune` measured.

    python -m benchmarks.model_ranking [STATE.json]

The state file of a search holds every contestant's times; those of one problem were measured in turns. For each
problem: how much longer than the fastest the model's first choice took, and the rank correlation over those that were
timed in the first round. Needs no GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean, median

from ptxgen.files import read_text
from ptxgen.hardware.targets import TARGETS
from ptxgen.tuning.best import ranking
from ptxgen.tuning.model import estimate
from ptxgen.tuning.table import Entry, gpu_key, spec_of

DEFAULT = Path(__file__).parent / "results" / "tune_h200.json"


def main() -> None:
    """Print a line for each problem, and the means."""
    data = json.loads(read_text(sys.argv[1] if len(sys.argv) > 1 else DEFAULT))
    chip = next(chip for chip in TARGETS.values() if gpu_key(chip.chip) == gpu_key(data["gpu"]))
    regrets, correlations = [], []
    print(f"{'problem':<28} first choice / fastest   rank correlation   contestants")
    for name, found in data["finished"].items():
        problem = Entry.of(found["entry"], chip.name).problem
        timed = {
            spec_of(one["spec"], chip.name): one
            for one in found["contestants"]
            if one["samples"] and one["grid"] is None
        }
        seconds = {spec: median(one["samples"][:2]) for spec, one in timed.items()}
        first = next((spec for _, spec in ranking(problem, chip.name, chip) if spec in seconds), None)
        if first is None:
            continue
        regret = seconds[first] / min(seconds.values())
        correlation = _spearman(
            [estimate(spec, *problem.extents, chip=chip).seconds for spec in seconds], list(seconds.values())
        )
        regrets.append(regret)
        correlations.append(correlation)
        print(f"{name:<28} {regret:>22.3f} {correlation:>18.2f} {len(seconds):>13}")
    print(f"{'mean':<28} {geometric_mean(regrets):>22.3f} {sum(correlations) / len(correlations):>18.2f}")


def _spearman(one: list[float], two: list[float]) -> float:
    """The correlation of ranks; equal values share the mean of their ranks."""

    def ranks(values: list[float]) -> list[float]:
        ordered = sorted(values)
        return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]

    a, b = ranks(one), ranks(two)
    mean = (len(one) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    under = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return over / under if under else 0.0


if __name__ == "__main__":
    main()
