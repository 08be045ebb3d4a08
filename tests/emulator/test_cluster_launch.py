"""clusterlaunchcontrol: clusters that take the work of others which have not started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

# Each cluster writes, for its own tile and each that it cancels, which CTA it is: thread t of CTA i at word
# 32 * (tile + i) + t.
PERSISTENT = """
    .reg .b128 %q; .reg .b32 %tile, %parity, %rank;
    mov.u32 %r1, smem; add.u32 %r2, %r1, 16;
    setp.eq.u32 %p0, %t, 0;
    mov.u32 %rank, %cluster_ctarank;
    setp.ne.or.u32 %p1, %rank, 0, !%p0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    mov.u32 %tile, %ctaid.x; sub.u32 %tile, %tile, %rank;
    mov.u32 %r5, %ctaid.x;
    mov.b32 %parity, 0;
loop:
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {bytes};
    @!%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [%r2], [%r1];
    add.u32 %r4, %tile, %rank;
    mul.wide.u32 %rd3, %r4, 128; add.s64 %rd3, %rd1, %rd3;
    st.global.u32 [%rd3], %r5;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %parity;
    @!%p2 bra wait;
    xor.b32 %parity, %parity, 1;
    ld.shared.b128 %q, [%r2];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q;
    {first}
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    @%p3 bra loop;
    ret;"""
ONE_AXIS = "@%p3 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %tile, %q;"
ALL_AXES = "@%p3 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%tile, %r6, %r7, _}, %q;"


def persistent(cluster: int = 1, bytes_: int = 16, first: str = ONE_AXIS) -> str:
    multicast = ".multicast::cluster::all" if cluster > 1 else ""
    return PERSISTENT.replace("{bytes}", str(bytes_)).replace("{multicast}", multicast).replace("{first}", first)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("first", [ONE_AXIS, ALL_AXES])
@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0), ("random", 1)])
def test_every_tile_is_done_once(cluster: int, first: str, policy: str, seed: int, run_ptx: Run) -> None:
    outcome = run_ptx(persistent(cluster, first=first), grid=12, cluster=cluster, policy=policy, seed=seed)
    assert outcome.rules == []
    done_by = outcome.out.reshape(12 // cluster, cluster, 32)
    assert (done_by[..., :1] == done_by).all()
    assert (done_by[:, 0, 0] % cluster == 0).all()
    assert (done_by[:, -1, 0] - done_by[:, 0, 0] == cluster - 1).all()
    clusters = set(done_by[:, 0, 0].tolist())
    # All start where nothing delays them, one where the rest of the chip is busy.
    assert {"eager": len(clusters) == 12 // cluster, "late": len(clusters) == 1, "random": True}[policy]


def test_some_start_and_some_are_cancelled(run_ptx: Run) -> None:
    outcome = run_ptx(persistent(), grid=12, policy="random", seed=3)
    assert 1 < len(set(outcome.out.tolist())) < 12


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("[%r1], 16;", "[%r1], 32;"), "deadlock"),
        (("@%p0 mbarrier.arrive.expect_tx", "@!%p1 mbarrier.arrive.expect_tx"), "deadlock"),
        (("[%r2], [%r1];", "[%r2+8], [%r1];"), "misaligned-address"),
        (("@%p3 bra loop", "bra loop"), "cancel-after-failure"),
        (("ld.shared.b128 %q, [%r2]", "ld.shared.b128 %q, [%r2+16]"), "uninitialised-read"),
    ],
)
def test_misuse(change: tuple[str, str], rule: str, run_ptx: Run) -> None:
    text = persistent(2)
    assert change[0] in text
    outcome = run_ptx(text.replace(*change), grid=4, cluster=2, policy="late")
    assert outcome.rules == [rule]


def test_coordinates_of_a_failure_are_undefined(run_ptx: Run) -> None:
    text = persistent(first=ONE_AXIS.removeprefix("@%p3 "))
    text = text.replace("    ret;", "    st.global.u32 [%rd3], %tile;\n    ret;")
    assert run_ptx(text, grid=4).rules == ["uninitialised-read"] * 4


def test_a_response_lies_in_the_cta_that_asks(run_ptx: Run) -> None:
    text = persistent(2).replace("loop:", "loop:\n    mapa.shared::cluster.u32 %r3, %r1, 1;")
    outcome = run_ptx(text.replace("[%r2], [%r1];", "[%r2], [%r3];"), grid=4, cluster=2)
    assert outcome.rules == ["out-of-bounds"]
