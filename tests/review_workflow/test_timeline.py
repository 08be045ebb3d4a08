"""The time model: what must hold whatever the costs are, and how it compares with published times."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest

from ptxgen.device.description import launch_in_header
from ptxgen.hardware.targets import target
from ptxgen.review.chrome_trace import chrome_trace
from ptxgen.review.costs import ASSUMED, B200, COSTS, MEASURED, PUBLISHED
from ptxgen.review.occupancy import occupancy
from ptxgen.review.predict import Prediction, predict
from ptxgen.review.sources import read_source
from ptxgen.review.spans import EPILOGUE, LOAD, MULTIPLY, STORE, WAIT, Span, Timeline
from ptxgen.review.structure import analyse
from ptxgen.review.timeline import replay
from ptxgen.review.trace import record
from ptxgen.spec import parse_settings
from ptxgen.steps import step

K_TILES = 5


def timeline(word: str, tiles: int = 2) -> Timeline:
    found = read_source(word)
    description = launch_in_header(found.text, word)
    assert description is not None
    m, n, k = description.verify[0]
    structure = analyse(found.text, word)
    trace = record(found.text, word, description, problem={"M": m, "N": n * tiles, "K": k * K_TILES})
    return replay(structure, trace, COSTS[structure.module.target])


def of_tile(spans: tuple[Span, ...], tile: int) -> list[Span]:
    return [span for span in spans if span.tile == (0, tile)]


@pytest.mark.parametrize("word", ["step:4", "step:6", "step:7", "step:7@sm_90a", "step:6@sm_90a"])
def test_causes_come_before_effects(word: str) -> None:
    found = timeline(word, 1 if word == "step:4" else 2)
    assert all(0 <= span.start <= span.stop <= found.end for span in found.spans)
    for tile in {span.tile for span in found.of(LOAD)}:
        landed = {k: max(s.stop for s in found.of(LOAD) if s.tile == tile and s.k_tile == k) for k in range(K_TILES)}
        products = [span for span in found.of(MULTIPLY) if span.tile == tile]
        assert {span.k_tile for span in products} == set(range(K_TILES))
        assert all(span.start > landed[span.k_tile] for span in products)
        stored = [span for span in found.of(STORE) if span.tile == tile]
        assert min(span.start for span in stored) > max(span.stop for span in products)
    # A tensor core does one thing at a time, and no stage holds two K tiles at once.
    turns = sorted({(span.start, span.stop) for span in found.of(MULTIPLY)})
    assert all(one[1] <= other[0] for one, other in pairwise(turns))
    for stage in {span.stage for span in found.of(LOAD)}:
        visits: dict[tuple[tuple[int, int], int], float] = {}
        for span in found.of(LOAD):
            if span.stage == stage:
                visits[span.tile, span.k_tile] = min(span.start, visits.get((span.tile, span.k_tile), span.start))
        for (tile, k), _ in visits.items():
            busy = max(s.stop for s in found.of(MULTIPLY) if s.tile == tile and s.k_tile == k)
            later = [start for start in visits.values() if start > visits[tile, k]]
            assert all(start >= busy for start in later)


def test_only_specialised_roles_load_the_next_tile_while_one_is_stored() -> None:
    """The picture that the ladder draws for steps 6 and 7."""
    for word, overlaps in (("step:6", False), ("step:7", True)):
        found = timeline(word)
        next_load = min(span.start for span in of_tile(found.of(LOAD), 1))
        epilogue = next(span for span in found.of(EPILOGUE) if span.stop > span.start)
        assert (next_load < epilogue.stop) == overlaps


def test_step_4_loads_and_multiplies_in_turn_and_step_5_does_not() -> None:
    for word, in_turn in (("step:4", True), ("step:5", False)):
        found = timeline(word, 1)
        second = min(span.start for span in found.of(LOAD) if span.k_tile == 1)
        first = min(span.start for span in found.of(MULTIPLY) if span.k_tile == 0)
        assert (second > first) == in_turn


def test_phases_end_one_after_the_other() -> None:
    phases = timeline("step:7").phases
    for address in {phase.address for phase in phases}:
        mine = sorted((phase for phase in phases if phase.address == address), key=lambda phase: phase.phase)
        assert [phase.phase for phase in mine] == list(range(len(mine)))
        assert all(one.stop <= other.stop for one, other in pairwise(mine))


def test_waits_are_told_apart_from_work() -> None:
    found = timeline("step:7")
    by_warp: dict[str, list[Span]] = {}
    for span in found.of(WAIT):
        by_warp.setdefault(span.track, []).append(span)
    assert set(by_warp) == {f"warp {warp}" for warp in range(6)}
    for spans in by_warp.values():
        spans.sort(key=lambda span: span.start)
        assert all(one.stop <= other.start for one, other in pairwise(spans))


def test_chrome_trace() -> None:
    found = timeline("step:4", 1)
    data = json.loads(chrome_trace(found, 1e9, "gemm"))
    spans = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(found.spans)
    assert all(event["dur"] >= 0 and event["args"]["line"] > 0 for event in spans)
    names = {event["args"]["name"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    assert {"tensor core", "TMA load, stage 0", "TMA store", "warp 0"} <= names


# -- whole chips ----------------------------------------------------------------------------------

PUBLISHED_MS = {4: 0.4938, 7: 0.2266, 8: 0.1035, 9: 0.0941}
"""B200, f16, 4096 cubed: the tutorial's own kernels."""
MEASURED_TFLOPS = {4: 567, 5: 700, 6: 434, 7: 779}
"""H200, bf16, 4096 cubed: these kernels."""


