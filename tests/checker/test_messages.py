"""What a finding says is missing is what was taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen.device.verification import Case, run_case
from ptxgen.emulator import Finding
from ptxgen.review.mutants import Mutant
from ptxgen.review.mutations import Examination

STEP7 = Path(__file__).resolve().parents[2] / "generated" / "sm_100a" / "step7.ptx"


@pytest.fixture(scope="module")
def step7() -> Examination:
    return Examination(STEP7.read_text(), "step7.ptx")


def mutant(step7: Examination, instruction: str, mutation: str) -> Mutant:
    return next(one for one in step7.mutants() if instruction in one.instruction and one.mutation == mutation)


def findings(step7: Examination, text: str) -> tuple[Finding, ...]:
    case = Case(problem={"M": 300, "N": 136, "K": 200}, grid=(1, 1, 1), policy="late", seed=0)
    return run_case(step7.kernel(text), case).report.findings


def test_an_arrive_in_place_of_a_commit_is_named(step7: Examination) -> None:
    edited = mutant(step7, "[%acc_full]", "plain arrive instead")
    found = next(one for one in findings(step7, edited.text) if one.rule == "read-before-complete")
    missing = found.message.partition("  missing: ")[2]
    assert missing.startswith("tcgen05.commit in place of `mbarrier.arrive")
    assert f"(line {edited.line})" in missing


def test_mbarriers_are_called_as_the_text_calls_them(step7: Examination) -> None:
    edited = mutant(
        step7, "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%acc_full]", "deleted"
    )
    (found,) = findings(step7, edited.text)
    assert found.rule == "deadlock"
    assert "waits for mbarrier [%acc_full] (0x4c0) " in found.message
    assert "waits for mbarrier [%acc_empty] (0x500) " in found.message


@pytest.mark.parametrize(
    ("fence", "gone", "there"),
    [
        ("tcgen05.fence::before_thread_sync", "before", "after"),
        ("tcgen05.fence::after_thread_sync  // the tile's MMAs", "after", "before"),
    ],
)
def test_only_the_tensor_fence_that_is_gone_is_missing(step7: Examination, fence: str, gone: str, there: str) -> None:
    edited = mutant(step7, fence, "deleted")
    found = [one for one in findings(step7, edited.text) if one.rule == "missing-tcgen05-fence"]
    missing = [one.message.partition("  missing: ")[2] for one in found]
    assert missing
    assert all(f"fence::{gone}_thread_sync" in one and f"fence::{there}_thread_sync" not in one for one in missing)


def test_a_hang_says_who_has_arrived_on_what_is_waited_for(step7: Examination) -> None:
    """A commit is missing, and every role waits: nobody has ever arrived on the barrier that it was for."""
    edited = mutant(step7, "[%mma_released]", "deleted")
    (found,) = findings(step7, edited.text)
    assert found.rule == "deadlock"
    last = [line for line in found.message.split("\n") if "last arrivals on" in line]
    arrive = "`mbarrier.arrive.expect_tx.shared::cta.b64 _, [%load_loaded], %load_bytes;` (line "
    assert [line.partition(arrive)[0] for line in last] == [
        "  last arrivals on mbarrier [%loaded] (0x440): ",
        "  last arrivals on mbarrier [%released] (0x480): none so far",
        "  last arrivals on mbarrier [%acc_full] (0x4c0): none so far",
    ]
