"""The steps of the GEMM ladder: each builds a Program and reads like the tutorial's listing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ptxgen.errors import PtxgenError, SpecError, UnknownNameError
from ptxgen.ir.program import Program
from ptxgen.spec import DEFAULT_GROUP, Epilogue, GemmSpec, Scheduler, Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung: its number, what it adds, the targets it is built for, and its usual choices."""

    number: int
    title: str
    targets: tuple[str, ...]
    choices: Mapping[str, Any]


_GRID = Scheduler()
_PERSISTENT = Scheduler(kind="persistent", order="grouped", group=DEFAULT_GROUP)
_BOTH = ("sm_100a", "sm_90a")
_THREADS: Mapping[str, Any] = {"load": "threads", "epilogue": Epilogue(store="direct")}
_SINGLE: Mapping[str, Any] = {**_THREADS, "scheduler": Scheduler(kind="single")}

STEPS: dict[int, Step] = {
    step.number: step
    for step in (
        Step(number=1, title="one tile, one CTA; threads copy", targets=("sm_100a",), choices=_SINGLE),
        Step(number=2, title="K loop", targets=("sm_100a",), choices=_SINGLE),
        Step(number=3, title="a CTA for every output tile", targets=("sm_100a",), choices=_THREADS),
        Step(number=4, title="TMA loads and stores with mbarriers", targets=_BOTH, choices={}),
        Step(number=5, title="ring of PIPE_DEPTH stages", targets=_BOTH, choices={"pipe_depth": 2}),
        Step(
            number=6,
            title="persistent CTAs with a grouped tile scheduler",
            targets=_BOTH,
            choices={"pipe_depth": 2, "scheduler": _PERSISTENT},
        ),
        Step(
            number=7,
            title="warp specialization: a producer and consumers",
            targets=_BOTH,
            choices={"roles": "specialized", "pipe_depth": 2, "scheduler": _PERSISTENT},
        ),
        Step(
            number=8,
            title="pairs of CTAs, cta_group::2",
            targets=("sm_100a",),
            choices={
                "roles": "specialized",
                "cluster": (2, 1, 1),
                "cta_group": 2,
                "tile": Tile(m=256, n=256, k=64),
                "pipe_depth": 4,
                "epilogue": Epilogue(staging="slices", staging_buffers=2),
                "scheduler": _PERSISTENT,
            },
        ),
        Step(
            number=9,
            title="two MMA consumers a pair",
            targets=("sm_100a",),
            choices={
                "roles": "specialized",
                "cluster": (2, 1, 1),
                "cta_group": 2,
                "consumers": 2,
                "tile": Tile(m=512, n=256, k=64),
                "pipe_depth": 4,
                "epilogue": Epilogue(staging="slices", staging_buffers=2),
                "scheduler": _PERSISTENT,
            },
        ),
        Step(
            number=10,
            title="beyond the tutorial: what made each target faster",
            targets=_BOTH,
            choices={"roles": "specialized", "scheduler": _PERSISTENT},
        ),
    )
}
LADDER = range(1, 11)
_LARGE: Mapping[str, Any] = {"consumers": 2, "tile": Tile(m=128, n=256, k=64)}
_STREAMING: Mapping[str, Any] = {
    "cluster": (2, 1, 1),
    "cta_group": 2,
    "consumers": 2,
    "tile": Tile(m=512, n=256, k=64),
    "pipe_depth": 4,
    "epilogue": Epilogue(staging="slices", staging_buffers=2),
}
_TARGET_CHOICES: dict[tuple[str, int], Mapping[str, Any]] = {
    ("sm_90a", 7): {**_LARGE, "pipe_depth": 3},
    ("sm_100a", 10): _STREAMING,
    ("sm_90a", 10): {**_LARGE, "pipe_depth": 3, "dependent_launch": True},
}


def step(number: int, *, target: str = "sm_100a") -> GemmSpec:
    """The spec of a step as in the tutorial: tile 128 x 128 x 64, f16 in and out.

    Raises UnknownNameError for a step that is not on the ladder, SpecError for one that is not
    built yet for the target.
    """
    known = _known(number, target)
    usual = {"epilogue": Epilogue(unroll=target == "sm_90a")}
    return GemmSpec(
        step=number, target=target, **{**usual, **known.choices, **_TARGET_CHOICES.get((target, number), {})}
    )


@lru_cache(maxsize=64)
def build(spec: GemmSpec) -> Program:
    """Build the Program of a spec and check it; raises ProgramError if a static rule is broken.

    A Program is a value: the last ones are kept, so that the same spec is built and checked once.
    """
    from ptxgen.ir.checks import check

    program = unchecked(spec)
    check(program)
    return program


def unchecked(spec: GemmSpec) -> Program:
    """The Program of a spec without the static checks, which take longer than all the rest: to compare texts."""
    _known(spec.step, spec.target)
    program: Program = importlib.import_module(f"ptxgen.steps.step{spec.step}").build(spec)
    return program


def _known(number: int, target: str) -> Step:
    found = STEPS.get(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise PtxgenError(f"a step is a whole number, got {number!r}")
    if number not in LADDER:
        raise UnknownNameError("step", number, LADDER)
    if target not in _BOTH:
        raise UnknownNameError("target", target, _BOTH)
    if found is None or target not in found.targets:
        built = ", ".join(str(item.number) for item in STEPS.values() if target in item.targets)
        raise SpecError(f"step {number} for {target}", [f"it is not built yet (built: {built})"])
    return found