@pytest.fixture(scope="module")
def b200() -> dict[int, Prediction]:
    """The tutorial's step 4 takes all tensor memory, so that its CTAs have an SM to themselves."""
    resident = {4: 1}
    return {number: predict(step(number), 4096, 4096, 4096, resident=resident.get(number)) for number in PUBLISHED_MS}


@pytest.mark.slow
def test_ratios_between_published_steps(b200: dict[int, Prediction]) -> None:
    for one, other in ((4, 7), (7, 8), (8, 9)):
        predicted = b200[one].seconds / b200[other].seconds
        published = PUBLISHED_MS[one] / PUBLISHED_MS[other]
        assert abs(predicted / published - 1) < 0.15, (one, other, predicted, published)


@pytest.mark.slow
def test_the_model_is_optimistic_but_not_by_much(b200: dict[int, Prediction]) -> None:
    for number, prediction in b200.items():
        assert 0.70 < prediction.seconds * 1e3 / PUBLISHED_MS[number] < 1.0


@pytest.mark.slow
def test_h200_in_the_order_in_which_they_were_measured() -> None:
    types = ("operand_type=bf16", "output_type=bf16")
    found = {
        number: predict(parse_settings(step(number, target="sm_90a"), types), 4096, 4096, 4096).tflops
        for number in MEASURED_TFLOPS
    }
    assert sorted(found, key=lambda number: found[number]) == sorted(
        MEASURED_TFLOPS, key=lambda number: MEASURED_TFLOPS[number]
    )
    for number, tflops in found.items():
        assert abs(tflops / MEASURED_TFLOPS[number] - 1) < 0.20


def test_a_slower_clock_takes_longer_and_power_bounds() -> None:
    spec = step(4)
    usual = predict(spec, 1024, 1024, 1024, resident=1)
    slower = dataclasses.replace(B200, clock_hz=dataclasses.replace(B200.clock_hz, value=1e9))
    assert predict(spec, 1024, 1024, 1024, costs=slower, resident=1).seconds > usual.seconds
    starved = dataclasses.replace(
        B200, power_flop_per_second=dataclasses.replace(B200.power_flop_per_second, value=1e12)
    )
    assert predict(spec, 1024, 1024, 1024, costs=starved, resident=1).bound == "power"


def test_every_cost_says_where_it_comes_from() -> None:
    for costs in COSTS.values():
        for cost in costs.items().values():
            assert cost.source in (PUBLISHED, MEASURED, ASSUMED)
            assert cost.meaning and cost.basis and cost.unit
    curve = B200.tma_load
    assert curve.at(0) == curve.points[0][1]
    assert curve.points[0][1] < curve.at(8192) < curve.points[1][1]
    assert curve.at(2 * curve.points[-1][0]) == 2 * curve.points[-1][1]


@pytest.mark.parametrize(
    ("changes", "ctas", "limit"),
    [
        ({}, 3, "SMEM"),
        ({"registers": 200}, 2, "registers"),
        ({"tmem_columns": 512}, 1, "TMEM"),
        ({"threads": 1024, "smem_bytes": 0, "registers": 32}, 2, "threads"),
        ({"smem_bytes": 0, "threads": 32, "registers": 16, "tmem_columns": 0}, 32, "CTA slots"),
    ],
)
def test_occupancy(changes: dict[str, int], ctas: int, limit: str) -> None:
    wanted = {"threads": 128, "registers": 38, "smem_bytes": 66560, "tmem_columns": 128, **changes}
    found = occupancy(chip=target("sm_100a"), **wanted)
    assert (found.ctas, limit in found.limits) == (ctas, True)


def test_docs_quote_the_recorded_predictions() -> None:
    root = Path(__file__).resolve().parents[2]
    docs = (root / "docs" / "model.md").read_text().replace("\N{MINUS SIGN}", "-")
    results = json.loads((root / "benchmarks" / "results" / "predicted_time.json").read_text())
    for chip in results.values():
        for row in chip["steps"]:
            assert f"{row['predicted_ms']:.4f} ms | {row['error']:+.1%}".replace("%", " %") in docs
        for ratio in chip["ratios"] if chip is results["B200"] else ():
            assert f"{ratio['predicted']:.3f} | {ratio['error']:+.1%}".replace("%", " %") in docs
