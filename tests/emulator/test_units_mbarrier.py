"""The mbarrier object: phases, bytes, states and every error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.emulator.mbarrier import Mbarrier
from ptxgen.errors import MachineError
from ptxgen.hardware.mbarrier import MAX_COUNT, MAX_TX


def barrier(count: int = 1) -> Mbarrier:
    fresh = Mbarrier()
    fresh.init(count)
    return fresh


def test_a_fresh_barrier_passes_parity_one_and_waits_on_zero() -> None:
    fresh = barrier()
    assert fresh.test(1)
    assert not fresh.test(0)
    assert fresh.arrive()
    assert fresh.test(0)
    assert not fresh.test(1)


@given(st.integers(1, 5), st.lists(st.integers(0, 64), max_size=6), st.randoms(use_true_random=False))
def test_a_phase_completes_exactly_when_all_arrived_and_all_bytes_came(
    count: int, copies: list[int], random: object
) -> None:
    """Whatever the order of copies and arrivals, once the bytes are expected before the last arrive."""
    watched = barrier(count)
    for phase in range(3):
        events = [("arrive", 1)] * count + [("tx", size) for size in copies]
        random.shuffle(events)  # type: ignore[attr-defined]
        expected_at = min(index for index, event in enumerate(events) if event[0] == "arrive")
        done = []
        for index, (what, size) in enumerate(events):
            if what == "tx":
                done.append(watched.complete_tx(size))
            else:
                done.append(watched.arrive(1, tx=sum(copies) if index == expected_at else 0))
        # A copy of no bytes changes nothing, so the last event that counts is what completes.
        assert watched.phase == phase + 1
        assert done.count(True) == 1
        assert (watched.pending, watched.tx) == (count, 0)


def test_bytes_may_come_before_they_are_expected() -> None:
    early = barrier(1)
    assert not early.complete_tx(256)
    assert early.tx == -256
    assert early.arrive(1, tx=256)


def test_an_expect_may_complete_the_phase() -> None:
    late = barrier(1)
    assert not late.expect_tx(16)
    assert not late.complete_tx(48)
    assert not late.arrive(1, tx=16)
    assert not late.expect_tx(8)
    assert late.expect_tx(8)
    assert (late.phase, late.pending, late.tx) == (1, 1, 0)


def test_arrive_drop_lowers_later_phases() -> None:
    dropping = barrier(3)
    assert not dropping.arrive_drop()
    assert dropping.arrive(2)
    assert dropping.pending == dropping.expected == 2
    assert not dropping.arrive_drop(1, tx=16)
    assert not dropping.arrive()
    assert dropping.complete_tx(16)
    assert dropping.expected == 1


def test_state_tells_phases_apart() -> None:
    counted = barrier(2)
    state = counted.state()
    counted.arrive()
    assert not counted.test_state(state)
    assert counted.state() != state
    counted.arrive()
    assert counted.test_state(state)
    assert not counted.test_state(counted.state())


def test_reuse_after_inval() -> None:
    reused = barrier(1)
    reused.arrive()
    reused.inval()
    reused.init(4)
    assert (reused.phase, reused.pending) == (0, 4)


@pytest.mark.parametrize("action", ["arrive", "arrive_drop", "inval"])
def test_uninitialised(action: str) -> None:
    with pytest.raises(MachineError) as error:
        getattr(Mbarrier(), action)()
    assert error.value.rule == "barrier-not-initialised"


@pytest.mark.parametrize("action", ["expect_tx", "complete_tx", "test", "test_state"])
def test_uninitialised_with_a_value(action: str) -> None:
    dead = barrier()
    dead.inval()
    with pytest.raises(MachineError) as error:
        getattr(dead, action)(0)
    assert error.value.rule == "barrier-not-initialised"


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_init_count_limits(count: int) -> None:
    with pytest.raises(MachineError, match=f"{MAX_COUNT}"):
        Mbarrier().init(count)
    assert barrier(MAX_COUNT).pending == MAX_COUNT


def test_init_of_a_live_barrier() -> None:
    with pytest.raises(MachineError) as error:
        barrier().init(1)
    assert error.value.rule == "barrier-overwritten"


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("count", [0, 3])
def test_more_arrivals_than_pending(drop: bool, count: int) -> None:
    full = barrier(2)
    with pytest.raises(MachineError) as error:
        (full.arrive_drop if drop else full.arrive)(count)
    assert error.value.rule == "arrive-count-exceeded"
    assert full.expected == 2


def test_arrive_when_only_bytes_are_missing() -> None:
    waiting = barrier(1)
    waiting.arrive(1, tx=16)
    with pytest.raises(MachineError, match="still waits for 0"):
        waiting.arrive()


def test_transaction_count_limits() -> None:
    counted = barrier(1)
    counted.expect_tx(MAX_TX)
    for overflow in (1, -1):
        with pytest.raises(MachineError) as error:
            counted.expect_tx(overflow)
        assert error.value.rule == "tx-count-mismatch"
    early = barrier(1)
    early.complete_tx(MAX_TX)
    with pytest.raises(MachineError, match="below"):
        early.complete_tx(1)


def test_outstanding_bytes_at_inval_and_exit() -> None:
    waiting = barrier(1)
    waiting.check_exit()
    waiting.expect_tx(48)
    for action in (waiting.inval, waiting.check_exit):
        with pytest.raises(MachineError, match="48 bytes outstanding") as error:
            action()
        assert error.value.rule == "tx-count-mismatch"
    Mbarrier().check_exit()
