"""The time of a kernel in closed form, to rank specs: microseconds a spec, where a replay takes seconds.

    T = launch + max(K tiles · K tile + segments · exposed epilogue + sums + fill + last epilogue, memory, power)

in cycles of the figures in ptxgen/review/costs.py, for the CTA that has most to do: the K tiles and segments of all
its waves; sums are what it waits for, and adds, where several CTAs divide a tile's K. A K tile takes the longest of
its MMAs, their operands' way out of shared memory, its loads at their rate with the ring full, and the ring's round
trip over its stages. docs/model.md says what `ptxgen report` does better, and docs/performance.md how the ranking
fared against measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.targets import Target, target
from ptxgen.plan import MMA_K_BYTES
from ptxgen.review.costs import Costs, costs_of
from ptxgen.review.traffic import memory_bytes
from ptxgen.spec import GemmSpec

_BLOCK_ROWS = {"sm_90a": 64, "sm_100a": 128}
"""Rows of its first operand that one MMA reads in each CTA."""
_OPERAND_BYTES_PER_SECOND = {"sm_90a": 70e12, "sm_100a": 100e12}
"""What bringing operands to shared memory takes of the power, as bytes that could be brought if nothing else took any.
H200: what is missing of the MMAs' 930 TFLOP/s in a burst of step 7 at 8192 (805 TFLOP/s, 12.9 GB). B200: the same
energy a byte, of 1000 W instead of 700 W; assumed."""
_NEAR = 0.005
"""Times this close are called equal, and the rest of the ranking decides."""
_DIVIDED = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of one launch, and what they are made of. Clocks are cycles of one SM.

    k_tile: clocks of one K tile; `limit` says what sets them ("tensor core", "loads" or "ring"). exposed: clocks of
    a tile's epilogue in which the tensor core idles. waves: in whole tiles' time. `bound`: "pipeline", "memory" or
    "power".
    """

    seconds: float
    bound: str
    limit: str
    k_tile: float
    exposed: float
    waves: int
    wave_efficiency: float
    clocks: float
    loaded_bytes: float
    divided: bool

    @property
    def rank(self) -> tuple[float, float, float]:
        """What specs are sorted by: time; among nearly equal ones the shorter pipeline, then fewer bytes loaded. That
        of divided tiles has to be shorter by a margin, since what they do to the L2 cache is not in the model."""

        def rounded(value: float) -> float:
            return round(math.log(value) / math.log1p(_NEAR))

        clocks = self.clocks * (_DIVIDED if self.divided else 1)
        return rounded(self.seconds), rounded(clocks), self.loaded_bytes


