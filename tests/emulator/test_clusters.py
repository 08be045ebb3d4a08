"""What the CTAs of a cluster do to each other: barriers, addresses, accesses, arrivals, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

POLICIES = [("eager", 0), ("late", 0), ("random", 0), ("random", 1)]
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
# Each CTA of four stores rank * 100 + thread at word t of its shared memory; %r1 is the rank, %r2 the next CTA's,
# %r3 this thread's word here, %r4 the same word there.
FOUR = """
    mov.u32 %r1, %cluster_ctarank; add.u32 %r2, %r1, 1; and.b32 %r2, %r2, 3;
    mov.u32 %r0, smem; shl.b32 %r5, %t, 2; add.u32 %r3, %r0, %r5;
    mad.lo.u32 %r6, %r1, 100, %t; mul.wide.u32 %rd5, %r1, 128; add.s64 %rd1, %rd1, %rd5;
    st.shared.u32 [%r3], %r6;
    mapa.shared::cluster.u32 %r4, %r3, %r2;
    {meet}
    {body}
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    {store}
    ret;"""
STORE = "st.global.u32 [%rd1], %r7;"


def four(body: str, meet: str = MEET, store: str = STORE) -> str:
    return FOUR.replace("{body}", body).replace("{meet}", meet).replace("{store}", store)


def run_four(run_ptx: Run, text: str, policy: str, seed: int) -> list[list[int]]:
    """What the threads of each CTA have stored."""
    outcome = run_ptx(text, grid=4, cluster=4, policy=policy, seed=seed)
    assert outcome.rules == []
    rows: list[list[int]] = outcome.out.reshape(4, 32).tolist()
    return rows


NEXT = [[(rank + 1) % 4 * 100 + t for t in range(32)] for rank in range(4)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(
    "meet",
    [
        MEET,
        "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;",
    ],
)
def test_the_word_of_the_next_cta(meet: str, policy: str, seed: int, run_ptx: Run) -> None:
    assert run_four(run_ptx, four("ld.shared::cluster.u32 %r7, [%r4];", meet), policy, seed) == NEXT


@pytest.mark.parametrize(
    "body",
    [
        "cvt.u64.u32 %rd3, %r3; cvta.shared.u64 %rd3, %rd3; mapa.u64 %rd4, %rd3, %r2; ld.u32 %r7, [%rd4];",
        "cvt.u64.u32 %rd3, %r4; cvta.shared::cluster.u64 %rd3, %rd3; ld.u32 %r7, [%rd3];",
        "ld.acquire.cluster.shared::cluster.u32 %r7, [%r4];",
        "and.b32 %r8, %r5, 0x70; add.u32 %r8, %r0, %r8; mapa.shared::cluster.u32 %r8, %r8, %r2;"
        "ld.shared::cluster.v4.u32 {%r10, %r11, %r12, %r13}, [%r8]; and.b32 %r9, %t, 3;"
        "setp.eq.u32 %p1, %r9, 1; setp.eq.u32 %p2, %r9, 2; setp.eq.u32 %p3, %r9, 3;"
        "selp.b32 %r7, %r11, %r10, %p1; selp.b32 %r7, %r12, %r7, %p2; selp.b32 %r7, %r13, %r7, %p3;",
    ],
)
def test_ways_to_address_it(body: str, run_ptx: Run) -> None:
    assert run_four(run_ptx, four(body), "random", 0) == NEXT


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_stores_into_the_next_cta(policy: str, seed: int, run_ptx: Run) -> None:
    body = f"add.u32 %r8, %r6, 7; st.shared::cluster.u32 [%r4], %r8;\n    {MEET}\n    ld.shared.u32 %r7, [%r3];"
    rows = run_four(run_ptx, four(body), policy, seed)
    assert rows == [[(rank - 1) % 4 * 100 + t + 7 for t in range(32)] for rank in range(4)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(
    "instruction", ["atom.shared::cluster.add.u32 %r9, [%r8], 1;", "red.shared::cluster.add.u32 [%r8], 1;"]
)
def test_everybody_counts_in_cta_0(instruction: str, policy: str, seed: int, run_ptx: Run) -> None:
    body = f"mapa.shared::cluster.u32 %r8, %r0, 0; {instruction}\n    {MEET}\n    ld.shared.u32 %r7, [%r0];"
    rows = run_four(run_ptx, four(body), policy, seed)
    assert [set(row) for row in rows] == [{128}, {100}, {200}, {300}]


def test_whose_address_it_is(run_ptx: Run) -> None:
    body = """getctarank.shared::cluster.u32 %r7, %r4; getctarank.shared::cluster.u32 %r8, %r3;
    isspacep.shared::cluster %p1, %rd0; mad.lo.u32 %r7, %r7, 16, %r8; selp.b32 %r8, 256, 0, %p1;
    add.u32 %r7, %r7, %r8;"""
    rows = run_four(run_ptx, four(body), "eager", 0)
    assert [set(row) for row in rows] == [{16 * ((rank + 1) % 4) + rank} for rank in range(4)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(
    "arrive",
    [
        "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8], 4;",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];",
        "@%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r8], 64;"
        "@%p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r8], 64;",
    ],
)
def test_arrivals_in_the_next_cta(arrive: str, policy: str, seed: int, run_ptx: Run) -> None:
    """What is stored before a release is there after the acquiring wait."""
    count = 4 if "], 4" in arrive else 1 if "@%p0" in arrive else 32
    meet = f"""setp.eq.u32 %p0, %t, 0; add.u32 %r9, %r0, 512; @%p0 mbarrier.init.shared::cta.b64 [%r9], {count};
    fence.mbarrier_init.release.cluster; {MEET}
    st.shared::cluster.u32 [%r4+128], %r6; mapa.shared::cluster.u32 %r8, %r9, %r2; bar.warp.sync -1;"""
    body = f"""{arrive}
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r9], 0;
    @!%p1 bra wait;
    ld.shared.u32 %r7, [%r3+128];"""
    rows = run_four(run_ptx, four(body, meet), policy, seed)
    assert rows == [[(rank - 1) % 4 * 100 + t for t in range(32)] for rank in range(4)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_copy_into_the_next_cta(policy: str, seed: int, run_ptx: Run) -> None:
    meet = f"""setp.eq.u32 %p0, %t, 0; add.u32 %r9, %r0, 512; @%p0 mbarrier.init.shared::cta.b64 [%r9], 1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], 128;
    fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; {MEET}"""
    body = """add.u32 %r8, %r0, 256; mapa.shared::cluster.u32 %r8, %r8, %r2; mapa.shared::cluster.u32 %r10, %r9, %r2;
    @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r0], 128, [%r10];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r9], 0;
    @!%p1 bra wait;
    ld.shared.u32 %r7, [%r3+256];"""
    rows = run_four(run_ptx, four(body, meet), policy, seed)
    assert rows == [[(rank - 1) % 4 * 100 + t for t in range(32)] for rank in range(4)]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("mapa.shared::cluster.u32 %r4, %r3, %r2", "mapa.shared::cluster.u32 %r4, %r3, 4"), "out-of-bounds"),
        ((MEET, "barrier.cluster.wait;"), "named-barrier-mismatch"),
        ((MEET, "barrier.cluster.arrive; barrier.cluster.arrive;"), "named-barrier-mismatch"),
        (("ld.shared::cluster.u32 %r7, [%r4]", "ld.shared::cluster.u32 %r7, [%r4+1048576]"), "out-of-bounds"),
    ],
)
def test_misuse(change: tuple[str, str], rule: str, run_ptx: Run) -> None:
    text = four("ld.shared::cluster.u32 %r7, [%r4];")
    assert change[0] in text
    assert run_ptx(text.replace(*change), grid=4, cluster=4).rules == [rule]


def test_a_cta_that_has_ended_is_not_read(run_ptx: Run) -> None:
    text = four("setp.ne.u32 %p1, %r1, 1; @!%p1 ret; @%p1 ld.shared::cluster.u32 %r7, [%r4];")
    report = run_ptx(text, grid=4, cluster=4, policy="random", seed=0).report
    assert {finding.rule for finding in report.errors} <= {"exit-with-pending-async"}


def test_programmatic_launches_change_nothing_of_one_grid(run_ptx: Run) -> None:
    body = "griddepcontrol.wait; griddepcontrol.launch_dependents; add.u32 %r7, %t, 5; st.global.u32 [%rd1], %r7; ret;"
    outcome = run_ptx(body)
    assert outcome.rules == []
    assert outcome.out.tolist() == list(range(5, 37))
