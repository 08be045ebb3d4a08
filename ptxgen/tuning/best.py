"""`ptxgen.best`: the spec for a problem, from measurements where there are some, else from a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ptxgen.device.description import LaunchDescription
from ptxgen.device.launch import checked_grid
from ptxgen.errors import LaunchError, PtxgenError
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.targets import Target
from ptxgen.hardware.targets import target as target_named
from ptxgen.steps.launch import launch_description
from ptxgen.tuning.candidates import candidates, variations
from ptxgen.tuning.model import Estimate, estimate, pays_to_divide
from ptxgen.tuning.table import NEAR, Entry, Problem, find_table

if TYPE_CHECKING:
    from ptxgen.device.interface import Device
    from ptxgen.spec import GemmSpec

MEASURED, MODEL = "measured", "model"
_TRUST = 1.05
"""A near problem's measured spec is taken unless the model has one that needs this much less time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The spec for a problem, and why.

    spec: for `ptxgen.emit` and `ptxgen.compile`. grid: what to launch it with (`kernel(a, b, grid=choice.grid)`), None
    for the usual one CTA on every SM. basis: "measured" (a table's entry) or "model". seconds: of a launch, measured or
    estimated. estimate: the model's view of the spec. why: the reason in a sentence or two. others: what the model
    ranks next, best first.
    """

    problem: Problem
    spec: GemmSpec
    grid: tuple[int, int, int] | None
    basis: str
    seconds: float
    estimate: Estimate
    why: str
    others: tuple[GemmSpec, ...] = field(default=(), repr=False)

    @property
    def tflops(self) -> float:
        """TFLOP/s at `seconds`."""
        return self.problem.flop / self.seconds / 1e12


def best(
    m: int,
    n: int,
    k: int,
    *,
    target: str = "sm_100a",
    operand_type: str = "f16",
    output_type: str | None = None,
    device: Device | None = None,
) -> Choice:
    """The spec for D[m, n] = A[m, k] . B[n, k]^T; `.spec` is it, `.why` says why.

    A table that was measured on such a GPU decides where it has the problem, or one near it; else a closed-form model
    (ptxgen/tuning/model.py) ranks the candidates in ptxgen/tuning/candidates.py. Neither needs a GPU. `device` gives
    the GPU (default: all of the target's chip); the output type is by default that of the operands. Raises PtxgenError
    for extents below 1, UnknownNameError and SpecError for a target or type that does not exist or is not built.
    """
    for name, extent in (("m", m), ("n", n), ("k", k)):
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            raise PtxgenError(f"{name} is a whole number of 1 or more, got {extent!r}")
    problem = Problem(m=m, n=n, k=k, operand_type=operand_type, output_type=output_type or operand_type)
    chip = device.properties.chip if device is not None else target_named(target)
    ranked = ranking(problem, target, chip)
    first = ranked[0]
    table = find_table(chip.chip, chip.sm_count, target)
    entry = table.nearest(problem) if table is not None else None
    if entry is not None and table is not None:
        types = {"operand_type": problem.operand_type, "output_type": problem.output_type}
        entry = replace(entry, spec=entry.spec.replace(**types))
        seen = estimate(entry.spec, m, n, k, chip=chip, grid=entry.grid)
        can = runs(entry.spec, problem, chip) and seen.seconds <= _TRUST * first[0].seconds
        if entry.problem.extents == problem.extents or (can and _covers_as_much(entry, problem)):
            return _measured(problem, entry, seen, ranked, table.gpu)
    why = _reason(problem, *first, chip)
    if table is None:
        why += f" No table of measurements is of a {chip.chip} with {chip.sm_count} SMs."
    elif entry is None:
        why += f" The table of {table.gpu} has nothing near this problem."
    elif not _covers_as_much(entry, problem):
        why += f" The tiles of the measured spec for {entry.problem} would have to read an operand once more here."
    else:
        longer = f"{seen.seconds / first[0].seconds - 1:.0%}"
        why += f" The measured spec for {entry.problem} would take {longer} longer here."
    return Choice(
        problem=problem,
        spec=first[1],
        grid=None,
        basis=MODEL,
        seconds=first[0].seconds,
        estimate=first[0],
        why=why,
        others=tuple(spec for _, spec in ranked[1:]),
    )


def _covers_as_much(entry: Entry, problem: Problem) -> bool:
    """Whether the tiles are not so many more than where they were measured that an operand is read again."""
    tile = entry.spec.cluster_tile
    extents = ((entry.problem.m, problem.m, tile.m), (entry.problem.n, problem.n, tile.n))
    return all(-(-here // size) <= NEAR * -(-there // size) for there, here, size in extents)


def ranking(problem: Problem, target: str, chip: Target) -> list[tuple[Estimate, GemmSpec]]:
    """All candidates with the model's estimates, best first; the tile order of the first is the best of several."""

    def judged(spec: GemmSpec) -> tuple[Estimate, GemmSpec]:
        return estimate(spec, *problem.extents, chip=chip), spec

    every = candidates(target, problem.operand_type, problem.output_type)
    found = [spec for spec in every if pays_to_divide(spec, *problem.extents, chip) and runs(spec, problem, chip)]
    if not found:
        raise PtxgenError(f"no kernel for {target} can run {problem}: it has too many tiles for any of them; divide it")
    ranked = sorted(map(judged, found), key=lambda item: item[0].rank)
    spec = ranked[0][1]
    # Of ways to store and to stage the model knows nothing measured: the usual one stays (docs/ladder.md).
    others = (
        other
        for other in variations(spec)
        if other.scheduler.order == spec.scheduler.order
        and other.replace(scheduler=spec.scheduler) == spec
        and runs(other, problem, chip)
    )
    orders = [ranked[0], *map(judged, others)]
    return [min(orders, key=lambda item: item[0].rank), *ranked[1:]]


def runs(spec: GemmSpec, problem: Problem, chip: Target) -> bool:
    """Whether the preconditions of the kernel's launch description hold for the problem."""
    description = LaunchDescription.from_json(launch_description(spec), "the spec")
    try:
        checked_grid(description, dict(zip("MNK", problem.extents, strict=True)), chip)
    except LaunchError:
        return False
    return True


def _measured(
    problem: Problem, entry: Entry, seen: Estimate, ranked: list[tuple[Estimate, GemmSpec]], gpu: str
) -> Choice:
    speeds = ", ".join(f"{value:.0f} TFLOP/s {mode}" for mode, value in entry.tflops.items())
    near = "this problem" if entry.problem == problem else str(entry.problem)
    if entry.problem.extents != problem.extents:
        near += ", which is near"
    elif entry.problem != problem:
        near += ", which takes the same time"
    return Choice(
        problem=problem,
        spec=entry.spec,
        grid=None if entry.grid is None else (entry.grid, 1, 1),
        basis=MEASURED,
        seconds=min(entry.seconds.values()) * problem.flop / entry.problem.flop,
        estimate=seen,
        why=f"Measured fastest on {gpu} for {near}: {speeds}. {_shape(problem, entry.spec, seen)}",
        others=tuple(spec for _, spec in ranked if spec != entry.spec),
    )


def _reason(problem: Problem, found: Estimate, spec: GemmSpec, chip: Target) -> str:
    bound = {
        "pipeline": f"the SMs' pipelines, whose K tiles take {found.k_tile:.0f} cycles for the {found.limit}",
        "memory": "memory bandwidth",
        "power": "power",
    }[found.bound]
    speed = problem.flop / found.seconds / 1e12
    if speed < 1:
        told = f"The model expects {found.seconds * 1e6:.1f} us on a {chip.chip}: the problem is so small that"
        return f"{told} a launch and the way through one pipeline are nearly all of it. " + _shape(problem, spec, found)
    return f"The model expects {speed:.0f} TFLOP/s on a {chip.chip}, bound by {bound}. " + _shape(problem, spec, found)


def _shape(problem: Problem, spec: GemmSpec, found: Estimate) -> str:
    tile = spec.tile
    waves = "one wave" if found.waves == 1 else f"{found.waves} waves"
    parts = f", K in {spec.scheduler.split_k} parts," if spec.scheduler.split_k > 1 else ""
    parts = ", K dealt out (stream-K)," if spec.scheduler.stream_k else parts
    filled = f"{found.wave_efficiency:.0%}" if found.wave_efficiency >= 0.01 else "less than 1%"
    told = f"Tiles of {tile.m} x {tile.n}{parts} fill {waves} to {filled}"
    if found.wave_efficiency >= 0.01:
        loaded = found.loaded_bytes / problem.flop * 1e3
        told += f" and load {loaded:.1f} bytes per kFLOP through {spec.pipe_depth} stages"
    return f"{told}.{_pitches(problem)}"


def _pitches(problem: Problem) -> str:
    """What it means where rows are no multiple of the 16 bytes that TMA can step by."""
    _, n, k = problem.extents
    rows = {"A and B": k * element_type(problem.operand_type).bytes, "D": n * element_type(problem.output_type).bytes}
    odd = [f"{name} ({nbytes} bytes)" for name, nbytes in rows.items() if nbytes % 16]
    if not odd:
        return ""
    return (
        f" Rows of {' and of '.join(odd)} are no multiple of 16 bytes, as TMA wants them apart: NumPy arrays are copied"
        " and D is made with padded rows, but arrays on a GPU have to have them. The model does not count what"
        " such rows cost."
    )
