"""What things take on a chip, in clock cycles: the inputs of the time model, each with its source.

A model, not a measurement: see docs/model.md. `published` figures stand in papers and projects named there,
`measured` ones come from benchmarks/microbenchmarks.py, `assumed` ones have no source but judgement.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from ptxgen.errors import UnknownNameError

PUBLISHED, MEASURED, ASSUMED = "published", "measured", "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A figure, its unit, and where it comes from."""

    value: float
    unit: str
    meaning: str
    source: str
    basis: str

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure that depends on bytes in flight: cycles at some numbers of bytes."""

    points: tuple[tuple[int, float], ...]
    unit: str
    meaning: str
    source: str
    basis: str

    def later_by(self, cycles: float) -> Curve:
        """The same, `cycles` longer throughout."""
        return dataclasses.replace(self, points=tuple((size, clk + cycles) for size, clk in self.points))

    def at(self, size: float) -> float:
        """Cycles, between two points on a straight line; beyond the last at its rate."""
        points = self.points
        if size <= points[0][0]:
            return points[0][1]
        for (low, first), (high, second) in itertools.pairwise(points):
            if size <= high:
                return first + (second - first) * (size - low) / (high - low)
        return points[-1][1] * size / points[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The figures of one chip."""

    chip: str
    clock_hz: Cost
    launch_seconds: Cost
    mma_flop_per_clk: Cost
    smem_operand_bytes_per_clk: Cost
    mma_drain: Cost
    mma_pair_drain: Cost
    tma_load: Curve
    memory_latency: Cost
    hbm_bytes_per_second: Cost
    wake_up: Cost
    instruction: Cost
    conversion: Cost
    barrier: Cost
    tmem_latency: Cost
    smem_bytes_per_clk: Cost
    store_latency: Cost
    store_read_latency: Cost
    power_flop_per_second: Cost

    def items(self) -> Mapping[str, Cost | Curve]:
        """Every figure by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "chip"}


def _published(value: float, unit: str, meaning: str, basis: str) -> Cost:
    return Cost(value=value, unit=unit, meaning=meaning, source=PUBLISHED, basis=basis)


def _measured(value: float, unit: str, meaning: str, basis: str) -> Cost:
    return Cost(value=value, unit=unit, meaning=meaning, source=MEASURED, basis=basis)


def _assumed(value: float, unit: str, meaning: str, basis: str) -> Cost:
    return Cost(value=value, unit=unit, meaning=meaning, source=ASSUMED, basis=basis)


_MLSYS = "NVIDIA's figures for dense f16"
_B200_MMA = "published micro-benchmarks of tcgen05.mma on one SM (264 points)"
_NO_FIGURE = "no public figure"
_AS_H200 = "as measured on H200"
_SLOWER = "H200's, times the ratio of latencies from memory: 1600 clk published, 1045 measured"
_MICRO = "benchmarks/microbenchmarks.py"
_FROM_L2 = Curve(
    points=((1024, 410), (16384, 545), (32768, 595), (49152, 630), (65536, 710), (98304, 1080), (131072, 1475)),
    unit="clk",
    meaning="from a TMA load's issue until it has landed, by bytes in flight of its SM; all SMs load, from L2",
    source=MEASURED,
    basis=_MICRO,
)
B200 = Costs(
    chip="B200",
    clock_hz=_published(1.85e9, "Hz", "clock without a power limit", "2250 TFLOP/s over 148 SMs of 8192 FLOP a cycle"),
    launch_seconds=_assumed(1.63e-6, "s", "launch of a grid, its start and end", _AS_H200),
    mma_flop_per_clk=_published(8192, "FLOP/clk/SM", "f16 and bf16, K of 32 bytes", _B200_MMA),
    smem_operand_bytes_per_clk=_published(128, "B/clk/SM", "operands that the tensor core reads", _B200_MMA),
    mma_drain=_published(136, "clk", "from a batch's last cycle until its mbarrier, M 128", _B200_MMA),
    mma_pair_drain=_published(170, "clk", "the same for a pair, M 256", _B200_MMA),
    tma_load=dataclasses.replace(_FROM_L2.later_by(290), source=ASSUMED, basis=_SLOWER),
    memory_latency=_assumed(765, "clk", "what a TMA load takes longer from memory", _SLOWER),
    hbm_bytes_per_second=_published(
        7.26e12, "B/s", "TMA loads from memory", "published copy with 64 KB in flight an SM"
    ),
    wake_up=_assumed(52, "clk", "from an mbarrier's phase until a waiting warp goes on", _AS_H200),
    instruction=_assumed(5, "clk", "an instruction of a warp on its own", _AS_H200),
    conversion=_assumed(2, "clk", "a cvt to two f16", _AS_H200),
    barrier=_assumed(10, "clk", "bar.sync after the last arrival", _AS_H200),
    tmem_latency=_assumed(64, "clk", "tcgen05.ld of 32 columns until wait::ld", _NO_FIGURE),
    smem_bytes_per_clk=_published(128, "B/clk/SM", "stores of threads, and reads of TMA stores", "32 banks of 4 bytes"),
    store_latency=_assumed(425, "clk", "from a TMA store's last byte served until it is written", _AS_H200),
    store_read_latency=_assumed(420, "clk", "from a TMA store's last byte served until wait_group.read", _AS_H200),
    power_flop_per_second=_published(
        1.928e15, "FLOP/s", "most that power allows for random data", "MMA alone, U[0, 1)"
    ),
)
H200 = Costs(
    chip="H200",
    clock_hz=_measured(1.8e9, "Hz", "clock of a burst of MMAs on zeros", _MICRO),
    launch_seconds=_measured(1.63e-6, "s", "launch of a grid, its start and end", _MICRO),
    mma_flop_per_clk=_measured(4096, "FLOP/clk/SM", "f16 and bf16: m64n256k16 every 128 clk", _MICRO),
    smem_operand_bytes_per_clk=_published(
        128, "B/clk/SM", "operands that the tensor cores read", "32 banks of 4 bytes"
    ),
    mma_drain=_measured(47, "clk", "from a batch's last cycle until wait_group", _MICRO),
    mma_pair_drain=_published(0, "clk", "there are no pairs", _MLSYS),
    tma_load=_FROM_L2,
    memory_latency=_measured(500, "clk", "what a TMA load takes longer from memory", _MICRO),
    hbm_bytes_per_second=_published(4.3e12, "B/s", "copy", "measured copy"),
    wake_up=_measured(52, "clk", "from an mbarrier's phase until a waiting warp goes on", _MICRO),
    instruction=_measured(5, "clk", "an instruction of a warp on its own", _MICRO),
    conversion=_measured(2, "clk", "a cvt to two f16", _MICRO),
    barrier=_measured(10, "clk", "bar.sync after the last arrival", _MICRO),
    tmem_latency=_assumed(0, "clk", "there is no tensor memory", _NO_FIGURE),
    smem_bytes_per_clk=_published(128, "B/clk/SM", "stores of threads, and reads of TMA stores", "32 banks of 4 bytes"),
    store_latency=_measured(425, "clk", "from a TMA store's last byte served until it is written", _MICRO),
    store_read_latency=_measured(420, "clk", "from a TMA store's last byte served until wait_group.read", _MICRO),
    power_flop_per_second=_measured(0.93e15, "FLOP/s", "most that power allows in a burst of N(0, 1)", _MICRO),
)
COSTS: Mapping[str, Costs] = MappingProxyType({"sm_100a": B200, "sm_90a": H200})


def costs_of(target: str) -> Costs:
    """The figures for a target's chip; UnknownNameError where there are none."""
    if target not in COSTS:
        raise UnknownNameError("target with a time model", target, COSTS)
    return COSTS[target]
