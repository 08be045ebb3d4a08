"""Bits that PTX leaves open, as an H200 gives them (docs/hardware-facts.md): NaNs of conversions, cache policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.errors import NotSupportedError, PtxError

RunPtx = Callable[..., Any]

STORE = "st.global.b32 [%rd1], d;"
NANS = (0x7F800001, 0x7FBFFFFF, 0xFFC12345, 0xFFFFFFFF)
CONVERSIONS: dict[str, Callable[[int], int]] = {
    "cvt.rn.f16.f32 h, a; cvt.u32.u16 d, h;": lambda a: 0x7FFF,
    "cvt.rz.f16.f32 h, a; cvt.u32.u16 d, h;": lambda a: 0x7FFF,
    "cvt.rn.bf16.f32 h, a; cvt.u32.u16 d, h;": lambda a: 0x7FFF,
    "cvt.rn.f16x2.f32 d, a, 0f3FC00000;": lambda a: 0x7FFF3E00,
    "cvt.rn.relu.f16x2.f32 d, 0f3FC00000, a;": lambda a: 0x3E007FFF,
    "cvt.rni.f32.f32 d, a;": lambda a: 0x7FFFFFFF,
    "cvt.sat.f32.f32 d, a;": lambda a: 0,
    "cvt.rn.tf32.f32 d, a;": lambda a: 0x7FFFE000,
    "cvt.rna.tf32.f32 d, a;": lambda a: a & 0xFFFFE000,
    "or.b32 a, a, 127; cvt.u16.u32 h, a; or.b16 h, h, 0x7C00; cvt.f32.f16 d, h;": lambda a: 0x7FFFFFFF,
    "shr.u32 a, a, 16; or.b32 a, a, 1; cvt.u16.u32 h, a; cvt.f32.bf16 d, h;": lambda a: (a >> 16 | 1) << 16,
}


@pytest.mark.parametrize("alike", [False, True], ids=["by lane", "all lanes"])
@pytest.mark.parametrize("form", CONVERSIONS)
def test_nans_of_conversions(run_ptx: RunPtx, form: str, alike: bool) -> None:
    index = "0" if alike else "%t"
    load = f"mov.u32 i, {index}; and.b32 i, i, 3; mad.wide.u32 p, i, 4, %rd0; ld.global.b32 a, [p];"
    outcome = run_ptx(f".reg .b32 a, d, i; .reg .b16 h; .reg .b64 p; {load} {form} {STORE}", inputs=NANS)
    assert outcome.rules == []
    assert outcome.out.tolist() == [CONVERSIONS[form](NANS[0 if alike else lane & 3]) for lane in range(32)]


def policy(form: str, word: str = "d = high") -> str:
    fraction = "setp.lt.u32 p, %t, 16; selp.b32 a, 0f3F000000, 0f3F800000, p;"
    take = f"mov.b64 {{{'low, d' if word == 'd = high' else 'd, low'}}}, w;"
    return f".reg .b32 d, low; .reg .f32 a; .reg .b64 w; .reg .pred p; {fraction} {form} {take} {STORE}"


@pytest.mark.parametrize(
    ("form", "high"),
    [
        ("L2::evict_first.b64 w", 0x12F00000),
        ("L2::evict_last.b64 w", 0x14F00000),
        ("L2::evict_last.L2::evict_unchanged.b64 w, 0f3F800000", 0x14F00000),
        ("L2::evict_normal.b64 w, 0f3F000000", 0x16700000),
        ("L2::evict_unchanged.b64 w", 0x10F00000),
        ("L2::evict_last.L2::evict_first.b64 w, 0f3F000000", 0x15700000),
    ],
)
def test_cache_policies(run_ptx: RunPtx, form: str, high: int) -> None:
    assert set(run_ptx(policy(f"createpolicy.fractional.{form};")).out.tolist()) == {high}
    assert set(run_ptx(policy(f"createpolicy.fractional.{form};", "d = low")).out.tolist()) == {0}


def test_a_policy_for_each_lane(run_ptx: RunPtx) -> None:
    outcome = run_ptx(policy("createpolicy.fractional.L2::evict_last.b64 w, a;"))
    assert outcome.out.tolist() == [0x14700000] * 16 + [0x14F00000] * 16


@pytest.mark.parametrize(
    ("form", "error", "words"),
    [
        ("fractional.L2::evict_first.b64 w, 0f3E800000", NotSupportedError, "fraction 0.25: what bits it gives"),
        ("fractional.L2::evict_last.L2::evict_first.b64 w", NotSupportedError, "L2::evict_first.b64 with fraction 1"),
        ("range.global.L2::evict_last.b64 w, [%rd0], 1024, 2048", PtxError, "createpolicy.range is not supported"),
    ],
)
def test_policies_that_are_not_known(run_ptx: RunPtx, form: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run_ptx(policy(f"createpolicy.{form};"))


def test_poison_passes_through_conversions(run_ptx: RunPtx) -> None:
    """What was never written is found although it was a factor in between."""
    body = f"""
        .reg .b32 d; .reg .b16 h; .reg .f32 x; .extern .shared .b8 smem[];
        ld.shared.b16 h, [smem]; cvt.f32.f16 x, h; cvt.rn.f16x2.f32 d, x, x; {STORE}"""
    assert run_ptx(body).rules == ["uninitialised-read"]
