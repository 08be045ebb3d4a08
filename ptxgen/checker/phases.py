"""Events of mbarriers: their phases hand knowledge over."""

from __future__ import annotations

from ptxgen.checker import exits
from ptxgen.checker.barriers import Mbarrier, note_transfer
from ptxgen.checker.clocks import Clock, epoch_of, members, path_of
from ptxgen.checker.cluster import Cluster
from ptxgen.checker.operations import Operation
from ptxgen.checker.threads import View, Warp
from ptxgen.emulator import events


def mbarrier_init(cluster: Cluster, event: events.MbarrierInit) -> None:
    cluster.findings.initialised(event.barrier, event.line)
    warp = cluster.warp(event)
    agents = cluster.thread_agents(event, uniform=True, write=True)
    cluster.shared[event.owner].access(agents, ((event.barrier, event.barrier + 8),), event.lanes, True)
    cluster.mbarriers[event.owner, event.barrier] = Mbarrier(
        owner=event.owner, offset=event.barrier, count=event.count, pending=event.count, init_warp=warp.number,
        init_lane=(event.lanes & -event.lanes).bit_length() - 1, init_epoch=warp.mark(), init_line=event.line,
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


def _use(cluster: Cluster, barrier: Mbarrier, event: events.Event, warp: Warp, *, by_unit: bool = False) -> None:
    """A use of an mbarrier: its initialisation has to be visible to the user, and, for asynchronous
    units, fenced."""
    barrier.users[warp.number] = (warp.mark(), event.lanes, event.line)
    key = (warp.number, event.lanes, by_unit)
    if key in barrier.visible_to:
        return
    barrier.visible_to.add(key)
    own = warp.number == barrier.init_warp and event.lanes == 1 << barrier.init_lane
    fenced = bool(barrier.init_fence_line)
    for _, view in warp.views(event.lanes):
        value = view.clock.knows(barrier.init_warp, barrier.init_lane)
        if epoch_of(value) >= barrier.init_epoch:
            cluster.paths.need(path_of(value))
            fenced &= own or epoch_of(value) >= barrier.init_fence_epoch
        elif barrier.init_released is not None and view.clock.done & barrier.init_released.bit:
            cluster.provenance.need(barrier.init_released, warp.number)
        elif not own:
            cluster.findings.init_not_visible(cluster, barrier, event)
            return
    if by_unit:
        if fenced:
            cluster.need_lines(barrier.init_fence_line)
        else:
            cluster.findings.init_not_fenced(cluster, barrier, event)


def use_by_unit(cluster: Cluster, event: events.AsyncIssue) -> None:
    """An operation is issued that will signal an mbarrier."""
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is not None:
        _use(cluster, barrier, event, cluster.warp(event), by_unit=True)


def mbarrier_arrive(cluster: Cluster, event: events.MbarrierArrive) -> None:
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is None:
        return
    warp = cluster.warp(event)
    operation = cluster.operation(event.async_id, warp) if event.async_id else None
    if operation is not None:
        _gather(cluster, barrier, operation)
    elif not event.async_id:
        if event.continued and barrier.ended_at == cluster.now - 1:
            cluster.findings.in_two_phases(cluster, barrier, event)
        _use(cluster, barrier, event, warp)
        exits.visits(cluster, event.owner, event)
        brought = cluster.released(warp, event.lanes, event.order)
        barrier.gathered = cluster.gather(barrier.gathered, brought, warp.number, barrier)
        if not event.order.startswith("relaxed"):
            barrier.included = warp.view_of_first(event.lanes).clock
        cluster.synchronises(warp, event.line)
        if event.owner != event.cta:
            barrier.from_afar = True
            if cluster.stays_in_cta(warp, event.lanes, event.order):
                cluster.paths.cta_scoped.add(event.line)
    barrier.phase_lines.add(event.line)
    barrier.pending -= event.count
    barrier.count -= event.dropped
    if event.expect_bytes:
        note_transfer(barrier.expected, event.line, event.expect_bytes)
    if event.completed:
        barrier.ended_at = cluster.now
        _end_phase(cluster, barrier, event)


def left_open(cluster: Cluster) -> None:
    """The cluster has ended, and nothing is pending: no phase should have begun."""
    for barrier in cluster.mbarriers.values():
        if barrier.pending != barrier.count:
            cluster.findings.left_open(cluster, barrier)


def _gather(cluster: Cluster, barrier: Mbarrier, operation: Operation) -> None:
    """An operation signals: its outcome is gathered."""
    held = barrier.gathered
    if operation.clock is not barrier.included:
        barrier.gathered = cluster.gather(held, operation.outcome(), operation.warp, barrier)
        barrier.included = operation.clock
        return
    bits = operation.bit | operation.tracked
    new = bits & ~(held.done | held.read)
    if new:
        cluster.provenance.note(cluster.now, new, (operation.warp,), barrier, 0)
    barrier.gathered = held.with_operations(bits, bits, operation.tracked)


def mbarrier_complete(cluster: Cluster, event: events.MbarrierComplete) -> None:
    barrier = cluster.mbarriers.get((event.owner, event.barrier))
    if barrier is None:
        return
    operation = cluster.operation(event.async_id, cluster.warp(event))
    if operation is not None:
        _gather(cluster, barrier, operation)
    note_transfer(barrier.arrived, event.line, event.tx_bytes)
    if event.completed:
        _end_phase(cluster, barrier, event)


def _end_phase(cluster: Cluster, barrier: Mbarrier, event: events.Event) -> None:
    """A phase ends. Whoever saw the phase before it end has to be known, by those that complete this
    one, to have seen it: else a slow waiter could find the barrier two phases ahead."""
    for observation in barrier.seen.values():
        if barrier.gathered.done & observation.bit:
            cluster.provenance.need(observation, barrier)
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
    _use(cluster, barrier, event, warp)
    cluster.synchronises(warp, event.line, waits=event.phase == 0)
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
    if barrier.from_afar and event.order.endswith(".cta"):
        cluster.paths.cta_scoped.add(event.line)
    warp.waited[event.line] = barrier.published_path
    path = cluster.paths.join(barrier.published_path, cluster.paths.of_line(event.line))
    for view in views:
        learned = barrier.published
        if event.order.startswith("relaxed"):
            cluster.await_fence(view, learned, path, afar=barrier.from_afar)
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
