"""Events that touch memory, and the asynchronous operations that do."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.checker import exits, phases, starts
from ptxgen.checker.clocks import members, merge
from ptxgen.checker.cluster import Cluster
from ptxgen.checker.operations import MATRIX_KINDS, TENSOR_MEMORY_ACCESSES, Operation, TensorRegion
from ptxgen.checker.order import Agent
from ptxgen.emulator import events

_TENSOR_KINDS = TENSOR_MEMORY_ACCESSES | {"mma", "tmem-copy", "tmem-shift"}
_COMMITTED_KINDS = frozenset({"mma", "tmem-copy", "tmem-shift"})


def access(cluster: Cluster, event: events.Access) -> None:
    shares = cluster.shares(event.async_id) if event.async_id else ()
    if shares:
        _operations_access(cluster, event, shares)
    else:
        _threads_access(cluster, event)


def _operations_access(cluster: Cluster, event: events.Access, shares: Sequence[Operation]) -> None:
    if event.proxy == "tensormap":
        for share in shares:
            cluster.map_fences.use(cluster, share, event.ranges)
        return
    write = event.kind != "read"
    agents = [(event.lanes, share) for share in shares]
    if event.space != "shared":
        _after_launch_before(cluster, agents, write)
        cluster.globals.access(agents, event.ranges, 0, write)
        if cluster.grid is not None:
            cluster.grid.note(cluster, agents, event.ranges, 0, write)
        return
    for share in shares:
        exits.operates(cluster, event.owner, share)
        if share.kind == "cp-async":
            share.copies.append((event.owner, event.lanes, event.ranges))
    cluster.shared[event.owner].access(agents, event.ranges, 0, write)


def _threads_access(cluster: Cluster, event: events.Access) -> None:
    if event.proxy == "tensormap":
        return
    write = event.kind != "read"
    strong = event.order != "weak" or event.kind == "atomic"
    agents = cluster.thread_agents(event, uniform=len(event.ranges) == 1, write=write, strong=strong)
    for _, thread in agents:
        thread.value = event.value
        thread.all_proxies = event.line == cluster.allocation_line
    if strong and event.kind != "write":
        _acquire_location(cluster, event)
    if event.space == "shared":
        exits.visits(cluster, event.owner, event)
        starts.reaches(cluster, event.owner, event, (thread.view for _, thread in agents), "accesses shared memory of")
        cluster.shared[event.owner].access(agents, event.ranges, event.lanes, write)
    else:
        _after_launch_before(cluster, agents, write)
        cluster.globals.access(agents, event.ranges, event.lanes, write)
        if cluster.grid is not None:
            cluster.grid.note(cluster, agents, event.ranges, event.lanes, write)
    if strong and write:
        _release_location(cluster, event)


def _after_launch_before(cluster: Cluster, agents: Sequence[tuple[int, Agent]], write: bool) -> None:
    """Global memory is the launch's before until that has ended."""
    before = cluster.launch_before
    if before is None:
        return
    for _, agent in agents:
        clock = agent.clock if isinstance(agent, Operation) else agent.view.clock
        if clock.done & before.bit:
            cluster.provenance.need(before, agent.warp)
        elif not (isinstance(agent, Operation) and agent.kind == "prefetch"):
            cluster.findings.grid_not_awaited(cluster, agent, write)


def _place(event: events.Access) -> tuple[str, int, int]:
    return event.space, event.owner, event.ranges[0][0]


def _acquire_location(cluster: Cluster, event: events.Access) -> None:
    """A strong read learns what strong writes to the same place released; a relaxed one, at the next
    fence (PTX ISA 9.1 §8.7)."""
    if cluster.grid is not None and event.space == "global":
        cluster.grid.acquire(cluster, event)
    held = cluster.locations.get(_place(event))
    if held is None:
        return
    warp, paths = cluster.warp(event), cluster.paths
    known, path, afar = cluster.nothing, paths.of_line(event.line), False
    for (cta, stays), (clock, lines) in held.items():
        known, path = merge(known, clock), paths.join(path, lines)
        if cta != event.cta:
            afar = True
            if stays:
                paths.cta_scoped |= paths.lines(lines)
            if event.scope == "cta":
                paths.cta_scoped.add(event.line)
    for view in warp.change(event.lanes):
        if event.order in ("acquire", "acq_rel", "sc"):
            cluster.learn(warp, view, known, (_place(event),), path)
        else:
            cluster.await_fence(view, known, path, afar=afar)


