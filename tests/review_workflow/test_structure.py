"""Roles, loops and addresses, read off texts whose answers are known."""

from __future__ import annotations

import pytest

from ptxgen.review.barriers import uses_of
from ptxgen.review.sources import Source, read_source
from ptxgen.review.structure import Structure, analyse
from ptxgen.review.values import Number

_HEAD = """.version 8.6
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u32 n)
.reqntid 128
{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
"""


def structure(body: str) -> Structure:
    return analyse(_HEAD + body + "\n    ret;\n}\n", "k.ptx")


def value_of_last(body: str) -> Number | None:
    """What is known of the value that the last line stores."""
    site = structure(body).sites[-2]
    value = site.values[-1]
    assert value is None or isinstance(value, Number)
    return value


@pytest.mark.parametrize(
    ("target", "roles"),
    [
        ("sm_100a", {"producer": (5,), "multiplier": (4,), "storer": (0, 1, 2, 3)}),
        ("sm_90a", {"producer": (0,), "idle": (1, 2, 3), "consumer": tuple(range(4, 12))}),
    ],
)
def test_roles_of_step_7(target: str, roles: dict[str, tuple[int, ...]]) -> None:
    found = read_source(f"step:7@{target}")
    assert {role.name: role.warps for role in analyse(found.text, found.name).roles} == roles


def test_loops_nest_and_waits_are_no_loops() -> None:
    found = read_source("step:6")
    loops = {loop.name: loop for loop in analyse(found.text, found.name).loops}
    assert loops["k_loop"].parents == ("tile_loop",)
    assert loops["wait_loaded"].wait and loops["wait_loaded"].parents == ("tile_loop", "k_loop")
    assert not loops["k_loop"].wait


def test_roles_that_a_number_in_memory_chooses_are_uncertain(numbered: Source) -> None:
    found = analyse(numbered.text, numbered.name)
    uncertain = {role.name for role in found.roles if not role.certain}
    assert uncertain == {"producer", "multiplier"}
    assert {loop.name for loop in found.loops if not loop.wait} == {"loop 1", "loop 2"}


def test_nameless_barriers_form_arrays(numbered: Source) -> None:
    groups, uses = uses_of(analyse(numbered.text, numbered.name))
    assert [group.addresses for group in groups] == [(65536, 65544), (65552, 65560)]
    waits = {use.site.role: use.barriers.addresses[0] for use in uses if use.action == "wait" and use.barriers}
    assert waits == {"producer": 65552, "multiplier": 65536}


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("mov.b32 %r0, smem;\nadd.u32 %r1, %r0, 64;\nst.shared.b32 [%r0], %r1;", Number(64)),
        ("ld.param.u32 %r0, [n];\nmad.lo.u32 %r1, %r0, 8, 16;\nst.shared.b32 [smem], %r1;", Number(16, 8)),
        ("ld.param.u32 %r0, [n];\nadd.u32 %r1, %r0, 1;\nst.shared.b32 [smem], %r1;", None),
        ("mov.b32 %r0, 5;\nrem.u32 %r1, %r0, 0;\nst.shared.b32 [smem], %r1;", None),
        ("mov.b32 %r0, -8;\nshr.s32 %r1, %r0, 1;\nst.shared.b32 [smem], %r1;", Number(0xFFFFFFFC)),
        ("mov.b32 %r0, 7;\nmov.b64 %rd0, {%r0, %r0};\nst.shared.b64 [smem], %rd0;", Number(7 << 32 | 7)),
    ],
)  # fmt: skip
def test_values(body: str, known: Number | None) -> None:
    assert value_of_last(body) == known


def test_values_that_paths_disagree_on_are_known_up_to_a_step() -> None:
    body = """
    ld.param.u32 %r0, [n];
    mov.b32 %r1, 32;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra out;
    mov.b32 %r1, 96;
out:
    st.shared.b32 [smem], %r1;"""
    value = value_of_last(body)
    assert value is not None
    assert value.step == 64 and isinstance(value.value, int) and value.value % 64 == 32


def test_a_guard_narrows_who_executes() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    setp.ge.u32 %p0, %r1, 2;
    @%p0 bra high;
    elect.sync _|%p1, -1;
    @!%p1 bra out;
    st.shared.b32 [smem], %r0;
    bra out;
high:
    setp.eq.u32 %p2, %r0, 64;
    @%p2 st.shared.b32 [smem], %r0;
out:"""
    stores = [site for site in structure(body).sites if site.instruction.name.startswith("st.")]
    assert [(site.warps, site.one) for site in stores] == [((0, 1), True), ((2,), True)]


def test_code_behind_an_endless_loop_is_not_reached() -> None:
    assert structure("again:\n    bra again;\n    mov.b32 %r0, 1;").unreached == 2
