"""What the static check says of an mbarrier holds in every order of the warps, not only in the one that it plays."""

from __future__ import annotations

import pytest

from ptxgen.ir.declarations import Barrier
from ptxgen.ir.protocol.hazards import Mbarrier
from ptxgen.ir.protocol.knowledge import Place, ProtocolError, Warp, learn

PLACE = Place("done", 0)


def mbarrier(arrivals: int = 1, transaction_bytes: int = 0) -> Mbarrier:
    declared = Barrier(name="done", offset=0, arrivals=arrivals, transaction_bytes=transaction_bytes)
    return Mbarrier(place=PLACE, declared=declared, init=(0, 1), pending=arrivals)


def warps(count: int) -> list[Warp]:
    return [Warp(index=index, env={}) for index in range(count)]


def wait(barrier: Mbarrier, warp: Warp) -> None:
    """The warp waits for the last phase that is over."""
    learn(warp.known, barrier.published)
    warp.known["phase", PLACE] = barrier.completed
    barrier.wait_passed(warp, barrier.completed - 1)


def test_a_phase_ends_only_when_those_who_waited_for_the_last_are_known_to_be_past_it() -> None:
    barrier = mbarrier()
    one, other = warps(2)
    barrier.arrive(1, one)
    wait(barrier, other)
    message = r"barrier done\[0\] may run two phases ahead of warp 1, which waits for phase 0"
    with pytest.raises(ProtocolError, match=message):
        barrier.arrive(1, one)


def test_it_may_end_when_they_are_known() -> None:
    barrier = mbarrier()
    one, other = warps(2)
    barrier.arrive(1, one)
    wait(barrier, other)
    learn(one.known, other.known)
    barrier.arrive(1, one)
    assert barrier.completed == 2


def test_who_waits_before_the_first_phase_is_known_when_it_ends() -> None:
    barrier = mbarrier()
    one, other = warps(2)
    wait(barrier, other)
    with pytest.raises(ProtocolError, match=r"warp 1 waits on done\[0\] for parity 1, .* the wait hang"):
        barrier.arrive(1, one)


def test_an_arrival_does_not_count_for_the_phase_before() -> None:
    """Two warps arrive once a phase each; the first does not wait for the other's arrival."""
    barrier = mbarrier(arrivals=2)
    one, other = warps(2)
    barrier.arrive(1, one)
    barrier.arrive(1, other)
    with pytest.raises(ProtocolError, match=r"warp 0 arrives on done\[0\] in phase 1 without knowing that phase 0 is"):
        barrier.arrive(1, one)


def test_who_alone_arrives_needs_no_wait() -> None:
    barrier = mbarrier()
    (one,) = warps(1)
    barrier.arrive(1, one)
    barrier.arrive(1, one)
    assert barrier.completed == 2


def test_bytes_tell_how_far_their_issuer_had_come() -> None:
    """A pair: the other CTA's load, issued after its wait, ends the phase too."""
    barrier = mbarrier(transaction_bytes=32)
    one, other = warps(2)
    barrier.expect(32)
    barrier.arrive(1, one)
    barrier.bring(32, other)
    wait(barrier, other)
    barrier.expect(32)
    one.known["phase", PLACE] = 1
    barrier.arrive(1, one)
    other.known["rows", 1] = 4
    barrier.bring(32, other)
    assert barrier.completed == 2
    assert barrier.published == {("phase", PLACE): 1, ("waits", 1): 1}