def _release_location(cluster: Cluster, event: events.Access) -> None:
    warp = cluster.warp(event)
    order = event.order if event.order in ("release", "acq_rel", "sc") else "relaxed"
    if cluster.grid is not None and event.space == "global":
        cluster.grid.release(cluster, event, cluster.released(warp, event.lanes, order, to_grid=True))
    place = _place(event)
    held = cluster.locations.setdefault(place, {})
    key = event.cta, cluster.stays_in_cta(warp, event.lanes, f"{order}.{event.scope}")
    before, path = held.get(key, (cluster.nothing, 0))
    path = cluster.paths.join(path, cluster.paths.of_line(event.line))
    brought = cluster.released(warp, event.lanes, order)
    held[key] = cluster.gather(before, brought, warp.number, place, path), path


def tmem_access(cluster: Cluster, event: events.TmemAccess) -> None:
    shares = cluster.shares(event.async_id)
    if not shares:
        return
    (operation,) = shares
    exits.operates(cluster, event.owner, operation)
    write, region = event.kind == "write", (event.owner, event.tmem_lanes, event.columns)
    if operation.kind in MATRIX_KINDS:
        operation.tensor_accesses.append((write, region))  # which is the accumulator is known at the end
    else:
        _touch_tensor(cluster, operation, write, region)


def tmem_allocation(cluster: Cluster, event: events.TmemAllocation) -> None:
    if event.pair:
        cluster.pairs.run(cluster, event)
    if event.action == "relinquish":
        return
    if event.action == "alloc":
        cluster.allocation_line = event.line
        if event.pair:
            views = (view for _, view in cluster.warp(event).views(event.lanes))
            starts.reaches(cluster, event.cta ^ 1, event, views, "allocates tensor memory with")
    memory = cluster.tensor[event.cta]
    for _, agent in cluster.thread_agents(event, uniform=True, write=True):
        agent.verb = "allocates" if event.action == "alloc" else "frees"
        memory.access(agent, (0, 127), (event.column, event.column + event.columns), True)


def async_issue(cluster: Cluster, event: events.AsyncIssue) -> None:
    warp = cluster.warp(event)
    operation = cluster.new_operation(event)
    if event.kind in _TENSOR_KINDS:
        warp.unfenced |= operation.bit
    thread = operation.of_thread
    if event.kind in _COMMITTED_KINDS:
        cluster.tensor_work[thread] = cluster.tensor_work.get(thread, 0) | operation.bit
    if event.kind == "copy-arrive":
        for one in event.detail:
            for copy in cluster.shares(one):
                operation.tracked |= copy.bit
    if event.kind == "commit":
        operation.tracked = cluster.tensor_work.get(thread, 0)
        for number in members(operation.tracked & ~cluster.committed.get(thread, 0)):
            cluster.operations[number].commit_line = event.line
        cluster.committed[thread] = operation.tracked
        cluster.synchronises(warp, event.line)
    if event.mechanism == "mbarrier":
        exits.operates(cluster, event.owner, operation)
        phases.use_by_unit(cluster, event)


def source_read(cluster: Cluster, event: events.AsyncSourceRead) -> None:
    for operation in cluster.shares(event.async_id):
        if operation.tensor_accesses:
            _matrix_product(cluster, operation)


def completed(cluster: Cluster, event: events.AsyncComplete) -> None:
    cluster.pending_operations -= len(cluster.shares(event.async_id))


def _matrix_product(cluster: Cluster, operation: Operation) -> None:
    """A product's accesses to tensor memory: what it writes is its accumulator; that it reads it too
    adds nothing to the write."""
    operation.region = frozenset(region for write, region in operation.tensor_accesses if write)
    for write, region in operation.tensor_accesses:
        if write or region not in operation.region:
            _touch_tensor(cluster, operation, write, region)
    operation.tensor_accesses.clear()


def _touch_tensor(cluster: Cluster, operation: Operation, write: bool, region: TensorRegion) -> None:
    owner, lanes, columns = region
    cluster.tensor[owner].access(operation, lanes, columns, write)
