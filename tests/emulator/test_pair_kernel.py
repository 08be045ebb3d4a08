"""A kernel in which two CTAs multiply together (tcgen05 with cta_group::2), and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.errors import LaunchError
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap
from ptxgen.hardware.tmem import accumulator_layout, allocation_columns

Array = np.ndarray[Any, Any]

K = 64
KERNEL = """\
.version 8.6
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry pair(.param .align 128 .b8 a_map[128], .param .align 128 .b8 b_map[128], .param .u64 image)
.reqntid 128
.reqnctapercluster 2
{
    .reg .pred %elected, %not_first, %follows, %passed, %more;
    .reg .b16 %both;
    .reg .b32 %thread, %warp, %rank, %smem, %full, %leader_full, %done, %a, %b, %a_row, %b_row;
    .reg .b32 %tmem, %lanes, %column, %low, %acc<8>;
    .reg .b64 %a_map, %b_map, %a_desc, %b_desc, %out;
    mov.b32 %thread, %tid.x;
    shr.u32 %warp, %thread, 5;
    mov.b32 %rank, %cluster_ctarank;
    setp.ne.u32 %not_first, %warp, 0;
    setp.ne.u32 %follows, %rank, 0;
    elect.sync _|%elected, 0xffffffff;
    mov.b16 %both, 3;
    mov.b32 %smem, smem;
    add.u32 %full, %smem, 8;
    add.u32 %done, %smem, 16;
    add.u32 %a, %smem, 1024;
    add.u32 %b, %smem, 17408;
    mapa.shared::cluster.u32 %leader_full, %full, 0;
    mov.b64 %a_map, a_map;
    cvta.param.u64 %a_map, %a_map;
    mov.b64 %b_map, b_map;
    cvta.param.u64 %b_map, %b_map;
    @%not_first bra set_up;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%smem], $ALLOCATED;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
    @!%elected bra set_up;
    mbarrier.init.shared::cta.b64 [%full], 1;
    mbarrier.init.shared::cta.b64 [%done], 1;
    fence.mbarrier_init.release.cluster;
set_up:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %tmem, [%smem];
    @%not_first bra wait_done;
    @!%elected bra wait_done;
    @%follows bra load;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], $BYTES;
load:
    mul.lo.u32 %a_row, %rank, $A_ROWS;
    mul.lo.u32 %b_row, %rank, $B_ROWS;
    cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%a], [%a_map, {0, %a_row}], [%leader_full];
    cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%b], [%b_map, {0, %b_row}], [%leader_full];
    @%follows bra wait_done;
wait_full:
    mbarrier.try_wait.parity.shared::cta.b64 %passed, [%full], 0;
    @!%passed bra wait_full;
    shr.u32 %low, %a, 4;
    cvt.u64.u32 %a_desc, %low;
    or.b64 %a_desc, %a_desc, 0x4000404000010000;
    shr.u32 %low, %b, 4;
    cvt.u64.u32 %b_desc, %low;
    or.b64 %b_desc, %b_desc, 0x4000404000010000;
    tcgen05.mma.cta_group::2.kind::f16 [%tmem], %a_desc, %b_desc, $IDESC, 0;
    add.s64 %a_desc, %a_desc, 2;
    add.s64 %b_desc, %b_desc, 2;
    tcgen05.mma.cta_group::2.kind::f16 [%tmem], %a_desc, %b_desc, $IDESC, 1;
    add.s64 %a_desc, %a_desc, 2;
    add.s64 %b_desc, %b_desc, 2;
    tcgen05.mma.cta_group::2.kind::f16 [%tmem], %a_desc, %b_desc, $IDESC, 1;
    add.s64 %a_desc, %a_desc, 2;
    add.s64 %b_desc, %b_desc, 2;
    tcgen05.mma.cta_group::2.kind::f16 [%tmem], %a_desc, %b_desc, $IDESC, 1;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%done], %both;
wait_done:
    mbarrier.try_wait.parity.shared::cta.b64 %passed, [%done], 0;
    @!%passed bra wait_done;
    tcgen05.fence::after_thread_sync;
    mad.lo.u32 %lanes, %warp, 2097152, %tmem;
    ld.param.u64 %out, [image];
    mad.lo.u32 %low, %rank, 128, %thread;
    mul.lo.u32 %low, %low, $ROW_BYTES;
    cvt.u64.u32 %a_desc, %low;
    add.s64 %out, %out, %a_desc;
    mov.b32 %column, 0;
read:
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {%acc0, %acc1, %acc2, %acc3, %acc4, %acc5, %acc6, %acc7}, [%lanes];
    tcgen05.wait::ld.sync.aligned;
    st.global.v4.b32 [%out], {%acc0, %acc1, %acc2, %acc3};
    st.global.v4.b32 [%out+16], {%acc4, %acc5, %acc6, %acc7};
    add.s64 %out, %out, 32;
    add.u32 %lanes, %lanes, 8;
    add.u32 %column, %column, 8;
    setp.lt.u32 %more, %column, $COLUMNS;
    @%more bra read;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%not_first bra end;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %tmem, $ALLOCATED;
