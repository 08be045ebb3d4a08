"""Events that hand knowledge over, but for those of mbarriers: CTA, cluster and warp barriers, fences, waits."""

from __future__ import annotations

from ptxgen.checker import exits
from ptxgen.checker.barriers import Meeting
from ptxgen.checker.clocks import acquire, epoch_of, members, merge, path_of
from ptxgen.checker.cluster import Cluster
from ptxgen.checker.grid import GPU_SCOPES
from ptxgen.checker.operations import Operation
from ptxgen.checker.threads import View, Warp
from ptxgen.emulator import events

_UNJUDGED = ("wgmma.fence", "fence.proxy.alias")
"""Fences of which the checker does not know what rests on them."""
_GRID_SCOPES = (*GPU_SCOPES, "gl")
"""Of fences that take in other clusters; membar's .gl is .gpu."""
_MAP_RELEASES = ("fence.proxy.tensormap::generic.release", "tensormap.cp_fenceproxy")

# -- barriers -----------------------------------------------------------------------------------


def named_barrier(cluster: Cluster, event: events.NamedBarrier) -> None:
    _meet(
        cluster, event, ("barrier", event.cta, event.barrier), event.lanes, waits=event.action != "arrive",
        complete=event.completed,
    )  # fmt: skip


def warp_sync(cluster: Cluster, event: events.WarpSync) -> None:
    """Of the instructions in which lanes meet only bar.warp.sync orders memory (PTX ISA 9.1 §9.7.13.3)."""
    if event.what != "bar.warp.sync":
        return
    warp = cluster.warp(event)
    key = ("warp", warp.number, event.mask)
    meeting = cluster.meetings.get(key)
    arrived = event.lanes | (meeting.arrived if meeting is not None else 0)
    _meet(cluster, event, key, event.lanes, waits=True, complete=not event.mask & warp.live & ~arrived)


def cluster_barrier(cluster: Cluster, event: events.ClusterBarrier) -> None:
    warp = cluster.warp(event)
    meeting = _meeting(cluster, ("cluster", event.generation))
    cluster.synchronises(warp, event.line)
    meeting.lines.add(event.line)
    if event.action == "arrive":
        brought = cluster.released(warp, event.lanes, event.order, restricted=False)
        if cluster.stays_in_cta(warp, event.lanes, event.order):
            cluster.paths.cta_scoped.add(event.line)
        meeting.gathered = merge(meeting.gathered, brought)
        meeting.sources.append(warp.number)
        meeting.epochs[warp.number] = epoch_of(warp.end_epoch())
    else:
        exits.met(cluster, warp.cta, meeting.epochs)
        path = cluster.paths.of(meeting.lines)
        for view in warp.change(event.lanes):
            cluster.learn(warp, view, meeting.gathered, meeting.sources, path)


def _meeting(cluster: Cluster, key: object) -> Meeting:
    meeting = cluster.meetings.get(key)
    if meeting is None:
        meeting = cluster.meetings[key] = Meeting(cluster.nothing)
    return meeting


def _meet(cluster: Cluster, event: events.Event, key: object, lanes: int, *, waits: bool, complete: bool) -> None:
    warp = cluster.warp(event)
    cluster.synchronises(warp, event.line, waits=not complete)
    meeting = _meeting(cluster, key)
    meeting.gathered = merge(meeting.gathered, warp.release(lanes))
    meeting.sources.append(warp.number)
    meeting.lines.add(event.line)
    meeting.arrived |= lanes
    if waits:
        meeting.waiting.append((warp.number, lanes))
    if not complete:
        return
    del cluster.meetings[key]
    path = cluster.paths.of(meeting.lines)
    for line in meeting.lines:
        cluster.paths.passed_on(line)
    for number, mask in meeting.waiting:
        waiter = cluster.warps[number]
        if len(waiter.groups) > 1:
            largest = max(waiter.views(mask), key=lambda group: group[0].bit_count())[1]
            waiter.unite(mask, acquire(largest.clock, meeting.gathered, cluster.paths, path))
        for view in waiter.change(mask):
            cluster.learn(waiter, view, meeting.gathered, meeting.sources, path)
            cluster.settle(view)


# -- fences -------------------------------------------------------------------------------------


