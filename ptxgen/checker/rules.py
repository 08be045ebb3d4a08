"""Every rule that a finding can name."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.checker.operations import MATRIX_KINDS, TENSOR_MEMORY_ACCESSES, Operation
from ptxgen.checker.order import Agent, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`found_by`: "checker" (an order that is missing in every schedule that has these accesses) or
    "machine" (the step that breaks it is executed). `meaning` is one sentence."""

    name: str
    severity: str
    found_by: str
    meaning: str


def _rules(*rows: tuple[str, str, str, str]) -> dict[str, Rule]:
    return {name: Rule(name=name, severity=s, found_by=by, meaning=text) for name, s, by, text in rows}


RULES = _rules(
    ("smem-race", "error", "checker", "two accesses to shared memory, one a write, are not ordered"),
    ("tmem-race", "error", "checker", "two accesses to tensor memory, one a write, are not ordered"),
    ("global-race", "error", "checker", "two accesses to global memory, one a write, are not ordered"),
    ("missing-proxy-fence", "error", "checker",
     "a generic write and an asynchronous access are ordered, but no fence.proxy.async lies between them"),
    ("read-before-complete", "error", "checker",
     "what an asynchronous operation writes is read before its completion was waited for"),
    ("source-overwritten-in-flight", "error", "checker",
     "the source of an asynchronous copy is written before the copy is known to have read it"),
    ("stage-released-early", "error", "checker",
     "an operand in shared memory is overwritten before the matrix product that reads it is known to be complete"),
    ("phase-overrun", "error", "checker", "an mbarrier can run two phases ahead of a warp that waits for it"),
    ("barrier-init-not-visible", "error", "checker",
     "an mbarrier is used by a thread that nothing orders after its initialisation"),
    ("tx-count-mismatch", "error", "both", "the bytes that an mbarrier expects are not those that arrive"),
    ("tmem-use-after-dealloc", "error", "both", "tensor memory is, or may be, accessed after tcgen05.dealloc"),
    ("barrier-overwritten", "error", "both", "a live mbarrier is written to, initialised again or ended under a user"),
    ("deadlock", "error", "machine", "no warp can go on, and nothing is pending"),
    ("barrier-not-initialised", "error", "machine", "an mbarrier is used that was never initialised"),
    ("arrive-count-exceeded", "error", "machine", "more arrivals in a phase than the mbarrier counts"),
    ("named-barrier-mismatch", "error", "machine", "warps disagree about a CTA barrier, or too many arrive"),
    ("uninitialised-read", "error", "machine", "a value that was never written decides, or is stored"),
    ("out-of-bounds", "error", "machine", "an access outside memory that is allocated"),
    ("misaligned-address", "error", "machine", "an address is not a multiple of what its access needs"),
    ("illegal-descriptor", "error", "machine", "a shared-memory matrix descriptor that hardware does not accept"),
    ("illegal-instruction-descriptor", "error", "machine", "an instruction descriptor that hardware does not accept"),
    ("illegal-tensor-copy", "error", "machine", "a tensor map or coordinates that hardware does not accept"),
    ("illegal-tmem-allocation", "error", "machine", "tcgen05.alloc or dealloc with columns that are not possible"),
    ("tmem-lane-access", "error", "machine", "a warp accesses tensor memory lanes that belong to another"),
    ("tmem-leak", "error", "machine", "a CTA ends with tensor memory allocated"),
    ("alloc-after-relinquish", "error", "machine", "tcgen05.alloc after relinquish_alloc_permit"),
    ("exit-with-pending-async", "error", "machine", "a thread or CTA ends while its asynchronous work still needs it"),
    ("divergent-aligned-instruction", "error", "machine", "an .aligned instruction is not run by the whole warp"),
    ("cta-group-mixed", "error", "machine", "tcgen05 instructions of one kernel name different cta_groups"),
    ("register-pool-exhausted", "error", "machine", "setmaxnreg asks for registers that the CTA does not have"),
    ("trap", "error", "machine", "the kernel executed trap"),
    ("instruction-budget", "error", "machine", "the kernel did not end within the instructions that it was given"),
    ("missing-tcgen05-fence", "warning", "checker",
     "accesses to tensor memory by different threads are ordered without tcgen05.fence on both sides"),
    ("missing-wait-ld", "warning", "machine", "registers of a tcgen05.ld are used with no tcgen05.wait::ld before"),
    ("missing-mbarrier-init-fence", "warning", "checker",
     "an asynchronous unit uses an mbarrier whose initialisation no fence.mbarrier_init follows"),
    ("generic-read-then-async-write", "warning", "checker",
     "what threads have read is overwritten by an asynchronous copy with no proxy fence between"),
    ("proxy-fence-by-reader", "warning", "checker",
     "the only proxy fence between a generic write and an asynchronous read is on the reader's side"),
)  # fmt: skip

_RACES = {"shared": "smem-race", "tensor": "tmem-race", "global": "global-race"}


def rule_of(space: str, first: Agent, second: Agent, first_writes: bool, second_writes: bool, verdict: Verdict) -> str:
    """The rule that a pair of accesses breaks ("" for none); the first one was made or issued first."""
    if verdict is Verdict.UNPROXIED:
        return "missing-proxy-fence" if first_writes else "generic-read-then-async-write"
    if verdict is Verdict.BRIDGED:
        return "proxy-fence-by-reader" if first_writes else ""
    if verdict is Verdict.UNFENCED:
        return "missing-tcgen05-fence"
    if isinstance(first, Operation):
        if space == "tensor" and not isinstance(second, Operation):
            return "tmem-use-after-dealloc"
        if first_writes and not second_writes and not (space == "tensor" and _by_different_warps(first, second)):
            return "read-before-complete"
        if not first_writes and space != "tensor":
            return "stage-released-early" if first.kind in MATRIX_KINDS else "source-overwritten-in-flight"
    return _RACES[space]


def _by_different_warps(first: Operation, second: Agent) -> bool:
    """Whether these are loads or stores of tensor memory that different warps run."""
    return first.kind in TENSOR_MEMORY_ACCESSES and first.warp != second.warp
