"""What is made of the cases: ratios, geometric means, the bars that they are measured by; as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.comparison.arms import CUBLAS, DENSE, PTXGEN

CUBES = (2048, 4096, 6144, 8192, 16384)
"""The sizes whose geometric mean is a bar."""

USUAL = ("normal", "hot")
"""The inputs and buffers that count for the bars."""

_MHZ = 1e6
_FLOP_PER_CLK = 4096

Case = Mapping[str, Any]


def key(case: Case) -> tuple[Any, ...]:
    """What makes a case another one."""
    return tuple(case[name] for name in ("type", "m", "n", "k", "inputs", "buffers", "mode"))


def conditions(case: Case) -> tuple[str, str]:
    """Inputs and buffers."""
    return case["inputs"], case["buffers"]


def merge(old: Iterable[Case], new: Iterable[Case]) -> list[Case]:
    """Cases in order of type, mode and size; a new one takes the place of an old one."""
    found = {key(case): case for case in (*old, *new)}

    def order(case: Case) -> tuple[Any, ...]:
        size = case["m"] * case["n"] * case["k"]
        return case["type"], case["inputs"], case["buffers"], case["mode"], not cube(case), size, case["m"]

    return sorted(found.values(), key=order)


def cube(case: Case) -> bool:
    """One of the sizes of the bar."""
    return bool(case["m"] == case["n"] == case["k"] and case["m"] in CUBES)


def speed(case: Case, arm: str) -> float | None:
    """TFLOP/s of the median round; None where the arm was not timed."""
    found = case["arms"].get(arm)
    return None if found is None else float(found["tflops"])


def peak_fraction(case: Case, arm: str, sm_count: int) -> float | None:
    """Of what the tensor cores could do at the clock that was read meanwhile."""
    tflops, clock = speed(case, arm), case["arms"].get(arm, {}).get("sm_mhz")
    if tflops is None or not clock:
        return None
    return tflops * 1e12 / (sm_count * _FLOP_PER_CLK * clock * _MHZ)


def to_default(case: Case, arm: str = PTXGEN) -> float | None:
    """An arm's speed over that of cuBLAS's default choice."""
    own, other = speed(case, arm), speed(case, CUBLAS)
    return None if own is None or not other else own / other


def to_best(case: Case) -> float | None:
    """ptxgen's speed over the fastest other arm that writes the same D."""
    own = speed(case, PTXGEN)
    others = [value for arm in case["arms"] if arm not in (PTXGEN, DENSE) and (value := speed(case, arm))]
    return None if own is None or not others else own / max(others)


def table(cases: Sequence[Case], arms: Sequence[str], sm_count: int) -> list[str]:
    """Markdown: a row a case, TFLOP/s of each arm, and ptxgen's ratios."""
    shown = [arm for arm in arms if any(arm in case["arms"] for case in cases)]
    lines = [
        f"| M x N x K | mode | {' | '.join(shown)} | / cuBLAS | / best other | of the peak at its clock | MHz | W |",
        "|---" * (len(shown) + 7) + "|",
    ]
    for case in cases:
        size = f"{case['m']}³" if case["m"] == case["n"] == case["k"] else f"{case['m']} x {case['n']} x {case['k']}"
        speeds = [_text(speed(case, arm), ".0f" if (speed(case, arm) or 0) >= 100 else ".1f") for arm in shown]
        own = case["arms"].get(PTXGEN, {})
        ratios = [_text(to_default(case), ".3f"), _text(to_best(case), ".3f")]
        last = [_text(peak_fraction(case, PTXGEN, sm_count), ".3f"), _text(own.get("sm_mhz"), ".0f")]
        cells = [size, case["mode"], *speeds, *ratios, *last, _text(own.get("watts"), ".0f")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def bars(cases: Sequence[Case]) -> list[str]:
    """Lines: each bar, what was measured, and whether it was met. Only hot buffers and N(0, 1) count."""
    lines = []
    counted = [case for case in cases if conditions(case) == USUAL]
    for kind in sorted({case["type"] for case in counted}):
        for mode in ("burst", "sustained"):
            own = [case for case in counted if (case["type"], case["mode"]) == (kind, mode)]
            squares = [case for case in own if cube(case)]
            rest = [case for case in own if not cube(case)]
            name = f"{kind}, {mode}"
            if ratios := _all(to_default(case) for case in squares):
                sizes = f"{len(ratios)} of {len(CUBES)} sizes"
                mean, least = geometric_mean(ratios), min(ratios)
                lines.append(_bar(f"{name}: geometric mean to cuBLAS's default, {sizes}", mean, 1.01))
                lines.append(_bar(f"{name}: least ratio to cuBLAS's default, {sizes}", least, 0.99))
            if ratios := _all(to_best(case) for case in squares):
                lines.append(_bar(f"{name}: least ratio to the best other arm", min(ratios), 0.995))
                lines.append(
                    _bar(f"{name}: geometric mean to the best other arm (a target)", geometric_mean(ratios), 1.03)
                )
            if ratios := _all(to_default(case) for case in rest):
                text = f"{name}: geometric mean to cuBLAS's default, {len(ratios)} small and skewed shapes"
                lines.append(_bar(text, geometric_mean(ratios), 1.0))
    return lines


def _bar(text: str, value: float, wanted: float) -> str:
    return f"{'met   ' if value >= wanted else 'missed'}  {value:.3f} (bar {wanted:g})  {text}"


def _all(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
