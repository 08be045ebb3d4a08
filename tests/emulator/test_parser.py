"""PTX text that is not understood is an error with file, line and text; what real compilers write is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.emulator import load_module
from ptxgen.emulator.parser.modules import parse
from ptxgen.errors import NotSupportedError, PtxError

ENTRY = ".version 8.6\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u32 n)\n{{\n{body}\n}}\n"


def load(body: str) -> Any:
    return load_module(ENTRY.format(body=body), name="file.ptx").entries["k"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("frobnicate.u32 %r0;", "unknown instruction 'frobnicate.u32'"),
        ("add.wrong.u32 a, a, a;", "unknown modifier .wrong of add"),
        ("add.u32 a, a;", "needs more operands"),
        ("add.u32 a, a, a, a;", "1 operand(s) too many"),
        ("add.u32 a, a, missing;", "missing is not declared"),
        ("add.u64 a, w, w;", "a is .b32 (32 bits), add.u64 needs .u64 here"),
        ("bra nowhere;", "nowhere is not declared"),
        ("bra a;", "expected a label"),
        ("@a add.u32 a, a, a;", "guard a is not a declared predicate register"),
        ("mov.u32 a, %nosuch;", "%nosuch is neither declared nor a known special register"),
        ("add.u32 a, a, 1", "a semicolon is missing"),
        ("ld.shared.v4.b32 {a, a}, [a];", "needs 4 destination register(s)"),
        ("mbarrier.try_wait.parity.acquire.shared.b64 p, [a], 0;", "semantics and scope of an mbarrier instruction go"),
        ("setmaxnreg.inc.sync.aligned.u32 20;", "multiple of 8 from 24 to 256"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {a}, [a];", "takes 2 registers, not 1"),
        ("add.f32 a, a, 1;", "is an integer, add.f32 needs .f32"),
        ("ld.param.u32 a, [n+4];", "offset 4 is outside parameter n"),
        ("{ .reg .b32 inner; } mov.b32 inner, 0;", "inner is not declared"),
        ("mov.b32 a, `;", "unexpected character"),
    ],
)
def test_what_is_not_known_is_named(body: str, reason: str) -> None:
    with pytest.raises(PtxError) as caught:
        load(f".reg .b32 a; .reg .b64 w; .reg .pred p;\n{body}")
    assert reason in str(caught.value)
    assert caught.value.file == "file.ptx"
    assert caught.value.line == 7
    assert caught.value.text.startswith(body)


def test_a_legal_form_that_is_not_modelled_says_so() -> None:
    with pytest.raises(NotSupportedError, match=r"file.ptx:7: tcgen05.mma with .kind::i8"):
        load(".reg .b32 a;\ntcgen05.mma.cta_group::1.kind::i8 [a], 0, 0, 0, 1;")


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("sm_90a", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"),
        ("sm_100", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"),
        ("sm_100a", "wgmma.fence.sync.aligned;"),
        ("sm_90", "setmaxnreg.inc.sync.aligned.u32 64;"),
    ],
)
def test_an_instruction_that_the_target_lacks_is_refused(target: str, body: str) -> None:
    text = ENTRY.format(body=body)
    with pytest.raises(PtxError, match=rf"file.ptx:6: \.target {target} has no "):
        load_module(text.replace("sm_100a", target), name="file.ptx")


@pytest.mark.parametrize(
    ("target", "version", "needed"), [("sm_100a", "8.5", "8.6"), ("sm_90a", "7.8", "8.0"), ("sm_103a", "8.7", "8.8")]
)
def test_a_version_that_does_not_know_the_target_is_refused(target: str, version: str, needed: str) -> None:
    text = ENTRY.format(body="ret;").replace("sm_100a", target)
    load_module(text.replace(".version 8.6", f".version {needed}"))
    with pytest.raises(PtxError, match=f"file.ptx:1: .version {version} does not know {target}; it came with {needed}"):
        load_module(text.replace(".version 8.6", f".version {version}"), name="file.ptx")


def test_entry_facts() -> None:
    text = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry e(.param .align 64 .b8 map[128], .param .u32 n, .param .u64 .ptr .global .align 16 p)
.reqntid 64, 2
.minnctapersm 1
{ .shared .align 128 .b8 page[100]; .reg .b32 a; mov.b32 a, page; ret; }
"""
    module = load_module(text)
    entry = module.entries["e"]
    assert (module.version, module.target) == ((8, 0), "sm_90a")
    assert [(p.name, p.size, p.align, p.type) for p in entry.params] == [
        ("map", 128, 64, "b8"), ("n", 4, 4, "u32"), ("p", 8, 8, "u64"),
    ]  # fmt: skip
    assert entry.reqntid == (64, 2, 1)
    assert entry.static_smem_bytes == 100


def test_the_alignment_after_ptr_is_not_the_parameters() -> None:
    text = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u32 n, .param .u64 .ptr .global .align 1 data, .param .u64 .ptr more)
{
ret;
}
"""
    offsets = [parameter.offset for parameter in load_module(text, name="file.ptx").entries["k"].parameters]
    assert offsets == [0, 8, 16]


def test_declarators_of_one_declaration_share_its_type(run_ptx: Callable[..., Any]) -> None:
    body = """
    .global .u32 one = 1, two = 2, list[2] = {3, 4};
    .shared .v4 .f32 first, second;
    mov.b64 %rd0, first; mov.b64 %rd2, second; sub.u64 %rd0, %rd2, %rd0;
    cvt.u32.u64 %t, %rd0; mov.b64 %rd2, list; ld.global.u32 %r0, [%rd2+4]; add.u32 %t, %t, %r0;
    ld.global.u32 %r0, [two]; add.u32 %t, %t, %r0;
    st.global.u32 [%rd1], %t;
    ret;"""
    assert run_ptx(body).out.tolist() == [16 + 4 + 2] * 32


def test_registers_are_numbered_in_the_order_of_their_declarations() -> None:
    function = parse(ENTRY.format(body=".reg .b32 a, %r<3>; .reg .pred p; ret;"), "file.ptx").functions["k"]
    assert [(register.name, register.index) for register in function.registers] == [
        ("a", 0), ("%r0", 1), ("%r1", 2), ("%r2", 3), ("p", 4),
    ]  # fmt: skip


def test_blocks_ranges_literals_comments_and_debug_lines(run_ptx: Callable[..., Any]) -> None:
    body = """
    .loc 1 6 0
$L__tmp:  // a label, and a block that hides %r1
    { .reg .b32 %r<2>; mov.b32 %r1, 0x10; add.u32 %r1, %r1, 010; mov.b32 %t, %r1; } /* 16 + 8
    in all */
    mov.b32 %r5, 0f3F800000; shr.u32 %r5, %r5, 23;
    { .reg .pred done; mov.pred done, -1; @!done bra skip; add.u32 %t, %t, %r5; skip: }
    { .reg .pred done; mov.pred done, 0; @!done bra skip; add.u32 %t, %t, 1000; skip: }
    add.s32 %t, %t, -3;
    st.global.u32 [%rd1], %t;
    ret;"""
    assert run_ptx(body).out.tolist() == [16 + 8 + 127 - 3] * 32
