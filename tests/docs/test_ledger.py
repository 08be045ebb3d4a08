"""Step 5's barrier ledger, rebuilt from the emulator's events alone, and the third exercise."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.emulator import events

K_TILES = 5


@dataclass
class Phase:
    """One phase of one mbarrier: arrivals by instruction, bytes announced and brought, waits by warp."""

    arrivals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    expected_bytes: int = 0
    brought_bytes: int = 0
    copies: int = 0
    waited_by: set[int] = field(default_factory=set)


class Ledger:
    """An observer that needs nothing but events and the text's lines."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self.counts: dict[int, int] = {}
        self.phases: dict[tuple[int, int], Phase] = defaultdict(Phase)
        self.waits: list[tuple[int, int]] = []

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.MbarrierInit):
            self.counts[event.barrier] = event.count
        elif isinstance(event, events.MbarrierArrive):
            phase = self.phases[event.barrier, event.phase]
            instruction = self._lines[event.line - 1].split()[0].split(".shared")[0]
            phase.arrivals[instruction] += event.count
            phase.expected_bytes += event.expect_bytes
        elif isinstance(event, events.MbarrierComplete):
            phase = self.phases[event.barrier, event.phase]
            phase.brought_bytes += event.tx_bytes
            phase.copies += 1
        elif isinstance(event, events.MbarrierWait) and event.success:
            self.phases[event.barrier, event.phase - 1].waited_by.add(event.warp)
            self.waits.append((event.barrier, event.parity))


def run(observer: Ledger | None, policy: str) -> None:
    observers = () if observer is None else (observer,)
    device = EmulatedDevice("sm_100a", policy=policy, observers=observers, workers=1)
    kernel = ptxgen.compile(ptxgen.step(5), device=device)
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, (128, 64 * K_TILES)).astype(np.float16) for _ in range(2))
    d = kernel(a, b)
    assert np.array_equal(d, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))
    assert kernel.report is not None and not kernel.report.findings


def ledger(policy: str) -> Ledger:
    observer = Ledger(ptxgen.emit(ptxgen.step(5)))
    run(observer, policy)
    return observer


def test_who_arrives_with_how_many_bytes_and_who_waits() -> None:
    for policy in ("eager", "late", "random"):
        book = ledger(policy)
        stage_0, stage_1, mma_done = sorted(book.counts)
        assert book.counts == {stage_0: 1, stage_1: 1, mma_done: 1}
        loads = {(stage_0, 0), (stage_1, 0), (stage_0, 1), (stage_1, 1), (stage_0, 2)}
        assert set(book.phases) == loads | {(mma_done, k) for k in range(K_TILES)}
        for key in loads:
            phase = book.phases[key]
            assert phase.arrivals == {"mbarrier.arrive.expect_tx": 1}
            assert phase.expected_bytes == phase.brought_bytes == 32768
            assert phase.copies == 2
            assert phase.waited_by == {0}
        for k in range(K_TILES):
            phase = book.phases[mma_done, k]
            assert phase.arrivals == {"tcgen05.commit.cta_group::1.mbarrier::arrive::one": 1}
            assert phase.expected_bytes == phase.brought_bytes == 0
            assert phase.waited_by == {0}


def test_third_exercise_stages_and_parities() -> None:
    book = ledger("late")
    *stages, mma_done = sorted(book.counts)
    loads = [(stages.index(barrier), parity) for barrier, parity in book.waits if barrier != mma_done]
    assert [stage for stage, _ in loads] == [0, 1, 0, 1, 0]
    assert [parity for _, parity in loads] == [0, 0, 1, 1, 0]
    assert [parity for barrier, parity in book.waits if barrier == mma_done] == [0, 1, 0, 1, 0]
    refills = sum(phase.copies for key, phase in book.phases.items() if key[0] in stages) // 2 - 2
    assert refills == 3  # after k = 0, 1 and 2


def test_without_an_observer_no_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for kind in events.Event.__subclasses__():

        def counted(self: Any, *values: Any, made_by: Any = kind.__init__, **fields: Any) -> None:
            made.append(type(self).__name__)
            made_by(self, *values, **fields)

        monkeypatch.setattr(kind, "__init__", counted)
    run(None, "late")
    assert made == []
    ledger("late")
    assert "MbarrierArrive" in made
