"""Events that hand knowledge over: mbarriers, CTA, cluster and warp barriers, fences, waits."""

from __future__ import annotations

from ptxgen.checker import exits
from ptxgen.checker.barriers import Mbarrier, Meeting, note_transfer
from ptxgen.checker.clocks import Clock, acquire, epoch_of, members, merge, path_of
from ptxgen.checker.cluster import Cluster
from ptxgen.checker.operations import Operation
from ptxgen.checker.threads import View, Warp
from ptxgen.emulator import events

# -- mbarriers ----------------------------------------------------------------------------------


def mbarrier_init(cluster: Cluster, event: events.MbarrierInit) -> None:
    warp = cluster.warp(event)
    agents = cluster.thread_agents(event, uniform=True, write=True)
    cluster.shared[event.owner].access(agents, ((event.barrier, event.barrier + 8),), event.lanes, True)
    cluster.mbarriers[event.owner, event.barrier] = Mbarrier(
        owner=event.owner, offset=event.barrier, count=event.count, pending=event.count, init_warp=warp.number,
        init_lane=(event.lanes & -event.lanes).bit_length() - 1, init_epoch=warp.epoch, init_line=event.line,
        gathered=cluster.nothing, published=cluster.nothing, before=cluster.nothing,
    )  # fmt: skip


def mbarrier_inval(cluster: Cluster, event: events.MbarrierInval) -> None:
    barrier = cluster.mbarriers.pop((event.owner, event.barrier), None)
    if barrier is None:
        return
    warp = cluster.warp(event)
    for lanes, view in warp.views(event.lanes):
        for number, (epoch, used_by, line) in barrier.users.items():
            known = view.clock.knows
            if (number, used_by) != (warp.number, lanes) and any(
                epoch_of(known(number, lane)) < epoch and not (number == warp.number and lanes == 1 << lane)
                for lane in members(used_by)
            ):
                cluster.findings.barrier_ended(cluster, barrier, event, number, line)
            else:
                cluster.paths.need(path_of(view.clock.warps[number]))
    agents = cluster.thread_agents(event, uniform=True, write=True)
    cluster.shared[event.owner].access(agents, ((event.barrier, event.barrier + 8),), event.lanes, True)


def _use(
    cluster: Cluster, barrier: Mbarrier, event: events.Event, warp: Warp, views: list[View], *, by_unit: bool = False
) -> None:
    """A use of an mbarrier: its initialisation has to be visible to the user, and, for asynchronous
    units, fenced."""
    barrier.users[warp.number] = (warp.epoch, event.lanes, event.line)
    key = (warp.number, event.lanes, by_unit)
    if key in barrier.visible_to:
        return
    barrier.visible_to.add(key)
    own = warp.number == barrier.init_warp and event.lanes == 1 << barrier.init_lane
    for view in views:
        value = view.clock.knows(barrier.init_warp, barrier.init_lane)
        if epoch_of(value) >= barrier.init_epoch:
            cluster.paths.need(path_of(value))
        elif barrier.init_released is not None and view.clock.done & barrier.init_released.bit:
            cluster.paths.need(barrier.init_released.paths.get(warp.number, 0))
        elif not own:
            cluster.findings.init_not_visible(cluster, barrier, event)
            return
    if by_unit:
        if barrier.init_fence_line:
            cluster.need_lines(barrier.init_fence_line)
        else:
            cluster.findings.init_not_fenced(cluster, barrier, event)


def use_by_unit(cluster: Cluster, event: events.AsyncIssue) -> None:
    """An operation is issued that will signal an mbarrier."""
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is not None:
        warp = cluster.warp(event)
        _use(cluster, barrier, event, warp, [view for _, view in warp.views(event.lanes)], by_unit=True)


def mbarrier_arrive(cluster: Cluster, event: events.MbarrierArrive) -> None:
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is None:
        return
    warp = cluster.warp(event)
    operation = cluster.operation(event.async_id, warp) if event.async_id else None
    brought = cluster.nothing
    if operation is not None:
        brought = operation.outcome()
    elif not event.async_id:
        _use(cluster, barrier, event, warp, [view for _, view in warp.views(event.lanes)])
        exits.visits(cluster, event.owner, event)
        brought = released(cluster, warp, event.lanes, event.order)
        cluster.synchronises(warp, event.line)
    barrier.gathered = cluster.gather(barrier.gathered, brought, warp.number, barrier)
    barrier.phase_lines.add(event.line)
    barrier.pending -= event.count
    barrier.count -= event.dropped
    if event.expect_bytes:
        note_transfer(barrier.expected, event.line, event.expect_bytes)
    if event.completed:
        _end_phase(cluster, barrier, event)


def released(cluster: Cluster, warp: Warp, lanes: int, order: str) -> Clock:
    """What an arrive with this ordering passes on."""
    if not order.startswith("relaxed"):
        return warp.release(lanes)
    passed = cluster.nothing
    for _, view in warp.views(lanes):
        passed = merge(passed, cluster.executed(view.clock))
        if view.released is not None:
            passed = merge(passed, view.released)
    return passed


def mbarrier_complete(cluster: Cluster, event: events.MbarrierComplete) -> None:
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is None:
        return
    operation = cluster.operation(event.async_id, cluster.warp(event))
    if operation is not None:
        barrier.gathered = cluster.gather(barrier.gathered, operation.outcome(), operation.warp, barrier)
    note_transfer(barrier.arrived, event.line, event.tx_bytes)
    if event.completed:
        _end_phase(cluster, barrier, event)


