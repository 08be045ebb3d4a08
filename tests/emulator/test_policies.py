"""When asynchronous work takes effect, deadlocks, budgets, and workers that change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

POLICIES = [("eager", 0), ("late", 0), ("random", 0), ("random", 1), ("random", 2)]
COPY = """
    mov.u32 %r1, smem; add.u32 %r2, %r1, 128;
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    bar.sync 0;
    @!%p0 bra wait;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {bytes};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 128, [%r1];
wait:
    {wait}
    mad.lo.u32 %r3, %t, 4, %r2;
    ld.shared.u32 %r0, [%r3];
    st.global.u32 [%rd1], %r0;
    ret;"""
WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], {parity}; @!%p1 bra wait;"


def copy(bytes_: int = 128, parity: int | None = 0) -> str:
    wait = "" if parity is None else WAIT.format(parity=parity)
    return COPY.replace("{bytes}", str(bytes_)).replace("{wait}", wait)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_copy_that_is_waited_for_arrives(policy: str, seed: int, run_ptx: Callable[..., Any]) -> None:
    outcome = run_ptx(copy(), inputs=range(50, 82), policy=policy, seed=seed)
    assert outcome.rules == []
    assert outcome.out.tolist() == list(range(50, 82))


@pytest.mark.parametrize(
    ("text", "eager", "late"),
    [
        (copy(parity=None), [], ["uninitialised-read", "exit-with-pending-async"]),
        (copy(parity=1), ["deadlock"], ["uninitialised-read", "exit-with-pending-async"]),
        (copy(bytes_=256), ["deadlock"], ["deadlock"]),
    ],
)
def test_a_missing_wait_shows_when_the_copy_is_late(
    text: str, eager: list[str], late: list[str], run_ptx: Callable[..., Any]
) -> None:
    assert run_ptx(text, inputs=range(32)).rules == eager
    assert run_ptx(text, inputs=range(32), policy="late").rules == late


def test_a_try_that_is_not_repeated_gives_up_in_some_schedules(run_ptx: Callable[..., Any]) -> None:
    once = copy().replace("@!%p1 bra wait;", "")
    assert run_ptx(once, inputs=range(32), policy="late").rules == []
    rules = {rule for seed in range(20) for rule in run_ptx(once, inputs=range(32), policy="random", seed=seed).rules}
    assert rules == {"uninitialised-read", "exit-with-pending-async"}


def test_a_deadlock_names_every_warp_and_its_barrier(run_ptx: Callable[..., Any]) -> None:
    body = """
    mov.u32 %r1, smem; setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 2;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 48;
    setp.ge.u32 %p2, %t, 32;
    @%p2 bra second;
first: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra first;
    ret;
second: bar.sync 3, 64;
    ret;"""
    (finding,) = run_ptx(body, threads=64).report.findings
    assert finding.rule == "deadlock"
    for part in (
        "warp 0 of CTA (0, 0, 0) (lanes 0xffffffff), line 24: waits for mbarrier 0x400 (phase of parity 0 wanted",
        "phase 0, 1 of 2 arrivals pending, 48 bytes outstanding",
        "warp 1 of CTA (0, 0, 0) (lanes 0xffffffff), line 26: waits at barrier 3; 32 of 64 threads arrived",
    ):
        assert part in finding.message


def test_a_test_may_fail_any_number_of_times_before_it_passes(run_ptx: Callable[..., Any]) -> None:
    """Warp 1 asks again and again while warp 0 computes; that is no deadlock."""
    body = """
    mov.u32 %r1, smem; setp.eq.u32 %p0, %t, 0; mov.u32 %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    bar.sync 0;
    setp.ge.u32 %p2, %t, 32;
    @%p2 bra ask;
count:
    add.u32 %r0, %r0, 1; setp.lt.u32 %p3, %r0, 60000;
    @%p3 bra count;
    @%p0 mbarrier.arrive.shared::cta.b64 _, [%r1];
    bra end;
