"""A problem on a GPU: operands, checks and stopwatch for the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from ptxgen.bench.libraries import open_library
from ptxgen.bench.telemetry import Telemetry
from ptxgen.bench.timing import GATED_LAUNCHES, Arm, Mode, Stopwatch, Timing, compare
from ptxgen.device.cuda import CudaDevice
from ptxgen.hardware.element_types import element_type
from ptxgen.tuning.kernels import Kernels
from ptxgen.tuning.search import Contestant
from ptxgen.tuning.table import Problem

_WINDOW_SECONDS = 0.15
"""The power limit moves the clock up and down within tenths of a second: a shorter window sees some part of that."""
_WARM_UP_SECONDS = 0.3
_MIN_LAUNCHES, _MAX_LAUNCHES = 10, 5000
_HOST_SECONDS = 10e-6
"""What the host takes to issue a launch, with a margin."""
_FIRST_LAUNCH_SECONDS = 20.0


class GpuArena:
    """An Arena on a CUDA device. All contestants read the same operands, of N(0, 1), and write the same D."""

    def __init__(
        self,
        device: CudaDevice,
        problem: Problem,
        *,
        pause_seconds: float | None = None,
        load_seconds: float | None = None,
    ) -> None:
        self._device = device
        self._problem = problem
        self._pause_seconds = pause_seconds
        self._load_seconds = load_seconds
        kinds = element_type(problem.operand_type), element_type(problem.output_type)
        self._library = open_library(device, (kinds[0], kinds[0], kinds[1]))
        m, n, k = problem.extents
        self._a = self._library.matrix(m, k, kinds[0], "normal", 0)
        self._b = self._library.matrix(n, k, kinds[0], "normal", 1)
        self._new_output = partial(self._library.matrix, m, n, kinds[1], "nan", 0)
        self._d = self._new_output()
        self._check = self._library.checker(self._a, self._b)
        self._stopwatch = Stopwatch(device, Telemetry(device.pci_address))
        self._kernels = _kernels_of(device)
        self._launches: dict[str, Callable[[int], None]] = {}
        self._rough: dict[str, float] = {}

    def prepare(self, contestants: Sequence[Contestant]) -> None:
        """Compile the contestants' kernels on all cores."""
        self._kernels.compile([contestant.spec for contestant in contestants])

    def mistake(self, contestant: Contestant) -> str | None:
        """Launch on a new output of NaN and compare it with a product of higher precision.

        HungKernelError where the launch does not end.
        """
        kernel = self._kernels.get(contestant.spec)
        grid = None if contestant.grid is None else (contestant.grid, 1, 1)
        out = self._new_output()
        kernel.prepare(self._a, self._b, out=out, grid=grid).launch()
        event = self._device.create_event()
        event.record(0)
        event.synchronize(_FIRST_LAUNCH_SECONDS, str(contestant))
        event.close()
        timed = kernel.prepare(self._a, self._b, out=self._d, grid=grid)
        self._launches[contestant.key] = lambda turn: timed.launch()
        return self._check(out)

    def warm_up(self, contestant: Contestant) -> None:
        """Bring the GPU to the clocks of lasting load."""
        count = max(int(_WINDOW_SECONDS / self._once(contestant)), 1)
        self._stopwatch.load(self._launches[contestant.key], count, _WARM_UP_SECONDS)

    def seconds(self, contestant: Contestant) -> float:
        """Of a launch, hot, over a window."""
        count = int(min(max(_WINDOW_SECONDS / self._once(contestant), _MIN_LAUNCHES), _MAX_LAUNCHES))
        count = min(count, self._most([contestant]) or count)
        seconds, _ = self._stopwatch.seconds(self._launches[contestant.key], count)
        return seconds

    def compare(self, contestants: Sequence[Contestant], mode: Mode, rounds: int) -> Mapping[str, Timing]:
        """As `ptxgen bench` times arms."""
        arms = [Arm(name=one.key, launch=self._launches[one.key]) for one in contestants]
        return compare(
            self._stopwatch,
            arms,
            flop=self._problem.flop,
            mode=mode,
            rounds=rounds,
            pause_seconds=self._pause_seconds,
            load_seconds=self._load_seconds,
            max_launches=self._most(contestants),
        )

    def _once(self, contestant: Contestant) -> float:
        """Seconds of a launch, roughly."""
        if contestant.key not in self._rough:
            seconds, _ = self._stopwatch.seconds(self._launches[contestant.key], _MIN_LAUNCHES)
            self._rough[contestant.key] = max(seconds, 1e-7)
        return self._rough[contestant.key]

    def _most(self, contestants: Sequence[Contestant]) -> int | None:
        """Launches that are timed at most: of short ones as many as can be issued before the first begins."""
        return GATED_LAUNCHES if min(map(self._once, contestants)) < _HOST_SECONDS else None


@lru_cache(maxsize=16)
def _kernels_of(device: CudaDevice) -> Kernels:
    return Kernels(device)
