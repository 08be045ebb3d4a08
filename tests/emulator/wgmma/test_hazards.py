"""What wgmma forbids: each rule broken on a line that is blamed, and mended. And what the policies make of time."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from ptxgen.errors import NotSupportedError, PtxError
from ptxgen.toolchain import assemble, find_tool

FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
READ = "st.global.b32 [%out], %d2;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
HAZARD = "wgmma-register-hazard"
START = "add.u64 %desc0, %rd7, 0x800400000; add.u64 %desc1, %rd7, 0x800080080;"
"""A, 64 rows in two chunks of K 1024 bytes apart, and behind it B, 8 rows 128 bytes apart; no swizzle."""


def mma(d: int = 0, a: str = "%desc0", b: str = "%desc1", scale_d: str = "0", kinds: str = "f32.f16.f16") -> str:
    """m64n8k16 with D in %d<d> on."""
    count = 2 if kinds.startswith("f16") else 4
    listed = ", ".join(f"%d{d + i}" for i in range(count))
    trans = ", 0" if "," in a else ", 0, 0"
    return f"wgmma.mma_async.sync.aligned.m64n8k16.{kinds} {{{listed}}}, {a}, {b}, {scale_d}, 1, 1{trans};"


A_REGISTERS = "{%a0, %a1, %a2, %a3}"
FILL_A = "mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0;"
FILL_D = "mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;"


class Case(NamedTuple):
    """`broken` or `mended` stands for {X} in `body`; the finding blames the line of `blamed`."""

    rule: str
    body: str
    broken: str
    mended: str
    blamed: str


CASES = {
    "D is read in flight": Case(HAZARD, f"{FENCE}\n{mma()}\n{COMMIT}\n{{X}}\n{READ}\n{WAIT}", "", WAIT, "%d2;"),
    "D is read before it is committed": Case(
        HAZARD, f"{FENCE}\n{mma()}\n{{X}}\n{READ}\n{COMMIT}{WAIT}", WAIT, COMMIT + WAIT, "%d2;"
    ),
    "D is written in flight": Case(
        HAZARD, f"{FENCE}\n{mma()}\n{COMMIT}\n{{X}}\nmov.b32 %d3, 0;\n{WAIT}", "", WAIT, "mov.b32 %d3"
    ),
    "the wait covers the group before": Case(
        HAZARD,
        f"{FENCE}\n{mma(0)}\n{COMMIT}\n{mma(4)}\n{COMMIT}\n{{X}}\nmov.b32 %x0, %d4;\n{WAIT}",
        "wgmma.wait_group.sync.aligned 1;",
        WAIT,
        "mov.b32 %x0",
    ),
    "A is written in flight": Case(
        HAZARD,
        f"{FILL_A}\n{FENCE}\n{mma(a=A_REGISTERS)}\n{COMMIT}\n{{X}}\nmov.b32 %a1, 1;\n{WAIT}",
        "",
        WAIT,
        "mov.b32 %a1, 1",
    ),
    "A is overwritten by another mma": Case(
        HAZARD,
        f"mov.b32 %d4, 0; mov.b32 %d5, 0; mov.b32 %d6, 0; mov.b32 %d7, 0;\n{FENCE}\n"
        + mma(0, a="{%d4, %d5, %d6, %d7}")
        + f"\n{COMMIT}\n{{X}}\n{mma(4)}\n{COMMIT}{WAIT}",
        "",
        WAIT + FENCE,
        "{%d4, %d5, %d6, %d7}, %desc0",
    ),
    "D of one shape becomes D of another in flight": Case(
        HAZARD,
        f"{FENCE}\n{mma(0)}\n{COMMIT}\n{{X}}\n{mma(0, kinds='f16.f16.f16')}\n{COMMIT}{WAIT}",
        FENCE,
        WAIT + FENCE,
        "f16.f16.f16",
    ),
    "D of one shape becomes D of another without a fence": Case(
        HAZARD,
        f"{FENCE}\n{mma(0)}\n{COMMIT}\n{{X}}\n{mma(0, kinds='f16.f16.f16')}\n{COMMIT}{WAIT}",
        WAIT,
        WAIT + FENCE,
        "f16.f16.f16",
    ),
    "D becomes A without a fence": Case(
        HAZARD,
        f"{FENCE}\n{mma(0)}\n{COMMIT}\n{{X}}\n" + mma(4, a="{%d0, %d1, %d2, %d3}") + f"\n{COMMIT}{WAIT}",
        WAIT,
        WAIT + FENCE,
        "{%d4,",
    ),
    "no fence before the first mma": Case(HAZARD, f"{{X}}\n{mma()}\n{COMMIT}{WAIT}", "", FENCE, "wgmma.mma_async"),
    "no fence after D was written": Case(
        HAZARD, f"{FENCE}\n{FILL_D}\n{{X}}\n{mma(scale_d='1')}\n{COMMIT}{WAIT}", "", FENCE, "wgmma.mma_async"
    ),
    "no fence after A was written": Case(
        HAZARD, f"{FENCE}\n{FILL_A}\n{{X}}\n{mma(a=A_REGISTERS)}\n{COMMIT}{WAIT}", "", FENCE, "wgmma.mma_async"
    ),
    "no fence after D was read": Case(
        HAZARD,
        f"{FENCE}\n{mma(scale_d='0')}\n{COMMIT}{WAIT}\nmov.b32 %x0, %d0;\n{{X}}\n{mma(scale_d='1')}\n{COMMIT}{WAIT}",
        "",
        FENCE,
        "%desc1, 1, 1, 1",
    ),
    "descriptors differ between warps": Case(
        "illegal-descriptor",
        f"cvt.u64.u32 %rd1, %warp; and.b64 %rd1, %rd1, {{X}}; add.u64 %desc1, %desc1, %rd1;\n"
        f"{FENCE}\n{mma()}\n{COMMIT}\n{WAIT}",
        "1",
        "0",
        COMMIT,
    ),
    "descriptors differ between lanes": Case(
        "illegal-descriptor",
        f"cvt.u64.u32 %rd1, %t; and.b64 %rd1, %rd1, {{X}}; add.u64 %desc1, %desc1, %rd1;\n"
        f"{FENCE}\n{mma()}\n{COMMIT}\n{WAIT}",
        "1",
        "0",
        "wgmma.mma_async",
    ),
    "scale-d differs between warps": Case(
        "divergent-aligned-instruction",
        f"{FILL_D}\nsetp.ge.u32 %p2, %warp, {{X}};\n{FENCE}\n{mma(scale_d='%p2')}\n{COMMIT}\n{WAIT}",
        "2",
        "4",
        COMMIT,
    ),
    "scale-d differs between lanes": Case(
        "divergent-aligned-instruction",
        f"{FILL_D}\nsetp.ge.u32 %p2, %t, {{X}};\n{FENCE}\n{mma(scale_d='%p2')}\n{COMMIT}\n{WAIT}",
        "16",
        "128",
        "wgmma.mma_async",
    ),
    "warps run different instructions": Case(
        "divergent-aligned-instruction",
        f"setp.ge.u32 %p2, %warp, {{X}};\n{FENCE}\n@%p2 bra second;\n{mma(0)}\nbra done;\nsecond:\n{mma(0)}\ndone:\n"
        f"{COMMIT}\n{WAIT}",
        "2",
        "4",
        COMMIT,
    ),
    "half a warp": Case(
        "divergent-aligned-instruction",
        f"setp.lt.u32 %p2, %t, {{X}};\n{FENCE}\n@%p2 {mma()}\n{COMMIT}{WAIT}",
        "16",
        "128",
        "@%p2 wgmma",
    ),
    "a reserved bit of a descriptor": Case(
        "illegal-descriptor",
        f"or.b64 %desc0, %desc0, {{X}};\n{FENCE}\n{mma()}\n{COMMIT}{WAIT}",
        "0x400000000000",
        "0",
        "wgmma.mma_async",
    ),
    "a tile beyond shared memory": Case(
        "out-of-bounds",
        f"add.u64 %desc0, %desc0, {{X}};\n{FENCE}\n{mma()}\n{COMMIT}{WAIT}",
        "0x300",
        "0",
        "wgmma.mma_async",
    ),
    "a descriptor that was never written": Case(
        "uninitialised-read", f"{FENCE}\n{mma(a='{X}')}\n{COMMIT}{WAIT}", "%desc9", "%desc0", "wgmma.mma_async"
    ),
    "a scale-d that was never written": Case(
        "uninitialised-read", f"{FENCE}\n{mma(scale_d='{X}')}\n{COMMIT}{WAIT}", "%p7", "0", "wgmma.mma_async"
    ),
    "nothing waits": Case("exit-with-pending-async", f"{FENCE}\n{mma()}\n{COMMIT}\n{{X}}", "", WAIT, "wgmma.mma_async"),
    "nothing commits": Case(
        "exit-with-pending-async", f"{FENCE}\n{mma()}\n{{X}}\n{WAIT}", "", COMMIT, "wgmma.mma_async"
    ),
}


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize("name", CASES)
def test_broken_and_mended(run_wgmma: Any, wgmma_kernel: Any, name: str, policy: str) -> None:
    case = CASES[name]
    broken = START + case.body.replace("{X}", case.broken)
    found = [f for f in run_wgmma(broken, image=bytes(4096), policy=policy).report.findings if f.severity == "error"]
    assert {finding.rule for finding in found} == {case.rule}
    lines = wgmma_kernel(broken).splitlines()
    for finding in found:
        assert case.blamed in lines[finding.line - 1]
    assert run_wgmma(START + case.body.replace("{X}", case.mended), image=bytes(4096), policy=policy).rules == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("D is read in flight", "C7517"),
        ("no fence before the first mma", "C7519"),
    ],
)
def test_the_assembler_says_so_too(wgmma_kernel: Any, name: str, advice: str) -> None:
    """ptxas mends these with instructions of its own, and says so."""
    if find_tool("ptxas") is None:
        pytest.skip("ptxas is not installed")
    case = CASES[name]
    for text, wanted in ((case.broken, True), (case.mended, False)):
        assembly = assemble(wgmma_kernel(START + case.body.replace("{X}", text), stored=4), name="body.ptx")
        assert any(advice in info for info in assembly.infos) is wanted, assembly.infos


def test_a_read_of_a_in_flight_is_a_warning(run_wgmma: Any) -> None:
    body = f"{START}\n{FILL_A}\n{FENCE}\n{mma(a=A_REGISTERS)}\n{COMMIT}\nmov.b32 %x0, %a1;\n{WAIT}"
    (finding,) = run_wgmma(body, image=bytes(4096)).report.findings
    assert (finding.rule, finding.severity) == (HAZARD, "warning")


def test_three_warps_are_no_warpgroup(run_wgmma: Any) -> None:
    (finding,) = run_wgmma(f"{START}\n{FENCE}\n{mma()}\n{COMMIT}{WAIT}", threads=96, image=bytes(4096)).report.findings
    assert finding.rule == "divergent-aligned-instruction"
    assert "3 of 4 warps" in finding.message


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_a_warp_that_stays_away_leaves_the_others_waiting(run_wgmma: Any, policy: str) -> None:
    body = f"{START}\nsetp.eq.u32 %p2, %warp, 2;\n@%p2 bra away;\n{FENCE}\n{mma()}\n{COMMIT}\n{WAIT}\naway:"
    (finding,) = run_wgmma(body, image=bytes(4096), policy=policy).report.findings
    assert finding.rule == "deadlock"
    (waiting,) = [line for line in finding.message.split("\n") if "waits for a group of wgmma" in line]
    assert waiting.strip().startswith("warps 0, 1, 3 of CTA (0, 0, 0) ")
    assert waiting.endswith("waits for a group of wgmma; warps 0, 1, 3 of the four have issued it")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (mma(kinds="f16.bf16.bf16"), "has no form .f16.bf16.bf16"),
        (mma(kinds="f32.f16.bf16"), "does not multiply .f16 by .bf16"),
        (mma().replace("n8", "n16"), "has 8 registers, not 4"),
        (mma().replace("n8", "n12"), "needs one of"),
        (mma().replace("0, 1, 1,", "0, 1, 2,"), "1 or -1, not 1 and 2"),
        (mma().replace("1, 1, 0, 0", "1, 1, 0, 2"), "are 0 or 1, not 2"),
        (mma(scale_d="2"), "predicate, 0 or 1, not 2"),
        (mma(a="{%a0, %a1, %a2, %a3}").replace(", 0;", ", 0, 0;"), "too many"),
        (mma(a="{%a0, %a1}"), "takes 4 registers, not 2"),
        ("wgmma.wait_group.sync.aligned %x0;", "must be an integer constant"),
        ("wgmma.fence.sync;", "needs the modifier .aligned"),
    ],
)
def test_forms_that_do_not_exist(run_wgmma: Any, text: str, reason: str) -> None:
    with pytest.raises(PtxError, match=re.escape(reason)):
        run_wgmma(text)


def test_what_is_not_modelled_says_so(run_wgmma: Any) -> None:
    with pytest.raises(NotSupportedError, match="base offset 1"):
        run_wgmma(f"{START}\nadd.u64 %desc0, %desc0, 0x2000000000000;\n{FENCE}\n{mma()}\n{COMMIT}{WAIT}")
    with pytest.raises(NotSupportedError, match=r"sparse wgmma\.mma_async"):
        run_wgmma("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%d0}, %desc0, %desc1, %x0, 0, 1, 1, 1, 0, 0;")


# -- time ---------------------------------------------------------------------------------------

ONES = np.ones((72, 16), np.float16)
"""A and B of ones: every element of D is 16."""


def ones_image(images: Any) -> bytes:
    data: bytes = images.k_major(ONES[:64], 16).data + images.k_major(ONES[64:], 16).data
    return data


ZERO_B = "setp.lt.u32 %p3, %t, 64; shl.b32 %x5, %t, 2; add.u32 %x5, %x5, %smem; @%p3 st.shared.b32 [%x5+2048], 0;"


def group(between: str = "", after: str = "") -> str:
    """One group, what happens before it is waited for, and after."""
    return f"{START}\n{FENCE}\n{mma()}\n{COMMIT}\n{between}\n{WAIT}\n{after}"


def floats(out: Any) -> Any:
    return out.view(np.float32)


@pytest.mark.parametrize(("policy", "seen"), [("eager", 16), ("late", 0)])
def test_operands_are_read_at_completion(run_wgmma: Any, images: Any, policy: str, seen: int) -> None:
    """B is overwritten between commit and wait: no wait covers that."""
    body = group(f"bar.sync 0;\n{ZERO_B}\nbar.sync 0;", "")
    got = run_wgmma(body, image=ones_image(images), stored=4, policy=policy)
    assert got.rules == []
    assert (floats(got.out) == seen).all()


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), *(("random", seed) for seed in range(8))])
def test_a_wait_makes_the_policies_agree(run_wgmma: Any, images: Any, policy: str, seed: int) -> None:
    body = group("", f"bar.sync 0;\n{ZERO_B}\nbar.sync 0;")
    got = run_wgmma(body, image=ones_image(images), stored=4, policy=policy, seed=seed)
    assert got.rules == []
    assert (floats(got.out) == 16).all()


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0), ("random", 1)])
def test_two_groups_in_flight_add_up(run_wgmma: Any, images: Any, policy: str, seed: int) -> None:
    """Two blocks of registers by turns, over two groups, the first waited for while the second runs."""
    batch = "\n".join([mma(0, scale_d="%p2"), mma(4, scale_d="%p2"), mma(0, scale_d="1"), mma(4, scale_d="1"), COMMIT])
    body = (
        f"{START}\nsetp.ne.u32 %p2, %t, %t;\n{FENCE}\n{batch}\nsetp.eq.u32 %p2, %t, %t;\n{FENCE}\n{batch}\n"
        f"wgmma.wait_group.sync.aligned 1;\n{WAIT}"
    )
    got = run_wgmma(body, image=ones_image(images), stored=8, policy=policy, seed=seed)
    assert got.rules == []
    assert (floats(got.out) == 64).all()


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_registers_that_changed_between_two_groups_count(run_wgmma: Any, images: Any, policy: str) -> None:
    """One warp writes one register, half of another warp's lanes another, before the next mma adds to them."""
    change = (
        "setp.eq.u32 %p2, %warp, 1;\n@%p2 mov.b32 %d0, 0f42C80000;\n"
        "and.b32 %x0, %t, 16; setp.eq.u32 %p3, %x0, 0; setp.eq.and.u32 %p3, %warp, 2, %p3;\n"
        "@!%p3 bra kept;\nmov.b32 %d1, 0f43480000;\nkept:\n"
    )
    body = group("", f"{change}{FENCE}\n{mma(scale_d='1')}\n{COMMIT}{WAIT}")
    got = run_wgmma(body, image=ones_image(images), stored=4, policy=policy)
    assert got.rules == []
    wanted = np.full((4, 128), 32.0)
    wanted[0, 32:64] = 116
    wanted[1, 64:80] = 216
    np.testing.assert_array_equal(floats(got.out), wanted)