ask:
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra ask;
end:
    st.global.u32 [%rd1], %r0; ret;"""
    outcome = run_ptx(body, threads=64)
    assert outcome.rules == []
    assert outcome.out.tolist() == [60000] * 32 + [0] * 32


def test_an_endless_loop_ends_with_its_budget(run_ptx: Callable[..., Any]) -> None:
    outcome = run_ptx("again: add.u32 %r0, %t, 1;\nbra again;", instruction_budget=50_000)
    assert outcome.rules == ["instruction-budget"]


GRID = """
    mov.u32 %r0, %ctaid.x; mad.lo.u32 %r2, %r0, 128, 0; cvt.u64.u32 %rd3, %r2; add.s64 %rd4, %rd1, %rd3;
    {extra}
    mad.lo.u32 %r1, %r0, 1000, %t;
    st.global.u32 [%rd4], %r1; ret;"""


def test_results_and_findings_do_not_depend_on_the_workers(run_ptx: Callable[..., Any]) -> None:
    clean = GRID.replace("{extra}", "")
    failing = GRID.replace("{extra}", "setp.eq.u32 %p0, %r0, 13; @%p0 trap;")
    for policy in ("eager", "random"):
        one, two = (run_ptx(clean, grid=24, workers=workers, policy=policy, seed=3) for workers in (1, 2))
        assert one.out.tolist() == two.out.tolist() == [1000 * c + t for c in range(24) for t in range(32)]
        assert one.report.findings == two.report.findings == ()
        assert one.report.instructions == two.report.instructions
        one, two = (run_ptx(failing, grid=24, workers=workers, policy=policy, seed=3) for workers in (1, 2))
        assert one.rules == ["trap"]
        assert one.report.findings == two.report.findings
        assert one.report.findings[0].cta == (13, 0, 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_clusters_that_touch_the_same_bytes_race(workers: int, run_ptx: Callable[..., Any]) -> None:
    overlap = GRID.replace("{extra}", "shr.u32 %r5, %r0, 1; mul.lo.u32 %r5, %r5, 128; cvt.u64.u32 %rd3, %r5;"
                                      " add.s64 %rd4, %rd1, %rd3;")  # fmt: skip
    outcome = run_ptx(overlap, grid=8, workers=workers)
    assert outcome.rules == ["global-race"] * 4
    assert "clusters 0 and 1 touch bytes [0, 128) of 'out'" in outcome.report.findings[0].message
    reading = GRID.replace("{extra}", "ld.global.u32 %r7, [%rd1];")
    races = run_ptx(reading, grid=4, workers=workers).report.findings
    assert {finding.rule for finding in races} == {"global-race"}
    assert all("0 writes" in finding.message and " reads " in finding.message for finding in races)


def test_clusters_that_wait_for_each_other_run_together(run_ptx: Callable[..., Any]) -> None:
    """The first cluster spins until the last one has counted; workers could not do that one after the other."""
    body = """
    atom.global.add.u32 %r0, [%rd0], 1;
spin:
    ld.acquire.gpu.global.u32 %r1, [%rd0];
    setp.lt.u32 %p0, %r1, 96;
    @%p0 bra spin;
    mov.u32 %r3, %ctaid.x; mul.lo.u32 %r3, %r3, 128; cvt.u64.u32 %rd3, %r3; add.s64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %r1; ret;"""
    outcome = run_ptx(body, grid=3, workers=2)
    assert outcome.rules == []
    assert outcome.out.tolist() == [96] * 96


FLAG = """
    mov.u32 %r3, %ctaid.x;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra others;
spin:
    ld.acquire.gpu.global.u32 %r1, [%rd0];
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra spin;
    st.global.u32 [%rd1], %r1; ret;
others:
    {others}
    ret;"""


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
def test_a_wait_for_another_cluster_costs_little(policy: str, run_ptx: Callable[..., Any]) -> None:
    """A warp that finds the same again stands still until there is something else."""
    work = "mov.u32 %r4, 0; more: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 90000; @%p2 bra more;"
    outcome = run_ptx(FLAG.replace("{others}", f"{work} st.release.gpu.global.u32 [%rd0], 7;"), grid=2, policy=policy)
    assert outcome.rules == []
    assert outcome.out.tolist()[:32] == [7] * 32
    assert outcome.report.instructions < 90000 * 3 + 10_000


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
def test_a_wait_for_nobody_is_a_deadlock(policy: str, run_ptx: Callable[..., Any]) -> None:
    outcome = run_ptx(FLAG.replace("{others}", ""), grid=3, policy=policy)
    assert outcome.rules == ["deadlock"]
    assert re.search(r"waits for a change of global memory; 4 bytes at 0x\w+ hold 0x0", str(outcome.report.findings[0]))
    assert outcome.report.instructions < 1000


def test_a_wait_may_be_given_up(run_ptx: Callable[..., Any]) -> None:
    """Who counts its looks is not taken for one that waits for ever."""
    body = """
    mov.u32 %r4, 0;
spin:
    add.u32 %r4, %r4, 1;
    ld.relaxed.gpu.global.u32 %r1, [%rd0];
    setp.eq.u32 %p0, %r1, 0;
    setp.lt.and.u32 %p0, %r4, 90, %p0;
    @%p0 bra spin;
    st.global.u32 [%rd1], %r4; ret;"""
    outcome = run_ptx(body)
    assert outcome.rules == []
    assert outcome.out.tolist() == [90] * 32
