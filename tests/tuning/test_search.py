"""`ptxgen tune`: who leaves when, what is kept, and how a second run goes on; without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import ptxgen
from ptxgen.bench.telemetry import Reading
from ptxgen.bench.timing import Mode, Timing
from ptxgen.errors import DeviceError, HungKernelError, PtxgenError
from ptxgen.hardware.targets import target
from ptxgen.tuning import campaign as campaigns
from ptxgen.tuning.campaign import Outcome, State, Task, campaign
from ptxgen.tuning.search import FINALISTS, Contestant, HungContestantError, contestants, search
from ptxgen.tuning.table import Entry, Problem

CHIP = target("sm_90a")
PROBLEM = Problem(m=4096, n=4096, k=4096, operand_type="bf16", output_type="bf16")


@dataclass
class FakeArena:
    """Times by a function; remembers who was asked."""

    time: Callable[[Contestant], float]
    wrong: Callable[[Contestant], str | None] = lambda contestant: None
    prepared: list[str] = field(default_factory=list)
    warmed: int = 0
    asked: list[str] = field(default_factory=list)
    finals: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)

    def prepare(self, contestants: Sequence[Contestant]) -> None:
        self.prepared += [contestant.key for contestant in contestants]

    def mistake(self, contestant: Contestant) -> str | None:
        assert contestant.key in self.prepared
        return self.wrong(contestant)

    def warm_up(self, contestant: Contestant) -> None:
        self.warmed += 1

    def seconds(self, contestant: Contestant) -> float:
        self.asked.append(contestant.key)
        return self.time(contestant)

    def compare(self, contestants: Sequence[Contestant], mode: Mode, rounds: int) -> Mapping[str, Timing]:
        self.finals.append((mode, tuple(c.key for c in contestants), rounds))
        reading = Reading(sm_mhz=1980.0, watts=600.0)
        return {c.key: Timing(rounds=(self.time(c),) * rounds, launches=9, reading=reading) for c in contestants}


@lru_cache
def first(count: int = 8) -> tuple[Contestant, ...]:
    return contestants(PROBLEM, "sm_90a", CHIP, count)


def times(base: float = 1e-3) -> Callable[[Contestant], float]:
    """The fourth is fastest, and faster still with groups of 4; every other variation is slower."""
    originals = [contestant.spec for contestant in first()]

    def kind(spec: ptxgen.GemmSpec) -> object:
        division = spec.scheduler.split_k, spec.scheduler.stream_k
        return spec.step, spec.tile, spec.consumer_tiles, spec.swap_ab, *division

    order = [kind(spec) for spec in originals]

    def time(contestant: Contestant) -> float:
        if kind(contestant.spec) not in order:  # a variation in how K is divided
            return 2 * base
        place = order.index(kind(contestant.spec))
        varied = 1.0 if contestant.spec == originals[place] and contestant.grid is None else 1.001
        if contestant.spec == originals[place].replace(scheduler={"group": 4}):
            varied = 0.99
        return base * (1 + 0.01 * abs(place - 3)) * varied

    return time


def test_the_fastest_wins_with_its_best_order() -> None:
    arena = FakeArena(times())
    entry, results = search(PROBLEM, arena, CHIP, first(), rounds=2)
    assert entry.spec == first()[3].spec.replace(scheduler={"group": 4})
    assert entry.seconds == {"burst": pytest.approx(0.99e-3), "sustained": pytest.approx(0.99e-3)}
    assert [(mode, len(keys), rounds) for mode, keys, rounds in arena.finals] == [("burst", 4, 2), ("sustained", 4, 2)]
    assert sum(result.left == "" for result in results) == FINALISTS
    json.dumps([result.to_json() for result in results])


def test_turns_go_there_and_back() -> None:
    arena = FakeArena(times())
    search(PROBLEM, arena, CHIP, first(4))
    keys = [contestant.key for contestant in first(4)]
    assert arena.asked[:8] == [*keys, *reversed(keys)]


def test_losers_leave_early() -> None:
    """Eight, then four: the slower half is not timed again, nor is one that is far behind."""
    arena = FakeArena(times())
    search(PROBLEM, arena, CHIP, first(8))
    timed = [arena.asked.count(contestant.key) for contestant in first(8)]
    assert timed[7] == 2 and timed[6] == 2 and timed[3] > 4

    def far(contestant: Contestant) -> float:
        return times()(contestant) * (1 if contestant.spec == first()[3].spec else 2)

    arena = FakeArena(far)
    search(PROBLEM, arena, CHIP, first(8))
    assert [arena.asked.count(contestant.key) for contestant in first(8)].count(2) == 7


def test_wrong_and_impossible_kernels_are_not_timed() -> None:
    def wrong(contestant: Contestant) -> str | None:
        if contestant == first()[0]:
            raise DeviceError("it does not fit\nat all")
        return "5 are NaN" if contestant == first()[1] else None

    arena = FakeArena(times(), wrong)
    said: list[str] = []
    _, results = search(PROBLEM, arena, CHIP, first(), report=said.append)
    reasons = {result.contestant.key: result.left for result in results}
    assert reasons[first()[0].key] == "cannot run: it does not fit"
    assert reasons[first()[1].key] == "wrong: 5 are NaN"
    assert not {first()[0].key, first()[1].key} & set(arena.asked)
    assert any("wrong: 5 are NaN" in line for line in said)
    with pytest.raises(PtxgenError, match="none of 8 kernels computes 4096 x 4096 x 4096 bf16 rightly here"):
        search(PROBLEM, FakeArena(times(), lambda contestant: "no"), CHIP, first())


def test_a_hung_contestant_is_named_and_then_left_out() -> None:
    def hang(contestant: Contestant) -> str | None:
        if contestant == first()[2]:
            raise HungKernelError("did not end")
        return None

    with pytest.raises(HungContestantError) as caught:
        search(PROBLEM, FakeArena(times(), hang), CHIP, first())
    assert caught.value.contestant == first()[2]
    _, results = search(PROBLEM, FakeArena(times(), hang), CHIP, first(), hung=[first()[2].key])
    assert next(r for r in results if r.contestant == first()[2]).left == "did not end in an earlier attempt"


def test_fewer_ctas_are_tried_where_they_need_no_more_waves() -> None:
    """512 tiles: 4 waves of 132 CTAs, or of 128."""
    spec = ptxgen.step(7, target="sm_90a").replace(operand_type="bf16", output_type="bf16")
    arena = FakeArena(lambda contestant: 1e-3 if contestant.grid is None else 0.9e-3)
    entry, _ = search(PROBLEM, arena, CHIP, [Contestant(spec=spec)])
    assert entry.grid == 128
    full = replace(PROBLEM, m=11 * 128, n=12 * 256)
    entry, results = search(full, arena, CHIP, [Contestant(spec=spec)])
    assert {result.contestant.grid for result in results} == {None}


# -- many problems


def task(size: int, **changes: Any) -> Task:
    problem = replace(PROBLEM, m=size)
    values: dict[str, Any] = {"candidates": 4, "modes": ("burst",), "rounds": 2, **changes}
    return Task(problem=problem, target="sm_90a", ordinal=0, **values)


def found(problem: Problem) -> Entry:
    spec = ptxgen.step(7, target="sm_90a").replace(operand_type="bf16", output_type="bf16")
    return Entry(problem=problem, spec=spec, grid=None, seconds={"burst": 1e-4})


def work(task: Task, report: Any = None) -> Outcome:
    return Outcome(entry=found(task.problem))


def test_a_second_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    calls: list[int] = []

    def counted(task: Task, report: Any = None) -> Outcome:
        calls.append(task.problem.m)
        return work(task)

    tasks = [task(64), task(128), task(256)]
    part = campaign(tasks, State.open(path, "H200"), work=counted, stop=lambda: len(calls) == 2)
    assert [entry.problem.m for entry in part] == calls == [64, 128]
    said: list[str] = []
    kept: list[Entry] = []
    whole = campaign(tasks, State.open(path, "H200"), work=counted, report=said.append, found=kept.append)
    assert kept == whole
    assert calls == [64, 128, 256]
    assert [entry.problem.m for entry in whole] == [64, 128, 256]
    assert said == [
        "64 x 4096 x 4096 bf16: done earlier",
        "128 x 4096 x 4096 bf16: done earlier",
        "[1/1] 256 x 4096 x 4096 bf16: done",
    ]
    campaign([task(64, candidates=9)], State.open(path, "H200"), work=counted)
    assert calls == [64, 128, 256, 64]  # another effort


def test_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    def failing(task: Task, report: Any = None) -> Outcome:
        return Outcome(entry=None, error="no memory") if task.problem.m == 64 else work(task)

    said: list[str] = []
    state = State.open(tmp_path / "state.json", "H200")
    entries = campaign([task(64), task(128)], state, work=failing, report=said.append)
    assert [entry.problem.m for entry in entries] == [128]
    assert said[0] == "[1/2] 64 x 4096 x 4096 bf16: failed: no memory"
    assert state.entry(task(64), "") is None


def test_after_a_hung_kernel_another_run_leaves_it_out(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    def hanging(task: Task, report: Any = None) -> Outcome:
        seen.append(task.hung)
        return work(task) if task.hung else Outcome(entry=None, error="it did not end", hung="abc")

    path = tmp_path / "state.json"
    with pytest.raises(HungKernelError, match="it did not end"):
        campaign([task(64)], State.open(path, "H200"), work=hanging)
    assert len(campaign([task(64)], State.open(path, "H200"), work=hanging)) == 1
    assert seen == [(), ("abc",)]


def test_several_gpus_share_the_problems() -> None:
    busy: set[int] = set()
    used: list[int] = []

    def one_at_a_time(task: Task) -> Outcome:
        assert task.ordinal not in busy
        busy.add(task.ordinal)
        used.append(task.ordinal)
        busy.remove(task.ordinal)
        return work(task)

    state = State.open(None, "H200")
    with ThreadPoolExecutor(2) as executor:
        entries = campaign(
            [task(64 * n) for n in range(1, 9)], state, ordinals=(3, 5), executor=executor, work=one_at_a_time
        )
    assert sorted(entry.problem.m for entry in entries) == [64 * n for n in range(1, 9)]
    assert set(used) == {3, 5}


def test_a_state_of_another_gpu(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    campaign([task(64)], State.open(path, "H200"), work=work)
    with pytest.raises(PtxgenError, match="is of H200 .version 1., this is H100"):
        State.open(path, "H100")
    path.write_text("{}")
    with pytest.raises(PtxgenError, match="is no state of ptxgen tune: KeyError"):
        State.open(path, "H200")


def test_what_a_worker_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        class properties:  # noqa: N801
            chip = CHIP

    monkeypatch.setattr(campaigns, "_device", lambda ordinal: Device())
    monkeypatch.setattr("ptxgen.tuning.arena.GpuArena", lambda *_, **__: FakeArena(times()))
    outcome = campaigns.tune_problem(task(4096))
    assert outcome.entry is not None and outcome.entry.problem == PROBLEM
    assert sum(result["left"] == "" for result in outcome.results) == FINALISTS
    hung = FakeArena(times(), lambda contestant: (_ for _ in ()).throw(HungKernelError("no end")))
    monkeypatch.setattr("ptxgen.tuning.arena.GpuArena", lambda *_, **__: hung)
    outcome = campaigns.tune_problem(task(4096))
    assert (outcome.entry, outcome.error, outcome.hung) == (None, "no end", first()[0].key)
