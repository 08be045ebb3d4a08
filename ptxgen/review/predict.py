"""Predicted time of a kernel on a whole chip: its timeline on one SM, and how many tiles each SM gets.

A model (docs/model.md). What bounds a kernel between waiting, the tensor core, the TMA and memory comes out of
the replay; launch, waves of tiles, memory traffic and power are added here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass

from ptxgen.device.description import LaunchDescription, launch_in_header
from ptxgen.errors import ToolchainError
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.targets import Target, target
from ptxgen.render import emit
from ptxgen.review.costs import Costs, costs_of
from ptxgen.review.occupancy import occupancy
from ptxgen.review.spans import MULTIPLY, STORE, Timeline
from ptxgen.review.structure import Structure, analyse
from ptxgen.review.timeline import replay
from ptxgen.review.trace import Trace, record
from ptxgen.review.traffic import memory_bytes
from ptxgen.spec import GemmSpec
from ptxgen.toolchain import assemble

_SHORT, _LONG = 12, 20
"""K tiles of the replays from which longer ones are extrapolated; whole turns of rings of 1 to 4 stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time of one launch in seconds, and what it is made of. `bound` names what the time follows from:
    "pipeline", "memory" or "power"."""

    seconds: float
    flop: float
    clocks: float
    tiles_per_sm: int
    clocks_per_tile: float
    resident: int
    tensor_core_busy: float
    bound: str

    @property
    def tflops(self) -> float:
        """TFLOP/s."""
        return self.flop / self.seconds / 1e12


def predict(
    spec: GemmSpec, m: int, n: int, k: int, *, costs: Costs | None = None, resident: int | None = None
) -> Prediction:
    """The predicted time of D[m, n] = A[m, k] . B[n, k]^T. `resident` CTAs per SM replace those that fit."""
    text = emit(spec)
    description = launch_in_header(text, "the kernel")
    assert description is not None
    return _Predictor(spec, text, description, costs or costs_of(spec.target), resident).predict(m, n, k)


class _Predictor:
    def __init__(
        self, spec: GemmSpec, text: str, description: LaunchDescription, costs: Costs, resident: int | None
    ) -> None:
        self._spec, self._text, self._description = spec, text, description
        self._chip: Target = target(spec.target)
        self._structure: Structure = analyse(text, "the kernel")
        self._ctas = description.cluster[0] * description.cluster[1] * description.cluster[2]
        self._costs = costs
        self._resident = resident or (1 if description.persistent else self._fits())
        tile = spec.cluster_tile
        self._tile = tile.m, tile.n, tile.k
        self._traces: dict[tuple[int, int], Trace] = {}

    def predict(self, m: int, n: int, k: int) -> Prediction:
        """For a problem whose operands are hot: where A and B together fit the L2 cache they are loaded from it."""
        size = element_type(self._spec.operand_type).bytes
        if (m + n) * k * size > self._chip.l2_bytes:
            later = self._costs.tma_load.later_by(float(self._costs.memory_latency))
            self._costs = dataclasses.replace(self._costs, tma_load=later)
        tiles = -(-m // self._tile[0]) * -(-n // self._tile[1])
        k_tiles = -(-k // self._tile[2])
        workers = self._chip.sm_count // self._ctas
        each = -(-tiles // workers)
        if self._description.persistent:
            clocks, busy = self._persistent(each, k_tiles)
        else:
            clocks, busy = self._grid(each, k_tiles)
        costs = self._costs
        seconds = clocks / float(costs.clock_hz)
        flop = 2.0 * m * n * k
        times = {
            "pipeline": seconds,
            "memory": self._traffic(m, n, k) / float(costs.hbm_bytes_per_second),
            "power": flop / float(costs.power_flop_per_second),
        }
        bound = max(times, key=lambda name: times[name])
        return Prediction(
            seconds=times[bound] + float(costs.launch_seconds),
            flop=flop,
            clocks=clocks,
            tiles_per_sm=each,
            clocks_per_tile=clocks / each,
            resident=self._resident,
            tensor_core_busy=busy / clocks,
            bound=bound,
        )

    def _fits(self) -> int:
        """CTAs that an SM holds."""
        registers = 0
        with contextlib.suppress(ToolchainError):  # without ptxas the other resources decide
            registers = assemble(self._text, line_info=False).registers
        plan, description = self._spec.plan, self._description
        return occupancy(
            chip=self._chip,
            threads=description.block[0],
            registers=registers,
            smem_bytes=plan.smem_bytes,
            tmem_columns=plan.tmem_columns,
        ).ctas

    def _replayed(self, tiles: int, k_tiles: int, sharing: int = 1) -> Timeline:
        if (tiles, k_tiles) not in self._traces:
            problem = {"M": self._tile[0], "N": self._tile[1] * tiles, "K": self._tile[2] * k_tiles}
            trace = record(self._text, "the kernel", self._description, problem=problem)
            self._traces[tiles, k_tiles] = trace
        return replay(self._structure, self._traces[tiles, k_tiles], self._costs, sharing=sharing)

    def _clocks(self, tiles: int, k_tiles: int, sharing: int = 1) -> list[float]:
        """When each of a cluster's tiles is stored; linear in K tiles beyond some."""
        if k_tiles <= _LONG:
            return self._ends(tiles, k_tiles, sharing)
        pairs = zip(self._ends(tiles, _SHORT, sharing), self._ends(tiles, _LONG, sharing), strict=True)
        return [long + (long - short) / (_LONG - _SHORT) * (k_tiles - _LONG) for short, long in pairs]

    def _ends(self, tiles: int, k_tiles: int, sharing: int) -> list[float]:
        timeline = self._replayed(tiles, k_tiles, sharing)
        stored: dict[int, float] = {}
        for span in timeline.of(STORE):
            stored[span.tile[1]] = max(stored.get(span.tile[1], 0.0), span.stop)
        ends = [stored[number] for number in sorted(stored)]
        if len(ends) != tiles:  # stored by threads: nothing tells the tiles apart but their number
            ends = [self._replayed(count, k_tiles, sharing).end for count in range(1, tiles + 1)]
        return ends

    def _persistent(self, each: int, k_tiles: int) -> tuple[float, float]:
        """One CTA's tiles one after the other, each from the third on as long as the third."""
        ends = self._clocks(min(each, 3), k_tiles)
        steady = ends[2] - ends[1] if each > 3 else 0.0
        return ends[-1] + steady * max(each - 3, 0), self._busy(k_tiles) * each

    def _grid(self, each: int, k_tiles: int) -> tuple[float, float]:
        """Rounds of as many CTAs as fit; they share tensor core and TMA, and hide each other's waits."""
        multiply = self._busy(k_tiles)
        clocks, left = 0.0, each
        while left:
            together = min(left, self._resident)
            clocks += max(self._clocks(1, k_tiles, together)[0], together * multiply)
            left -= together
        return clocks, multiply * each

    def _busy(self, k_tiles: int) -> float:
        """Cycles of the tensor core for one tile, by any replay."""
        if not self._traces:
            self._clocks(1, k_tiles)
        tiles, count = next(iter(self._traces))
        spans = self._replayed(tiles, count).of(MULTIPLY)
        return sum(span.stop - span.start for span in spans) / (tiles * count) * k_tiles

    def _traffic(self, m: int, n: int, k: int) -> float:
        at_once = self._chip.sm_count // self._ctas * self._resident
        return memory_bytes(self._spec, self._chip, (m, n, k), tile=self._tile[:2], at_once=at_once)
