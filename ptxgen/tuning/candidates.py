"""The specs that are worth trying, made from axes: a choice of the spec and its values, in one line each.

Every combination that the rules allow is a candidate. A new choice of the spec joins the search by a line here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ptxgen.errors import PtxgenError
from ptxgen.rules import MAX_PIPE_DEPTH
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import STEPS, step


@dataclass(frozen=True, slots=True)
class Axis:
    """Settings that belong together, as on the command line, and the values to try, best guess first.

    Several settings are joined by commas, and so are their values. `first`: only the first legal value is tried with
    each choice of the other axes; the others are left to the variations.
    """

    settings: str
    values: tuple[str, ...]
    first: bool = False


_SHARED = (
    "128x256x64,2", "256x128x64,2", "128x192x64,2", "256x96x64,2", "128x160x64,2", "128x128x64,2", "128x96x64,2",
    "128x64x64,2", "128x64x128,2", "128x32x128,2", "64x256x64,1", "64x192x64,1", "64x128x64,1", "64x128x128,1",
    "64x96x128,1", "64x64x128,1", "64x32x128,1", "64x16x128,1",
)  # fmt: skip
_OWN = (
    "128x128x64,2", "64x256x64,2", "64x192x64,2", "64x128x64,2", "128x64x64,2", "64x128x128,2", "64x64x128,2",
)  # fmt: skip
_SWAPPED = (
    "8x64x128,1", "16x64x128,1", "32x64x128,1", "48x64x128,1", "64x64x128,1", "8x128x128,2", "16x128x128,2",
    "32x128x128,2", "64x128x64,2", "96x128x64,2",
)  # fmt: skip
_HOPPER_TILES = Axis(
    "tile,consumers,consumer_tiles,swap_ab",
    (
        *(f"{value},shared,false" for value in _SHARED),
        *(f"{value},own,false" for value in _OWN),
        *(f"{value},shared,true" for value in _SWAPPED),
    ),
)
_STAGING = Axis("epilogue.staging,epilogue.staging_buffers", ("tile,1", "slices,2", "slices,1"), first=True)
_BUFFERS = Axis("epilogue.staging_buffers", ("2", "3", "4"), first=True)

AXES: Mapping[tuple[str, int], tuple[Axis, ...]] = {
    ("sm_90a", 10): (
        Axis("cluster", ("1x1x1", "2x1x1", "1x2x1")),
        _HOPPER_TILES,
        Axis("scheduler.split_k,scheduler.stream_k", ("1,false", "1,true", "2,false", "4,false")),
        _STAGING,
        Axis("dependent_launch", ("true", "false"), first=True),
    ),
    ("sm_100a", 7): (
        Axis("tile", ("128x256x64", "128x192x64", "128x128x64", "128x64x64", "128x64x128", "128x32x128")),
        Axis("accumulators", ("2", "1")),
        _STAGING,
    ),
    ("sm_100a", 8): (
        Axis("tile", ("256x256x64", "256x224x64", "256x192x64", "256x128x64", "256x64x64", "256x64x128")),
        Axis("accumulators", ("2", "1")),
        _BUFFERS,
    ),
    ("sm_100a", 9): (
        Axis("tile", ("512x256x64", "512x192x64", "512x128x64")),
        _BUFFERS,
    ),
    ("sm_100a", 10): (
        Axis(
            "tile,consumers,accumulators",
            (
                "512x256x64,2,1", "512x224x64,2,1", "512x192x64,2,1", "512x160x64,2,1", "512x128x64,2,1",
                "256x256x64,1,2", "256x224x64,1,2", "256x192x64,1,2", "256x160x64,1,2", "256x128x64,1,2",
                "256x96x64,1,2", "256x64x64,1,2", "256x64x128,1,2", "256x32x128,1,2",
            ),
        ),
        _BUFFERS,
    ),
}  # fmt: skip
"""By target and step. The ring is as deep as shared memory allows."""

DIVISIONS = Axis(
    "scheduler.split_k,scheduler.stream_k", ("1,false", "1,true", "2,false", "3,false", "4,false", "6,false", "8,false")
)
_HINTS = (
    Axis("l2_promotion", ("128", "256", "0")),
    Axis("a_cache,b_cache", ("evict_first,evict_last", "evict_last,evict_first", "evict_first,evict_first")),
)
FINE: Mapping[str, tuple[Axis, ...]] = {
    "sm_90a": (
        Axis("cluster", ("1x1x1", "2x1x1", "1x2x1")),
        _STAGING,
        Axis("scheduler.stream_k", ("true",)),
        Axis("scheduler.split_k", ("2", "3", "4", "8")),
        Axis(
            "scheduler.order,scheduler.group",
            ("grouped,2", "grouped,4", "grouped,6", "grouped,8", "grouped,12", "grouped,16"),
        ),
        Axis("scheduler.order,scheduler.group", ("hilbert,4", "hilbert,8", "hilbert,16", "hilbert,32")),
        Axis("dependent_launch", ("true", "false")),
        DIVISIONS,
        *_HINTS,
        Axis("suspend_ns", ("1000",)),
    ),
    "sm_100a": (
        _BUFFERS,
        Axis("scheduler.order,scheduler.group", ("grouped,2", "grouped,4", "grouped,8", "grouped,16")),
        Axis("scheduler.order,scheduler.group", ("hilbert,4", "hilbert,8", "hilbert,16")),
        Axis("dependent_launch", ("true", "false")),
        DIVISIONS,
        *_HINTS,
        Axis("scheduler.kind", ("persistent", "clc")),
        Axis("setmaxnreg", ("false", "true")),
        Axis("epilogue.store", ("tma", "direct")),
    ),
}
"""Choices that the model cannot rank: tried one at a time on the spec that measures best."""


@lru_cache(maxsize=32)
def candidates(target: str, operand_type: str = "f16", output_type: str = "f16") -> tuple[GemmSpec, ...]:
    """Every candidate for a target, those of later steps first; UnknownNameError for a type that does not exist.

    Only steps that are built for the target take part.
    """
    types = (f"operand_type={operand_type}", f"output_type={output_type}")
    found: dict[GemmSpec, None] = {}
    for (name, number), axes in sorted(AXES.items(), key=lambda item: -item[0][1]):
        if name == target and number in STEPS and target in STEPS[number].targets:
            found |= dict.fromkeys(_combinations(step(number, target=target), types, axes))
    if not found:
        parse_settings(step(4, target=target), types)  # says what is wrong with the types
    return tuple(found)


def variations(spec: GemmSpec) -> tuple[GemmSpec, ...]:
    """The legal specs that differ from one in a single choice that the model cannot rank."""
    found: dict[GemmSpec, None] = {}
    for axis in FINE[spec.target]:
        for value in axis.values:
            other = _with(spec, ("pipe_depth=2", *_settings(axis, value)))
            if other is not None and (other := _deepest(other)) != spec:
                found[other] = None
    return tuple(found)


def _combinations(base: GemmSpec, types: tuple[str, ...], axes: tuple[Axis, ...]) -> Iterator[GemmSpec]:
    """The legal specs over all axes, each with as many stages as fit: in the model a stage more is never worse."""
    wide = [axis for axis in axes if not axis.first]
    narrow = [axis for axis in axes if axis.first]
    for values in itertools.product(*(axis.values for axis in wide)):
        chosen = [text for axis, value in zip(wide, values, strict=True) for text in _settings(axis, value)]
        for rest in itertools.product(*(axis.values for axis in narrow)):
            more = [text for axis, value in zip(narrow, rest, strict=True) for text in _settings(axis, value)]
            spec = _with(base, (*types, "pipe_depth=2", *chosen, *more))
            if spec is not None:
                yield _deepest(spec)
                break


def _deepest(spec: GemmSpec) -> GemmSpec:
    """With as many stages as shared memory holds."""
    plan = spec.plan
    stages = (plan.smem_limit_bytes - plan.ring_offset) // plan.stage_bytes
    return spec.replace(pipe_depth=min(stages, MAX_PIPE_DEPTH))


def _settings(axis: Axis, value: str) -> tuple[str, ...]:
    names, values = axis.settings.split(","), value.split(",")
    return tuple(f"{name}={part}" for name, part in zip(names, values, strict=True))


def _with(base: GemmSpec, settings: tuple[str, ...]) -> GemmSpec | None:
    try:
        return parse_settings(base, settings)
    except PtxgenError:
        return None
