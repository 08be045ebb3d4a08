"""Every rule that a finding can name."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.checker.operations import MATRIX_KINDS, TENSOR_MEMORY_ACCESSES, Operation
from ptxgen.checker.order import Agent, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`found_by`: "checker" (an order that is missing in every schedule that has these accesses),
    "machine" (the step that breaks it is executed) or "both". `meaning` is one sentence, `source` says
    where the rule is from."""

    name: str
    severity: str
    found_by: str
    meaning: str
    source: str


def _rules(*rows: tuple[str, str, str, str, str]) -> dict[str, Rule]:
    return {
        name: Rule(name=name, severity=severity, found_by=found_by, meaning=meaning, source=source)
        for name, severity, found_by, meaning, source in rows
    }


_MODEL = "PTX ISA 9.1 §8.9 (memory consistency model: causality order)"
_ASYNC = "PTX ISA 9.1 §9.7.9.25 (asynchronous copies: completion mechanisms)"
_TCGEN05 = "PTX ISA 9.1 §9.7.16.6 (tcgen05 memory consistency)"
_MBARRIER = "PTX ISA 9.1 §9.7.13.15 (mbarrier)"
_PROXY = "PTX ISA 9.1 §8.6 and §9.7.13.4 (proxies, fence.proxy.async)"

