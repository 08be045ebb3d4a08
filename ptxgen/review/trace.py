"""A small launch on the emulator, with everything that it told its observers.

The trace is what maps, ledgers, timelines and the comparison of behaviour are made from: it comes from the
PTX text and a launch description, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.choice import chip_for
from ptxgen.device.description import LaunchDescription
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.interface import LaunchReport
from ptxgen.device.kernel import Kernel
from ptxgen.device.launch import Extent, Launch
from ptxgen.device.reference import Comparison, compare
from ptxgen.emulator import Event, Finding
from ptxgen.emulator.memory import SHARED_RESERVED_BYTES
from ptxgen.errors import LaunchError
from ptxgen.hardware.targets import Target
from ptxgen.toolchain import ptx_target

_SEED = 7


class Recorder:
    """Keeps the events of a launch, or those that `only` picks."""

    def __init__(self, only: Callable[[Event], bool] | None = None) -> None:
        self.events: list[Event] = []
        self._only = only

    def on_event(self, event: Event) -> None:
        """Takes one event of the machine."""
        if self._only is None or self._only(event):
            self.events.append(event)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one launch did. `comparison` is None where nothing says what it should compute."""

    description: LaunchDescription
    problem: Mapping[str, int]
    launch: Launch
    chip: Target
    events: tuple[Event, ...]
    outputs: Mapping[str, Matrix]
    report: LaunchReport
    comparison: Comparison | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Rules that the machine saw broken."""
        return self.report.findings

    @cached_property
    def first_unit(self) -> tuple[Event, ...]:
        """The events of the first cluster."""
        return tuple(event for event in self.events if event.unit == 0)


def record(
    text: str,
    name: str,
    description: LaunchDescription,
    *,
    problem: Mapping[str, int] | None = None,
    grid: Extent | None = None,
    policy: str = "eager",
    check: bool = False,
    only: Callable[[Event], bool] | None = None,
) -> Trace:
    """Runs a kernel once with all its events kept.

    `problem` is by default the largest of the description's `verify` sizes; a persistent kernel then runs in
    one CTA or cluster, so that it shows how phases carry over from tile to tile. The inputs are small
    integers, the same in every call; `only` picks the events that are kept. With `check` the report holds the
    checker's findings. Raises PtxError, LaunchError or NotSupportedError.
    """
    recorder = Recorder(only)
    chip = chip_for(ptx_target(text, name))
    device = EmulatedDevice(chip, policy=policy, workers=1, observers=(recorder,), check=check)
    kernel = Kernel(text, description, device, name=name)
    if problem is None:
        problem = small_problem(description)
    if grid is None and description.persistent:
        grid = description.cluster
    launch = kernel.plan(dict(problem), grid=grid)
    inputs: dict[str, Matrix] = {
        buffer.name: make_matrix("integers", buffer.rows, buffer.columns, buffer.element_type, (_SEED, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    execution = kernel.run(launch, inputs)
    expect, comparison = description.expect, None
    if expect is not None and not execution.report.errors:
        comparison = compare(inputs[expect.a], inputs[expect.b], execution.outputs[expect.d])
    return Trace(
        description=description,
        problem=dict(problem),
        launch=launch,
        chip=chip,
        events=tuple(recorder.events),
        outputs=execution.outputs,
        report=execution.report,
        comparison=comparison,
    )


def small_problem(description: LaunchDescription) -> dict[str, int]:
    """The one of a description's `verify` sizes with the most work; LaunchError where it has none."""
    if not description.verify:
        raise LaunchError("the launch description has no sizes to verify; give -m, -n and -k")
    m, n, k = max(description.verify, key=prod)
    return description.problem(M=m, N=n, K=k)


def smem_offset(address: int) -> int:
    """An event's shared address counted from the start of the CTA's variables."""
    return address - SHARED_RESERVED_BYTES
