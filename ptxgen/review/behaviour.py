"""Two kernels run on the same inputs: their findings, their results, and how they synchronise."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ptxgen.emulator import events
from ptxgen.errors import PtxgenError
from ptxgen.review.facts import Facts
from ptxgen.review.trace import Trace, record, small_problem

Step = tuple[object, ...]
"""One act of synchronisation, without addresses and lines."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One side's run. `problem_text` names the size; `error` says why there was none."""

    trace: Trace | None
    problem_text: str
    error: str

    @property
    def status(self) -> str:
        """What the machine, the checker and the reference say, in a few words."""
        if self.trace is None:
            return f"not run: {self.error}"
        errors = [finding for finding in self.trace.findings if finding.severity == "error"]
        warnings = [finding for finding in self.trace.findings if finding.severity != "error"]
        parts = []
        if errors:
            parts.append(f"{len(errors)} errors ({', '.join(sorted({finding.rule for finding in errors}))})")
        if self.trace.report.guard_damage:
            parts.append("writes outside its buffers")
        if self.trace.comparison is not None and not self.trace.comparison.matches:
            parts.append("wrong numbers")
        if not parts:
            parts.append("clean" if self.trace.comparison is not None else "clean, numbers not checked")
        if warnings:
            parts.append(f"{len(warnings)} warnings ({', '.join(sorted({finding.rule for finding in warnings}))})")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Both runs, and how far they agree: level "behaviour", "results" or "none"."""

    old: Run
    new: Run
    level: str
    note: str


def compare_behaviour(old: Facts, new: Facts) -> Behaviour:
    """Runs both sides at the same size, small, on the same inputs, with the checker watching."""
    problem = None
    for side in (new, old):
        if side.description is not None and side.description.verify:
            problem = small_problem(side.description)
            break
    runs = [_run(side, problem) for side in (old, new)]
    one, other = runs[0].trace, runs[1].trace
    level, note = "none", ""
    if one is not None and other is not None:
        where = f"at {runs[1].problem_text}, policy eager"
        if types := _output_types(one, other):
            note = f"results cannot be compared: {types}"
        elif not _same_outputs(one, other):
            note = f"results differ {where}"
        elif difference := _first_difference(one, other):
            level, note = "results", f"same results {where}; synchronisation differs: {difference}"
        else:
            level, note = "behaviour", f"same results and same synchronisation {where}"
    return Behaviour(old=runs[0], new=runs[1], level=level, note=note)


def _run(side: Facts, problem: dict[str, int] | None) -> Run:
    if side.description is None or problem is None:
        return Run(trace=None, problem_text="", error="there is no launch description")
    text = " ".join(f"{name}={size}" for name, size in problem.items())
    try:
        trace = record(side.source.text, side.source.name, side.description, problem=problem, check=True)
    except PtxgenError as error:
        return Run(trace=None, problem_text=text, error=str(error).splitlines()[0])
    return Run(trace=trace, problem_text=text, error="")


def _output_types(one: Trace, other: Trace) -> str:
    """What keeps outputs from being compared, "" for nothing."""
    for name, mine in one.outputs.items():
        theirs = other.outputs.get(name)
        if theirs is None:
            return f"only one has an output {name}"
        if mine.dtype != theirs.dtype:
            return f"{name} is {mine.dtype} in the one, {theirs.dtype} in the other"
    return ""


def _same_outputs(one: Trace, other: Trace) -> bool:
    return one.outputs.keys() == other.outputs.keys() and all(
        mine.shape == other.outputs[name].shape
        and np.array_equal(mine.view(np.uint8), other.outputs[name].view(np.uint8))
        for name, mine in one.outputs.items()
    )


def _first_difference(one: Trace, other: Trace) -> str:
    """Where two traces first part, "" where they never do."""
    mine, theirs = synchronisation(one), synchronisation(other)
    if one.launch.grid != other.launch.grid:
        return f"grids of {one.launch.grid} and {other.launch.grid} CTAs"
    for warp in sorted({*mine, *theirs}):
        left, right = mine.get(warp, []), theirs.get(warp, [])
        if left != right:
            place = next((n for n, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
            unit, cta, index = warp
            who = f"warp {index} of CTA {cta} in cluster {unit}" if cta or unit else f"warp {index}"
            if place is None:
                return f"{who} synchronises {len(left)} times in the one, {len(right)} times in the other"
            return f"{who}, act {place + 1}: {_words(left[place])} in the one, {_words(right[place])} in the other"
    return ""


def synchronisation(trace: Trace) -> dict[tuple[int, int, int], list[Step]]:
    """By cluster, CTA and warp: what it did to barriers, fences and groups, in order.

    mbarriers are named by the order of their initialisation. Failed tries are left out.
    """
    found: defaultdict[tuple[int, int, int], list[Step]] = defaultdict(list)
    names: dict[tuple[int, int, int], str] = {}
    for event in trace.events:
        step: Step | None = None
        if isinstance(event, events.MbarrierInit):
            name = names.setdefault((event.unit, event.owner, event.barrier), f"mbarrier {len(names)}")
            step = ("init", name, event.count)
        elif isinstance(event, events.MbarrierArrive):
            name = names.get((event.unit, event.owner, event.barrier), "?")
            step = ("arrive", name, event.count, event.expect_bytes, event.phase, event.async_id != 0)
        elif isinstance(event, events.MbarrierComplete):
            name = names.get((event.unit, event.owner, event.barrier), "?")
            step = ("bytes", name, event.tx_bytes, event.phase)
        elif isinstance(event, events.MbarrierWait):
            name = names.get((event.unit, event.owner, event.barrier), "?")
            step = ("wait", name, event.parity) if event.success else None
        elif isinstance(event, events.NamedBarrier):
            step = ("barrier", event.barrier, event.action, event.threads)
        elif isinstance(event, events.ClusterBarrier):
            step = ("cluster barrier", event.action, event.order)
        elif isinstance(event, events.Fence):
            step = ("fence", event.name)
        elif isinstance(event, events.GridWait):
            step = ("wait for the launch before",)
        elif isinstance(event, events.WaitGroup):
            step = ("wait for group", event.mechanism, event.pending, event.read_only)
        elif isinstance(event, events.Commit):
            step = ("commit", event.mechanism)
        if step is not None:
            found[event.unit, event.cta, event.warp].append(step)
    return dict(found)


def _words(step: Step) -> str:
    return " ".join(str(part) for part in step)
