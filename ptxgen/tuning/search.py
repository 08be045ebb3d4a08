"""The search for a problem's fastest kernel: all are checked, slow ones leave early, the last ones are timed well.

Rounds of successive halving. In each, the contestants that are left take turns (A B ... B A), and the slower half
leaves, and whoever is far behind. When few are left, the fastest two are varied in the choices that the model cannot
rank, and the variations join. The last ones are timed as `ptxgen bench` does, in each mode asked for; the least product
of their times wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from ptxgen.bench.timing import Mode, Timing
from ptxgen.errors import HungKernelError, PtxgenError
from ptxgen.hardware.targets import Target
from ptxgen.spec import GemmSpec
from ptxgen.steps.launch import changed
from ptxgen.tuning.best import ranking
from ptxgen.tuning.candidates import variations
from ptxgen.tuning.model import pays_to_divide
from ptxgen.tuning.table import Entry, Problem, spec_json

FINALISTS = 4
_BEHIND = 1.2
"""Who takes this many times as long as the fastest leaves after one turn."""
_TURNS = 2
_EQUAL = 1.005
"""Scores in the final that differ by no more are called equal: so much do rounds of one kernel differ."""
_PASSES = 2
"""Rounds of variations: choices that are good each on its own may be so together."""
_CLOSE = 1.03
"""The second is varied too where it takes no more than this many times as long as the fastest."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A spec and the CTAs that it is launched with; None for one on every SM."""

    spec: GemmSpec
    grid: int | None = None

    @property
    def key(self) -> str:
        return self.spec.hash if self.grid is None else f"{self.spec.hash}@{self.grid}"

    def __str__(self) -> str:
        settings = " ".join(text for text in changed(self.spec) if "_type=" not in text)
        return f"step {self.spec.step} {settings}".rstrip() + ("" if self.grid is None else f" grid={self.grid}")


class HungContestantError(HungKernelError):
    """A contestant that never ended; the process is lost with it."""

    def __init__(self, contestant: Contestant, error: HungKernelError) -> None:
        super().__init__(str(error))
        self.contestant = contestant


class Arena(Protocol):
    """One problem on one GPU."""

    def prepare(self, contestants: Sequence[Contestant]) -> None:
        """Make what the contestants need, together; what goes wrong is said by `mistake`."""

    def mistake(self, contestant: Contestant) -> str | None:
        """Launch once on an output of NaN: what is wrong with the result, or None. PtxgenError where it cannot run."""

    def warm_up(self, contestant: Contestant) -> None:
        """Bring the GPU to the state that the rounds are timed in."""

    def seconds(self, contestant: Contestant) -> float:
        """Of a launch, over a tenth of a second or so."""

    def compare(self, contestants: Sequence[Contestant], mode: Mode, rounds: int) -> Mapping[str, Timing]:
        """The final: times by key, in a mode of `ptxgen bench`."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of a contestant. `left`: in which round, or why it was not timed; empty for finalists."""

    contestant: Contestant
    samples: list[float] = field(default_factory=list)
    left: str = ""
    final: dict[str, Timing] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return median(self.samples)

    @property
    def score(self) -> float:
        """The geometric mean of the final's times over modes."""
        return math.exp(sum(math.log(timing.seconds) for timing in self.final.values()) / len(self.final))

    def to_json(self) -> dict[str, Any]:
        """Seconds of a launch."""
        final = {
            mode: {
                "seconds": timing.seconds,
                "rounds": list(timing.rounds),
                "launches": timing.launches,
                "sm_mhz": timing.reading.sm_mhz,
                "watts": timing.reading.watts,
            }
            for mode, timing in self.final.items()
        }
        return {
            "spec": spec_json(self.contestant.spec),
            "grid": self.contestant.grid,
            "samples": self.samples,
            "left": self.left,
            "final": final,
        }


def contestants(problem: Problem, target: str, chip: Target, limit: int) -> tuple[Contestant, ...]:
    """The `limit` candidates that the model ranks highest for a problem, one of each tile and division of K.

    What else they differ in, clusters among it, is tried on the fastest of them.
    """
    found: list[Contestant] = []
    kinds = set()
    for _, spec in ranking(problem, target, chip):
        division = spec.scheduler.split_k, spec.scheduler.stream_k
        kind = spec.step, spec.tile, spec.consumer_tiles, spec.swap_ab, *division
        if kind not in kinds:
            found.append(Contestant(spec=spec))
        kinds.add(kind)
    return tuple(found[:limit])


