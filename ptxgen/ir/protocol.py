"""Play a Program's synchronisation through, with every warp, for some loop counts.

Only what decides who waits for whom is executed: the integers that steer loops and stages, the
barriers, the buffers that asynchronous operations read and write. Every warp keeps what it knows to
be finished, and barriers pass that knowledge on; a buffer may be used again only by a warp that
knows its last use to be over. Warps run as far as they can, in turn, and once more with each waiting
warp held back until nothing else can go on: that finds the barrier that runs two phases ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Address, Barrier, Hex, Operand, Register, SmemBuffer
from ptxgen.ir.program import WARP_THREADS, Program, role_ops

MAX_STEPS = 200_000


class Place(NamedTuple):
    """A stage of a buffer or of a group of mbarriers."""

    name: str
    stage: int


class Elected:
    """The value of a predicate that holds in one lane of the warp."""


ELECTED = Elected()
Value = int | bool | Place | Elected
Knowledge = dict[tuple[str, Any], int]


class ProtocolError(Exception):
    """One broken rule, in words."""


@dataclass(slots=True)
class _Mbarrier:
    arrivals: int
    pending: int
    completed: int = 0
    tx: int = 0
    gathered: Knowledge = field(default_factory=dict)
    published: Knowledge = field(default_factory=dict)


@dataclass(slots=True)
class _Buffer:
    """The last asynchronous uses of one stage, each as (knowledge key, count that ends it)."""

    filled: tuple[tuple[str, Any], int] | None = None
    consumed: bool = True
    reads: list[tuple[tuple[str, Any], int]] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Warp:
    index: int
    env: dict[str, Value] = field(default_factory=dict)
    known: Knowledge = field(default_factory=dict)
    waits: dict[Place, int] = field(default_factory=dict)
    uncommitted: list[Place] = field(default_factory=list)
    open_stores: list[Place] = field(default_factory=list)
    groups: int = 0
    rows: int = 0
    batches: int = 0
    batches_done: int = 0
    blocked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every warp executes, one part after the other, and the addresses that never change."""

    blocks: tuple[tuple[ir.Op, ...], ...]
    places: dict[str, Place]


