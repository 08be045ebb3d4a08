"""tcgen05.cp, against addresses worked out byte by byte, and in a kernel with what orders it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator.tmem import Tmem
from ptxgen.emulator.tmem_copy import COPY_SHAPES, copy_accesses, copy_in
from ptxgen.errors import MachineError
from ptxgen.hardware.smem_descriptor import SmemDescriptor
from ptxgen.hardware.swizzle import Swizzle

Run = Callable[..., Any]

START = 4096


def descriptor_of(swizzle: Swizzle, start: int = START) -> SmemDescriptor:
    """Rows in groups of eight, one after the other; without a swizzle both halves of a row as well."""
    plain = swizzle is Swizzle.NONE
    return SmemDescriptor(
        start_address=start,
        leading_byte_offset=128 if plain else 16,
        stride_byte_offset=256 if plain else 8 * swizzle.span_bytes,
        swizzle=swizzle,
    )


def address_of(swizzle: Swizzle, row: int, column: int) -> int:
    """Of a 32-bit word of the source."""
    group, within = divmod(row, 8)
    if swizzle is Swizzle.NONE:
        return START + 256 * group + 128 * (column // 4) + 16 * within + 4 * (column % 4)
    return swizzle.apply(START + swizzle.span_bytes * row + 4 * column)


def source_row(form: tuple[str, str], lane: int) -> int:
    warp, within = divmod(lane, 32)
    return {
        ("128x256b", ""): lane,
        ("128x128b", ""): lane,
        ("64x128b", "warpx2::02_13"): 32 * (warp % 2) + within,
        ("64x128b", "warpx2::01_23"): 32 * (warp // 2) + within,
        ("32x128b", "warpx4"): within,
    }[form]


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128])
@pytest.mark.parametrize("form", COPY_SHAPES)
def test_every_lane_gets_its_row(form: tuple[str, str], swizzle: Swizzle) -> None:
    shape, smem, tmem = COPY_SHAPES[form], np.random.default_rng(1).integers(0, 256, 65536, np.uint8), Tmem()
    tmem.alloc(32)
    value = descriptor_of(swizzle).encode()
    copy_in(tmem, smem, shape=shape, address=5, descriptor=value)
    places = [
        [address_of(swizzle, source_row(form, lane), column) for lane in range(128)] for column in range(shape.columns)
    ]
    words = smem.view(np.uint32)[np.array(places) // 4]
    np.testing.assert_array_equal(tmem.words[5 : 5 + shape.columns], words)
    assert (tmem.words[[4, 5 + shape.columns]] == 0xFFFFFFFF).all()
    read, region = copy_accesses(shape=shape, address=5, descriptor=value)
    assert {byte for start, size in read for byte in range(start, start + size)} == {
        place + byte for row in places for place in row for byte in range(4)
    }
    assert (region.lanes, region.columns) == (((0, 128),), ((5, 5 + shape.columns),))


@pytest.mark.parametrize(
    ("address", "descriptor", "rule"),
    [
        (1 << 16, descriptor_of(Swizzle.NONE).encode(), "tmem-lane-access"),
        (30, descriptor_of(Swizzle.NONE).encode(), "out-of-bounds"),
        (508, descriptor_of(Swizzle.NONE).encode(), "out-of-bounds"),
        (0, 0, "illegal-descriptor"),
        (0, descriptor_of(Swizzle.NONE, 64 * 1024 - 1024).encode(), "out-of-bounds"),
    ],
)
def test_what_is_not_possible(address: int, descriptor: int, rule: str) -> None:
    tmem, smem = Tmem(), np.zeros(65536, np.uint8)
    tmem.alloc(32)
    with pytest.raises(MachineError) as caught:
        copy_in(tmem, smem, shape=COPY_SHAPES["128x256b", ""], address=address, descriptor=descriptor)
    assert caught.value.rule == rule


# Thread t of CTA r writes 100 r + t to row t; each CTA's copy of its own rows is read back lane by lane.
COPY = """
    .reg .b64 %desc; .reg .b16 %both;
    mov.u32 %r1, smem; mov.u32 %r5, %cluster_ctarank; mov.b16 %both, {mask};
    setp.ne.u32 %p0, %t, 0; setp.ge.u32 %p1, %t, 32;
    @!%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    add.u32 %r2, %r1, 1024; mad.lo.u32 %r3, %t, 16, %r2; mad.lo.u32 %r4, %r5, 100, %t;
    st.shared.v4.b32 [%r3], {%r4, %r4, %r4, %r4};
    fence.proxy.async.shared::cta;
    @%p1 bra ready;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r1+8], 32;
ready:
    barrier.cluster.arrive; barrier.cluster.wait;
    ld.shared.b32 %r6, [%r1+8];
    setp.ne.or.u32 %p2, %r5, 0, %p0;
    @{issuer} bra wait;
    shr.u32 %r7, %r2, 4; cvt.u64.u32 %desc, %r7; or.b64 %desc, %desc, 0x0000400800000000;
    tcgen05.cp.cta_group::{group}.128x128b [%r6], %desc;
    tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast};
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
    @!%p3 bra wait;
    tcgen05.fence::after_thread_sync;
    shr.u32 %r8, %t, 5; mad.lo.u32 %r8, %r8, 2097152, %r6;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r8+3];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd3, %r5, 512; add.s64 %rd1, %rd1, %rd3;
    st.global.u32 [%rd1], %r9;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive; barrier.cluster.wait;
    @%p1 ret;
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r6, 32;
    ret;"""


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize("group", [1, 2])
def test_each_cta_copies_from_its_own_memory(group: int, policy: str, run_ptx: Run) -> None:
    """Alone each CTA's first thread issues; on a pair the even CTA's does for both."""
    text = COPY.replace("{group}", str(group)).replace("{mask}", "3")
    text = text.replace("{multicast}", ".multicast::cluster.b64 [%r1], %both" if group == 2 else ".b64 [%r1]")
    text = text.replace("@{issuer}", "@%p2" if group == 2 else "@%p0")
    outcome = run_ptx(text, threads=128, grid=2, cluster=2, policy=policy)
    assert outcome.rules == []
    assert outcome.out.tolist() == [100 * rank + thread for rank in range(2) for thread in range(128)]