def search(
    problem: Problem,
    arena: Arena,
    chip: Target,
    first: Sequence[Contestant],
    *,
    modes: Sequence[Mode] = ("burst", "sustained"),
    rounds: int = 2,
    hung: Sequence[str] = (),
    report: Report = lambda line: None,
) -> tuple[Entry, list[Result]]:
    """The entry of the fastest contestant, and what became of each.

    `hung` are keys of contestants that never ended in an earlier attempt: they are left out. HungContestantError where
    one does it now; PtxgenError where none gives right results.
    """
    results: dict[str, Result] = {}

    def admit(newcomers: Sequence[Contestant]) -> list[Result]:
        fit = []
        arena.prepare([one for one in newcomers if one.key not in results and one.key not in hung])
        for contestant in newcomers:
            if contestant.key in results:
                continue
            result = results[contestant.key] = Result(contestant=contestant)
            result.left = _reason(arena, contestant, hung)
            if result.left:
                report(f"{problem}: {contestant}: {result.left}")
            else:
                fit.append(result)
        return fit

    def halve(field_: list[Result], keep: int, name: str) -> list[Result]:
        while len(field_) > keep:
            _take_turns(arena, field_)
            ordered = sorted(field_, key=lambda result: result.seconds)
            slowest = ordered[0].seconds * _BEHIND
            count = max(keep, -(-len(ordered) // 2))
            field_ = [result for result in ordered[:count] if result.seconds <= slowest]
            for result in ordered[len(field_) :]:
                result.left = f"{name}, {len(ordered)} left"
            best = ordered[0]
            report(
                f"{problem}: {name}: {len(ordered)} -> {len(field_)}, fastest {problem.flop / best.seconds / 1e12:.0f}"
                f" TFLOP/s: {best.contestant}"
            )
            if len(field_) < keep:
                break
        return field_

    left = admit(first)
    if not left:
        raise PtxgenError(f"none of {len(first)} kernels computes {problem} rightly here")
    left = halve(left, FINALISTS, "first choices")
    if not left[0].samples:
        _take_turns(arena, left)
        left.sort(key=lambda result: result.seconds)
    varied: set[str] = set()
    for _ in range(_PASSES):
        close = [result for result in left[:2] if result.seconds <= _CLOSE * left[0].seconds]
        new = [result.contestant for result in close if result.contestant.key not in varied]
        varied.update(one.key for one in new)
        if joined := admit([other for one in new for other in _variations(one, problem, chip)]):
            left = halve([*left, *joined], FINALISTS, "variations")
    for mode in modes:
        timings = arena.compare([result.contestant for result in left], mode, rounds)
        for result in left:
            result.final[mode] = timings[result.contestant.key]
    best = min(result.score for result in left)
    # Of those that cannot be told apart the one that came first: it is the least special.
    order = list(results.values())
    winner = min((result for result in left if result.score <= _EQUAL * best), key=order.index)
    entry = Entry(
        problem=problem,
        spec=winner.contestant.spec,
        grid=winner.contestant.grid,
        seconds={mode: timing.seconds for mode, timing in winner.final.items()},
    )
    speeds = ", ".join(f"{value:.0f} TFLOP/s {mode}" for mode, value in entry.tflops.items())
    report(f"{problem}: {winner.contestant}: {speeds}")
    return entry, list(results.values())


def _reason(arena: Arena, contestant: Contestant, hung: Sequence[str]) -> str:
    """Why a contestant cannot take part; empty where it can."""
    if contestant.key in hung:
        return "did not end in an earlier attempt"
    try:
        mistake = arena.mistake(contestant)
    except HungKernelError as error:
        raise HungContestantError(contestant, error) from error
    except PtxgenError as error:
        return f"cannot run: {str(error).splitlines()[0]}"
    return f"wrong: {mistake}" if mistake else ""


def _take_turns(arena: Arena, left: Sequence[Result]) -> None:
    arena.warm_up(left[0].contestant)
    for turn in range(_TURNS):
        for result in left if turn % 2 == 0 else reversed(left):
            result.samples.append(arena.seconds(result.contestant))


def _variations(contestant: Contestant, problem: Problem, chip: Target) -> list[Contestant]:
    """Other choices that the model does not rank, one at a time; and the fewest CTAs that need no more waves."""
    spec = contestant.spec
    others = (other for other in variations(spec) if pays_to_divide(other, *problem.extents, chip))
    found = [Contestant(spec=other) for other in others]
    tile = spec.cluster_tile
    units = -(-problem.m // tile.m) * -(-problem.n // tile.n)
    workers = chip.sm_count // spec.cluster_ctas
    even = -(-units // -(-units // workers)) * spec.cluster_ctas
    if even < workers * spec.cluster_ctas and not spec.scheduler.divides_k:
        found.append(Contestant(spec=spec, grid=even))
    return found
