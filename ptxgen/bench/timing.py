"""Device time of launches: back to back, several arms in turn, at boost clocks or under lasting load.

Launches of a few microseconds would be timed by how fast the host issues them. So the stream is held at a
gate while the first of them are queued, and the events around them see no gaps.

Burst: the work of some 30 TFLOP after a pause, at the clocks that a cool GPU takes. Sustained: after seconds
of the same work, at the clocks that its power limit leaves. Arms take turns A B B A, so that what drifts
meets all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ptxgen.bench.telemetry import Reading, Telemetry, average
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.cuda_stream import CudaEvent

Mode = Literal["burst", "sustained"]
MODES: tuple[Mode, ...] = ("burst", "sustained")

_BURST_FLOP = 30e12
_PAUSE_SECONDS = 1.0
_LOAD_SECONDS = 2.0
_WINDOW_SECONDS = 0.5
GATED_LAUNCHES = 256  # far fewer than a driver queues, or the host would wait behind the closed gate
_MAX_LAUNCHES = 2000
_RESCUE_SECONDS = 5.0
_MIN_LAUNCHES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to do the same work; `launch(turn)` issues it once, on the turn's set of buffers."""

    name: str
    launch: Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one launch over several rounds, and the state of the GPU meanwhile."""

    rounds: tuple[float, ...]
    launches: int
    reading: Reading

    @property
    def seconds(self) -> float:
        """The median round."""
        return median(self.rounds)


class Stopwatch:
    """Times launches on one stream of a device, given by handle.

    `gated_launches` are queued while the stream is held: few of them where a launch is a whole CUDA graph.
    """

    def __init__(
        self, device: CudaDevice, telemetry: Telemetry, stream: int = 0, *, gated_launches: int = GATED_LAUNCHES
    ) -> None:
        self._device = device
        self._telemetry = telemetry
        self._stream = stream
        self._gated = gated_launches
        self._flag = device.allocate(4, name="gate")

    def seconds(self, launch: Callable[[int], None], count: int) -> tuple[float, Reading]:
        """Device seconds of each of `count` launches back to back, and what the GPU did meanwhile."""
        driver = self._device.driver
        start, end = self._device.create_event(), self._device.create_event()
        self._device.fill(self._flag, 0)
        # A library that loads code at its first launch may wait for the stream, and so for ever.
        rescue = threading.Timer(_RESCUE_SECONDS, self._open_gate)
        rescue.start()
        with self._device.current():
            equal = driver.bindings.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
            driver.call("cuStreamWaitValue32", self._stream, self._flag.address, 1, int(equal), what="holding a stream")
            start.record(self._stream)
            for turn in range(min(count, self._gated)):
                launch(turn)
            rescue.cancel()
            self._open_gate()
            for turn in range(self._gated, count):
                launch(turn)
            end.record(self._stream)
            reading = self._watch(end)
        total = end.seconds_since(start)
        start.close()
        end.close()
        return total / count, reading

    def _open_gate(self) -> None:
        with self._device.current():
            self._device.driver.call("cuMemsetD32Async", self._flag.address, 1, 1, self._device.stream.handle)

    def load(self, launch: Callable[[int], None], count: int, seconds: float) -> None:
        """Keep the GPU busy, `count` launches at a time with the next ones queued behind them."""
        until, pending = time.monotonic() + seconds, None
        while pending is None or time.monotonic() < until:
            for turn in range(count):
                launch(turn)
            event = self._device.create_event()
            event.record(self._stream)
            if pending is not None:
                pending.synchronize()
                pending.close()
            pending = event
        pending.synchronize()
        pending.close()

    def _watch(self, end: CudaEvent) -> Reading:
        """Read clock and power until the event is reached."""
        readings = [self._telemetry.read()]
        while not end.reached():
            time.sleep(1e-3)
            readings.append(self._telemetry.read())
        # The first reading may be of the pause, the last of the time after.
        return average(readings[1:-1] or readings)


def compare(
    stopwatch: Stopwatch,
    arms: Sequence[Arm],
    *,
    flop: float,
    mode: Mode,
    rounds: int,
    sleep: Callable[[float], None] = time.sleep,
    pause_seconds: float | None = None,
    load_seconds: float | None = None,
    max_launches: int | None = None,
) -> dict[str, Timing]:
    """The arms' times by name. `rounds` is rounded up to an even number: arms go A B, then B A.

    A burst follows a pause of 1 s, or of `pause_seconds`; a sustained round 2 s of its own load, or `load_seconds`.
    A round has 2000 launches at most, or `max_launches`.
    """
    burst = mode == "burst"
    counts: dict[str, int] = {}
    for arm in arms:
        once, _ = stopwatch.seconds(arm.launch, _MIN_LAUNCHES)
        wanted = _BURST_FLOP / flop if burst else _WINDOW_SECONDS / once
        counts[arm.name] = int(min(max(wanted, _MIN_LAUNCHES), max_launches or _MAX_LAUNCHES))
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    readings: dict[str, list[Reading]] = {arm.name: [] for arm in arms}
    for turn in range(rounds + rounds % 2):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            if burst:
                sleep(_PAUSE_SECONDS if pause_seconds is None else pause_seconds)
            else:
                load = _LOAD_SECONDS if load_seconds is None else load_seconds
                stopwatch.load(arm.launch, counts[arm.name], load)
            took, reading = stopwatch.seconds(arm.launch, counts[arm.name])
            seconds[arm.name].append(took)
            readings[arm.name].append(reading)
    return {
        arm.name: Timing(
            rounds=tuple(seconds[arm.name]), launches=counts[arm.name], reading=average(readings[arm.name])
        )
        for arm in arms
    }
