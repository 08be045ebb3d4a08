"""The player: every warp of a cluster runs its part of a Program until it waits or ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ptxgen.ir import ops as ir
from ptxgen.ir.program import WARP_THREADS, Program
from ptxgen.ir.protocol import copies, launch_control, mbarriers, registers, tensor_core
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.hazards import missed_first, run_ahead
from ptxgen.ir.protocol.knowledge import ELECTED, Knowledge, ProtocolError, Value, Warp, learn, require_warp
from ptxgen.ir.protocol.steering import Parts

MAX_STEPS = 200_000
CLUSTER = -1
"""Stands for the rank where all CTAs of the cluster are meant."""


class _Ended(Exception):  # noqa: N818 - a way out of nested blocks, no error
    """The warp has run into the end of its role."""


class Simulation:
    """One run with the given parameter values.

    `parts` is what the warps execute, from `parts_of(program)`, as CTA or cluster `worker` of `grid`.
    """

    def __init__(
        self, program: Program, parts: Parts, parameters: dict[str, int], *, worker: int = 0, grid: int = 1
    ) -> None:
        self._program = program
        self._parts = parts
        self._cluster = Cluster(program, parameters, worker, grid)
        self._named: dict[tuple[int, int], list[Warp]] = {}
        self._steps = 0

    def run(self) -> None:
        """Raises ProtocolError at the first broken rule."""
        warps = [self._new_warp(index) for index in range(self._program.cluster_ctas * self._program.warps)]
        threads: dict[int, Iterator[None]] = {warp.index: self._warp(warp, self._parts.blocks) for warp in warps}
        while threads:
            before = self._steps
            for index in tuple(threads):
                try:
                    next(threads[index])
                except StopIteration:
                    del threads[index]
            if self._steps == before and threads:
                stuck: dict[str, list[str]] = {}
                for index in sorted(threads):
                    stuck.setdefault(warps[index].blocked, []).append(str(index))
                what = "; ".join(
                    f"warps {', '.join(who)} wait {where}" if len(who) > 1 else f"warp {who[0]} waits {where}"
                    for where, who in stuck.items()
                )
                raise ProtocolError(f"deadlock: {what}")
        self._cluster.end(warps)

    def _new_warp(self, index: int) -> Warp:
        rank, cta_warp = divmod(index, self._program.warps)
        env: dict[str, Value] = {name: place._replace(rank=rank) for name, place in self._parts.places.items()}
        return Warp(index=index, env=env, rank=rank, cta_warp=cta_warp)

    # ---- one warp ---------------------------------------------------------------------------

    def _warp(self, warp: Warp, parts: Iterable[tuple[ir.Op, ...]]) -> Iterator[None]:
        try:
            for part in parts:
                yield from self._block(warp, part, WARP_THREADS)
        except _Ended:
            return

    def _block(self, warp: Warp, block: tuple[ir.Op, ...], lanes: int) -> Iterator[None]:
        """Execute ops; yields while the warp waits."""
        self._steps += len(block)
        if self._steps > MAX_STEPS:
            raise ProtocolError(f"a loop does not end within {MAX_STEPS} steps")
        for op in block:
            handler = _HANDLERS.get(op.__class__)
            if handler is not None:
                handler(self._cluster, warp, op, lanes)
            elif isinstance(op, ir.WaitBarrier):
                yield from self._wait(warp, op)
            elif isinstance(op, ir.CtaBarrier):
                yield from self._sync(warp, (warp.rank, 0), self._program.warps, lanes)
            elif isinstance(op, ir.ClusterBarrier):
                everyone = self._program.cluster_ctas * self._program.warps
                yield from self._sync(warp, (CLUSTER, 0), everyone, lanes)
            elif isinstance(op, ir.SyncNamedBarrier):
                identity = (warp.rank, warp.value(op.id))
                yield from self._sync(warp, identity, op.barrier.threads // WARP_THREADS, lanes)
            elif isinstance(op, ir.Guard):
                inside = self._lanes(warp, op, lanes)
                if inside:
                    yield from self._block(warp, op.body, inside)
            elif isinstance(op, ir.While):
                yield from self._block(warp, op.head, lanes)
                while not warp.env[op.leave.name]:
                    yield from self._block(warp, op.body, lanes)
                    yield from self._block(warp, op.head, lanes)
            elif isinstance(op, ir.DoWhile):
                yield from self._block(warp, op.body, lanes)
                while warp.env[op.again.name]:
                    yield from self._block(warp, op.body, lanes)
            else:
                raise ProtocolError(f"{type(op).__name__} has no meaning in the protocol")

    def _lanes(self, warp: Warp, op: ir.Guard, lanes: int) -> int:
        """How many lanes run the guard's body."""
        value = warp.env[op.predicate.name]
        if value is ELECTED:
            return lanes - 1 if op.negate else 1
        return lanes if bool(value) is not op.negate else 0

    def _wait(self, warp: Warp, op: ir.WaitBarrier) -> Iterator[None]:
        place = self._cluster.place(warp, op.address)
        if place.rank != warp.rank:
            raise ProtocolError(f"warp {warp.index} waits on {place}; it can wait in its own CTA {warp.rank} only")
        barrier = self._cluster.mbarrier(warp, place)
        parity = warp.value(op.parity)
        wanted = warp.waits.get(place, -1 if parity == 1 else 0)
        if wanted & 1 != parity:
            raise ProtocolError(
                f"warp {warp.index} waits on {place} for parity {parity}, but the next phase it has not"
                f" seen is {wanted}"
            )
        if warp.known.get(("phase", place), 0) < wanted:
            raise ProtocolError(
                f"warp {warp.index} waits on {place} for phase {wanted} without knowing that phase {wanted - 1} is"
                " over: its parity test can pass too early"
            )
        while barrier.completed <= wanted:
            warp.blocked = f"on {place} for phase {wanted} ({barrier})"
            yield
        if barrier.completed > 0 > wanted:
            raise ProtocolError(missed_first(warp.index, place))
        if barrier.completed > wanted + 1:
            raise ProtocolError(run_ahead(warp.index, place, wanted))
        warp.waits[place] = wanted + 1
        barrier.wait_passed(warp, wanted)
        self._steps += 1
        published = barrier.published
        if op.relaxed:
            learn(warp.withheld, {key: count for key, count in published.items() if key[0] in ("rows", "loads")})
            published = {key: count for key, count in published.items() if key not in warp.withheld}
        learn(warp.known, published)
        warp.known["phase", place] = wanted + 1

    def _sync(self, warp: Warp, identity: tuple[int, int], count: int, lanes: int) -> Iterator[None]:
        name = "the cluster barrier" if identity[0] == CLUSTER else f"barrier {identity[1]}"
        require_warp(lanes, f"wait at {name}")
        present = self._named.setdefault(identity, [])
        present.append(warp)
        if len(present) == count:
            self._named[identity] = []
            everything: Knowledge = {}
            for other in present:
                learn(everything, other.known)
            for other in present:
                other.known = everything.copy()
        while self._named[identity] is present:
            warp.blocked = f"at {name} with {len(present)} of {count} warps there"
            yield
        self._steps += 1


def _end(cluster: Cluster, warp: Warp, op: ir.Return, lanes: int) -> None:
    require_warp(lanes, "end")
    raise _Ended


_HANDLERS: dict[type[ir.Op], Handler] = {
    ir.Return: _end,
    **registers.HANDLERS,
    **mbarriers.HANDLERS,
    **copies.HANDLERS,
    **launch_control.HANDLERS,
    **tensor_core.HANDLERS,
}
