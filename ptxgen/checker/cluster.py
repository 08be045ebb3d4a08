"""One cluster under the checker: its warps, operations and memories, and the services they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ptxgen.checker.barriers import Mbarrier, Meeting
from ptxgen.checker.byte_memory import GlobalMemory, SharedMemory
from ptxgen.checker.clocks import Clock, Paths, acquire, either, empty, epoch_of, execution_of, merge, path_of
from ptxgen.checker.exits import Visitors
from ptxgen.checker.findings import Findings
from ptxgen.checker.grid import Foreign, Grid
from ptxgen.checker.operations import Observation, Operation
from ptxgen.checker.order import Access, Agent, Order, Verdict
from ptxgen.checker.pairs import Pairs
from ptxgen.checker.provenance import Provenance
from ptxgen.checker.shadow import ReaderSets
from ptxgen.checker.tensor_maps import MapFences
from ptxgen.checker.tensor_memory import TensorMemory
from ptxgen.checker.threads import View, Warp
from ptxgen.emulator.events import AsyncIssue, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all clusters of a launch have in common."""

    ctas: int
    warps_per_cta: int
    smem_bytes: int


class Cluster:
    """The state of one unit of work. Events are numbered by `now`."""

    def __init__(self, number: int, shape: Shape, paths: Paths, findings: Findings, grid: Grid | None = None) -> None:
        self.number, self.shape, self.paths = number, shape, paths
        self.findings = findings
        self.grid = grid
        """Where clusters synchronise through global memory, what they know of each other."""
        self.foreign: list[Foreign] = []
        self.now = 0
        self.provenance = Provenance(paths)
        self.order = Order(paths, self.provenance)
        self.readers = ReaderSets()
        self.nothing = empty(shape.ctas * shape.warps_per_cta)
        self.accesses: list[Access] = [None]  # type: ignore[list-item]  # numbers start at 1
        self.facts: list[Operation | Observation] = []
        """What the bits of the clocks' sets stand for."""
        self.observations = 0
        """The bits of those facts that are observations."""
        self.started = [self._started(rank) for rank in range(shape.ctas)]
        """That a CTA has started, which its own warps know: whoever hears of one of them knows it too."""
        self.warps = [
            Warp(rank * shape.warps_per_cta + index, rank, index, self.nothing.with_operations(started.bit, 0))
            for rank, started in enumerate(self.started)
            for index in range(shape.warps_per_cta)
        ]
        self.operations: dict[int, Operation] = {}
        """By their number among the facts."""
        self._by_async_id: dict[int, list[Operation]] = {}
        self.pending_operations = 0
        self.allocation_line = 0
        """The line of the last tcgen05.alloc, whose store to shared memory comes right after it."""
        self.tensor_work: dict[int, int] = {}
        """Thread -> the bits of its work on the tensor core, and of what is committed of it."""
        self.committed: dict[int, int] = {}
        self.shared = [SharedMemory(self, shape.smem_bytes) for _ in range(shape.ctas)]
        self.tensor = [TensorMemory(self) for _ in range(shape.ctas)]
        self.globals = GlobalMemory(self)
        self.map_fences = MapFences()
        self.pairs = Pairs()
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.visitors = [Visitors() for _ in range(shape.ctas)]
        self.meetings: dict[object, Meeting] = {}
        self.launch_before: Observation | None = None
        """That the launch before has ended, where this one may begin earlier: griddepcontrol.wait learns it."""
        self.locations: dict[tuple[str, int, int], dict[tuple[int, bool], tuple[Clock, int]]] = {}
        """Place -> (CTA, whether meant for it alone) -> what its strong writes there have released, and their path."""

    def _started(self, rank: int) -> Observation:
        first = rank * self.shape.warps_per_cta
        started = Observation(len(self.facts), first, 0, 0)
        started.paths.update((warp, 0) for warp in range(first, first + self.shape.warps_per_cta))
        self.facts.append(started)
        self.observations |= started.bit
        return started

    def depends(self) -> None:
        """The launch may begin before the one ahead of it has ended."""
        self.launch_before = Observation(len(self.facts), 0, 0, 0)
        self.facts.append(self.launch_before)

    @property
    def ended(self) -> bool:
        """Whether every thread has exited and no operation is pending."""
        return not self.pending_operations and not any(warp.live for warp in self.warps)

    def release(self) -> None:
        """Lets go of the memories, which refer back to it: the garbage collector is slow to find that."""
        self.shared.clear()
        self.tensor.clear()
        del self.globals

    # -- who -------------------------------------------------------------------------------------

    def warp(self, event: Event) -> Warp:
        return self.warps[event.cta * self.shape.warps_per_cta + event.warp]

    def thread_agents(
        self, event: Event, *, uniform: bool, write: bool, strong: bool = False
    ) -> list[tuple[int, Access]]:
        """The access of an event, one for each group of lanes that know the same."""
        warp = self.warp(event)
        warp.last_access = warp.mark()
        agents: list[tuple[int, Access]] = []
        for lanes, view in warp.views(event.lanes):
            access = Access(
                len(self.accesses), warp, view, lanes, event.line, self.now, uniform=uniform, write=write, strong=strong
            )
            self.accesses.append(access)
            agents.append((lanes, access))
        return agents

    # -- knowledge -------------------------------------------------------------------------------

    def new_operation(self, event: AsyncIssue) -> Operation:
        """Registers an operation, which knows what its issuing lane knows. A collective of several
        warps has one for each, as each of them has to know that its operands are there."""
        warp = self.warp(event)
        view = warp.view_of_first(event.lanes)
        operation = Operation(
            len(self.facts), event.kind, warp, view, lanes=event.lanes, line=event.line, order=self.now
        )
        self.facts.append(operation)
        self.operations[operation.number] = operation
        self._by_async_id.setdefault(event.async_id, []).append(operation)
        self.pending_operations += 1
        return operation

    def shares(self, async_id: int) -> list[Operation]:
        """The operations that go by an id of the machine's."""
        return self._by_async_id.get(async_id, [])

    def operation(self, async_id: int, warp: Warp) -> Operation | None:
        """A warp's own operation of that id, or the only one."""
        shares = self.shares(async_id)
        if len(shares) > 1:
            shares = [share for share in shares if share.warp == warp.number]
        return shares[0] if shares else None

    def new_observation(self, warp: Warp, line: int) -> Observation:
        observation = Observation(len(self.facts), warp.number, line, self.now)
        self.observations |= observation.bit
        self.facts.append(observation)
        return observation

    def learn(self, warp: Warp, view: View, other: Clock, sources: Sequence[object], path: int) -> None:
        """A view learns a clock that has come together from `sources`, along `path`."""
        new = (other.done | other.read) & ~(view.clock.done | view.clock.read)
        if new:
            self.provenance.note(self.now, new, sources, warp.number, path)
        view.clock = acquire(view.clock, other, self.paths, path)

    def executed(self, clock: Clock) -> Clock:
        """What relaxed synchronisation passes on of a clock."""
        return execution_of(clock, self.nothing, self.observations)

    def released(self, warp: Warp, lanes: int, order: str, *, to_grid: bool = False, restricted: bool = True) -> Clock:
        """What an arrive with this ordering passes on, in the cluster or to others; with `restricted`, also what fences
        restricted to shared memory have released."""
        if not order.startswith("relaxed"):
            return warp.release(lanes)
        passed = self.nothing
        for _, view in warp.views(lanes):
            fenced = view.released_grid if to_grid else view.released
            if restricted and not to_grid:
                fenced = either(fenced, view.released_restricted)
            passed = merge(passed, self.executed(view.clock))
            if fenced is not None:
                passed = merge(passed, fenced)
        return passed

    def await_fence(self, view: View, learned: Clock, path: int, *, afar: bool) -> None:
        """What a relaxed wait or read brings counts from the next fence on; `afar` if another CTA had a part in it."""
        view.pending = either(view.pending, learned)
        view.pending_path = self.paths.join(view.pending_path, path)
        view.pending_afar |= afar

    def stays_in_cta(self, warp: Warp, lanes: int, order: str) -> bool:
        """Whether what an arrive with this ordering and scope passes on is meant for its own CTA: by its scope, or by
        that of the fence before it where it is relaxed."""
        return order.endswith(".cta") or (
            order.startswith("relaxed") and any(view.fence_scope == "cta" for _, view in warp.views(lanes))
        )

    def gather(self, held: Clock, other: Clock, source: object, holder: object, path: int = 0) -> Clock:
        """What `holder` holds after `source` has added to it."""
        if other is held:
            return held
        new = (other.done | other.read) & ~(held.done | held.read)
        if new:
            self.provenance.note(self.now, new, (source,), holder, path)
        return merge(held, other)

    def settle(self, view: View) -> None:
        """Notes that a view knows every access there has been, where it does."""
        path = 0
        for value, warp in zip(view.clock.warps, self.warps, strict=True):
            if epoch_of(value) < warp.last_access:
                return
            if warp.last_access:
                path = self.paths.join(path, path_of(value))
        view.settled, view.settled_path = len(self.accesses), path

    def need_lines(self, *lines: int) -> None:
        self.paths.need(self.paths.of(line for line in lines if line))

    def synchronises(self, warp: Warp, line: int, *, judged: bool = True, waits: bool = False) -> None:
        """Notes that a warp runs a synchronising instruction. Whether one that is not `judged` was needed, only
        the machine knows; one that `waits` for others has passed on nothing yet."""
        if judged:
            self.paths.ran_lines.add(line)
            if not waits:
                self.paths.passed_on(line)
        warp.synchronised.append((self.now, line))

    # -- findings --------------------------------------------------------------------------------

    def conflict(
        self,
        space: str,
        first: Agent,
        second: Agent,
        first_writes: bool,
        second_writes: bool,
        verdict: Verdict,
        where: Callable[[], str],
    ) -> None:
        """Two accesses that nothing orders, or not enough. An operation may access late: what counts
        is when it was issued."""
        if first.order > second.order:
            first, second = second, first
            first_writes, second_writes = second_writes, first_writes
        self.findings.conflict(self, space, first, second, first_writes, second_writes, verdict, where)
