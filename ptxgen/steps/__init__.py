"""The steps of the GEMM ladder: each builds a Program and reads like the tutorial's listing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.ir.program import Program
from ptxgen.spec import DEFAULT_GROUP, GemmSpec, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung: its number, what it adds, and the spec it has in the tutorial."""

    number: int
    title: str
    pipe_depth: int = 1
    scheduler: Scheduler


_GRID = Scheduler()
_PERSISTENT = Scheduler(kind="persistent", order="grouped", group=DEFAULT_GROUP)

STEPS: dict[int, Step] = {
    4: Step(number=4, title="TMA loads and stores with mbarriers", scheduler=_GRID),
    5: Step(number=5, title="ring of PIPE_DEPTH stages", pipe_depth=2, scheduler=_GRID),
    6: Step(
        number=6,
        title="persistent CTAs with a grouped tile scheduler",
        pipe_depth=2,
        scheduler=_PERSISTENT,
    ),
}
LADDER = range(1, 11)


def step(number: int, *, target: str = "sm_100a") -> GemmSpec:
    """The spec of a step as in the tutorial: tile 128 x 128 x 64, f16 in and out.

    Raises UnknownNameError for a step that is not on the ladder, SpecError for one not built yet.
    """
    known = _known(number)
    return GemmSpec(step=number, target=target, pipe_depth=known.pipe_depth, scheduler=known.scheduler)


def build(spec: GemmSpec) -> Program:
    """Build the Program of a spec and check it; raises ProgramError if a static rule is broken."""
    from ptxgen.ir.checks import check

    _known(spec.step)
    program: Program = importlib.import_module(f"ptxgen.steps.step{spec.step}").build(spec)
    check(program)
    return program


def _known(number: int) -> Step:
    if number in STEPS:
        return STEPS[number]
    if number in LADDER:
        built = ", ".join(str(item) for item in STEPS)
        raise SpecError(f"step {number}", [f"it is not built yet (built: {built})"])
    raise UnknownNameError("step", number, STEPS)