end:
    ret;
}
"""  # noqa: E501


def text_of(m: int, n: int) -> str:
    columns = accumulator_layout(m, n, cta_group=2).columns
    values = {
        "ALLOCATED": allocation_columns(columns),
        "BYTES": (m + n) * 2 * K,
        "A_ROWS": m // 2,
        "B_ROWS": n // 2,
        "IDESC": InstructionDescriptor(m=m, n=n, a_type="f16", b_type="f16").encode(),
        "ROW_BYTES": 4 * columns,
        "COLUMNS": columns,
    }
    text = KERNEL
    for name, value in values.items():
        text = text.replace(f"${name}", str(value))
    return text


def run(text: str, m: int = 256, n: int = 64, **options: Any) -> tuple[Report, Array, Array]:
    """The report, D as the layout says where each element lies, and A · Bᵀ."""
    random = np.random.default_rng(m + n)
    a, b = (random.integers(-8, 9, (rows, K)).astype(np.float16) for rows in (m, n))
    memory = GlobalMemory()
    maps = []
    for name, matrix in (("A", a), ("B", b)):
        buffer = memory.allocate(matrix.nbytes, name=name)
        buffer.data[:] = matrix.view(np.uint8).reshape(-1)
        maps.append(
            TensorMap(
                element_type=element_type("f16"),
                address=buffer.address,
                dims=(K, matrix.shape[0]),
                strides_bytes=(2 * K,),
                box=(K, matrix.shape[0] // 2),
                swizzle=Swizzle.B128,
            )
        )
    layout = accumulator_layout(m, n, cta_group=2)
    image = memory.allocate(2 * 128 * layout.columns * 4, name="image")
    image.data[:] = 0xFF
    cluster = options.pop("cluster", (2, 1, 1))
    report = Machine(chip=target("sm_100a"), memory=memory, workers=1, **options).launch(
        load_module(text, name="pair.ptx"),
        "pair",
        grid=cluster,
        block=(128, 1, 1),
        cluster=cluster,
        dynamic_smem_bytes=1024 + 16384 + 16384,
        arguments=[*maps, image.address.to_bytes(8, "little")],
    )
    lanes = image.data.view(np.float32).reshape(2, 128, layout.columns)
    places = np.array([[layout.place(row, column) for column in range(n)] for row in range(m)])
    d: Array = lanes[places[..., 0], places[..., 1], places[..., 2]]
    return report, d, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize(("m", "n"), [(256, 64), (256, 256), (128, 64), (128, 256), (256, 16), (128, 32)])
def test_each_cta_gets_its_rows_of_d(m: int, n: int, policy: str) -> None:
    report, d, expected = run(text_of(m, n), m, n, policy=policy, seed=1)
    assert report.findings == ()
    np.testing.assert_array_equal(d, expected)


COMMIT = "commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%done], %both"
ALLOC = "    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%smem], 64"
LAST_BARRIER = """    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%not_first bra end;"""


@pytest.mark.parametrize(
    ("old", "new", "policy", "rule", "words"),
    [
        ("mov.b16 %both, 3", "mov.b16 %both, 1", "eager", "deadlock", "phase of parity 0 wanted"),
        ("mov.b16 %both, 3", "mov.b16 %both, 4", "eager", "multicast-mask", "names CTA 2 of a cluster of 2"),
        ("mov.b16 %both, 3", "mov.b16 %both, 0", "eager", "multicast-mask", "names no CTA"),
        (COMMIT, COMMIT.replace(".multicast::cluster", "").replace(", %both", ""), "late", "deadlock", ""),
        ("cluster.u32 %leader_full, %full, 0", "cluster.u32 %leader_full, %full, %rank", "late", "deadlock", ""),
        ("2d.cta_group::2.shared", "2d.shared", "eager", "illegal-tensor-copy", "CTA 1 of the cluster signals"),
        ("tcgen05.alloc.cta_group::2", "tcgen05.alloc.cta_group::1", "eager", "cta-group-mixed", "another in line"),
        ("    tcgen05.relinq", "    @%follows bra set_up;\n    tcgen05.relinq", "late", "pair-order",
         "waits for tcgen05.relinquish_alloc_permit in the pair's other CTA (1, 0, 0)"),
        (ALLOC, f"    mad.lo.u32 %low, %rank, 32, 32;\n{ALLOC.replace('64', '%low')}", "eager",
         "illegal-tmem-allocation", "32 columns to shared address 0x400 and 64 columns to shared address 0x400"),
        (ALLOC, f"    mad.lo.u32 %low, %rank, 16, %smem;\n{ALLOC.replace('%smem', '%low')}", "eager",
         "illegal-tmem-allocation", "64 columns to shared address 0x400 and 64 columns to shared address 0x410"),
        ("    @%follows bra load;", "", "late", "tx-count-mismatch", "the CTA ends while bytes are outstanding"),
        ("[%full], 40960", "[%full], 20480", "eager", "tx-count-mismatch", "-20480 bytes outstanding"),
        ("bra end;\n    tcgen05", "bra end;\n    @%follows bra end;\n    tcgen05", "eager", "tmem-leak", ""),
        ("%tmem, 64;\nend", "%tmem, 32;\nend", "eager", "illegal-tmem-allocation", "allocated columns: 0..63"),
    ],
)  # fmt: skip
def test_what_breaks_a_pair(old: str, new: str, policy: str, rule: str, words: str) -> None:
    text = text_of(256, 64)
    assert old in text
    report, _, _ = run(text.replace(old, new), policy=policy)
    assert [finding.rule for finding in report.errors] == [rule]
    assert words in str(report.errors[0])


def test_a_cta_outlives_what_its_peer_sends() -> None:
    """The odd CTA neither waits for the commit nor reads: the commit's arrival may find nobody."""
    text = text_of(256, 64).replace("wait_done:\n", "wait_done:\n    @%follows bra last;\n")
    text = text.replace(LAST_BARRIER, f"last:\n{LAST_BARRIER}")
    report, _, _ = run(text, policy="late")
    assert [finding.rule for finding in report.errors] == ["exit-with-pending-async"]
    assert "CTA (1, 0, 0) ends while a commit of CTA (0, 0, 0) is on its way to it" in report.errors[0].message


