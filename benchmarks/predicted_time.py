"""The time model beside what was published for B200 and measured on H200.

    python benchmarks/predicted_time.py [--json FILE]

Prints a table for each chip, and how much each step's time changes when one figure of the model is 20 % larger.
Needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ptxgen.files import write_file
from ptxgen.review.costs import COSTS, Cost, Costs, Curve
from ptxgen.review.predict import Prediction, predict
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import step

MORE = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A step's time at n cubed, in seconds. `resident` are CTAs of an SM, where the timed kernel has not as many as
    ours."""

    step: int
    n: int
    seconds: float
    resident: int | None = None


def _measured(step_number: int, n: int, tflops: float) -> Known:
    return Known(step=step_number, n=n, seconds=2.0 * n**3 / (tflops * 1e12))


B200 = (
    Known(step=4, n=4096, seconds=0.4938e-3, resident=1),  # the tutorial's kernel takes all tensor memory
    Known(step=7, n=4096, seconds=0.2266e-3),
    Known(step=8, n=4096, seconds=0.1035e-3),
    Known(step=9, n=4096, seconds=0.0941e-3),
)
"""f16, the tutorial's own kernels."""
H200 = tuple(
    _measured(number, n, tflops)
    for n, row in {4096: (567, 700, 434, 779), 8192: (592, 674, 448, 794)}.items()
    for number, tflops in zip((4, 5, 6, 7), row, strict=True)
)
"""bf16, these kernels, in bursts."""


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for target, settings, known in (
        ("sm_100a", (), B200),
        ("sm_90a", ("operand_type=bf16", "output_type=bf16"), H200),
    ):
        specs = {one.step: parse_settings(step(one.step, target=target), settings) for one in known}
        rows = [_row(one, predict(specs[one.step], one.n, one.n, one.n, resident=one.resident)) for one in known]
        result[COSTS[target].chip] = {"steps": rows, "ratios": _ratios(rows)}
        _print(COSTS[target].chip, rows, result[COSTS[target].chip]["ratios"])
        sensitivity = _sensitivity(COSTS[target], {one.step: one for one in reversed(known)}, specs)
        result[COSTS[target].chip]["sensitivity"] = sensitivity
        _print_sensitivity(sensitivity)
    if options.json is not None:
        write_file(options.json, json.dumps(result, indent=2) + "\n")


def _row(known: Known, found: Prediction) -> dict[str, Any]:
    return {
        "step": known.step,
        "n": known.n,
        "known_ms": round(known.seconds * 1e3, 4),
        "predicted_ms": round(found.seconds * 1e3, 4),
        "error": round(found.seconds / known.seconds - 1, 3),
        "known_tflops": round(2.0 * known.n**3 / known.seconds / 1e12),
        "predicted_tflops": round(found.tflops),
        "tensor_core_busy": round(found.tensor_core_busy, 2),
        "bound": found.bound,
    }


def _ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step's time over the next one's, of one size."""
    found = []
    for one, other in pairwise(rows):
        if one["n"] == other["n"]:
            known, predicted = (one[key] / other[key] for key in ("known_ms", "predicted_ms"))
            found.append(
                {
                    "steps": f"{one['step']}/{other['step']}",
                    "n": one["n"],
                    "known": round(known, 3),
                    "predicted": round(predicted, 3),
                    "error": round(predicted / known - 1, 3),
                }
            )
    return found


def _sensitivity(costs: Costs, known: dict[int, Known], specs: dict[int, GemmSpec]) -> dict[str, dict[int, float]]:
    """How much longer each step takes when one figure is 20 % larger."""
    found: dict[str, dict[int, float]] = {}
    usual = {
        number: predict(specs[number], one.n, one.n, one.n, resident=one.resident) for number, one in known.items()
    }
    for name, cost in costs.items().items():
        if isinstance(cost, Cost) and not cost.value:
            continue
        more: dict[str, Any] = {name: _more(cost)}
        changed = dataclasses.replace(costs, **more)
        found[name] = {
            number: round(
                predict(specs[number], one.n, one.n, one.n, costs=changed, resident=one.resident).seconds
                / usual[number].seconds
                - 1,
                3,
            )
            for number, one in sorted(known.items())
        }
    return found


def _more(cost: Cost | Curve) -> Cost | Curve:
    if isinstance(cost, Cost):
        return dataclasses.replace(cost, value=cost.value * MORE)
    return dataclasses.replace(cost, points=tuple((size, clk * MORE) for size, clk in cost.points))


def _print(chip: str, rows: list[dict[str, Any]], ratios: list[dict[str, Any]]) -> None:
    print(f"\n{chip}\n  step      n   known ms  predicted ms   error   known TFLOP/s  predicted   busy  bound by")
    for row in rows:
        print(
            f"  {row['step']:>4}  {row['n']:>5}  {row['known_ms']:>9.4f}  {row['predicted_ms']:>12.4f}"
            f"  {row['error']:>+6.1%}  {row['known_tflops']:>14}  {row['predicted_tflops']:>9}"
            f"  {row['tensor_core_busy']:>5.0%}  {row['bound']}"
        )
    for ratio in ratios:
        print(
            f"  steps {ratio['steps']} at {ratio['n']}: known {ratio['known']:.3f},"
            f" predicted {ratio['predicted']:.3f} ({ratio['error']:+.1%})"
        )


def _print_sensitivity(found: dict[str, dict[int, float]]) -> None:
    print("  20 % more of                    makes step ... longer by")
    for name, changes in found.items():
        if any(abs(change) >= 0.005 for change in changes.values()):
            print(f"    {name:<28}  " + "  ".join(f"{number}: {change:+.1%}" for number, change in changes.items()))


if __name__ == "__main__":
    main()