def estimate(
    spec: GemmSpec,
    m: int,
    n: int,
    k: int,
    *,
    chip: Target | None = None,
    costs: Costs | None = None,
    grid: int | None = None,
) -> Estimate:
    """The time of D[m, n] = A[m, k] . B[n, k]^T by a persistent kernel with specialized roles, operands hot.

    `chip` gives the SMs and the L2 cache (default: the target's chip); `grid` CTAs replace one for each SM.
    """
    chip, costs = chip or target(spec.target), costs or costs_of(spec.target)
    plan = spec.plan
    rows, columns = spec.cluster_tile.m, spec.cluster_tile.n
    workers = _workers(spec, min(grid or chip.sm_count, chip.sm_count))
    units = _tiles(spec, m, n)
    k_tiles = -(-k // spec.tile.k)
    load = _load(spec, units, k_tiles, workers)
    multiply = _multiply_clocks(spec, costs)
    from_memory = float(costs.memory_latency) if (m + n) * k * plan.a.element_bytes > chip.l2_bytes else 0.0
    fetched = _fetched_bytes(spec)
    in_flight = spec.pipe_depth - 1
    loads = (costs.tma_load.at(in_flight * fetched) + from_memory) / in_flight
    latency = costs.tma_load.at(fetched) + from_memory
    waits = 2 * float(costs.wake_up) + _drain(spec, costs)
    ring = (latency + waits + multiply) / spec.pipe_depth
    times = {"tensor core": multiply, "loads": loads, "ring": ring}
    limit = max(times, key=lambda name: times[name])
    epilogue = _epilogue_clocks(spec, costs)
    exposed = _exposed_clocks(spec, epilogue, k_tiles * times[limit])
    fill = latency + float(costs.wake_up) + _drain(spec, costs)
    clocks = load.k_tiles * times[limit] + load.segments * exposed + fill + epilogue + float(costs.store_latency)
    clocks += load.sums * _sums_clocks(spec, costs, load.parts - 1)
    loaded = float(units * k_tiles * fetched * spec.cluster_ctas)
    at_once = min(max(workers // load.parts, 1), units)
    traffic = memory_bytes(spec, chip, (m, n, k), tile=(rows, columns), at_once=at_once)
    bounds = {
        "pipeline": clocks / float(costs.clock_hz),
        "memory": traffic / float(costs.hbm_bytes_per_second),
        "power": 2.0 * m * n * k / float(costs.power_flop_per_second) + loaded / _OPERAND_BYTES_PER_SECOND[spec.target],
    }
    bound = max(bounds, key=lambda name: bounds[name])
    return Estimate(
        seconds=bounds[bound] + float(costs.launch_seconds),
        bound=bound,
        limit=limit,
        k_tile=times[limit],
        exposed=exposed,
        waves=-(-load.k_tiles // k_tiles),
        wave_efficiency=m * n * k_tiles / (load.k_tiles * workers * rows * columns),
        clocks=clocks,
        loaded_bytes=loaded,
        divided=spec.scheduler.divides_k,
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """What the CTA, or cluster, that has most to do has to do: K tiles, segments, and tiles to sum up.

    parts: CTAs, or clusters, that work on one tile.
    """

    k_tiles: int
    segments: int
    sums: int = 0
    parts: int = 1


def pays_to_divide(spec: GemmSpec, m: int, n: int, k: int, chip: Target) -> bool:
    """Whether a spec is worth a try: one that divides K is where whole tiles leave CTAs idle, or too few of them work.

    split_k: as many parts as there are CTAs for, of two K tiles or more. stream_k: more than 2 % of the waves is idle.
    """
    workers, tiles = _workers(spec, chip.sm_count), _tiles(spec, m, n)
    if spec.scheduler.split_k > 1:
        parts = spec.scheduler.split_k
        return tiles * parts <= workers and 2 * parts <= -(-k // spec.tile.k)
    return not spec.scheduler.stream_k or tiles < 0.98 * workers * -(-tiles // workers)


def _workers(spec: GemmSpec, ctas: int) -> int:
    return max(ctas // spec.cluster_ctas, 1)


def _tiles(spec: GemmSpec, m: int, n: int) -> int:
    return -(-m // spec.cluster_tile.m) * -(-n // spec.cluster_tile.n)


def _load(spec: GemmSpec, tiles: int, k_tiles: int, workers: int) -> _Load:
    """As ptxgen/steps/segments.py deals them out."""
    if spec.scheduler.stream_k:
        whole = max((tiles - 1) // workers, 1) - 1
        dealt = (tiles - whole * workers) * k_tiles
        parts = min(workers, dealt)
        share = -(-dealt // parts)
        if dealt == parts * share and share % k_tiles == 0:
            return _Load(whole * k_tiles + share, whole + share // k_tiles)
        return _Load(whole * k_tiles + share, whole + -(-share // k_tiles), 1, 1 + -(-k_tiles // share))
    parts = min(spec.scheduler.split_k, k_tiles, workers)
    waves = -(-tiles * parts // workers)
    return _Load(waves * -(-k_tiles // parts), waves, -(-waves // parts), parts)


def _sums_clocks(spec: GemmSpec, costs: Costs, others: int) -> float:
    """One CTA stores its sum and raises a flag; another sees it, and adds the sums of `others`, one after the other."""
    if not others:
        return 0.0
    once = costs.tma_load.at(4.0 * spec.tile.m * spec.tile.n)
    return (1 + others) * once + costs.tma_load.at(0.0)


def _multiply_clocks(spec: GemmSpec, costs: Costs) -> float:
    """Cycles of a CTA's share of the tensor core's work on one K tile, an MMA of 32 bytes of K after the other."""
    plan = spec.plan
    rows, columns = (operand.rows for operand in plan.mma_operands)
    block = min(_BLOCK_ROWS[spec.target], rows)
    flop = 2 * block * columns * spec.cta_group * MMA_K_BYTES // plan.a.element_bytes
    arithmetic = flop / float(costs.mma_flop_per_clk)
    if block < _BLOCK_ROWS[spec.target]:
        arithmetic *= 2  # M = 64 on one SM runs at half rate
    operands = (block + columns) * MMA_K_BYTES / float(costs.smem_operand_bytes_per_clk)
    return rows / block * (spec.tile.k // plan.mma_k) * max(arithmetic, operands)


def _fetched_bytes(spec: GemmSpec) -> float:
    """Bytes of a K tile that one CTA asks the L2 cache for: multicast operands are fetched once for the cluster."""
    shared_a, shared_b = spec.multicast
    return spec.plan.a.tile_bytes / shared_a + spec.plan.b.tile_bytes / shared_b


def _drain(spec: GemmSpec, costs: Costs) -> float:
    return float(costs.mma_pair_drain if spec.cta_group == 2 else costs.mma_drain)


def _epilogue_clocks(spec: GemmSpec, costs: Costs) -> float:
    """From a tile's last MMA until its accumulator is staged, or stored by threads, and so free."""
    rows = spec.tile.m // spec.cta_group
    out = element_type(spec.output_type).bytes
    staged = rows * spec.tile.n * out / float(costs.smem_bytes_per_clk)
    # An SM issues for four warps at a time, 128 threads, each of which converts two elements an instruction.
    convert = rows * spec.tile.n / (128 * 2) * float(costs.conversion)
    slices = spec.tile.n // spec.plan.slice_n
    around = slices * (float(costs.tmem_latency) + 2 * float(costs.barrier)) + 2 * float(costs.barrier)
    if spec.plan.staged and spec.epilogue.staging == "slices":
        # A buffer is written again once its store has read it.
        reads = float(costs.store_read_latency) * max(slices - spec.epilogue.staging_buffers, 0)
        around += reads / spec.epilogue.staging_buffers
    return max(staged, convert) + around


def _exposed_clocks(spec: GemmSpec, epilogue: float, main_loop: float) -> float:
    """What of the epilogue the next tile's MMAs do not cover."""
    if spec.accumulators > 1 or spec.consumer_tiles == "own":
        return max(epilogue - main_loop, 0.0)
    return epilogue