def test_an_earlier_commit_may_come_late() -> None:
    """The even CTA commits twice, the odd one waits for the second only."""
    early = COMMIT.replace("%done", "%smem+24")
    text = text_of(256, 64).replace(f"    tcgen05.{COMMIT};", f"    tcgen05.{early};\n    tcgen05.{COMMIT};")
    text = text.replace("[%done], 1;", "[%done], 1;\n    mbarrier.init.shared::cta.b64 [%smem+24], 1;")
    for policy, rules in (("eager", []), ("late", [("warning", "commit-after-exit")])):
        report, d, expected = run(text, policy=policy)
        assert [(finding.severity, finding.rule) for finding in report.findings] == rules
        np.testing.assert_array_equal(d, expected)


def test_nobody_arrives_at_a_cta_that_has_ended() -> None:
    text = text_of(256, 64).replace(
        "    @%not_first bra set_up;",
        "    @!%follows ret;\n    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%leader_full];",
    )
    report, _, _ = run(text)
    assert [finding.rule for finding in report.errors] == ["exit-with-pending-async"]
    assert "CTA (0, 0, 0) (rank 0) of the cluster has ended" in report.errors[0].message


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), *(("random", seed) for seed in range(4))])
def test_allocations_of_a_pair_wait_for_room_in_both(policy: str, seed: int, run_ptx: Callable[..., Any]) -> None:
    """Two warps of each CTA want all columns; whoever comes first, and whether its peer waits, they get them. All name
    one place for the address: any two of them may run an allocation together."""
    body = """
    shr.u32 %r2, %t, 5; mov.u32 %r1, smem;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 512;
    ld.shared.b32 %r3, [%r1];
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r3, 512;
    bar.sync 0;
    setp.ne.u32 %p0, %r2, 0;
    @%p0 ret;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
    ret;"""
    assert run_ptx(body, threads=64, grid=2, cluster=2, policy=policy, seed=seed).rules == []


ALLOC_THEN_MEET = """
    mov.u32 %r1, smem; mov.u32 %r2, %cluster_ctarank; setp.ne.u32 %p0, %r2, 0;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;
    ld.shared.b32 %r3, [%r1];
    @%p0 bra odd;
    {even}
    ret;
odd:
    {odd}
    ret;"""
DEALLOC = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r3, 32;"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"


def test_a_dealloc_before_the_barrier_of_the_other_hangs_where_it_waits(run_ptx: Callable[..., Any]) -> None:
    """PTX ISA 9.1 §9.7.16.5, Table 48: the dealloc may or may not wait, so the hang may or may not be."""
    hangs = ALLOC_THEN_MEET.replace("{even}", MEET + DEALLOC).replace("{odd}", DEALLOC + MEET)
    assert run_ptx(hangs, grid=2, cluster=2, policy="late").rules == ["pair-order"]
    assert run_ptx(hangs, grid=2, cluster=2, policy="eager").rules == []
    same = ALLOC_THEN_MEET.replace("{even}", MEET + DEALLOC).replace("{odd}", MEET + DEALLOC)
    assert run_ptx(same, grid=2, cluster=2, policy="late").rules == []


def test_what_only_one_cta_of_a_pair_runs_is_an_error_where_it_does_not_wait(run_ptx: Callable[..., Any]) -> None:
    permit = "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
    text = ALLOC_THEN_MEET.replace("{even}", permit + DEALLOC).replace("{odd}", DEALLOC)
    assert run_ptx(text, grid=2, cluster=2).rules == ["pair-order"]
    assert run_ptx(text, grid=2, cluster=2, policy="late").rules == ["pair-order"]


def test_cta_group_2_needs_an_even_cluster() -> None:
    text = text_of(256, 64).replace(".reqnctapercluster 2\n", "")
    with pytest.raises(LaunchError, match=r"cluster \(1, 1, 1\) has no pairs of CTAs; line \d+ names cta_group::2"):
        run(text, cluster=(1, 1, 1))