class Simulation:
    """One run: the given parameter values, and optionally one warp that is always last.

    `parts` is what the warps execute, from `parts_of(program)`.
    """

    def __init__(self, program: Program, parts: Parts, parameters: dict[str, int], slow: int | None) -> None:
        self._program = program
        self._parts = parts
        self._parameters = parameters
        self._slow = slow
        self._places: dict[str, SmemBuffer | Barrier] = {}
        self._places.update({buffer.name: buffer for buffer in program.buffers})
        self._places.update({barrier.name: barrier for barrier in program.barriers})
        self._mbarriers: dict[Place, _Mbarrier] = {}
        self._buffers: dict[Place, _Buffer] = {}
        self._named: dict[int, list[_Warp]] = {}
        self._columns: dict[int, int] = {}
        self._steps = 0
        self.waiting_warps: set[int] = set()

    def run(self) -> None:
        """Raises ProtocolError at the first broken rule."""
        places = self._parts.places
        warps = [_Warp(index=index, env={**places}) for index in range(self._program.warps)]
        threads: dict[int, Iterator[None]] = {warp.index: self._warp(warp, self._parts.blocks) for warp in warps}
        order = sorted(threads, key=lambda index: index == self._slow)
        while threads:
            moved = False
            for index in order:
                if index not in threads or (index == self._slow and moved):
                    continue
                before = self._steps
                try:
                    next(threads[index])
                except StopIteration:
                    del threads[index]
                moved = moved or self._steps > before
            if not moved and threads:
                stuck = "; ".join(f"warp {i} {warps[i].blocked}" for i in sorted(threads))
                raise ProtocolError(f"deadlock: {stuck}")
        self._at_exit(warps)

    def _at_exit(self, warps: list[_Warp]) -> None:
        for place, barrier in self._mbarriers.items():
            if barrier.pending != barrier.arrivals or barrier.tx:
                raise ProtocolError(
                    f"barrier {place.name}[{place.stage}] ends inside a phase:"
                    f" {barrier.arrivals - barrier.pending} of {barrier.arrivals} arrivals,"
                    f" {barrier.tx} bytes expected and not brought"
                )
        for warp in warps:
            if warp.open_stores or warp.known.get(("done", warp.index), 0) < warp.groups:
                raise ProtocolError(f"warp {warp.index} ends before its TMA stores are complete")
        if self._columns:
            raise ProtocolError(f"{sum(self._columns.values())} TMEM columns are never freed")

    # ---- one warp ---------------------------------------------------------------------------

    def _warp(self, warp: _Warp, parts: Iterable[tuple[ir.Op, ...]]) -> Iterator[None]:
        for part in parts:
            yield from self._block(warp, part, 32)

    def _block(self, warp: _Warp, block: tuple[ir.Op, ...], lanes: int) -> Iterator[None]:
        for op in block:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise ProtocolError(f"a loop does not end within {MAX_STEPS} steps")
            handler = _HANDLERS.get(type(op))
            if handler is not None:
                handler(self, warp, op, lanes)
            elif isinstance(op, ir.Guard):
                value = warp.env.get(op.predicate.name)
                if value is ELECTED:
                    yield from self._block(warp, op.body, 1)
                elif bool(value) is not op.negate:
                    yield from self._block(warp, op.body, lanes)
            elif isinstance(op, ir.While):
                yield from self._block(warp, op.head, lanes)
                while not warp.env[op.leave.name]:
                    yield from self._block(warp, op.body, lanes)
                    yield from self._block(warp, op.head, lanes)
            elif isinstance(op, ir.DoWhile):
                yield from self._block(warp, op.body, lanes)
                while warp.env[op.again.name]:
                    yield from self._block(warp, op.body, lanes)
            elif isinstance(op, ir.WaitBarrier):
                yield from self._wait(warp, op)
            elif isinstance(op, ir.CtaBarrier):
                yield from self._sync(warp, 0, self._program.warps)
            elif isinstance(op, ir.SyncNamedBarrier):
                yield from self._sync(warp, self._value(warp, op.id), op.barrier.threads // WARP_THREADS)
            else:
                raise ProtocolError(f"{type(op).__name__} has no meaning in the protocol")

    def _wait(self, warp: _Warp, op: ir.WaitBarrier) -> Iterator[None]:
        self.waiting_warps.add(warp.index)
        place = self._place(warp, op.address)
        barrier = self._mbarrier(place)
        parity = self._value(warp, op.parity)
        wanted = warp.waits.get(place, -1 if parity == 1 else 0)
        if wanted & 1 != parity:
            raise ProtocolError(
                f"warp {warp.index} waits on {place.name}[{place.stage}] for parity {parity}, but"
                f" the next phase it has not seen is {wanted}"
            )
        while barrier.completed <= wanted:
            warp.blocked = f"waits on {place.name}[{place.stage}] for phase {wanted}"
            yield
        if barrier.completed > wanted + 1:
            raise ProtocolError(
                f"barrier {place.name}[{place.stage}] may run two phases ahead of warp"
                f" {warp.index}, which waits for phase {wanted}: its parity test can miss the phase"
            )
        warp.waits[place] = wanted + 1
        self._steps += 1
        _learn(warp.known, barrier.published)
        warp.known["phase", place] = wanted + 1

    def _sync(self, warp: _Warp, identity: int, count: int) -> Iterator[None]:
        present = self._named.setdefault(identity, [])
        present.append(warp)
        if len(present) == count:
            self._named[identity] = []
            everything: Knowledge = {}
            for other in present:
                _learn(everything, other.known)
            for other in present:
                _learn(other.known, everything)
            self._steps += 1
        else:
            warp.blocked = f"waits at barrier {identity} with {len(present)} of {count} warps there"
            while any(other is warp for other in present) and self._named[identity] is present:
                yield

    # ---- values -----------------------------------------------------------------------------

    def _value(self, warp: _Warp, operand: Operand) -> Any:
        if operand.__class__ is Register:
            return warp.env.get(operand.name, 0)
        return operand.value if isinstance(operand, Hex) else operand

    def _place(self, warp: _Warp, address: Address) -> Place:
        value = warp.env.get(address.base.name)
        if not isinstance(value, Place):
            raise ProtocolError(f"{address} is not the address of a declared buffer or barrier")
        place = self._places[value.name]
        if isinstance(place, Barrier):
            value = Place(value.name, value.stage + address.offset // 8)
        if not 0 <= value.stage < place.stages:
            raise ProtocolError(f"{address}: {value.name} has no stage {value.stage}")
        return value

    def _mbarrier(self, place: Place) -> _Mbarrier:
        if place not in self._mbarriers:
            raise ProtocolError(f"barrier {place.name}[{place.stage}] is used before its init")
        return self._mbarriers[place]

    def _buffer(self, place: Place) -> _Buffer:
        return self._buffers.setdefault(place, _Buffer())

    def integer(self, warp: _Warp, op: ir.Integer, lanes: int) -> None:
        """An address stays the address of the same place, whatever is added to it."""
        values = [self._value(warp, source) for source in op.sources]
        for value in values:
            if value.__class__ is Place:
                warp.env[op.dst.name] = value
                return
        warp.env[op.dst.name] = _INTEGER[op.opcode](*values)

    def compare(self, warp: _Warp, op: ir.Compare, lanes: int) -> None:
        left, right = self._value(warp, op.left), self._value(warp, op.right)
        warp.env[op.dst.name] = _COMPARE[op.opcode](left, right)

    def read_special(self, warp: _Warp, op: ir.ReadSpecial, lanes: int) -> None:
        specials = {"%tid.x": warp.index * WARP_THREADS, "%nctaid.x": 1}
        warp.env[op.dst.name] = specials.get(op.special, 0)

    def load_parameter(self, warp: _Warp, op: ir.LoadParameter, lanes: int) -> None:
        warp.env[op.dst.name] = self._parameters.get(op.parameter.name, 1)

    def set_constant(self, warp: _Warp, op: ir.SetConstant, lanes: int) -> None:
        warp.env[op.dst.name] = self._value(warp, op.value)

    def elect_one(self, warp: _Warp, op: ir.ElectOne, lanes: int) -> None:
        warp.env[op.dst.name] = ELECTED

    def row_major_tile(self, warp: _Warp, op: ir.RowMajorTile, lanes: int) -> None:
        warp.env[op.m_tile.name] = warp.env[op.n_tile.name] = 0

    grouped_tile = row_major_tile

    def stage_address(self, warp: _Warp, op: ir.StageAddress | ir.StageDescriptor, lanes: int) -> None:
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
        warp.env[op.dst.name] = Place(base.name, base.stage + stage)

    def descriptor_base(self, warp: _Warp, op: ir.DescriptorBase, lanes: int) -> None:
        warp.env[op.dst.name] = self._value(warp, op.address)

    def start_cursor(self, warp: _Warp, op: ir.StartCursor, lanes: int) -> None:
        if op.cursor.stage is not None:
            warp.env[op.cursor.stage.name] = 0
        if op.cursor.phase is not None:
            warp.env[op.cursor.phase.name] = op.cursor.start_phase

    def advance_cursor(self, warp: _Warp, op: ir.AdvanceCursor, lanes: int) -> None:
        cursor, env = op.cursor, warp.env
        flips = True
        if cursor.stage is not None and cursor.stage_count is not None:
            stage = self._value(warp, cursor.stage) + 1
            flips = stage == self._value(warp, cursor.stage_count)
            env[cursor.stage.name] = 0 if flips else stage
        if cursor.phase is not None and flips:
            env[cursor.phase.name] = self._value(warp, cursor.phase) ^ 1

    # ---- barriers and asynchronous operations -------------------------------------------------

    def init_barrier(self, warp: _Warp, op: ir.InitBarrier, lanes: int) -> None:
        place = self._place(warp, op.address)
        if place.name != op.barrier.name:
            raise ProtocolError(f"init of {op.barrier.name} at the address of {place.name}")
        if place in self._mbarriers:
            raise ProtocolError(f"barrier {place.name}[{place.stage}] is initialised twice")
        count = op.barrier.arrivals
        self._mbarriers[place] = _Mbarrier(arrivals=count, pending=count)

    def arrive(self, warp: _Warp, op: ir.Arrive, lanes: int) -> None:
        self._arrive(warp, self._place(warp, op.address), lanes)

    def arrive_expect(self, warp: _Warp, op: ir.ArriveExpect, lanes: int) -> None:
        place = self._place(warp, op.address)
        self._mbarrier(place).tx += self._value(warp, op.transaction_bytes) * lanes
        self._arrive(warp, place, lanes)

    def _arrive(self, warp: _Warp, place: Place, count: int) -> None:
        barrier = self._mbarrier(place)
        if count > barrier.pending:
            raise ProtocolError(
                f"barrier {place.name}[{place.stage}] gets {count} arrivals but only"
                f" {barrier.pending} of {barrier.arrivals} are left in its phase"
            )
        barrier.pending -= count
        _learn(barrier.gathered, warp.known)
        self._complete(barrier)

    def _complete(self, barrier: _Mbarrier) -> None:
        if barrier.pending == 0 and barrier.tx == 0:
            barrier.completed += 1
            barrier.pending = barrier.arrivals
            barrier.published, barrier.gathered = barrier.gathered, {}

    def tma_load(self, warp: _Warp, op: ir.TmaLoad, lanes: int) -> None:
        target, signal = self._place(warp, op.dst), self._place(warp, op.barrier)
        if lanes != 1:
            raise ProtocolError(f"{lanes} lanes issue the load into {target.name}")
        self._check_range(target, op.dst.offset, op.box_bytes)
        buffer, barrier = self._buffer(target), self._mbarrier(signal)
        self._require_over(warp, target, buffer.reads, "loads into", "MMAs that read it")
        filled = (("phase", signal), barrier.completed + 1)
        if not buffer.consumed and buffer.filled != filled:
            raise ProtocolError(f"{target.name}[{target.stage}] is loaded again before it is read")
        buffer.reads.clear()
        buffer.filled, buffer.consumed = filled, False
        barrier.tx -= op.box_bytes
        self._complete(barrier)

    def mma(self, warp: _Warp, op: ir.Mma, lanes: int) -> None:
        if not self._columns:
            raise ProtocolError("an MMA is issued with no TMEM allocated")
        for operand in (op.a, op.b):
            place = self._value(warp, operand)
            if not isinstance(place, Place):
                raise ProtocolError(f"{operand} does not describe a declared buffer")
            buffer = self._buffer(place)
            if buffer.filled is None:
                raise ProtocolError(f"an MMA reads {place.name}[{place.stage}], never loaded")
            self._require_over(warp, place, [buffer.filled], "multiplies", "loads into it")
            buffer.consumed = True
            if place not in warp.uncommitted:
                warp.uncommitted.append(place)

    def wgmma(self, warp: _Warp, op: ir.Wgmma, lanes: int) -> None:
        for operand in (op.a, op.b):
            place = self._value(warp, operand)
            if not isinstance(place, Place):
                raise ProtocolError(f"{operand} does not describe a declared buffer")
            buffer = self._buffer(place)
            if buffer.filled is None:
                raise ProtocolError(f"a wgmma reads {place.name}[{place.stage}], never loaded")
            self._require_over(warp, place, [buffer.filled], "multiplies", "loads into it")
            buffer.consumed = True
            buffer.reads.append((("batch", warp.index), warp.batches + 1))

    def wgmma_commit(self, warp: _Warp, op: ir.WgmmaCommit, lanes: int) -> None:
        warp.batches += 1

    def wgmma_wait(self, warp: _Warp, op: ir.WgmmaWait, lanes: int) -> None:
        warp.batches_done = max(warp.batches_done, warp.batches - op.pending)
        warp.known["batch", warp.index] = warp.batches_done

    def commit_mma(self, warp: _Warp, op: ir.CommitMma, lanes: int) -> None:
        place = self._place(warp, op.address)
        barrier = self._mbarrier(place)
        for read in warp.uncommitted:
            self._buffer(read).reads.append((("phase", place), barrier.completed + 1))
        warp.uncommitted.clear()
        self._arrive(warp, place, 1)

    def store_shared(self, warp: _Warp, op: ir.StoreShared | ir.StoreMatrix, lanes: int) -> None:
        if warp.batches > warp.batches_done:
            raise ProtocolError(f"warp {warp.index} stores accumulators of an unfinished wgmma batch")
        place = self._place(warp, op.address)
        buffer = self._buffer(place)
        self._require_over(warp, place, buffer.reads, "writes", "TMA stores that read it")
        warp.rows += 1
        buffer.rows[warp.index] = warp.rows

    def fence_proxy_async(self, warp: _Warp, op: ir.FenceProxyAsync, lanes: int) -> None:
        warp.known["rows", warp.index] = warp.rows

    def tma_store(self, warp: _Warp, op: ir.TmaStore, lanes: int) -> None:
        place = self._place(warp, op.src)
        if lanes != 1:
            raise ProtocolError(f"{lanes} lanes issue the store from {place.name}")
        self._check_range(place, op.src.offset, op.box_bytes)
        buffer = self._buffer(place)
        rows = [(("rows", writer), count) for writer, count in buffer.rows.items()]
        self._require_over(warp, place, rows, "stores from", "writes, fenced,")
        buffer.reads.append((("read", warp.index), warp.groups + 1))
        warp.open_stores.append(place)

    def commit_stores(self, warp: _Warp, op: ir.CommitStores, lanes: int) -> None:
        warp.open_stores.clear()
        warp.groups += 1

    def wait_stores(self, warp: _Warp, op: ir.WaitStores, lanes: int) -> None:
        finished = warp.groups - op.pending
        for kind in ("read",) if op.read else ("read", "done"):
            key = (kind, warp.index)
            warp.known[key] = max(warp.known.get(key, 0), finished)

    def alloc_tmem(self, warp: _Warp, op: ir.AllocTmem, lanes: int) -> None:
        self._columns[warp.index] = self._columns.get(warp.index, 0) + op.columns
        used = sum(self._columns.values())
        if used > self._program.tmem_columns:
            raise ProtocolError(f"{used} TMEM columns, the chip has {self._program.tmem_columns}")

    def dealloc_tmem(self, warp: _Warp, op: ir.DeallocTmem, lanes: int) -> None:
        if self._columns.pop(warp.index, 0) != op.columns:
            raise ProtocolError(f"warp {warp.index} frees {op.columns} TMEM columns it did not get")

    def load_tmem(self, warp: _Warp, op: ir.LoadTmem, lanes: int) -> None:
        if not self._columns:
            raise ProtocolError("TMEM is read while none is allocated")

    def _check_range(self, place: Place, offset: int, nbytes: int) -> None:
        declared = self._places[place.name]
        if offset < 0 or offset + nbytes > declared.nbytes:
            raise ProtocolError(
                f"bytes {offset} to {offset + nbytes - 1} are outside a stage of {place.name} ({declared.nbytes} bytes)"
            )

    def _require_over(
        self,
        warp: _Warp,
        place: Place,
        uses: list[tuple[tuple[str, Any], int]],
        verb: str,
        what: str,
    ) -> None:
        for key, count in uses:
            if warp.known.get(key, 0) < count:
                raise ProtocolError(
                    f"warp {warp.index} {verb} {place.name}[{place.stage}] without knowing that the"
                    f" {what} are over (nothing that it waited for says so)"
                )


def _learn(known: Knowledge, more: Knowledge) -> None:
    for key, count in more.items():
        if count > known.get(key, -1):
            known[key] = count


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
_HANDLERS: dict[type[ir.Op], Callable[[Simulation, _Warp, Any, int], None]] = {
    ir.Integer: Simulation.integer,
    ir.Compare: Simulation.compare,
    ir.ReadSpecial: Simulation.read_special,
    ir.LoadParameter: Simulation.load_parameter,
    ir.SetConstant: Simulation.set_constant,
    ir.ElectOne: Simulation.elect_one,
    ir.RowMajorTile: Simulation.row_major_tile,
    ir.GroupedTile: Simulation.grouped_tile,
    ir.StageAddress: Simulation.stage_address,
    ir.StageDescriptor: Simulation.stage_address,
    ir.DescriptorBase: Simulation.descriptor_base,
    ir.StartCursor: Simulation.start_cursor,
    ir.AdvanceCursor: Simulation.advance_cursor,
    ir.InitBarrier: Simulation.init_barrier,
    ir.Arrive: Simulation.arrive,
    ir.ArriveExpect: Simulation.arrive_expect,
    ir.TmaLoad: Simulation.tma_load,
    ir.Mma: Simulation.mma,
    ir.CommitMma: Simulation.commit_mma,
    ir.StoreShared: Simulation.store_shared,
    ir.StoreMatrix: Simulation.store_shared,
    ir.Wgmma: Simulation.wgmma,
    ir.WgmmaCommit: Simulation.wgmma_commit,
    ir.WgmmaWait: Simulation.wgmma_wait,
    ir.FenceProxyAsync: Simulation.fence_proxy_async,
    ir.TmaStore: Simulation.tma_store,
    ir.CommitStores: Simulation.commit_stores,
    ir.WaitStores: Simulation.wait_stores,
    ir.AllocTmem: Simulation.alloc_tmem,
    ir.DeallocTmem: Simulation.dealloc_tmem,
    ir.LoadTmem: Simulation.load_tmem,
}


_STEERING = (ir.Guard, ir.While, ir.DoWhile, ir.WaitBarrier, ir.CtaBarrier, ir.SyncNamedBarrier)
_SCALAR = (ir.Integer, ir.Compare, ir.ReadSpecial, ir.LoadParameter, ir.SetConstant)


def parts_of(program: Program) -> Parts:
    """Set-up, role bodies behind their tests, teardown, without what decides nothing here: most of
    the epilogue's arithmetic."""
    needed = _needed(program)
    places = _fixed_places(program)

    def keep(ops: tuple[ir.Op, ...]) -> Iterator[ir.Op]:
        staged: Register | None = None
        for op in ops:
            if isinstance(op, _SCALAR):
                if op.dst.name in needed and op.dst.name not in places:
                    yield op
            elif isinstance(op, (ir.Guard, ir.DoWhile)):
                yield dataclasses.replace(op, body=tuple(keep(op.body)))
            elif isinstance(op, ir.While):
                yield dataclasses.replace(op, head=tuple(keep(op.head)), body=tuple(keep(op.body)))
            elif isinstance(op, (ir.StoreShared, ir.StoreMatrix)):
                if op.address.base != staged:
                    yield op
                staged = op.address.base
            elif isinstance(op, ir.SmemAddress):
                continue
            elif isinstance(op, _STEERING) or type(op) in _HANDLERS:
                yield op

    bodies = (role_ops(role) for role in program.roles)
    blocks = (program.setup, *bodies, program.teardown)
    return Parts(blocks=tuple(tuple(keep(block)) for block in blocks), places=places)


def _fixed_places(program: Program) -> dict[str, Place]:
    """Registers that are only ever addresses of one place, whatever integers are added to them."""
    found: dict[str, Place | None] = {}
    for op in program.ops():
        if isinstance(op, ir.SmemAddress):
            place: Place | None = Place(op.place.name, 0)
        elif isinstance(op, ir.Integer):
            bases = [found.get(s.name) for s in op.sources if isinstance(s, Register)]
            place = next((base for base in bases if base), None)
        elif isinstance(op, (ir.StageAddress, ir.StageDescriptor, ir.DescriptorBase)):
            place = None
        else:
            continue
        known = found.setdefault(op.dst.name, place)
        if known != place:
            found[op.dst.name] = None
    return {name: place for name, place in found.items() if place}


def _needed(program: Program) -> frozenset[str]:
    """Registers that steer: predicates, stages, parities, addresses, and what they come from."""
    sources: dict[str, set[str]] = {}
    roots: set[str] = set()

    def names(*operands: object) -> set[str]:
        return {item.name for item in operands if isinstance(item, Register)}

    def visit(block: tuple[ir.Op, ...]) -> None:
        for op in block:
            if isinstance(op, ir.Guard):
                roots.add(op.predicate.name)
                visit(op.body)
            elif isinstance(op, ir.While):
                roots.add(op.leave.name)
                visit(op.head)
                visit(op.body)
            elif isinstance(op, ir.DoWhile):
                roots.add(op.again.name)
                visit(op.body)
            elif isinstance(op, ir.Integer):
                sources.setdefault(op.dst.name, set()).update(names(*op.sources))
            elif isinstance(op, ir.Compare):
                sources.setdefault(op.dst.name, set()).update(names(op.left, op.right))
            elif isinstance(op, (ir.StageAddress, ir.StageDescriptor)):
                roots.update(names(op.base, op.stage, op.stride))
            elif isinstance(op, ir.AdvanceCursor):
                roots.update(names(op.cursor.stage_count))
            elif isinstance(op, ir.WaitBarrier):
                roots.update(names(op.parity, op.address.base))
            elif isinstance(op, ir.ArriveExpect):
                roots.update(names(op.transaction_bytes, op.address.base))
            elif isinstance(op, ir.SyncNamedBarrier):
                roots.update(names(op.id))
            elif isinstance(op, (ir.Mma, ir.Wgmma)):
                roots.update(names(op.a, op.b))
            elif isinstance(op, (ir.StoreShared, ir.StoreMatrix)):
                roots.update(names(op.address.base))

    visit(program.setup)
    for role in program.roles:
        visit(role_ops(role))
    visit(program.teardown)
    needed: set[str] = set()
    while roots:
        name = roots.pop()
        if name not in needed:
            needed.add(name)
            roots |= sources.get(name, set())
    return frozenset(needed)