RULES = _rules(
    ("smem-race", "error", "checker", "two accesses to shared memory, one a write, are not ordered", _MODEL),
    ("tmem-race", "error", "checker", "two accesses to tensor memory, one a write, are not ordered", _TCGEN05),
    ("global-race", "error", "both", "two accesses to global memory, one a write, are not ordered", _MODEL),
    ("missing-proxy-fence", "error", "checker",
     "a generic write and an asynchronous access are ordered, but no fence.proxy.async lies between them", _PROXY),
    ("missing-tensormap-fence", "error", "checker",
     "a tensor copy goes by a tensor map that this launch wrote, and no pair of tensormap proxy fences lies between",
     "PTX ISA 9.1 §9.7.13.4 (fence.proxy.tensormap, tensormap.cp_fenceproxy)"),
    ("missing-cluster-scope", "error", "checker",
     "threads of different CTAs access the same memory, ordered only by an mbarrier arrive or wait, a fence or a strong"
     " access of .cta scope",
     "PTX ISA 9.1 §8.5 (scope), §9.7.13.15 (mbarrier.arrive and try_wait have .cta scope unless they say .cluster)"),
    ("read-before-complete", "error", "checker",
     "what an asynchronous operation writes is read before its completion was waited for", _ASYNC),
    ("source-overwritten-in-flight", "error", "checker",
     "the source of an asynchronous copy is written before the copy is known to have read it", _ASYNC),
    ("stage-released-early", "error", "checker",
     "an operand in shared memory is overwritten before the matrix product that reads it is known to be complete",
     "PTX ISA 9.1 §9.7.16.12 (tcgen05.commit), §9.7.15.7 (wgmma.wait_group)"),
    ("phase-overrun", "error", "checker", "an mbarrier can run two phases ahead of a warp that waits for it",
     "PTX ISA 9.1 §9.7.13.15.16 (only the current and the last phase can be tested)"),
    ("arrive-in-two-phases", "error", "checker",
     "the arrivals of one instruction end a phase of an mbarrier and begin the next: it counts fewer than arrive",
     "PTX ISA 9.1 §9.7.13.15.4 (phases: the expected arrival count)"),
    ("missing-grid-wait", "error", "checker",
     "a kernel that may begin before the one ahead of it has ended accesses global memory without griddepcontrol.wait",
     "PTX ISA 9.1 §9.7.13.13 (griddepcontrol: a dependent of launch_dependents must wait)"),
    ("barrier-init-not-visible", "error", "checker",
     "an mbarrier is used by a thread that nothing orders after its initialisation", _MBARRIER),
    ("tx-count-mismatch", "error", "both", "the bytes that an mbarrier expects are not those that arrive",
     "PTX ISA 9.1 §9.7.13.15.5 (tx-count)"),
    ("tmem-use-after-dealloc", "error", "both", "tensor memory is, or may be, accessed after tcgen05.dealloc",
     "PTX ISA 9.1 §9.7.16.7 (allocation)"),
    ("barrier-overwritten", "error", "both",
     "a live mbarrier is written to, initialised again or ended under a user", _MBARRIER),
    ("deadlock", "error", "machine", "no warp can go on, and nothing is pending", "follows from every wait"),
    ("barrier-not-initialised", "error", "machine", "an mbarrier is used that was never initialised", _MBARRIER),
    ("arrive-count-exceeded", "error", "machine", "more arrivals in a phase than the mbarrier counts", _MBARRIER),
    ("named-barrier-mismatch", "error", "machine", "warps disagree about a CTA barrier, or too many arrive",
     "PTX ISA 9.1 §9.7.13.1 (bar, barrier)"),
    ("uninitialised-read", "error", "machine", "a value that was never written decides, or is stored",
     "PTX ISA 9.1 §5.1 (state spaces hold no initial values)"),
    ("out-of-bounds", "error", "machine", "an access outside memory that is allocated", "PTX ISA 9.1 §5.1"),
    ("misaligned-address", "error", "machine", "an address is not a multiple of what its access needs",
     "PTX ISA 9.1 §6.4.1 (addresses as operands)"),
    ("illegal-descriptor", "error", "machine", "a shared-memory matrix descriptor that hardware does not accept",
     "PTX ISA 9.1 §9.7.16.4.1 (tcgen05), §9.7.15.5.1 (wgmma)"),
    ("illegal-instruction-descriptor", "error", "machine", "an instruction descriptor that hardware does not accept",
     "PTX ISA 9.1 §9.7.16.4.2"),
    ("illegal-tensor-copy", "error", "machine", "a tensor map or coordinates that hardware does not accept",
     "PTX ISA 9.1 §5.5 (tensors); cuTensorMapEncodeTiled in cuda.h"),
    ("illegal-tmem-allocation", "error", "machine",
     "tcgen05.alloc or dealloc with columns that are not possible, or with other operands than in the other CTA of the"
     " pair",
     "PTX ISA 9.1 §9.7.16.7; CUTLASS, tmem_allocator_sm100.hpp (both CTAs name the same shared address: by ptxas 13.0"
     " the even CTA writes to both)"),
    ("tmem-lane-access", "error", "machine", "a warp accesses tensor memory lanes that belong to another",
     "PTX ISA 9.1 §9.7.16.8.1 (access restrictions)"),
    ("tmem-leak", "error", "machine", "a CTA ends with tensor memory allocated", "PTX ISA 9.1 §9.7.16.7"),
    ("pair-order", "error", "both",
     "the CTAs of a pair do not both run tcgen05.alloc, dealloc or relinquish_alloc_permit, or not in one order",
     "PTX ISA 9.1 §9.7.16.5, Table 48 (the instruction may wait for the other CTA)"),
    ("peer-not-started", "error", "checker",
     "a thread accesses the shared memory of another CTA, or allocates tensor memory with it, and nothing shows that"
     " that CTA has started",
     "PTX ISA 9.1 §9.7.16.7 (tcgen05.alloc.cta_group::2: the issuing warp makes sure that the peer CTA is launched);"
     " CUDA C++ Programming Guide, distributed shared memory (all CTAs have to have started)"),
    ("multicast-mask", "error", "machine", "a multicast mask names no CTA, or one that the cluster does not have",
     "PTX ISA 9.1 §9.7.9.27.1.2, §9.7.16.12 (ctaMask)"),
    ("alloc-after-relinquish", "error", "machine", "tcgen05.alloc after relinquish_alloc_permit",
     "PTX ISA 9.1 §9.7.16.7"),
    ("exit-with-pending-async", "error", "both",
     "a thread or CTA ends while its asynchronous work still needs it", _ASYNC),
    ("commit-after-exit", "warning", "both",
     "a CTA ends without a wait for another CTA's tcgen05.commit, but for a later one of the same thread",
     "PTX ISA 9.1 §9.7.16.12"),
    ("relaxed-barrier-before-exit", "warning", "checker",
     "a CTA ends after barrier.cluster.arrive.relaxed, which does not order what another CTA did to it before",
     "PTX ISA 9.1 §9.7.13.4 (barrier.cluster: .relaxed orders no memory); JAX's Mosaic GPU relies on it"),
    ("divergent-aligned-instruction", "error", "machine", "an .aligned instruction is not run by the whole warp",
     "PTX ISA 9.1 §9.7.13 (.aligned)"),
    ("cancel-after-failure", "error", "machine",
     "clusterlaunchcontrol.try_cancel after a query has shown that an earlier one failed",
     "PTX ISA 9.1 §9.7.13.17 (clusterlaunchcontrol.try_cancel)"),
    ("cta-group-mixed", "error", "machine", "tcgen05 instructions of one kernel name different cta_groups",
     "PTX ISA 9.1 §9.7.16.5 (CTA pairs)"),
    ("register-pool-exhausted", "error", "machine", "setmaxnreg asks for registers that the CTA does not have",
     "PTX ISA 9.1 §9.7.19.5 (setmaxnreg)"),
    ("wgmma-register-hazard", "error", "machine",
     "registers of a wgmma are touched before it is complete, or given to it without wgmma.fence",
     "PTX ISA 9.1 §9.7.15.7 (wgmma.fence, wgmma.wait_group)"),
    ("trap", "error", "machine", "the kernel executed trap", "PTX ISA 9.1 §9.7.19 (trap)"),
    ("instruction-budget", "error", "machine",
     "the kernel did not end within the instructions that it was given, so nothing is decided", "the caller's limit"),
    ("phase-left-open", "warning", "checker",
     "a CTA ends when some of the arrivals that a phase of its mbarrier counts have come, and not all",
     "no demand of the ISA; a sign that the mbarrier counts too few or too many (PTX ISA 9.1 §9.7.13.15.4)"),
    ("missing-tcgen05-fence", "warning", "checker",
     "accesses to tensor memory by different threads are ordered without tcgen05.fence on both sides",
     "PTX ISA 9.1 §9.7.16.11 (tcgen05.fence); compilers leave it out, and their kernels run right"),
    ("descriptor-constant", "warning", "machine",
     "a matrix descriptor of tcgen05.mma lacks the constant in bits 46 to 48",
     "PTX ISA 9.1 §9.7.16.4.1; JAX's Mosaic GPU leaves it out"),
    ("missing-wait-ld", "warning", "machine", "registers of a tcgen05.ld are used with no tcgen05.wait::ld before",
     "PTX ISA 9.1 §9.7.16.8 (tcgen05.wait); hardware holds the use up, compilers rely on it"),
    ("missing-mbarrier-init-fence", "warning", "checker",
     "an asynchronous unit uses an mbarrier whose initialisation no fence.mbarrier_init follows",
     "PTX ISA 9.1 §9.7.13.4 (fence.mbarrier_init); compilers leave it out inside one CTA"),
    ("missing-warpgroup-sync", "warning", "checker",
     "a warp runs another setmaxnreg before it knows that its whole warpgroup has run the last one",
     "PTX ISA 9.1 §9.7.19.5 (setmaxnreg); Triton leaves it out"),
    ("generic-read-then-async-write", "warning", "checker",
     "what threads have read is overwritten by an asynchronous copy with no proxy fence between",
     _PROXY + "; widely left out"),
    ("proxy-fence-by-reader", "warning", "checker",
     "the only proxy fence between a generic write and an asynchronous read is on the reader's side",
     _PROXY + "; CUTLASS and the CUDA guide fence where the writes are"),
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
    if verdict is Verdict.UNSCOPED:
        return "missing-cluster-scope"
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
