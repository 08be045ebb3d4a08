"""The checker objects to what is deleted or weakened, by the right rule; docs/mutations.md says so for every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ptxgen.review import mutation_table
from ptxgen.review.mutants import Mutant, mutants
from ptxgen.review.mutations import Examination, Outcome

ROOT = Path(__file__).resolve().parents[2]
STEP6 = ROOT / "generated" / "sm_100a" / "step6.ptx"

SAMPLE = [
    ("tcgen05.commit", "plain arrive instead", {"stage-released-early", "read-before-complete"}),
    ("mbarrier.arrive.expect_tx", "16 bytes fewer", {"tx-count-mismatch"}),
    ("mbarrier.try_wait.parity.shared::cta.b64 %phase_done, [%mma_loaded]", "deleted", {"read-before-complete"}),
    ("mbarrier.try_wait.parity.shared::cta.b64 %phase_done, [%mma_done]", "deleted", {"stage-released-early"}),
    ("fence.proxy.async", "deleted", {"missing-proxy-fence"}),
    ("cp.async.bulk.wait_group.read", "one group more pending", {"source-overwritten-in-flight"}),
    ("bar.sync 1, 128  // all rows", "of the warp only", {"smem-race", "tmem-race", "tmem-use-after-dealloc"}),
    ("bar.sync 0", "deleted", {"barrier-init-not-visible", "smem-race"}),
    ("tcgen05.dealloc", "deleted", {"tmem-leak"}),
]


COUNTS = [
    ("sm_100a/step7.ptx", "mbarrier.init.shared::cta.b64 [%acc_empty]", "arrive-in-two-phases"),
    ("sm_100a/step9.ptx", "mbarrier.init.shared::cta.b64 [%released]", "phase-overrun"),
    ("sm_90a/step6.ptx", "mbarrier.init.shared::cta.b64 [%mma_done]", "phase-overrun"),
    ("sm_90a/step7.ptx", "mbarrier.init.shared::cta.b64 [%released]", "stage-released-early"),
]


@pytest.fixture(scope="module")
def step6() -> Examination:
    return Examination(STEP6.read_text(), "step6.ptx")


@pytest.mark.parametrize(("instruction", "mutation", "rules"), SAMPLE)
def test_a_sample_of_step_6(step6: Examination, instruction: str, mutation: str, rules: set[str]) -> None:
    mutant = next(
        one for one in step6.mutants() if one.instruction.startswith(instruction) and one.mutation == mutation
    )
    outcome = step6.examine(mutant)
    assert rules <= set(outcome.errors)
    assert mutation_table.judge(mutant, outcome, "sm_100a/step6.ptx").wrong == ""


@pytest.mark.parametrize(("kernel", "instruction", "rule"), COUNTS)
def test_an_mbarrier_that_counts_one_arrival_too_few_is_found(kernel: str, instruction: str, rule: str) -> None:
    examination = Examination((ROOT / "generated" / kernel).read_text(), kernel)
    mutant = next(
        one
        for one in examination.mutants()
        if one.instruction.startswith(instruction) and one.mutation == "one arrival fewer"
    )
    outcome = examination.examine(mutant, enough=lambda found: rule in found.errors)
    assert rule in outcome.errors
    assert "phase-left-open" in outcome.warnings or rule == "phase-overrun"


@pytest.mark.parametrize("kernel", ["sm_100a/step10_direct.ptx", "sm_90a/step10.ptx"])
def test_a_kernel_waits_for_the_one_before(kernel: str) -> None:
    examination = Examination((ROOT / "generated" / kernel).read_text(), kernel)
    mutant = next(one for one in examination.mutants() if one.instruction.startswith("griddepcontrol.wait"))
    assert "missing-grid-wait" in examination.examine(mutant).errors


def test_lines_keep_their_numbers(step6: Examination) -> None:
    lines = step6.text.split("\n")
    for mutant in step6.mutants():
        changed = mutant.text.split("\n")
        assert len(changed) == len(lines)
        different = {number for number, (a, b) in enumerate(zip(lines, changed, strict=True), start=1) if a != b}
        assert mutant.line in different
        assert different <= {mutant.line, mutant.line + 1, lines.index("{") + 1}


def test_what_nobody_notices_needs_a_reason(step6: Examination) -> None:
    for mutant in step6.mutants():
        row = mutation_table.judge(mutant, Outcome(), "sm_100a/step6.ptx")
        assert row.wrong or row.result.startswith("harmless: ")
    commit = next(one for one in step6.mutants() if one.instruction.startswith("tcgen05.commit"))
    assert mutation_table.judge(commit, Outcome(), "sm_100a/step6.ptx").wrong
    assert mutation_table.judge(commit, Outcome(errors=("out-of-bounds",)), "sm_100a/step6.ptx").wrong


@pytest.mark.parametrize(
    ("instruction", "mutation", "rules", "fits"),
    [
        ("mbarrier.try_wait p, [%mma_loaded], 0;  // A and B have landed", "deleted", "read-before-complete", True),
        ("mbarrier.try_wait p, [%mma_loaded], 0;  // A and B have landed", "deleted", "phase-overrun", False),
        ("mbarrier.try_wait p, [%mma_loaded], 0;  // A and B have landed", "parity flipped", "deadlock", True),
        ("mbarrier.try_wait p, [%mma_loaded], 0;  // A and B have landed", "deleted", "deadlock", False),
        ("mbarrier.arrive _, [%read];  // this thread has read the answer", "deleted", "tx-count-mismatch", False),
        ("bar.sync 1, 128;  // the accumulator is complete, staging is free", "deleted", "smem-race", False),
        ("bar.sync 1, 128;  // all rows are staged", "deleted", "smem-race", True),
        ("bar.sync 1, 128;  // nobody knows why", "deleted", "smem-race", False),
    ],
)
def test_the_rule_is_that_of_what_the_instruction_is_for(
    instruction: str, mutation: str, rules: str, fits: bool
) -> None:
    mutant = Mutant(line=1, instruction=instruction, mutation=mutation, text="")
    assert (mutation_table.judge(mutant, Outcome(errors=(rules,)), "sm_100a/x.ptx").wrong == "") is fits


def test_the_table_is_that_of_the_kernels() -> None:
    """By the kernels' digests and mutants; that what it says is so, the slow test tells."""
    file = ROOT / "docs" / "mutations.md"
    document = file.read_text(encoding="utf-8") if file.is_file() else ""
    missing = sorted(mutation_table.kernels(ROOT).keys() - mutation_table.sections(document).keys())
    assert mutation_table.stale(document, ROOT) == missing
    if document:
        assert mutation_table.stale(document.replace("sha256 ", "sha256 0", 1), ROOT) != missing
    if missing:
        pytest.skip(f"not in docs/mutations.md yet (python -m ptxgen.review.mutation_table): {', '.join(missing)}")