def fence(cluster: Cluster, event: events.Fence) -> None:
    name, warp = event.name, cluster.warp(event)
    cluster.synchronises(warp, event.line, judged=not name.startswith(_UNJUDGED))
    if name.startswith("fence.proxy.async::generic"):
        _directed_fence(cluster, event, warp)
    elif name.startswith(("fence.proxy.async", "membar.proxy.async")):
        if not name.endswith(".global"):
            _proxy_fence(cluster, event, warp)
        _init_fence(cluster, event, warp)
    elif name.startswith(_MAP_RELEASES):
        cluster.map_fences.release(cluster, event)
    elif name.startswith("fence.proxy.tensormap"):
        cluster.map_fences.acquire(cluster, event)
    elif name.startswith("fence.mbarrier_init"):
        _release_inits(cluster, event, warp)
        _init_fence(cluster, event, warp)
    elif name == "tcgen05.fence::before_thread_sync":
        _before_thread_sync(cluster, event, warp)
    elif name == "tcgen05.fence::after_thread_sync":
        for view in warp.change(event.lanes):
            if _hands_over(cluster, view):
                cluster.need_lines(event.line)
            view.after, view.after_line = view.clock, event.line
    elif name.startswith(("fence.", "membar.")) and ".proxy." not in name:
        _memory_fence(cluster, event, warp)


def _proxy_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    value = warp.end_epoch(cluster.paths.of_line(event.line))
    for view in warp.change(event.lanes):
        view.proxied, view.bridge = max(view.proxied, value), view.clock


def _directed_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    """fence.proxy.async::generic: a proxy fence that relaxed synchronisation may follow, or go ahead of."""
    if ".acquire" in event.name:
        _memory_fence(cluster, event, warp)
        _proxy_fence(cluster, event, warp)
    else:
        _proxy_fence(cluster, event, warp)
        _memory_fence(cluster, event, warp)


