"""A unit of work: one cluster, executed from its launch to its end.

The scheduler runs warps until none can go on, lets the policy complete one asynchronous operation,
and so on. A warp whose test of an mbarrier failed is asked again when the barrier's phase
completes, or when nothing else can happen; when it then comes back to the same failed test and
nothing changed in between, the cluster is deadlocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp, Engine
from ptxgen.emulator.cluster import ClusterBarrier, Pair
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.policy import Policy
from ptxgen.emulator.ranges import AccessLog
from ptxgen.emulator.report import Finding, Stop
from ptxgen.emulator.warp import Fragment, Wait, Warp
from ptxgen.errors import MachineError

if TYPE_CHECKING:
    from ptxgen.emulator.backlog import Backlog
    from ptxgen.emulator.machine import Launch
    from ptxgen.emulator.tmem import TmemRegion

_USES_CTA = frozenset(
    {"mma", "commit", "tensor-load", "bulk-load", "tmem-copy", "tmem-shift", "try-cancel"}
)  # fmt: skip
"""Operations that write to or signal a CTA, which has to outlive them."""

_OVERTAKEN = (
    "CTA {} ends and nobody there has waited for this arrival from CTA {}; a later one of the same thread has come, "
    "and only that commits arrive in their order, which the manual does not say, makes it safe"
)

_MEETINGS = frozenset({"pair", "barrier", "cluster-barrier"})
"""Waits for other warps to come to the same place. Where there are no others, a half of a pair is the cause."""

_MAX_FINDINGS = 100
_MOST_PENDING = 10_000
_MOST_OBSERVED = 60_000
"""Asynchronous operations of a cluster, pending ones and, where they are observed, all: what is known of them grows
with their square, so a loop that issues them without end would fill the memory before it has used up a budget."""
_POLLS = 100
"""Times that a look at global memory finds what it has found before, and nothing can happen any more, before this
is a deadlock: a loop may count its turns."""
_IDLE_ROUNDS = 20_000
_IDLE_INSTRUCTIONS = 5_000_000
"""Warps that only sleep or spin for so long, with no effect on anything, are deadlocked."""


def _unobserved(event: events.Event) -> None:
    raise AssertionError(f"{event} was made for nobody")


class Unit:
    """`number` counts clusters through the grid; `activity` every effect that could matter to a
    waiting warp; `backlog` has the clusters that it may cancel."""

    def __init__(
        self,
        launch: Launch,
        number: int,
        emit: Callable[[events.Event], None] | None,
        backlog: Backlog | None = None,
    ) -> None:
        self.launch, self.number = launch, number
        self.observed = emit is not None
        self.emit = emit or _unobserved
        self.policy = Policy(launch.policy, launch.seed, number, launch.elect)
        self.engine = Engine(self, self.policy)
        self.activity = 0
        self.findings: list[Finding] = []
        self._seen: set[tuple[str, int | None]] = set()
        self.log = AccessLog()
        self.ctas: list[Cta] = []
        self.cluster_barrier = ClusterBarrier(self)
        self.pairs = [Pair(self.policy) for _ in range(launch.cluster_size // 2)]
        for rank, ctaid in enumerate(launch.ctas_of(number)):
            self.ctas.append(Cta(self, rank, ctaid))
        self._warps = [warp for cta in self.ctas for warp in cta.warps]
        self.instructions = 0
        self._rounds_idle = 0
        self._idle_since = 0
        self._retried: dict[Fragment, Wait] | None = None
        self._retried_activity = 0
        self.polls: list[Fragment] = []
        """Those that wait for a change of global memory."""
        self._rounds_polled = 0
        self.blocked: Stop | None = None
        self.backlog = backlog

    # -- events and findings --------------------------------------------------------------------

    def where(self, warp: Warp, lanes: int, line: int) -> events.Place:
        """The common fields of an event."""
        return self.number, warp.cta.rank, warp.index, lanes, line

    def place(self, op: AsyncOp) -> events.Place:
        """The common fields of an operation's events."""
        place = op.place
        if place is None or place[-1] != op.line:
            place = op.place = self.where(op.warp, 1 << op.lane, op.line)
        return place

    def emit_tmem(self, where: events.Place, kind: str, region: TmemRegion, owner: int, async_id: int) -> None:
        for first, stop in region.lanes:
            for columns in region.columns:
                self.emit(
                    events.TmemAccess(
                        *where, kind=kind, tmem_lanes=(first, stop - 1), columns=columns, owner=owner,
                        async_id=async_id,
                    )
                )  # fmt: skip

    def finding(self, rule: str, message: str, warp: Warp | None, line: int | None, severity: str = "error") -> Finding:
        return Finding(
            rule=rule,
            severity=severity,
            message=message,
            line=line,
            text=self.launch.lines[line - 1].strip() if line else "",
            cta=None if warp is None else warp.cta.ctaid,
            warp=None if warp is None else warp.index,
            unit=self.number,
        )

    def note(self, rule: str, message: str, warp: Warp, line: int, severity: str = "error") -> None:
        """Records a finding after which execution goes on; one per rule and line."""
        if (rule, line) not in self._seen and len(self.findings) < _MAX_FINDINGS:
            self._seen.add((rule, line))
            self.findings.append(self.finding(rule, message, warp, line, severity))

    def fault(self, error: MachineError, warp: Warp, line: int) -> Stop:
        """The exception that ends this unit because of a machine error."""
        return Stop(self.finding(error.rule, error.message, warp, line))

    # -- scheduling -----------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the cluster to its end; Stop on an error."""
        while not self.step():
            pass

    def step(self) -> bool:
        """One scheduling round; True when the cluster has ended. A deadlocked cluster raises Stop;
        where it may wait for other clusters, the deadlock is left in `blocked`."""
        if self.polls:
            self._look()
        before = self.activity
        ran = False
        for index in self.policy.order(len(self._warps)):
            warp = self._warps[index]
            while (fragment := warp.ready()) is not None:
                ran = True
                warp.run(fragment, self.policy.turn())
                if warp.tensor_queue:
                    warp.flush_tensor()
                self._check_budget(warp)
                if self.policy.random or warp.current.wait is None:
                    break
            if self.policy.random and self.engine.pending and self.policy.completes_now():
                self.engine.advance()
        if not any(warp.fragments for warp in self._warps):
            self._end()
            return True
        if ran or self.activity != before:
            self._watch_idling(before)
            return False
        if self.engine.advance():
            return False
        stuck = self._retry()
        if stuck is not None and not self.launch.one_process:
            raise stuck
        self.blocked = stuck
        return False

    def _check_budget(self, warp: Warp) -> None:
        budget, used = self.launch.instruction_budget, ""
        if budget is not None and self.instructions > budget:
            used = f"instruction budget of {budget} exhausted"
        elif len(self.engine.pending) > _MOST_PENDING:
            used = f"more than {_MOST_PENDING} asynchronous operations are pending"
        elif self.observed and self.engine.issued > _MOST_OBSERVED:
            used = f"more than {_MOST_OBSERVED} asynchronous operations in a cluster are not followed"
        if used:
            raise Stop(self.finding("instruction-budget", used, warp, self._line_of(warp.current)))

    def _line_of(self, fragment: Fragment) -> int:
        if fragment.wait is not None:
            return fragment.wait.line
        return fragment.warp.code.lines[fragment.pc][0]

    def _watch_idling(self, before: int) -> None:
        """Only naps (nanosleep) and turns of spinning warps, nothing else, for too long."""
        if self.activity != before:
            self._rounds_idle = 0
            self._idle_since = self.instructions
            self._rounds_polled = 0
            self._retried = self.blocked = None
            return
        self._rounds_idle += 1
        if self._rounds_idle > 3 and self.engine.advance():
            self._rounds_idle = 0
        elif self._rounds_idle > _IDLE_ROUNDS or self.instructions - self._idle_since > _IDLE_INSTRUCTIONS:
            self.blocked = self._deadlock()
            if not self.launch.one_process:
                raise self.blocked

    def _fragments(self) -> Iterator[Fragment]:
        for warp in self._warps:
            yield from warp.fragments

    def awaited(self) -> set[tuple[int, int]]:
        """The mbarriers and wgmma batches that fragments wait for."""
        return {
            fragment.wait.target
            for fragment in self._fragments()
            if fragment.wait is not None and fragment.wait.kind in ("mbarrier", "wgmma")
        }

    def _look(self) -> None:
        """Wakes those that wait for a change of global memory, where there is one."""
        left = []
        for fragment in self.polls:
            wait = fragment.wait
            if wait is None or wait.kind != "memory":
                continue
            block, offset, size, seen = wait.target
            if block.load_word(offset, size) == seen:
                left.append(fragment)
                continue
            fragment.wait = self.blocked = self._retried = None
            self.activity += 1
        self.polls = left

    def _retry(self) -> Stop | None:
        """Nothing can go on and nothing is pending: asks the failed tests once more, or returns the
        deadlock."""
        waits = {f: f.wait for f in self._fragments() if f.wait is not None and f.wait.spins}
        naps = [f for f in self._fragments() if f.wait is not None and f.wait.kind == "sleep"]
        for fragment in naps:
            fragment.wait = None
        if naps:
            return None
        again = self._retried
        if not waits or (
            again is not None
            and waits.keys() == again.keys()
            and all(wait.same_as(again[fragment]) for fragment, wait in waits.items())
            and self._retried_activity == self.activity
        ):
            self._rounds_polled += 1
            if not self.polls or self._rounds_polled > _POLLS:
                return self._deadlock()
        self._retried = waits
        self._retried_activity = self.activity
        for fragment in waits:
            fragment.wait = None
        for cta in self.ctas:
            cta.waiters.clear()
        return None

    def _deadlock(self) -> Stop:
        alike: dict[tuple[str, str], list[int]] = {}
        for f in self._fragments():
            what = f"(lanes {f.bits:#010x}), line {self._line_of(f)}: {self._describe(f)}"
            alike.setdefault((f"of CTA {f.warp.cta.ctaid}", what), []).append(f.warp.index)
        lines = [
            f"warp{'s' if len(warps) > 1 else ''} {', '.join(map(str, warps))} {cta} {what}"
            for (cta, what), warps in alike.items()
        ]
        message = "no warp can go on and nothing is pending:\n  " + "\n  ".join(lines)
        for f in self._fragments():
            if f.wait is not None and f.wait.kind == "registers":
                return Stop(self.finding("register-pool-exhausted", message, f.warp, f.wait.line))
        waits = [(f, f.wait) for f in self._fragments() if f.wait is not None]
        if all(wait.kind in _MEETINGS for _, wait in waits):
            for f, wait in waits:
                if wait.kind == "pair":
                    return Stop(self.finding("pair-order", message, f.warp, wait.line))
        first = min(self._fragments(), key=self._lacks_bytes_only)
        return Stop(self.finding("deadlock", message, first.warp, self._line_of(first)))

    def _lacks_bytes_only(self, fragment: Fragment) -> bool:
        """Whether all have arrived on the mbarrier for which it waits. Who is to send the bytes may itself wait
        for arrivals: a deadlock is told where those are missing."""
        wait = fragment.wait
        if wait is None or wait.kind != "mbarrier":
            return False
        rank, offset = wait.target
        return not self.ctas[rank].barriers[offset].pending

    def _describe(self, fragment: Fragment) -> str:
        wait = fragment.wait
        if wait is None:
            return "runs without effect"
        if wait.kind == "mbarrier":
            rank, offset = wait.target
            state = self.ctas[rank].barriers[offset].describe()
            return f"waits for mbarrier {offset:#x} ({wait.detail}); {state}"
        if wait.kind == "registers":
            wanted, have, pool = wait.detail
            return f"waits for {wanted} registers a thread; it has {have}, and {pool} are in the CTA's pool"
        if wait.kind == "barrier":
            state = fragment.warp.cta.named[wait.target]
            return f"waits at barrier {wait.target}; {state}"
        if wait.kind == "pair":
            peer = self.ctas[fragment.warp.cta.rank ^ 1]
            return f"waits for {wait.detail} in the pair's other CTA {peer.ctaid}{' (ended)' if peer.ended else ''}"
        if wait.kind == "wgmma":
            return f"waits for a group of wgmma; {wait.detail}"
        if wait.kind == "memory":
            return f"waits for a change of global memory; {wait.detail}"
        return f"waits ({wait.kind})"

    # -- ends -----------------------------------------------------------------------------------

    def lanes_exit(self, cta: Cta, warp: Warp, lanes: int) -> None:
        """Bulk stores must at least have read their source before their thread ends."""
        if self.observed:
            self.emit(events.WarpExit(*self.where(warp, lanes, self._line_of(warp.current))))
        for line in () if warp.wgmma is None else warp.wgmma.unwaited():
            self.note(
                "exit-with-pending-async",
                f"the warp ends before a wgmma.wait_group covers its wgmma of line {line}",
                warp,
                line,
            )
        for lane, groups in warp.bulk.items():
            if lanes >> lane & 1:
                for op in groups.unwaited():
                    self.note(
                        "exit-with-pending-async",
                        f"the thread ends while its {op.kind} of line {op.line} may still read shared memory; "
                        "cp.async.bulk.wait_group(.read) has to come first",
                        warp,
                        op.line,
                    )

    def cta_ends(self, cta: Cta, warp: Warp) -> None:
        """What must hold when the last warp of a CTA has exited."""
        for op in [op for op in self.engine.pending if cta.rank in op.reaches and op.kind in _USES_CTA]:
            if self.engine.overtaken(op):
                self.note("commit-after-exit", _OVERTAKEN.format(cta.ctaid, op.cta.ctaid), op.warp, op.line, "warning")
                self.engine.complete(op)
            else:
                message = f"the CTA ends while its {op.kind} is not complete"
                if op.cta is not cta:
                    message = f"CTA {cta.ctaid} ends while a {op.kind} of CTA {op.cta.ctaid} is on its way to it"
                raise Stop(self.finding("exit-with-pending-async", message, op.warp, op.line))
        self._compare_register_requests(cta)
        last = warp.code.lines[-1][-1]
        try:
            for offset, barrier in cta.barriers.items():
                try:
                    barrier.check_exit()
                except MachineError as error:
                    raise MachineError(error.rule, f"mbarrier {offset:#x}: {error.message}") from error
            if cta._tmem is not None:
                cta.tmem.check_exit()
        except MachineError as error:
            raise self.fault(error, warp, last) from error

    def _compare_register_requests(self, cta: Cta) -> None:
        """All warps of a warpgroup run the same setmaxnreg instructions (PTX ISA 9.1 §9.7.19.5)."""
        for warp in cta.warps:
            first = cta.warps[warp.index & ~3]
            for mine, theirs in zip_longest(warp.register_requests, first.register_requests, fillvalue=("", 0)):
                if mine[0] == theirs[0]:
                    continue
                (what, line), who, other = (mine, warp, first) if mine[1] else (theirs, first, warp)
                message = f"warp {who.index} runs {what}, and warp {other.index} of its warpgroup does not"
                self.note("divergent-aligned-instruction", message, who, line)
                break

    def _end(self) -> None:
        for pair in self.pairs:
            if (found := pair.unmatched()) is not None:
                what, half = found
                message = f"the pair's other CTA never runs {what}, for which this one may wait for ever"
                raise Stop(self.finding("pair-order", message, half.warp, half.line))
        self.engine.drain()