def test_results_are_there_in_divergent_code(run_wgmma: Any, images: Any) -> None:
    """The first touch of the result is a write of some lanes; the others keep the product."""
    change = "setp.lt.u32 %p2, %t, 8;\n@!%p2 bra kept;\nmov.b32 %d2, 0f3F800000;\nkept:\n@%p2 mov.b32 %d3, 0;"
    body = group("", change)
    got = run_wgmma(body, image=ones_image(images), stored=4, policy="late")
    wanted = np.full((4, 128), 16.0)
    wanted[2, :8], wanted[3, :8] = 1, 0
    np.testing.assert_array_equal(floats(got.out), wanted)


def test_two_warpgroups_are_independent(run_wgmma: Any, images: Any) -> None:
    """The second one never waits for the first, and takes its own registers."""
    body = (
        f"{START}\nsetp.lt.u32 %p2, %warp, 4;\n{FENCE}\n{mma()}\n{mma(scale_d='1')}\n@%p2 bra once;\n"
        f"{mma(scale_d='1')}\nonce:\n{COMMIT}{WAIT}"
    )
    for policy in ("eager", "late", "random"):
        got = run_wgmma(body, image=ones_image(images), stored=4, threads=256, policy=policy)
        assert got.rules == []
        assert (floats(got.out)[:, :128] == 32).all()
        assert (floats(got.out)[:, 128:] == 48).all()


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_observers_see_a_batch_with_four_issues(run_wgmma: Any, images: Any, policy: str) -> None:
    recorder = Recorder()
    body = group("", "")
    run_wgmma(body, image=ones_image(images), stored=4, policy=policy, observers=[recorder])
    kinds = [type(event).__name__ for event in recorder.events]
    issues = [event for event in recorder.events if type(event).__name__ == "AsyncIssue"]
    assert {(event.warp, event.kind, event.mechanism) for event in issues} == {
        (warp, "wgmma", "wgmma-group") for warp in range(4)
    }
    (number,) = {event.async_id for event in issues}
    reads = [event for event in recorder.events if getattr(event, "proxy", "") == "async"]
    assert [(event.kind, event.async_id) for event in reads] == [("read", number)] * 2
    assert sum(stop - start for start, stop in reads[0].ranges) == 2048
    assert sum(stop - start for start, stop in reads[1].ranges) == 256
    for name, field in (("Commit", "tracked"), ("WaitGroup", "covered")):
        found = [event for event in recorder.events if type(event).__name__ == name]
        assert sorted(event.warp for event in found) == [0, 1, 2, 3]
        assert {(event.mechanism, getattr(event, field)) for event in found} == {("wgmma-group", (number,))}
    last_issue = max(place for place, kind in enumerate(kinds) if kind == "AsyncIssue")
    assert last_issue < kinds.index("AsyncSourceRead") < kinds.index("AsyncComplete") < kinds.index("WaitGroup")
