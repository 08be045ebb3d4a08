"""Runs of one kernel at several sizes, grids and schedules, each checked for everything that can be checked."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from ptxgen.checker import Usage
from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.interface import Device, LaunchReport
from ptxgen.device.kernel import Kernel
from ptxgen.device.launch import Extent
from ptxgen.device.reference import Comparison, compare
from ptxgen.errors import LaunchError, NotSupportedError, PtxgenError

HARDWARE = "hardware"  # the schedule of a GPU, which nobody chooses

_UNDECIDED = "instruction-budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch: a problem size (M, N, K), a grid (None: the kernel's own), when asynchronous work takes
    effect, and the seed of inputs and schedule."""

    problem: dict[str, int]
    grid: Extent | None
    policy: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A case and what came of it. `comparison` is None where numbers cannot be checked."""

    case: Case
    report: LaunchReport
    comparison: Comparison | None

    @property
    def ctas(self) -> int:
        x, y, z = self.report.grid
        return x * y * z

    @property
    def undecided(self) -> bool:
        """Whether it was stopped before it could end: no pass, but no proof of a fault either."""
        return any(finding.rule == _UNDECIDED for finding in self.report.findings)

    @property
    def clean(self) -> bool:
        """Whether it ended and nothing is wrong."""
        return not self.report.errors and (self.comparison is None or self.comparison.matches)


def cases(
    kernel: Kernel,
    sizes: dict[str, int | None],
    grid: Extent | None,
    policies: Sequence[str],
    seeds: Sequence[int],
) -> list[Case]:
    """Every combination of the sizes that the launch description names (or the given one), of grids, and of
    schedules; only "random" has one for each seed.

    With one CTA a persistent kernel carries its phases over all tiles; with many, some have no tile.
    """
    grids: tuple[Extent | None, ...] = (grid,)
    if grid is None and kernel.description.persistent:
        size = kernel.description.cluster[0]
        grids = ((size, 1, 1), (2 * size, 1, 1), None)
        if kernel.description.resident:  # its CTAs share tiles: many a tile, and parts of two lengths
            grids = (*grids[:2], (16 * size, 1, 1), None)
    return [
        Case(problem=problem, grid=extent, policy=policy, seed=seed)
        for problem in _problems(kernel, sizes)
        for extent in grids
        for policy in policies
        for seed in (seeds if policy == "random" else seeds[:1])
    ]


def _problems(kernel: Kernel, sizes: dict[str, int | None]) -> Iterator[dict[str, int]]:
    if any(size is not None for size in sizes.values()):
        yield kernel.description.problem(**sizes)
        return
    if not kernel.description.verify:
        raise LaunchError(f"the launch description of {kernel.name} has no sizes to verify; give -m, -n and -k")
    for m, n, k in kernel.description.verify:
        yield kernel.description.problem(M=m, N=n, K=k)


def run_case(kernel: Kernel, case: Case, progress: Callable[[int, int], None] | None = None) -> Run:
    """One launch on the kernel's device."""
    device: Device = kernel.device
    if isinstance(device, EmulatedDevice):
        device.policy, device.seed, device.progress = case.policy, case.seed, progress
    launch = kernel.plan(case.problem, grid=case.grid)
    # Integers: every order of summation gives the same sum, so one wrong element in a thousand shows.
    inputs: dict[str, Matrix] = {
        buffer.name: make_matrix("integers", buffer.rows, buffer.columns, buffer.element_type, (case.seed, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    execution = kernel.run(launch, inputs)
    expect, comparison = kernel.description.expect, None
    if expect is not None:
        comparison = compare(inputs[expect.a], inputs[expect.b], execution.outputs[expect.d])
    return Run(case=case, report=execution.report, comparison=comparison)


# -- several at a time --------------------------------------------------------------------------


def run_cases(kernel: Kernel, todo: Sequence[Case], workers: int | None) -> Iterator[Run]:
    """The runs of a checked kernel in order, `workers` (None: one per CPU) at a time where processes can be
    forked; the device's usage collects that of all."""
    device = kernel.device
    assert isinstance(device, EmulatedDevice)
    count = min(workers if workers is not None else len(os.sched_getaffinity(0)), len(todo))
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        for case in todo:
            yield run_case(kernel, case)
        return
    global _forked
    _forked = kernel
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
        for outcome in pool.map(_in_worker, todo):
            yield _taken(device, outcome)


_forked: Kernel | None = None
_Outcome = tuple[Run, Usage] | tuple[bool, str]


def _in_worker(case: Case) -> _Outcome:
    """A run and its usage; or whether something is not supported, and the message of the error."""
    kernel = _forked
    assert kernel is not None and isinstance(kernel.device, EmulatedDevice)
    kernel.device.usage = Usage()
    kernel.device.workers = 1
    try:
        return run_case(kernel, case), kernel.device.usage
    except PtxgenError as error:
        return isinstance(error, NotSupportedError), str(error)


def _taken(device: EmulatedDevice, outcome: _Outcome) -> Run:
    first, second = outcome
    if isinstance(first, Run):
        assert isinstance(second, Usage)
        device.usage.add(second)
        return first
    raise (NotSupportedError if first else PtxgenError)(str(second))


def totals(runs: Iterable[Run]) -> tuple[int, int]:
    """CTAs and warp instructions of all runs."""
    ctas = instructions = 0
    for run in runs:
        ctas += run.ctas
        instructions += run.report.instructions or 0
    return ctas, instructions
