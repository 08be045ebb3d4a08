"""Every rule that the machine knows: a few lines that break it, the line that is blamed, and the mended twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

INIT = "mov.u32 %r1, smem; setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [%r1], {count}; bar.sync 0;"
ALLOC = (
    "mov.u32 %r1, smem; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {n}; ld.shared.u32 %r2, [%r1];"
)
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, {n};"


class Case(NamedTuple):
    """`broken` stands for {X} in `body` in the failing text, `mended` in the clean one; the failing text is blamed on
    the line of `blamed` (by default that of {X})."""

    rule: str
    body: str
    broken: str
    mended: str
    blamed: str = "{X}"
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


CASES = {
    "too many arrivals": Case(
        "arrive-count-exceeded",
        INIT.format(count=1) + "\n@%p0 mbarrier.arrive.shared::cta.b64 _, [%r1], {X};\nret;",
        "2",
        "1",
    ),
    "zero arrivals": Case(
        "arrive-count-exceeded",
        "mov.u32 %r1, smem;\nsetp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [%r1], {X};\nret;",
        "0",
        "1",
    ),
    "expected bytes overflow": Case(
        "tx-count-mismatch",
        INIT.format(count=2)
        + "\n@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], {X};"
        + "\n@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;\nret;",
        "2000000",
        "16",
    ),
    "bytes outstanding at exit": Case(
        "tx-count-mismatch",
        INIT.format(count=1)
        + "\n@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 32;"
        + "\n@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], {X};\nret;",
        "16",
        "32",
        "ret;",
    ),
    "wait before init": Case(
        "barrier-not-initialised",
        "mov.u32 %r1, smem; setp.eq.u32 %p0, %t, 0;\n{X}\n"
        "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 1;\nret;",
        "",
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;",
        "mbarrier.test_wait",
    ),
    "init of a live barrier": Case(
        "barrier-overwritten",
        INIT.format(count=1) + "\n{X}\n@%p0 mbarrier.init.shared::cta.b64 [%r1], 1; // again\nret;",
        "",
        "@%p0 mbarrier.inval.shared::cta.b64 [%r1];",
        "// again",
    ),
    "store on a barrier": Case(
        "barrier-overwritten",
        INIT.format(count=1) + "\nmad.lo.u32 %r2, %t, 4, %r1;\nst.shared.u32 [%r2+{X}], %t;\nret;",
        "4",
        "8",
    ),
    "shared memory out of bounds": Case(
        "out-of-bounds",
        "mov.u32 %r1, smem; mad.lo.u32 %r1, %t, 4, %r1;\nst.shared.u32 [%r1+{X}], %t;\nret;",
        "16384",
        "16256",
    ),
    "global memory out of bounds": Case(
        "out-of-bounds", "st.global.u32 [%rd1+{X}], %t;\nret;", "4", "0"
    ),
    "misaligned": Case("misaligned-address", "ld.global.u32 %r0, [%rd0+{X}];\nret;", "2", "0"),
    "a register that was never written goes to memory": Case(
        "uninitialised-read", "{X}\nst.global.u32 [%rd1], %r9; // here\nret;", "", "mov.u32 %r9, 1;", "// here"
    ),
    "shared memory that was never written goes to memory": Case(
        "uninitialised-read",
        "mov.u32 %r1, smem; mad.lo.u32 %r1, %t, 4, %r1;\n{X}\nld.shared.u32 %r2, [%r1];\n"
        "st.global.u32 [%rd1], %r2; // here\nret;",
        "",
        "st.shared.u32 [%r1], %t;",
        "// here",
    ),
    "a predicate that was never written decides": Case(
        "uninitialised-read", "{X}\n@%p5 bra end; // here\nend:\nret;", "", "setp.eq.u32 %p5, %t, 0;", "// here"
    ),
    "a register that some lanes never wrote decides": Case(
        "uninitialised-read",
        "setp.eq.u32 %p0, %t, 0;\n@%p0 mov.u32 %r9, 1;\n{X}\n"
        "setp.eq.u32 %p1, %r9, 5; // here\n@%p1 bra end;\nend:\nret;",
        "",
        "@!%p0 mov.u32 %r9, 2;",
        "// here",
    ),
    "an address that was never written": Case(
        "uninitialised-read", "{X}\nld.shared.u32 %r2, [%r9]; // here\nret;", "", "mov.u32 %r9, smem;", "// here"
    ),
    "a barrier with another count": Case(
        "named-barrier-mismatch",
        "setp.ge.u32 %p0, %t, 32;\n@%p0 bra second;\nbar.sync 1, 64;\nret;\nsecond:\nbar.sync 1, {X};\nret;",
        "96",
        "64",
        options={"threads": 64},
    ),
    "a barrier that does not count warps": Case("named-barrier-mismatch", "bar.sync 1, {X};\nret;", "33", "32"),
    "a shuffle with lanes elsewhere": Case(
        "divergent-aligned-instruction",
        "setp.ge.u32 %p0, %t, 8;\n@%p0 bra end;\nshfl.sync.idx.b32 %r0, %t, 0, 31, {X};\nend:\nret;",
        "0xffffffff",
        "0xff",
    ),
    "a warp barrier that does not name who runs it": Case(
        "divergent-aligned-instruction", "bar.warp.sync {X};\nret;", "0xffff", "0xffffffff"
    ),
    "registers given up by one warp of its warpgroup": Case(
        "divergent-aligned-instruction",
        "setp.ge.u32 %p0, %t, {X};\n@%p0 bra end;\nsetmaxnreg.dec.sync.aligned.u32 24; // here\nend:\nret;",
        "32",
        "128",
        "// here",
        options={"threads": 128},
    ),
    "tensor memory not freed": Case(
        "tmem-leak", ALLOC.format(n=32) + "\n{X}\nret;", "", FREE.format(n=32), "ret;"
    ),
    "alloc after relinquish": Case(
        "alloc-after-relinquish",
        "{X}\n" + ALLOC.format(n=32) + " // here\n" + FREE.format(n=32) + "\nret;",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "",
        "// here",
    ),
    "an allocation that is no power of two": Case(
        "illegal-tmem-allocation",
        "mov.u32 %r3, {X};\n" + ALLOC.format(n="%r3") + " // here\n" + FREE.format(n="%r3") + "\nret;",
        "48",
        "64",
        "// here",
    ),
    "another warp's lanes": Case(
        "tmem-lane-access",
        ALLOC.format(n=32) + "\nadd.u32 %r3, %r2, {X};\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r3]; // here\n"
        "tcgen05.wait::ld.sync.aligned;\n" + FREE.format(n=32) + "\nret;",
        "0x200000",
        "0",
        "// here",
    ),
    "a bulk store that nobody waits for": Case(
        "exit-with-pending-async",
        "mov.u32 %r1, smem; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %t; bar.sync 0;\n"
        "setp.eq.u32 %p0, %t, 0; @!%p0 bra end;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128; // here\n"
        "cp.async.bulk.commit_group;\n{X}\nend:\nret;",
        "",
        "cp.async.bulk.wait_group.read 0;",
        "// here",
    ),
    "trap": Case("trap", "{X}\nret;", "trap;", ""),
}  # fmt: skip


def line_of(text: str, mark: str) -> int:
    """The line of the kernel on which the mark stands; 16 lines come before the body."""
    return 17 + text[: text.index(mark)].count("\n")


@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_is_reported_and_its_mended_twin_is_clean(name: str, run_ptx: Callable[..., Any]) -> None:
    case = CASES[name]
    body = case.body.replace("{{", "{").replace("}}", "}")
    report = run_ptx(body.replace("{X}", case.broken), **case.options).report
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [finding.rule for finding in errors] == [case.rule]
    assert errors[0].line == line_of(body, case.blamed)
    assert errors[0].cta == (0, 0, 0)
    assert run_ptx(body.replace("{X}", case.mended), **case.options).report.findings == ()


def test_tensor_memory_may_not_be_used_after_dealloc(run_ptx: Callable[..., Any]) -> None:
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2]; tcgen05.wait::ld.sync.aligned;"
    alloc, free = ALLOC.format(n=32), FREE.format(n=32)
    assert run_ptx("\n".join((alloc, free, load, "ret;"))).rules == ["tmem-use-after-dealloc"]
    assert run_ptx("\n".join((alloc, load, free, "ret;"))).rules == []


def test_an_aligned_barrier_needs_the_whole_warp(run_ptx: Callable[..., Any]) -> None:
    region = "setp.eq.u32 %p0, %t, 0;\n@!%p0 bra end;\n{}\nend:\n{}\nret;"
    assert run_ptx(region.format("bar.sync 0;", "")).rules == ["divergent-aligned-instruction"]
    assert run_ptx(region.format("", "bar.sync 0;")).rules == []


def test_the_nearest_buffer_is_named(run_ptx: Callable[..., Any]) -> None:
    (finding,) = run_ptx("st.global.u32 [%rd1+4], %t; ret;").report.findings
    assert "nearest is 'out' (128 bytes), 128 bytes into it" in finding.message
    assert finding.text.startswith("st.global.u32")