def _end_phase(cluster: Cluster, barrier: Mbarrier, event: events.Event) -> None:
    """A phase ends. Whoever saw the phase before it end has to be known, by those that complete this
    one, to have seen it: else a slow waiter could find the barrier two phases ahead."""
    for observation in barrier.seen.values():
        if barrier.gathered.done & observation.bit:
            cluster.paths.need(observation.paths.get(barrier, 0))
        else:
            cluster.findings.overrun(cluster, barrier, event, observation)
    barrier.end_phase(cluster.paths.of(barrier.phase_lines))


def mbarrier_wait(cluster: Cluster, event: events.MbarrierWait) -> None:
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is None:
        return
    warp = cluster.warp(event)
    if not event.success:
        _failed(cluster, barrier, event, warp)
        return
    barrier.asked.pop(warp.number, None)
    views = warp.change(event.lanes)
    _use(cluster, barrier, event, warp, views)
    cluster.synchronises(warp, event.line)
    if event.phase == 0:
        return
    ended = event.phase - 1
    last = barrier.seen_phase.get(warp.number, -1)
    if ended - last > 2 and not _aware(views[0], barrier.before):
        cluster.findings.missed_phase(cluster, barrier, event, last)
    barrier.seen_phase[warp.number] = ended
    observation = barrier.seen.get(warp.number)
    if observation is None:
        observation = barrier.seen[warp.number] = cluster.new_observation(warp, event.line)
    path = cluster.paths.join(barrier.published_path, cluster.paths.of((event.line,)))
    for view in views:
        learned = barrier.published
        if event.order.startswith("relaxed"):
            view.pending = learned if view.pending is None else merge(view.pending, learned)
            learned = cluster.executed(learned)
        cluster.learn(warp, view, learned, (barrier,), path)
        if not view.clock.done & observation.bit:
            view.clock = view.clock.with_operations(observation.bit, 0)


def _failed(cluster: Cluster, barrier: Mbarrier, event: events.MbarrierWait, warp: Warp) -> None:
    first = barrier.asked.setdefault(warp.number, event.phase)
    if event.phase - first >= 2:
        cluster.findings.missed_phase(cluster, barrier, event, first - 1)
        return
    last = barrier.seen_phase.get(warp.number, -1)
    if event.phase - last > 2:
        _, view = warp.views(event.lanes)[0]
        if not _aware(view, barrier.published):
            cluster.findings.missed_phase(cluster, barrier, event, last)


def _aware(view: View, published: Clock) -> bool:
    """Whether the view knows that the phase which published this has ended."""
    known = view.clock
    return (
        not published.done & ~known.done
        and all(epoch_of(own) >= epoch_of(other) for own, other in zip(known.warps, published.warps, strict=True))
        and all(
            epoch_of(known.knows(thread >> 5, thread & 31)) >= epoch_of(value)
            for thread, value in published.lanes.items()
        )
    )


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
        brought = released(cluster, warp, event.lanes, event.order)
        meeting.gathered = merge(meeting.gathered, brought)
        meeting.sources.append(warp.number)
    else:
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
    cluster.synchronises(warp, event.line)
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
    cluster.synchronises(warp, event.line)
    if name.startswith(("fence.proxy.async", "membar.proxy.async")):
        if not name.endswith(".global"):
            _proxy_fence(cluster, event, warp)
        _init_fence(cluster, event, warp)
    elif name.startswith("fence.mbarrier_init"):
        _release_inits(cluster, event, warp)
        _init_fence(cluster, event, warp)
    elif name == "tcgen05.fence::before_thread_sync":
        _before_thread_sync(cluster, event, warp)
    elif name == "tcgen05.fence::after_thread_sync":
        for view in warp.change(event.lanes):
            view.after, view.after_line = view.clock, event.line
    elif ".proxy." not in name:
        _memory_fence(cluster, event, warp)


def _proxy_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    value = cluster.fence_stamp(warp, event.line)
    for view in warp.change(event.lanes):
        view.proxied, view.bridge = value, view.clock


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
        if (
            not barrier.init_fence_line
            and barrier.init_warp == warp.number
            and event.lanes >> barrier.init_lane & 1
        ):
            barrier.init_fence_line = event.line


def _before_thread_sync(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    for number in members(warp.unfenced):
        cluster.operations[number].fence_line = event.line
    for view in warp.change(event.lanes):
        view.clock = view.clock.with_operations(0, 0, warp.unfenced)
    if event.lanes & warp.live == warp.live:
        warp.unfenced = 0


def _memory_fence(cluster: Cluster, event: events.Fence, warp: Warp) -> None:
    """fence.{acq_rel, sc, …} and membar: what relaxed operations brought counts from here, what they
    pass on is what is known here."""
    path = cluster.paths.of((event.line,))
    views = warp.change(event.lanes)
    for view in views:
        if view.pending is not None:
            cluster.learn(warp, view, view.pending, (warp.number,), path)
            view.pending = None
    released = warp.release(event.lanes)
    for view in views:
        view.released = released
    if not event.name.endswith(".cta"):
        _init_fence(cluster, event, warp)


# -- waits --------------------------------------------------------------------------------------


def wait_group(cluster: Cluster, event: events.WaitGroup) -> None:
    warp = cluster.warp(event)
    if event.mechanism != "register":
        cluster.synchronises(warp, event.line)
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


def warp_exit(cluster: Cluster, event: events.WarpExit) -> None:
    warp = cluster.warp(event)
    warp.live &= ~event.lanes
    if not warp.live:
        exits.exits(cluster, warp)