def _release_inits(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    """fence.mbarrier_init is a release of initialisations alone; relaxed synchronisation may follow it."""
    mine = [
        barrier
        for barrier in cluster.mbarriers.values()
        if barrier.init_released is None
        and barrier.init_warp == warp.number
        and event.lanes >> barrier.init_lane & 1
    ]  # fmt: skip
    if not mine:
        return
    released = cluster.new_observation(warp, event.line)
    for barrier in mine:
        barrier.init_released = released
    for view in warp.change(event.lanes):
        view.clock = view.clock.with_operations(released.bit, 0)


def _init_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    for barrier in cluster.mbarriers.values():
        if not barrier.init_fence_line and barrier.init_warp == warp.number and event.lanes >> barrier.init_lane & 1:
            barrier.init_fence_line, barrier.init_fence_epoch = event.line, warp.mark()


def _before_thread_sync(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    for number in members(warp.unfenced):
        cluster.operations[number].fence_line = event.line
    for view in warp.change(event.lanes):
        view.clock = view.clock.with_operations(0, 0, warp.unfenced)
    if event.lanes & warp.live == warp.live:
        warp.unfenced = 0


def _hands_over(cluster: Cluster, view: View) -> bool:
    """Whether the view has learned, since its last fence after a barrier, of tensor memory that was allocated or
    worked on: the fence then belongs to the hand-over (PTX ISA 9.1 §9.7.16.6.4), even where another would serve."""
    if view.after is None:
        return bool(cluster.allocation_line)
    return bool(view.clock.fenced & ~view.after.fenced)


def _memory_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    """fence.{acq_rel, sc, …} and membar: what relaxed operations brought counts from here, what they
    pass on is what is known here; between threads that its scope takes in."""
    _, *modifiers, scope = event.name.split(".")
    views = warp.change(event.lanes)
    if "release" not in modifiers:
        for view in views:
            _learn_pending(cluster, event, warp, view, in_cta=scope == "cta", in_grid=scope in _GRID_SCOPES)
    if "acquire" not in modifiers:
        released = warp.release(event.lanes)
        restricted = any(modifier.startswith("sync_restrict") for modifier in modifiers)
        for view in views:
            view.fence_scope = scope
            if restricted:
                view.released_restricted = released
                continue
            view.released = released
            if scope in _GRID_SCOPES:
                view.released_grid = released
    if scope != "cta":
        _init_fence(cluster, event, warp)


def _learn_pending(
    cluster: Cluster, event: events.Fence, warp: Warp, view: View, *, in_cta: bool, in_grid: bool
) -> None:
    path = cluster.paths.of_line(event.line)
    if view.pending is not None:
        if view.pending_afar and in_cta:
            cluster.paths.cta_scoped.add(event.line)
        cluster.learn(warp, view, view.pending, (warp.number,), cluster.paths.join(view.pending_path, path))
        view.pending, view.pending_path, view.pending_afar = None, 0, False
    if view.pending_grid is not None and in_grid:
        cluster.learn(warp, view, view.pending_grid, (warp.number,), path)
        view.pending_grid = None


# -- waits --------------------------------------------------------------------------------------


def wait_group(cluster: Cluster, event: events.WaitGroup) -> None:
    warp = cluster.warp(event)
    if event.mechanism != "register":
        cluster.synchronises(warp, event.line)
    if event.mechanism == "wgmma-group":
        _wait_for_warpgroup(cluster, event, warp)
        return
    bits = 0
    for one in event.covered:
        operation = cluster.operation(one, warp)
        if operation is not None and operation.copies:
            _take_over(cluster, event, operation)
        elif operation is not None:
            bits |= operation.bit
            _credit(cluster, operation, warp, event.line)
    if not bits:
        return
    for view in warp.change(event.lanes):
        view.clock = view.clock.with_operations(0 if event.read_only else bits, bits)


def _wait_for_warpgroup(cluster: Cluster, event: events.WaitGroup, warp: Warp) -> None:
    """A wgmma is one operation of four warps: who has waited for it knows that it is over for all of them, and
    so that each has come as far as to issue it."""
    bits, reached = 0, cluster.nothing
    shares = [share for one in event.covered for share in cluster.shares(one)]
    for share in shares:
        bits |= share.bit
        reached = merge(reached, cluster.executed(share.clock))
        _credit(cluster, share, warp, event.line)
    sources = [share.warp for share in shares]
    path = cluster.paths.of_line(event.line)
    for view in warp.change(event.lanes):
        cluster.learn(warp, view, reached, sources, path)
        view.clock = view.clock.with_operations(bits, bits)


def _take_over(cluster: Cluster, event: events.WaitGroup, operation: Operation) -> None:
    """A lane has waited for its cp.async: what they wrote, it has written."""
    kept = []
    for copy in operation.copies:
        owner, lane, ranges = copy
        if lane & event.lanes:
            _, agent = cluster.thread_agents(event, uniform=True, write=True)[0]
            agent.line = operation.line
            cluster.shared[owner].take_over(operation, agent, ranges)
        else:
            kept.append(copy)
    operation.copies = kept


def _credit(cluster: Cluster, operation: Operation, warp: Warp, line: int) -> None:
    if warp.number not in operation.paths:
        lines = (line, operation.commit_line) if operation.commit_line else (line,)
        operation.paths[warp.number] = cluster.paths.of(lines)


def commit(cluster: Cluster, event: events.Commit) -> None:
    if event.mechanism != "mbarrier":
        for one in event.tracked:
            operation = cluster.operation(one, cluster.warp(event))
            if operation is not None:
                operation.commit_line = event.line
    cluster.synchronises(cluster.warp(event), event.line)


def grid_wait(cluster: Cluster, event: events.GridWait) -> None:
    before, warp = cluster.launch_before, cluster.warp(event)
    cluster.synchronises(warp, event.line)
    if before is None:  # it begins after it anyhow
        return
    before.paths.setdefault(warp.number, cluster.paths.of_line(event.line))
    for view in warp.change(event.lanes):
        view.clock = view.clock.with_operations(before.bit, 0)


def register_request(cluster: Cluster, event: events.RegisterRequest) -> None:
    """setmaxnreg: the warp knows that the others of its warpgroup have run the one before."""
    warp = cluster.warp(event)
    if warp.register_requests:
        clock, last = warp.view_of_first(event.lanes).clock, len(warp.register_requests) - 1
        for other in cluster.warps[warp.number - warp.index % 4 :][:4]:
            if other is warp or other.cta != warp.cta:
                continue
            ran = other.register_requests[last : last + 1]
            known = [
                value for lane in range(32) if ran and epoch_of(value := clock.knows(other.number, lane)) >= ran[0]
            ]
            if known:
                cluster.paths.need(path_of(known[0]))
            else:
                cluster.findings.requested_again(cluster, warp, other, event.line, warp.register_line)
                break
    warp.register_requests.append(warp.mark())
    warp.register_line = event.line


def warp_exit(cluster: Cluster, event: events.WarpExit) -> None:
    warp = cluster.warp(event)
    warp.live &= ~event.lanes
    if not warp.live:
        exits.exits(cluster, warp)
