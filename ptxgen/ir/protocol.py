"""Play a Program's synchronisation through, with every warp, for some loop counts.

Only what decides who waits for whom is executed: the integers that steer loops and stages, the
barriers, the memory that asynchronous operations read and write. Every warp keeps what it knows to
be finished, and barriers pass that knowledge on; memory may be used again only by a warp that knows
its last use to be over.

Warps run as far as they can, in turn, and that order stands for all others: who ends a phase of a
barrier must know that all who waited for the phase before have seen its end, and who arrives must
know that the phase before is over. So each arrival falls into the same phase and each wait sees it,
however fast or slow a warp is, and what is known at each op does not depend on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Address, Barrier, Hex, Operand, Register, SmemBuffer
from ptxgen.ir.hazards import Mbarrier, SharedMemory, TensorMemory, missed_first, run_ahead
from ptxgen.ir.knowledge import ELECTED, Knowledge, Place, ProtocolError, Value, Warp, learn
from ptxgen.ir.program import WARP_THREADS, Program
from ptxgen.ir.steering import Parts

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
        self._parameters = parameters
        self._worker, self._grid = worker, grid
        self._places: dict[str, SmemBuffer | Barrier] = {}
        self._places.update({buffer.name: buffer for buffer in program.buffers})
        self._places.update({barrier.name: barrier for barrier in program.barriers})
        self._mbarriers: dict[Place, Mbarrier] = {}
        self._smem = SharedMemory()
        self._tmem = [TensorMemory(program.tmem_columns) for _ in range(program.cluster_ctas)]
        self._answers: dict[Place, bool] = {}
        self._unclaimed = parameters["m_tiles"] * parameters["n_tiles"] - 1
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
        self._at_exit(warps)

    def _new_warp(self, index: int) -> Warp:
        rank, cta_warp = divmod(index, self._program.warps)
        env: dict[str, Value] = {name: place._replace(rank=rank) for name, place in self._parts.places.items()}
        return Warp(index=index, env=env, rank=rank, cta_warp=cta_warp)

    def _at_exit(self, warps: list[Warp]) -> None:
        for place, barrier in self._mbarriers.items():
            if barrier.pending != barrier.declared.arrivals or barrier.tx:
                raise ProtocolError(f"barrier {place} ends inside a phase: {barrier}")
            own = [warp.known for warp in warps if warp.rank == place.rank]
            for key, (count, phase) in barrier.from_afar.items():
                if all(known.get(key, 0) < count and known.get(("phase", place), 0) < phase for known in own):
                    raise ProtocolError(
                        f"CTA {place.rank} may end before an arrival of another CTA reaches {place}: none of"
                        f" its warps knows that it has, or that phase {phase - 1} is over"
                    )
        for warp in warps:
            if warp.open_stores or warp.known.get(("done", warp.index), 0) < warp.groups:
                raise ProtocolError(f"warp {warp.index} ends before its TMA stores are complete")
        if any(tmem.allocated for tmem in self._tmem):
            raise ProtocolError(f"{max(tmem.allocated for tmem in self._tmem)} TMEM columns are never freed")

    # ---- one warp ---------------------------------------------------------------------------

    def _warp(self, warp: Warp, parts: Iterable[tuple[ir.Op, ...]]) -> Iterator[None]:
        try:
            for part in parts:
                yield from self._block(warp, part, WARP_THREADS)
        except _Ended:
            return

    def end(self, warp: Warp, op: ir.Return, lanes: int) -> None:
        _require_warp(lanes, "end")
        raise _Ended

    def _block(self, warp: Warp, block: tuple[ir.Op, ...], lanes: int) -> Iterator[None]:
        """Execute ops; yields while the warp waits."""
        self._count(len(block))
        for op in block:
            handler = _HANDLERS.get(op.__class__)
            if handler is not None:
                handler(self, warp, op, lanes)
            elif id(op) not in self._parts.waiting:
                self._straight(warp, (op,), lanes)
            elif isinstance(op, ir.WaitBarrier):
                yield from self._wait(warp, op)
            elif isinstance(op, ir.CtaBarrier):
                yield from self._sync(warp, (warp.rank, 0), self._program.warps, lanes)
            elif isinstance(op, ir.ClusterBarrier):
                everyone = self._program.cluster_ctas * self._program.warps
                yield from self._sync(warp, (CLUSTER, 0), everyone, lanes)
            elif isinstance(op, ir.SyncNamedBarrier):
                identity = (warp.rank, self._value(warp, op.id))
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

    def _straight(self, warp: Warp, block: tuple[ir.Op, ...], lanes: int) -> None:
        """Execute ops in which the warp never waits."""
        self._count(len(block))
        for op in block:
            handler = _HANDLERS.get(op.__class__)
            if handler is not None:
                handler(self, warp, op, lanes)
            elif isinstance(op, ir.Guard):
                inside = self._lanes(warp, op, lanes)
                if inside:
                    self._straight(warp, op.body, inside)
            elif isinstance(op, ir.While):
                self._straight(warp, op.head, lanes)
                while not warp.env[op.leave.name]:
                    self._straight(warp, op.body, lanes)
                    self._straight(warp, op.head, lanes)
            elif isinstance(op, ir.DoWhile):
                self._straight(warp, op.body, lanes)
                while warp.env[op.again.name]:
                    self._straight(warp, op.body, lanes)
            else:
                raise ProtocolError(f"{type(op).__name__} has no meaning in the protocol")

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise ProtocolError(f"a loop does not end within {MAX_STEPS} steps")

    def _lanes(self, warp: Warp, op: ir.Guard, lanes: int) -> int:
        """How many lanes run the guard's body."""
        value = warp.env[op.predicate.name]
        if value is ELECTED:
            return lanes - 1 if op.negate else 1
        return lanes if bool(value) is not op.negate else 0

    def _wait(self, warp: Warp, op: ir.WaitBarrier) -> Iterator[None]:
        place = self._place(warp, op.address)
        if place.rank != warp.rank:
            raise ProtocolError(f"warp {warp.index} waits on {place}; it can wait in its own CTA {warp.rank} only")
        barrier = self._mbarrier(warp, place)
        parity = self._value(warp, op.parity)
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
        learn(warp.known, barrier.published)
        warp.known["phase", place] = wanted + 1

    def _sync(self, warp: Warp, identity: tuple[int, int], count: int, lanes: int) -> Iterator[None]:
        name = "the cluster barrier" if identity[0] == CLUSTER else f"barrier {identity[1]}"
        _require_warp(lanes, f"wait at {name}")
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

    # ---- values -----------------------------------------------------------------------------

    def _value(self, warp: Warp, operand: Operand) -> Any:
        if isinstance(operand, int):
            return operand
        return operand.value if isinstance(operand, Hex) else warp.env.get(operand.name, 0)

    def _place(self, warp: Warp, address: Address) -> Place:
        value = warp.env.get(address.base.name)
        if not isinstance(value, Place):
            raise ProtocolError(f"{address} is not the address of a declared buffer or barrier")
        place = self._places[value.name]
        if isinstance(place, Barrier):
            value = Place(value.name, value.stage + address.offset // 8, value.rank)
        if not 0 <= value.stage < place.stages:
            raise ProtocolError(f"{address}: {value.name} has no stage {value.stage}")
        return value

    def _mbarrier(self, warp: Warp, place: Place, init: str = "init") -> Mbarrier:
        """The mbarrier at `place`, which the warp must know to be initialised."""
        barrier = self._mbarriers.get(place)
        if barrier is None:
            raise ProtocolError(f"barrier {place} is used before its init")
        owner, number = barrier.init
        if owner != warp.index or init != "init":
            what = "it is initialised" if init == "init" else "it is initialised and fenced for the async proxy"
            warp.require((init, owner), number, "uses barrier", place, what)
        return barrier

    def integer(self, warp: Warp, op: ir.Integer, lanes: int) -> None:
        """An address stays the address of the same place, whatever is added to it."""
        env = warp.env
        values = [env[s.name] if s.__class__ is Register else self._value(warp, s) for s in op.sources]
        for value in values:
            if value.__class__ is Place:
                env[op.dst.name] = value
                return
        env[op.dst.name] = _INTEGER[op.opcode](*values)

    def compare(self, warp: Warp, op: ir.Compare, lanes: int) -> None:
        left, right = self._value(warp, op.left), self._value(warp, op.right)
        warp.env[op.dst.name] = _COMPARE[op.opcode](left, right)

    def read_special(self, warp: Warp, op: ir.ReadSpecial, lanes: int) -> None:
        specials = {
            "%tid.x": warp.cta_warp * WARP_THREADS,
            "%ctaid.x": self._worker,
            "%clusterid.x": self._worker,
            "%nctaid.x": self._grid,
            "%nclusterid.x": self._grid,
            "%cluster_ctarank": warp.rank,
        }
        warp.env[op.dst.name] = specials.get(op.special, 0)

    def load_parameter(self, warp: Warp, op: ir.LoadParameter, lanes: int) -> None:
        warp.env[op.dst.name] = self._parameters.get(op.parameter.name, 1)

    def set_constant(self, warp: Warp, op: ir.SetConstant, lanes: int) -> None:
        warp.env[op.dst.name] = self._value(warp, op.value)

    def elect_one(self, warp: Warp, op: ir.ElectOne, lanes: int) -> None:
        warp.env[op.dst.name] = ELECTED

    def row_major_tile(self, warp: Warp, op: ir.RowMajorTile, lanes: int) -> None:
        warp.env[op.m_tile.name] = warp.env[op.n_tile.name] = 0

    grouped_tile = row_major_tile

    def stage_address(self, warp: Warp, op: ir.StageAddress | ir.StageDescriptor, lanes: int) -> None:
        base = self._value(warp, op.base)
        stride, stage = self._value(warp, op.stride), self._value(warp, op.stage)
        if not isinstance(base, Place):
            raise ProtocolError(f"{op.base} is not the address of a declared buffer or barrier")
        place = self._places[base.name]
        wanted = 8 if isinstance(place, Barrier) else place.stage_bytes
        if isinstance(op, ir.StageDescriptor):
            wanted >>= 4
        if stride != wanted:
            raise ProtocolError(f"{op.dst}: stages of {base.name} lie {wanted} apart, not {stride}")
        warp.env[op.dst.name] = Place(base.name, base.stage + stage, base.rank)

    def map_address(self, warp: Warp, op: ir.MapAddress, lanes: int) -> None:
        base = self._value(warp, op.address)
        if not isinstance(base, Place):
            raise ProtocolError(f"{op.address} is not the address of a declared buffer or barrier")
        warp.env[op.dst.name] = base._replace(rank=self._value(warp, op.rank))

    def descriptor_base(self, warp: Warp, op: ir.DescriptorBase, lanes: int) -> None:
        warp.env[op.dst.name] = self._value(warp, op.address)

    def start_cursor(self, warp: Warp, op: ir.StartCursor, lanes: int) -> None:
        if op.cursor.stage is not None:
            warp.env[op.cursor.stage.name] = 0
        if op.cursor.phase is not None:
            warp.env[op.cursor.phase.name] = op.cursor.start_phase

    def advance_cursor(self, warp: Warp, op: ir.AdvanceCursor | ir.SkipStages, lanes: int) -> None:
        cursor, env = op.cursor, warp.env
        flips = True
        if cursor.stage is not None and cursor.stage_count is not None:
            stage = self._value(warp, cursor.stage) + 1
            flips = stage == self._value(warp, cursor.stage_count)
            env[cursor.stage.name] = 0 if flips else stage
        if cursor.phase is not None and flips:
            env[cursor.phase.name] = self._value(warp, cursor.phase) ^ 1

    def skip_stages(self, warp: Warp, op: ir.SkipStages, lanes: int) -> None:
        for _ in range(self._value(warp, op.count)):
            place = Place(op.barrier.name, warp.env[op.cursor.stage.name], warp.rank)  # type: ignore[union-attr,arg-type]
            warp.waits[place] = warp.waits.get(place, 0) + 1
            self.advance_cursor(warp, op, lanes)

    # ---- barriers ---------------------------------------------------------------------------

    def init_barrier(self, warp: Warp, op: ir.InitBarrier, lanes: int) -> None:
        place = self._place(warp, op.address)
        if place.name != op.barrier.name:
            raise ProtocolError(f"init of {op.barrier.name} at the address of {place.name}")
        if place in self._mbarriers:
            raise ProtocolError(f"barrier {place} is initialised twice")
        _require_one(lanes, f"initialise barrier {place}")
        warp.inits += 1
        warp.known["init", warp.index] = warp.inits
        self._mbarriers[place] = Mbarrier(
            place=place, declared=op.barrier, init=(warp.index, warp.inits), pending=op.barrier.arrivals
        )

    def fence_barrier_init(self, warp: Warp, op: ir.FenceBarrierInit, lanes: int) -> None:
        warp.known["async init", warp.index] = warp.inits

    def arrive(self, warp: Warp, op: ir.Arrive, lanes: int) -> None:
        place = self._place(warp, op.address)
        if place.rank != warp.rank and not op.remote:
            raise ProtocolError(f"warp {warp.index} arrives on {place} as if it were in its own CTA {warp.rank}")
        barrier = self._mbarrier(warp, place)
        if place.rank != warp.rank:
            count = warp.known["arrival", warp.index] = warp.known.get(("arrival", warp.index), 0) + 1
            barrier.from_afar["arrival", warp.index] = (count, barrier.completed + 1)
        barrier.arrive(lanes, warp)

    def arrive_expect(self, warp: Warp, op: ir.ArriveExpect, lanes: int) -> None:
        barrier = self._mbarrier(warp, self._place(warp, op.address))
        barrier.expect(self._value(warp, op.transaction_bytes) * lanes)
        barrier.arrive(lanes, warp)

    # ---- asynchronous operations --------------------------------------------------------------

    def tma_load(self, warp: Warp, op: ir.TmaLoad, lanes: int) -> None:
        target, signal = self._place(warp, op.dst), self._place(warp, op.barrier)
        _require_one(lanes, f"issue the load into {target}")
        self._check_range(target, op.dst.offset, op.box_bytes)
        if target.rank != warp.rank or (signal.rank != warp.rank and op.cta_group == 1):
            raise ProtocolError(f"a load by CTA {warp.rank} into {target} cannot signal {signal}")
        copies = [(target, signal)]
        if op.mask is not None:
            ranks = self._ranks(warp, op.mask, "a load")
            copies = [(target._replace(rank=rank), signal._replace(rank=rank)) for rank in ranks]
        for place, told in copies:
            barrier = self._mbarrier(warp, told, "async init")
            self._smem.load(warp, place, barrier.end_of_phase)
            if place.rank != warp.rank:
                barrier.from_afar["load", warp.index] = (1, barrier.completed + 1)
            barrier.bring(op.box_bytes, warp)

    def _ranks(self, warp: Warp, mask: Register | None, what: str) -> list[int]:
        """The CTAs that a mask names; with none, the warp's own."""
        if mask is None:
            return [warp.rank]
        bits = self._value(warp, mask)
        if not bits or bits >> self._program.cluster_ctas:
            raise ProtocolError(f"{what} to CTAs {bits:#x} of {self._program.cluster_ctas}")
        return [rank for rank in range(self._program.cluster_ctas) if bits >> rank & 1]

    # ---- cluster launch control ---------------------------------------------------------------

    def claim_cluster(self, warp: Warp, op: ir.ClaimCluster, lanes: int) -> None:
        """The answer is written, and its bytes complete, in every CTA."""
        slot, signal = self._place(warp, op.slot), self._place(warp, op.barrier)
        _require_one(lanes, f"claim a cluster into {slot}")
        if slot.rank != warp.rank or signal.rank != warp.rank:
            raise ProtocolError(f"a claim of CTA {warp.rank} names {slot} and {signal}: both must be its own")
        if self._unclaimed < 0:
            raise ProtocolError(f"warp {warp.index} claims a cluster after an answer that none is left")
        self._unclaimed -= 1
        for rank in range(self._program.cluster_ctas):
            place, barrier = slot._replace(rank=rank), self._mbarrier(warp, signal._replace(rank=rank), "async init")
            self._smem.load(warp, place, barrier.end_of_phase)
            self._answers[place] = self._unclaimed >= 0
            if rank != warp.rank:
                barrier.from_afar["claim", warp.index] = (1, barrier.completed + 1)
            barrier.bring(self._places[slot.name].nbytes, warp)

    def read_answer(self, warp: Warp, op: ir.ReadAnswer, lanes: int) -> None:
        place = self._place(warp, op.address)
        self._smem.read(warp, place)
        warp.env[op.dst.name] = self._answers.get(place, False)

    def is_claimed(self, warp: Warp, op: ir.IsClaimed, lanes: int) -> None:
        warp.env[op.dst.name] = self._value(warp, op.answer)

    def claimed_cta(self, warp: Warp, op: ir.ClaimedCta, lanes: int) -> None:
        if warp.env[op.predicate.name]:
            warp.env[op.dst.name] = 0

    # ---- tensor cores -------------------------------------------------------------------------

    def mma(self, warp: Warp, op: ir.Mma, lanes: int) -> None:
        _require_one(lanes, "issue an MMA")
        ranks = (warp.rank,) if op.cta_group == 1 else (warp.rank & ~1, warp.rank | 1)
        for rank in ranks:
            for operand in (op.a, op.b):
                self._smem.multiply(warp, self._operand(warp, operand)._replace(rank=rank))
            address, instruction = self._value(warp, op.tmem), self._value(warp, op.instruction)
            self._tmem[rank].multiply(warp, address, instruction, op.cta_group)

    def commit_mma(self, warp: Warp, op: ir.CommitMma, lanes: int) -> None:
        place = self._place(warp, op.address)
        _require_one(lanes, f"commit MMAs to {place}")
        ranks = self._ranks(warp, op.mask, "a commit")
        barriers = [self._mbarrier(warp, place._replace(rank=rank), "async init") for rank in ranks]
        ends = {rank: barrier.end_of_phase for rank, barrier in zip(ranks, barriers, strict=True)}
        self._smem.commit(warp, ends)
        for rank, tmem in enumerate(self._tmem):
            tmem.commit(warp, ends.get(rank) or ends[ranks[0]])
        for barrier in barriers:
            if barrier.place.rank != warp.rank:
                barrier.from_afar["commit", warp.index] = (1, barrier.completed + 1)
            barrier.arrive(1, warp)

    def wgmma_fence(self, warp: Warp, op: ir.WgmmaFence, lanes: int) -> None:
        warp.wgmma_fenced = True

    def wgmma(self, warp: Warp, op: ir.Wgmma, lanes: int) -> None:
        """The next commit ends it, of which the warp learns by waiting for its batches."""
        _require_warp(lanes, "issue a wgmma")
        if not warp.wgmma_fenced:
            raise ProtocolError(f"warp {warp.index} begins a wgmma batch with no wgmma.fence")
        for operand in (op.a, op.b):
            self._smem.multiply(warp, self._operand(warp, operand))

    def wgmma_commit(self, warp: Warp, op: ir.WgmmaCommit, lanes: int) -> None:
        warp.wgmma_fenced = False
        warp.batches += 1
        self._smem.commit(warp, {warp.rank: (("batch", warp.index), warp.batches)})

    def wgmma_wait(self, warp: Warp, op: ir.WgmmaWait, lanes: int) -> None:
        warp.batches_done = max(warp.batches_done, warp.batches - op.pending)
        warp.known["batch", warp.index] = warp.batches_done

    def _operand(self, warp: Warp, operand: Register) -> Place:
        place = self._value(warp, operand)
        if not isinstance(place, Place):
            raise ProtocolError(f"{operand} does not describe a declared buffer")
        return place

    def store_shared(self, warp: Warp, op: ir.StoreShared | ir.StoreMatrix, lanes: int) -> None:
        self._smem.write(warp, self._place(warp, op.address))

    def fence_proxy_async(self, warp: Warp, op: ir.FenceProxyAsync, lanes: int) -> None:
        warp.known["rows", warp.index] = warp.rows
        warp.known["loads", warp.index] = warp.loads

    def tma_store(self, warp: Warp, op: ir.TmaStore, lanes: int) -> None:
        place = self._place(warp, op.src)
        _require_one(lanes, f"issue the store from {place}")
        self._check_range(place, op.src.offset, op.box_bytes)
        self._smem.store(warp, place)

    def commit_stores(self, warp: Warp, op: ir.CommitStores, lanes: int) -> None:
        self._smem.commit_stores(warp)

    def wait_stores(self, warp: Warp, op: ir.WaitStores, lanes: int) -> None:
        finished = warp.groups - op.pending
        for kind in ("read",) if op.read else ("read", "done"):
            key = (kind, warp.index)
            warp.known[key] = max(warp.known.get(key, 0), finished)

    def alloc_tmem(self, warp: Warp, op: ir.AllocTmem, lanes: int) -> None:
        _require_warp(lanes, "allocate TMEM")
        self._tmem[warp.rank].allocate(warp, str(op.address), op.columns)

    def read_tmem_address(self, warp: Warp, op: ir.ReadTmemAddress, lanes: int) -> None:
        warp.env[op.dst.name] = self._tmem[warp.rank].read_address(warp, str(op.address))

    def dealloc_tmem(self, warp: Warp, op: ir.DeallocTmem, lanes: int) -> None:
        _require_warp(lanes, "free TMEM")
        self._tmem[warp.rank].free(warp, op.columns)

    def load_tmem(self, warp: Warp, op: ir.LoadTmem, lanes: int) -> None:
        _require_warp(lanes, "read TMEM")
        self._tmem[warp.rank].load(warp, self._value(warp, op.address.base) + op.address.offset, op.count)

    def wait_tmem_load(self, warp: Warp, op: ir.WaitTmemLoad, lanes: int) -> None:
        warp.tmem_delivered = warp.tmem_loads

    def fence_before_sync(self, warp: Warp, op: ir.FenceBeforeSync, lanes: int) -> None:
        warp.known["tmem", warp.index] = warp.tmem_delivered

    def fence_after_sync(self, warp: Warp, op: ir.FenceAfterSync, lanes: int) -> None:
        warp.fenced = warp.known.copy()

    def _check_range(self, place: Place, offset: int, nbytes: int) -> None:
        declared = self._places[place.name]
        if offset < 0 or offset + nbytes > declared.nbytes:
            raise ProtocolError(
                f"bytes {offset} to {offset + nbytes - 1} are outside a stage of {place.name} ({declared.nbytes} bytes)"
            )


def _require_one(lanes: int, doing: str) -> None:
    if lanes != 1:
        raise ProtocolError(f"{lanes} lanes {doing}; one elected lane must")


def _require_warp(lanes: int, doing: str) -> None:
    if lanes != WARP_THREADS:
        raise ProtocolError(f"{lanes} of {WARP_THREADS} lanes {doing}; the whole warp must")


_INTEGER: dict[str, Callable[..., int]] = {
    "add.u32": lambda a, b: (a + b) & 0xFFFFFFFF,
    "add.s64": lambda a, b: a + b,
    "sub.u32": lambda a, b: (a - b) & 0xFFFFFFFF,
    "mul.lo.u32": lambda a, b: (a * b) & 0xFFFFFFFF,
    "mad.lo.u32": lambda a, b, c: (a * b + c) & 0xFFFFFFFF,
    "mad.wide.u32": lambda a, b, c: a * b + c,
    "div.u32": lambda a, b: a // b,
    "rem.u32": lambda a, b: a % b,
    "min.u32": min,
    "max.u32": max,
    "shl.b32": lambda a, b: (a << b) & 0xFFFFFFFF,
    "shr.u32": lambda a, b: a >> b,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "mov.b32": lambda a: a,
    "selp.b32": lambda a, b, p: a if p else b,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq.u32": lambda a, b: a == b,
    "ne.u32": lambda a, b: a != b,
    "lt.u32": lambda a, b: a < b,
    "le.u32": lambda a, b: a <= b,
    "gt.u32": lambda a, b: a > b,
    "ge.u32": lambda a, b: a >= b,
}
_HANDLERS: dict[type[ir.Op], Callable[[Simulation, Warp, Any, int], None]] = {
    ir.Return: Simulation.end,
    ir.Integer: Simulation.integer,
    ir.Compare: Simulation.compare,
    ir.ReadSpecial: Simulation.read_special,
    ir.LoadParameter: Simulation.load_parameter,
    ir.SetConstant: Simulation.set_constant,
    ir.ElectOne: Simulation.elect_one,
    ir.RowMajorTile: Simulation.row_major_tile,
    ir.GroupedTile: Simulation.grouped_tile,
    ir.MapAddress: Simulation.map_address,
    ir.StageAddress: Simulation.stage_address,
    ir.StageDescriptor: Simulation.stage_address,
    ir.DescriptorBase: Simulation.descriptor_base,
    ir.StartCursor: Simulation.start_cursor,
    ir.AdvanceCursor: Simulation.advance_cursor,
    ir.SkipStages: Simulation.skip_stages,
    ir.InitBarrier: Simulation.init_barrier,
    ir.FenceBarrierInit: Simulation.fence_barrier_init,
    ir.Arrive: Simulation.arrive,
    ir.ArriveExpect: Simulation.arrive_expect,
    ir.TmaLoad: Simulation.tma_load,
    ir.ClaimCluster: Simulation.claim_cluster,
    ir.ReadAnswer: Simulation.read_answer,
    ir.IsClaimed: Simulation.is_claimed,
    ir.ClaimedCta: Simulation.claimed_cta,
    ir.Mma: Simulation.mma,
    ir.CommitMma: Simulation.commit_mma,
    ir.WgmmaFence: Simulation.wgmma_fence,
    ir.Wgmma: Simulation.wgmma,
    ir.WgmmaCommit: Simulation.wgmma_commit,
    ir.WgmmaWait: Simulation.wgmma_wait,
    ir.StoreShared: Simulation.store_shared,
    ir.StoreMatrix: Simulation.store_shared,
    ir.FenceProxyAsync: Simulation.fence_proxy_async,
    ir.TmaStore: Simulation.tma_store,
    ir.CommitStores: Simulation.commit_stores,
    ir.WaitStores: Simulation.wait_stores,
    ir.AllocTmem: Simulation.alloc_tmem,
    ir.ReadTmemAddress: Simulation.read_tmem_address,
    ir.DeallocTmem: Simulation.dealloc_tmem,
    ir.LoadTmem: Simulation.load_tmem,
    ir.WaitTmemLoad: Simulation.wait_tmem_load,
    ir.FenceBeforeSync: Simulation.fence_before_sync,
    ir.FenceAfterSync: Simulation.fence_after_sync,
}
