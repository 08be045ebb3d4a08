"""What the lanes of a warp know.

Lanes that ran everything alike share one View. An instruction that only some lanes execute splits
them off, a barrier of the whole warp brings them together again.
"""

from __future__ import annotations

from collections import deque

from ptxgen.checker.clocks import Clock, either, members, merge, stamp

ALL_LANES = 0xFFFFFFFF
_REMEMBERED = 32


class View:
    """The knowledge of some lanes of a warp.

    `proxied` stamps their last own proxy fence, `bridge` is all they knew then. `after` is what they
    knew at their last tcgen05.fence::after_thread_sync, on line `after_line`. `pending` was acquired
    by relaxed operations, along `pending_path`, and counts from the next fence on, `pending_grid` of it, from other
    clusters, from the next of .gpu scope on; `pending_afar` says that another CTA had a part in it. `released` is what
    relaxed releases pass on since a fence of `fence_scope`, `released_grid` what they pass on to other clusters, and
    `released_restricted` what is known by fences with .sync_restrict, which speak for shared memory alone.
    Accesses numbered below `settled` are all known, by way of `settled_path`.
    """

    __slots__ = (
        "after", "after_line", "bridge", "clock", "fence_scope", "pending", "pending_afar", "pending_grid",
        "pending_path", "proxied", "released", "released_grid", "released_restricted", "settled", "settled_path",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.proxied = 0
        self.bridge: Clock | None = None
        self.after: Clock | None = None
        self.after_line = 0
        self.pending: Clock | None = None
        self.pending_path = 0
        self.pending_afar = False
        self.pending_grid: Clock | None = None
        self.released: Clock | None = None
        self.released_grid: Clock | None = None
        self.released_restricted: Clock | None = None
        self.fence_scope = ""
        self.settled = 0
        self.settled_path = 0

    def copy(self) -> View:
        twin = View(self.clock)
        for name in View.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


class Warp:
    """`number` counts the warps of the cluster, `cta` is the CTA's rank, `index` its warp there.

    `unfenced` are its operations on tensor memory that no before_thread_sync follows yet.
    `synchronised` are its last synchronising instructions, as (order, line); `waited` has of each line that waits for
    an mbarrier the path of the arrivals that ended the phase. `last_access` and `last_mark` are the
    epochs of its last access and of its last action that a clock may have to know. `register_requests` are those of
    its setmaxnreg instructions, the last of them on `register_line`.
    """

    __slots__ = (
        "cta", "epoch", "groups", "index", "last_access", "last_mark", "live", "number", "register_line",
        "register_requests", "synchronised", "unfenced", "waited",
    )  # fmt: skip

    def __init__(self, number: int, cta: int, index: int, clock: Clock) -> None:
        self.number, self.cta, self.index = number, cta, index
        self.epoch = 1
        self.last_access = self.last_mark = 0
        self.live = ALL_LANES
        self.unfenced = 0
        self.groups: list[tuple[int, View]] = [(ALL_LANES, View(clock))]
        self.synchronised: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self.waited: dict[int, int] = {}
        self.register_requests: list[int] = []
        self.register_line = 0

    def views(self, lanes: int) -> list[tuple[int, View]]:
        """(lanes, view) of the given lanes, to look at."""
        if len(self.groups) == 1:
            return [(lanes, self.groups[0][1])]
        return [(mask & lanes, view) for mask, view in self.groups if mask & lanes]

    def view_of_first(self, lanes: int) -> View:
        """The view of the lowest of these lanes."""
        groups = self.groups
        if len(groups) == 1:
            return groups[0][1]
        lane = lanes & -lanes
        return next(view for mask, view in groups if mask & lane)

    def change(self, lanes: int) -> list[View]:
        """The views of exactly these lanes, to change; other lanes keep theirs."""
        if lanes & self.live == self.live:
            return [view for mask, view in self.groups if mask & lanes]
        chosen, groups = [], []
        for mask, view in self.groups:
            inside = mask & lanes
            if mask & self.live & ~lanes and inside:
                groups.append((mask & ~inside, view))
                view, mask = view.copy(), inside
            groups.append((mask, view))
            if inside:
                chosen.append(view)
        self.groups = groups
        return chosen

    def unite(self, lanes: int, clock: Clock) -> None:
        """Gives these lanes one view that knows `clock`, which holds all that they knew and did.

        What fences did for one of them then counts for all: the lanes have met.
        """
        views = self.change(lanes)
        one = views[0]
        one.clock = clock
        for view in views[1:]:
            one.proxied = min(one.proxied, view.proxied)
            one.bridge = either(one.bridge, view.bridge)
            one.after = either(one.after, view.after)
            one.after_line = one.after_line or view.after_line
            one.pending = either(one.pending, view.pending)
            one.pending_afar |= view.pending_afar
            one.pending_grid = either(one.pending_grid, view.pending_grid)
            one.released = either(one.released, view.released)
            one.released_grid = either(one.released_grid, view.released_grid)
            one.released_restricted = either(one.released_restricted, view.released_restricted)
            if "cta" in (one.fence_scope, view.fence_scope):
                one.fence_scope = "cta"
        if len(views) > 1:
            members = {id(view) for view in views}
            mask = sum(bits for bits, view in self.groups if id(view) in members)
            self.groups = [(bits, view) for bits, view in self.groups if id(view) not in members] + [(mask, one)]

    def mark(self) -> int:
        """The epoch of an action that a clock may have to know."""
        self.last_mark = self.epoch
        return self.epoch

    def end_epoch(self, path: int = 0) -> int:
        """A stamp for all that was done so far. What comes after it belongs to another epoch."""
        if self.last_mark == self.epoch:
            self.epoch += 1
        return stamp(self.epoch - 1, path)

    def release(self, lanes: int) -> Clock:
        """What these lanes pass on: what they know and all they have done."""
        clock: Clock | None = None
        whole = lanes & self.live == self.live
        own = self.end_epoch()
        for mask, view in self.groups:
            bits = mask & lanes & self.live
            if bits:
                mine = self._own(view, bits, own, whole)
                clock = mine if clock is None else merge(clock, mine)
        assert clock is not None, "no lane releases"
        return clock

    def _own(self, view: View, bits: int, own: int, whole: bool) -> Clock:
        known, number = view.clock, self.number
        warps, lanes = known.warps, known.lanes
        proxied, proxied_lanes = known.proxied, known.proxied_lanes
        if whole:
            warps = (*warps[:number], own, *warps[number + 1 :])
            if lanes:
                lanes = {thread: value for thread, value in lanes.items() if thread >> 5 != number}
        else:
            lanes = {**lanes, **dict.fromkeys(_threads(number, bits), own)}
        if view.proxied > proxied[number]:
            if whole and len(self.groups) == 1:
                proxied = (*proxied[:number], view.proxied, *proxied[number + 1 :])
            else:
                proxied_lanes = {**proxied_lanes, **dict.fromkeys(_threads(number, bits), view.proxied)}
        return Clock(warps, lanes, proxied, proxied_lanes, known.done, known.read, known.fenced)


def _threads(warp: int, bits: int) -> list[int]:
    return [warp << 5 | lane for lane in members(bits)]
