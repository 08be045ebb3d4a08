"""Lanes that take different ways, and what only the active ones may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STORE = "st.global.u32 [%rd1], %r0; ret;"


def test_both_sides_of_a_branch_and_registers_that_live_on(run_ptx: Callable[..., Any]) -> None:
    body = """
    mov.u32 %r0, 5; mov.u32 %r1, 100;
    setp.lt.u32 %p0, %t, 10;
    @%p0 bra low;
    add.u32 %r0, %r0, 1;
    bra meet;
low:
    mov.u32 %r1, 7;
meet:
    mad.lo.u32 %r0, %r1, 1000, %r0;
"""
    out = run_ptx(body + STORE).out.tolist()
    assert out == [7005] * 10 + [100006] * 22


def test_loops_of_different_lengths(run_ptx: Callable[..., Any]) -> None:
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
again:
    add.u32 %r0, %r0, %r1; add.u32 %r1, %r1, 1;
    setp.le.u32 %p0, %r1, %t;
    @%p0 bra again;
"""
    assert run_ptx(body + STORE).out.tolist() == [n * (n + 1) // 2 for n in range(32)]


def test_nested_branches_and_early_exits(run_ptx: Callable[..., Any]) -> None:
    body = """
    mov.u32 %r0, 1;
    st.global.u32 [%rd1], %r0;
    setp.ge.u32 %p0, %t, 24;
    @%p0 exit;
    and.b32 %r1, %t, 1; setp.ne.u32 %p1, %r1, 0;
    @!%p1 bra even;
    setp.gt.u32 %p2, %t, 15;
    @%p2 bra high;
    mov.u32 %r0, 2;
    bra meet;
high:
    mov.u32 %r0, 3;
    st.global.u32 [%rd1], %r0;
    ret;
even:
    mov.u32 %r0, 4;
meet:
    add.u32 %r0, %r0, 10;
"""
    wanted = [1 if t >= 24 else 14 if t % 2 == 0 else 3 if t > 15 else 12 for t in range(32)]
    assert run_ptx(body + STORE).out.tolist() == wanted


def test_a_guard_that_differs_between_lanes(run_ptx: Callable[..., Any]) -> None:
    body = """
    setp.lt.u32 %p0, %t, 3;
    mov.u32 %r0, 9;
    @%p0 add.u32 %r0, %r0, %t;
    @!%p0 mov.u32 %r0, 1;
"""
    assert run_ptx(body + STORE).out.tolist() == [9, 10, 11] + [1] * 29


def test_the_elected_lane_is_policy_and_one(run_ptx: Callable[..., Any]) -> None:
    body = """
    mov.u32 %r0, 0;
    elect.sync %r1|%p0, 0xffffffff;
    @!%p0 bra meet;
    add.u32 %r0, %r1, 1;
meet:
"""
    for elect, lane in (("first", 0), ("last", 31), (5, 5)):
        assert run_ptx(body + STORE, elect=elect).out.tolist() == [lane + 1 if t == lane else 0 for t in range(32)]
    drawn = {tuple(run_ptx(body + STORE, elect="random", seed=seed).out.tolist()) for seed in range(8)}
    assert len(drawn) > 1
    assert all(sum(value != 0 for value in out) == 1 for out in drawn)


def test_lanes_of_a_warp_may_wait_for_each_other(run_ptx: Callable[..., Any]) -> None:
    """Lane 0 waits for what lane 1 does on the other side of the branch."""
    body = """
    mov.u32 %r1, smem; mov.u32 %r0, 0;
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 31;
    bar.warp.sync 0xffffffff;
    @!%p0 bra others;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra wait;
    mov.u32 %r0, 77;
    bra meet;
others:
    mbarrier.arrive.shared::cta.b64 _, [%r1];
meet:
"""
    assert run_ptx(body + STORE).out.tolist() == [77] + [0] * 31


def test_a_warp_that_is_not_full(run_ptx: Callable[..., Any]) -> None:
    body = "setp.eq.u32 %p0, %t, %t; vote.sync.ballot.b32 %r0, %p0, 0xff; bar.sync 0;"
    assert run_ptx(body + STORE, threads=8).out.tolist() == [0xFF] * 8


def test_an_indexed_branch(run_ptx: Callable[..., Any]) -> None:
    body = """
    table: .branchtargets a, b, a;
    rem.u32 %r1, %t, 3;
    brx.idx %r1, table;
a:  mov.u32 %r0, 1; bra meet;
b:  mov.u32 %r0, 2;
meet:
"""
    assert run_ptx(body + STORE).out.tolist() == [(1, 2, 1)[t % 3] for t in range(32)]
