"""What a benchmark found: as a table, as JSON, and as a plot over size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

from ptxgen.bench.timing import Timing

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 40, 50
_COLOURS = ("#1f77b4", "#76b900", "#d62728", "#9467bd", "#8c564b", "#e377c2")
_DASHES = {"burst": "", "sustained": "6 4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All arms on one problem. `buffers` is "hot" or "cold"; `mistakes` are of arms that gave a wrong result.

    An arm with a mistake has no timing.
    """

    m: int
    n: int
    k: int
    inputs: str
    buffers: str
    mode: str
    timings: dict[str, Timing]
    mistakes: dict[str, str]

    def tflops(self, arm: str) -> float:
        """The median of the arm's rounds."""
        return 2 * self.m * self.n * self.k / self.timings[arm].seconds / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything measured in one run. `arms` in their order; `baseline` is the arm that ratios are over."""

    environment: dict[str, object]
    arms: tuple[str, ...]
    baseline: str | None
    cases: tuple[Case, ...]

    def to_json(self) -> dict[str, object]:
        """Times in seconds a launch."""
        return {
            "environment": self.environment,
            "baseline": self.baseline,
            "cases": [
                {
                    "m": case.m,
                    "n": case.n,
                    "k": case.k,
                    "inputs": case.inputs,
                    "buffers": case.buffers,
                    "mode": case.mode,
                    "arms": {
                        arm: {
                            "tflops": round(case.tflops(arm), 1),
                            "seconds": {
                                "median": timing.seconds,
                                "min": min(timing.rounds),
                                "max": max(timing.rounds),
                                "rounds": list(timing.rounds),
                            },
                            "launches_per_round": timing.launches,
                            **asdict(timing.reading),
                        }
                        | ({} if (ratio := self._ratio(case, arm)) is None else {"ratio": round(ratio, 4)})
                        for arm, timing in case.timings.items()
                    },
                    "mistakes": case.mistakes,
                }
                for case in self.cases
            ],
        }

    def table(self) -> list[str]:
        """Lines for a terminal: TFLOP/s of the median round, its range, the ratio to the baseline, clock, power."""
        ratio = f"  / {self.baseline}" if self.baseline else ""
        lines = [
            f"{'M x N x K':>20}  {'inputs':<8} {'buffers':<7} {'mode':<9}  {'arm':<28} {'TFLOP/s':>8}"
            f"  {'min ... max':>15}  {'MHz':>5} {'W':>5}{ratio}"
        ]
        for case in self.cases:
            head = f"{f'{case.m} x {case.n} x {case.k}':>20}  {case.inputs:<8} {case.buffers:<7} {case.mode:<9}"
            for arm in self.arms:
                if arm in case.mistakes:
                    lines.append(f"{head}  {arm:<28} wrong: {case.mistakes[arm]}")
                elif arm in case.timings:
                    timing, flop = case.timings[arm], 2 * case.m * case.n * case.k / 1e12
                    spread = f"{flop / max(timing.rounds):.1f} ... {flop / min(timing.rounds):.1f}"
                    of = self._ratio(case, arm)
                    lines.append(
                        f"{head}  {arm:<28} {case.tflops(arm):>8.1f}  {spread:>15}  "
                        f"{_number(timing.reading.sm_mhz)} {_number(timing.reading.watts)}"
                        + ("" if of is None else f"  {of:.3f}")
                    )
        return lines

    def svg(self) -> str:
        """TFLOP/s over size, a line for each arm and mode, for the first kind of inputs and buffers."""
        first = self.cases[0]
        shown = [case for case in self.cases if (case.inputs, case.buffers) == (first.inputs, first.buffers)]
        sizes = sorted({(case.m, case.n, case.k) for case in shown}, key=lambda size: size[0] * size[1] * size[2])
        top = max((case.tflops(arm) for case in shown for arm in case.timings), default=1.0)
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step * 8 >= top or step == 1000)
        ceiling = step * -(-top // step)

        def x(size: tuple[int, int, int]) -> float:
            return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (sizes.index(size) + 0.5) / len(sizes)

        def y(tflops: float) -> float:
            return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * tflops / ceiling

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            _label(_LEFT, 20, f"TFLOP/s, {first.inputs} inputs, {first.buffers} buffers"),
        ]
        for tick in range(0, int(ceiling) + 1, step):
            parts.append(
                f'<path d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
                + _label(_LEFT - 8, y(tick) + 4, str(tick), "end")
            )
        for size in sizes:
            cube = size[0] if size[0] == size[1] == size[2] else " x ".join(map(str, size))
            parts.append(_label(x(size), _HEIGHT - _BOTTOM + 20, str(cube), "middle"))
        row = 0
        for number, arm in enumerate(self.arms):
            for mode, dash in _DASHES.items():
                points = [
                    (x((case.m, case.n, case.k)), y(case.tflops(arm)))
                    for size in sizes
                    for case in shown
                    if (case.m, case.n, case.k) == size and case.mode == mode and arm in case.timings
                ]
                if not points:
                    continue
                colour = _COLOURS[number % len(_COLOURS)]
                style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
                parts.append(f'<path d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}" {style}/>')
                parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
                height = _TOP + 10 + 20 * row
                parts.append(f'<path d="M{_WIDTH - _RIGHT + 10} {height}h24" {style}/>')
                parts.append(_label(_WIDTH - _RIGHT + 40, height + 4, f"{arm[:18]}, {mode}"))
                row += 1
        return "\n".join([*parts, "</svg>", ""])

    def _ratio(self, case: Case, arm: str) -> float | None:
        """How fast an arm is beside the baseline; None for the baseline itself, and where there is none."""
        if self.baseline is None or arm == self.baseline or self.baseline not in case.timings:
            return None
        return case.timings[self.baseline].seconds / case.timings[arm].seconds


def _number(value: float | None) -> str:
    return f"{'-' if value is None else round(value):>5}"


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def environment_lines(environment: dict[str, object], keys: Sequence[str]) -> list[str]:
    """Some of an environment's facts, a line each."""
    return [f"{key:<12} {environment[key]}" for key in keys if environment.get(key) is not None]