def test_comments_only_renumber_the_table() -> None:
    name = "sm_100a/step1.ptx"
    part = mutation_table.sections((ROOT / "docs" / "mutations.md").read_text(encoding="utf-8"))[name]
    text = mutation_table.kernels(ROOT)[name].read_text(encoding="utf-8")
    assert mutation_table.renumbered(part, text) == part
    moved = mutation_table.renumbered(part, text.replace("{\n", "{\n// a comment\n", 1))
    assert moved is not None and moved != part
    rows, now = (re.findall(r"(?m)^\| (\d+) (\|.*)", one) for one in (part, moved))
    assert [(int(line) + 1, rest) for line, rest in rows] == [(int(line), rest) for line, rest in now]
    assert mutation_table.renumbered(part, text.replace("bar.sync 0;", "bar.sync 1;", 1)) is None


def test_names_of_labels_and_the_base_of_numbers_are_no_code() -> None:
    text = STEP6.read_text()
    same = re.sub(r"\bk_loop\b", "again", text).replace("0x200000", "2097152")
    assert same != text and mutation_table.digest(same) == mutation_table.digest(text)
    for old, new in (("bra k_loop;", "bra wait_loaded;"), ("0x200000", "0x200001"), ("%smem, 64", "%smem, 72")):
        assert mutation_table.digest(text.replace(old, new, 1)) != mutation_table.digest(text)


def test_what_the_table_calls_harmless_is_so_for_a_reason_still_known() -> None:
    parts = mutation_table.sections((ROOT / "docs" / "mutations.md").read_text(encoding="utf-8"))
    for name, path in mutation_table.kernels(ROOT).items():
        rows = re.findall(r"(?m)^\| \d+ \| .*$", parts.get(name, ""))
        for row, mutant in zip(rows, mutants(path.read_text(encoding="utf-8")), strict=False):
            if "| harmless: " in row:
                assert str(mutation_table.judge(mutant, Outcome(), name)) == row


@pytest.mark.slow
def test_the_table_says_what_is_so() -> None:
    assert mutation_table.main(["--check", "--jobs", "2"]) == 0
