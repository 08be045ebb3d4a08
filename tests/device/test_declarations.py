"""The heads of PTX texts: entries and their parameters, without the instructions."""

from __future__ import annotations

import pytest

import ptxgen
from ptxgen.device.declarations import DeclaredParameter, declarations
from ptxgen.errors import PtxError

FOREIGN = """\
//
// .entry not_this_one(.param .u32 x) {
.version 9.0
.target sm_90a, texmode_independent
.address_size 64
.visible .entry matmul_kernel$local( // Triton
    .param .u64 .ptr .global .align 16 a,
    .param .u64 .ptr .align 1 b /* , .param .u8 hidden */,
    .param .align 64 .b8 map[ 128 ],
    .param .f32 alpha,
    .param .align 4 .b8 dims[0x10]
)
.maxntid 256, 2
.minnctapersm 1
.reqnctapercluster 2, 1, 1
.blocksareclusters
{
    strange.instruction.of.tomorrow %r1;
}
.func helper(.param .u32 y) { ret; }
.weak .entry bare
{
    ret;
}
.entry prototype(.param .u32 x);
"""


def test_a_foreign_text() -> None:
    head = declarations(FOREIGN, "foreign.ptx")
    assert (head.version, head.target) == ((9, 0), "sm_90a")
    assert list(head.entries) == ["matmul_kernel$local", "bare"]
    entry = head.entries["matmul_kernel$local"]
    assert entry.parameters == (
        DeclaredParameter(name="a", type="u64", size_bytes=8, align=8),
        DeclaredParameter(name="b", type="u64", size_bytes=8, align=8),
        DeclaredParameter(name="map", type="b8", size_bytes=128, align=64),
        DeclaredParameter(name="alpha", type="f32", size_bytes=4, align=4),
        DeclaredParameter(name="dims", type="b8", size_bytes=16, align=4),
    )
    assert (entry.maxntid, entry.reqntid, entry.cluster) == ((256, 2, 1), None, (2, 1, 1))
    assert entry.blocks_are_clusters
    assert head.entries["bare"].parameters == ()
    assert not head.entries["bare"].blocks_are_clusters


def test_our_own_texts() -> None:
    (entry,) = declarations(ptxgen.emit(ptxgen.step(6)), "step6.ptx").entries.values()
    assert entry.name == "gemm_step6"
    assert entry.reqntid == (128, 1, 1)
    assert [(p.size_bytes, p.align) for p in entry.parameters] == [(128, 128)] * 3 + [(4, 4)] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no .target directive"),
        (".target sm_90a\n", "there is no .version directive"),
        (".version 8.0\n.target sm_90a\n.entry k(.param .texref t) {}", "k.ptx:3: this parameter.*not understood"),
    ],
)
def test_what_is_no_ptx(text: str, words: str) -> None:
    with pytest.raises(PtxError, match=words):
        declarations(text, "k.ptx")
