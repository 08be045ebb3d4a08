"""Tensor maps that a kernel makes itself: tensormap.replace, tensormap.cp_fenceproxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.emulator.tensor_maps import encode
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

Run = Callable[..., Any]

# A map of the input as 6 rows of 8 words, 48 bytes apart from each other, is made in shared memory, copied over the
# output's first 128 bytes, and gone by: box 4 x 4 at (2, 1). Thread t then stores word t of the box.
MAKE = """
    .reg .b64 %place;
    mov.u32 %r0, smem; add.u32 %r1, %r0, 128; add.u32 %r3, %r0, 1024;
    setp.eq.u32 %p0, %t, 0;
    mul.wide.u32 %rd4, %t, 4; sub.s64 %place, %rd1, %rd4;
    st.shared.u32 [%r1], 0; shl.b32 %r2, %t, 2; add.u32 %r2, %r1, %r2; st.shared.u32 [%r2], 0;
    bar.warp.sync -1;
    mov.b64 %rd5, 48;
    @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %rd0;
    @%p0 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r1], 1;
    @%p0 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r1], 0, 4;
    @%p0 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r1], 1, 4;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 0, 8;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 1, 6;
    @%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r1], 0, %rd5;
    @%p0 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r1], 0, 1;
    @%p0 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r1], 1, 1;
    @%p0 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r1], 2;
    @%p0 tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r1], 0;
    @%p0 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r1], 0;
    @%p0 tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r1], 0;
    bar.warp.sync -1;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%place], [%r1], 128;
    fence.proxy.tensormap::generic.acquire.gpu [%place], 128;
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
    fence.mbarrier_init.release.cluster;
    bar.warp.sync -1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 64;
    @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%place, {4, 1}], [%r0];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0;
    @!%p1 bra wait;
    and.b32 %r4, %t, 15; shl.b32 %r4, %r4, 2; add.u32 %r4, %r3, %r4;
    ld.shared.u32 %r5, [%r4];
    bar.warp.sync -1;
    st.global.u32 [%rd1], %r5;
    ret;"""
ROWS = np.arange(72, dtype=np.uint32).reshape(6, 12)


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_a_map_made_by_the_kernel(policy: str, run_ptx: Run) -> None:
    outcome = run_ptx(MAKE, inputs=ROWS.ravel(), policy=policy)
    assert outcome.rules == []
    np.testing.assert_array_equal(outcome.out[:16].reshape(4, 4), ROWS[1:5, 4:8])


def test_a_map_edited_in_global_memory(run_ptx: Run) -> None:
    """The second edit moves the box: the map that counts is that of the moment."""
    edit = "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%place], 0, 6;\n"
    fence = "    fence.proxy.tensormap::generic.acquire"
    outcome = run_ptx(MAKE.replace(fence, f"    {edit}{fence}"), inputs=ROWS.ravel())
    assert outcome.rules == []
    wanted = ROWS[1:5, 4:8].copy()
    wanted[:, 2:] = 0
    np.testing.assert_array_equal(outcome.out[:16].reshape(4, 4), wanted)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("swizzle_mode.shared::cta.b1024.b32 [%r1], 0", "swizzle_mode.shared::cta.b1024.b32 [%r1], 9"),
         "illegal-tensor-copy"),
        (("global_stride.shared::cta.b1024.b64 [%r1], 0, %rd5", "global_stride.shared::cta.b1024.b64 [%r1], 0, 50"),
         "illegal-tensor-copy"),
        (("add.u32 %r1, %r0, 128", "add.u32 %r1, %r0, 160"), "misaligned-address"),
        (("add.u32 %r1, %r0, 128", "add.u32 %r1, %r0, 1048576"), "out-of-bounds"),
        (("%rd4;\n    st.shared", "%rd4; add.s64 %place, %place, 4096;\n    st.shared"), "out-of-bounds"),
    ],
)  # fmt: skip
def test_misuse(change: tuple[str, str], rule: str, run_ptx: Run) -> None:
    assert change[0] in MAKE
    assert run_ptx(MAKE.replace(*change), inputs=ROWS.ravel()).rules == [rule]


@pytest.mark.parametrize("lane", [0, 5])
def test_lanes_load_from_the_parameters_by_generic_addresses(lane: int, run_ptx: Run) -> None:
    """Lanes below `lane` hold no address and take no part."""
    body = f"""
    setp.ge.u32 %p0, %t, {lane};
    @%p0 mov.u64 %rd4, in;
    @%p0 cvta.param.u64 %rd4, %rd4;
    @%p0 and.b32 %r0, %t, 1;
    @%p0 mul.wide.u32 %rd5, %r0, 4;
    @%p0 add.s64 %rd4, %rd4, %rd5;
    @%p0 ld.u32 %r1, [%rd4];
    @%p0 st.global.u32 [%rd1], %r1;
    ret;"""
    outcome = run_ptx(body)
    assert outcome.rules == []
    low, high = outcome.out[6].item(), outcome.out[7].item()
    assert high << 32 | low >= 0x7F00_0000_0000
    assert outcome.out[lane:].tolist() == [(low, high)[t & 1] for t in range(lane, 32)]


PARAMETER = """\
.version 8.6
.target sm_100a
.address_size 64
.visible .entry kernel(.param .align 64 .b8 maps[256])
{
    .shared .align 128 .b8 tile[64];
    .shared .align 8 .b64 landed;
    .reg .b64 %map; .reg .b32 %tile, %landed; .reg .pred %passed;
    mov.u64 %map, maps; cvta.param.u64 %map, %map;
    mov.u32 %tile, tile; mov.u32 %landed, landed;
    mbarrier.init.shared::cta.b64 [%landed], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%landed], 64;
    cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%tile], [%map, {0}], [%landed];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %passed, [%landed], 0;
    @!%passed bra wait;
    add.s64 %map, %map, 128;
    cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%map, {0}], [%tile];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}
"""


@pytest.mark.parametrize("second", [True, False])
def test_a_parameter_that_holds_several_maps(second: bool) -> None:
    memory = GlobalMemory()
    buffers = [memory.allocate(64, name=name) for name in ("in", "out")]
    buffers[0].data[:] = np.arange(64)
    kind = element_type("f32")
    maps = [
        encode(TensorMap(element_type=kind, address=buffer.address, dims=(16,), strides_bytes=(), box=(16,)))
        for buffer in buffers
    ]
    report = Machine(chip=target("sm_100a"), memory=memory, workers=1).launch(
        load_module(PARAMETER, name="file.ptx"),
        "kernel",
        grid=(1, 1, 1),
        block=(1, 1, 1),
        arguments=[maps[0] + (maps[1] if second else bytes(128))],
    )
    assert [finding.rule for finding in report.findings] == ([] if second else ["illegal-tensor-copy"])
    assert not second or buffers[1].data.tolist() == list(range(64))
