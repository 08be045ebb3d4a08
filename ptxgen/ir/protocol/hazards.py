"""Mbarriers, shared memory and tensor memory while a Program's synchronisation is played through.

They hold who used what last, and refuse a use that may overlap an asynchronous one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ptxgen.errors import PtxgenError
from ptxgen.hardware.instruction_descriptor import decode
from ptxgen.hardware.tmem import is_allocation, warp_base_lane
from ptxgen.ir.declarations import Barrier
from ptxgen.ir.protocol.knowledge import Key, Knowledge, Place, ProtocolError, Warp, learn

ADDRESS_LANE_SHIFT = 16
"""A TMEM address has its lane in bits 31-16 and its column in bits 15-0 (PTX ISA 9.1 §9.7.16.1)."""


@dataclass(slots=True)
class Mbarrier:
    """`init` is the knowledge that the mbarrier is initialised: (warp, its number among the warp's).

    `from_afar` has the last arrival of each warp of another CTA: the knowledge that it has come (no
    warp has it of a commit, which arrives in its own time), and the count of phases up to it.
    `waited` has the last wait of each warp: its number among the warp's, and the phase that it was for.
    `arrivers` are the warps that have arrived in the running phase, `former` those of the one before.
    """

    place: Place
    declared: Barrier
    init: tuple[int, int]
    pending: int
    completed: int = 0
    from_afar: dict[Key, tuple[int, int]] = field(default_factory=dict)
    waited: dict[int, tuple[int, int]] = field(default_factory=dict)
    arrivers: set[int] = field(default_factory=set)
    former: set[int] = field(default_factory=set)
    tx: int = 0
    expected: int = 0
    gathered: Knowledge = field(default_factory=dict)
    published: Knowledge = field(default_factory=dict)

    @property
    def end_of_phase(self) -> tuple[Key, int]:
        """What is known when the phase that is now running is over."""
        return ("phase", self.place), self.completed + 1

    def expect(self, nbytes: int) -> None:
        self.expected += nbytes
        if self.expected > self.declared.transaction_bytes:
            raise ProtocolError(
                f"barrier {self.place} is told to expect {self.expected} bytes in a phase,"
                f" {self.declared.transaction_bytes} are declared"
            )
        self.tx += nbytes

    def arrive(self, count: int, warp: Warp) -> None:
        if count > self.pending:
            raise ProtocolError(
                f"barrier {self.place} gets {count} arrivals but only {self.pending} of"
                f" {self.declared.arrivals} are left in its phase"
            )
        self._require_phase(warp)
        self.arrivers.add(warp.index)
        self.pending -= count
        learn(self.gathered, warp.known)
        self._complete()

    def bring(self, nbytes: int, warp: Warp) -> None:
        """Bytes of an operation that the warp has issued: who sees them knows how far the warp had come by then,
        which says nothing of memory."""
        self.tx -= nbytes
        learn(self.gathered, {key: count for key, count in warp.known.items() if key[0] == "waits"})
        self._complete()

    def wait_passed(self, warp: Warp, phase: int) -> None:
        """A warp has seen that `phase` is over."""
        warp.passed += 1
        self.waited[warp.index] = warp.passed, phase
        warp.known["waits", warp.index] = warp.passed

    def _require_phase(self, warp: Warp) -> None:
        """An arrival must not come in an earlier phase, however late others are."""
        last, known = self.completed - 1, warp.known
        if self.former in (set(), {warp.index}) or known.get(("phase", self.place), 0) >= self.completed:
            return
        if any(
            phase >= last and known.get(("waits", who), 0) >= number for who, (number, phase) in self.waited.items()
        ):
            return
        raise ProtocolError(
            f"warp {warp.index} arrives on {self.place} in phase {self.completed} without knowing that phase {last}"
            " is over: its arrival may count for that"
        )

    def _require_followed(self) -> None:
        """Who ends a phase must know that every warp that waited for the one before has seen that it is over."""
        for warp, (number, phase) in self.waited.items():
            if self.gathered.get(("waits", warp), 0) >= number:
                continue
            if phase < 0:
                raise ProtocolError(missed_first(warp, self.place))
            raise ProtocolError(run_ahead(warp, self.place, phase))

    def _complete(self) -> None:
        if self.pending or self.tx:
            return
        if self.expected != self.declared.transaction_bytes:
            raise ProtocolError(
                f"barrier {self.place} completes a phase after {self.expected} bytes,"
                f" {self.declared.transaction_bytes} are declared"
            )
        self._require_followed()
        self.completed += 1
        self.pending, self.expected = self.declared.arrivals, 0
        self.former, self.arrivers = self.arrivers, set()
        self.published, self.gathered = self.gathered, {}

    def __str__(self) -> str:
        arrivals = self.declared.arrivals
        return f"{arrivals - self.pending} of {arrivals} arrivals, {self.tx} bytes expected and not brought"


def run_ahead(warp: int, place: Place, phase: int) -> str:
    return (
        f"barrier {place} may run two phases ahead of warp {warp}, which waits for phase {phase}: its parity test"
        " can miss the phase"
    )


def missed_first(warp: int, place: Place) -> str:
    return (
        f"warp {warp} waits on {place} for parity 1, the phase before the first, but phase 0 may be complete by"
        " then, and the wait hang"
    )


@dataclass(slots=True)
class Stage:
    """The last uses of one stage of a buffer, each as (knowledge key, count that ends it)."""

    filled: tuple[Key, int] | None = None
    consumed: bool = True
    uncommitted: bool = False
    reads: list[tuple[Key, int]] = field(default_factory=list)
    before: list[tuple[Key, int]] = field(default_factory=list)
    """The reads that ended before the present filling began: every load of it must know them to be over."""
    rows: dict[int, int] = field(default_factory=dict)


_READERS = {
    "read": "the TMA stores that read it are over",
    "loads": "the warps that read it have done so and fenced their reads for the async proxy",
}
"""What ends the reads of shared memory, by the kind of knowledge, where it is not a commit of MMAs."""


class SharedMemory:
    """The buffers: TMA or threads fill them, MMAs and TMA stores read them."""

    def __init__(self) -> None:
        self._stages: dict[Place, Stage] = {}

    def stage(self, place: Place) -> Stage:
        stage = self._stages.get(place)
        if stage is None:
            stage = self._stages[place] = Stage()
        return stage

    def load(self, warp: Warp, place: Place, filled: tuple[Key, int]) -> None:
        """A TMA load into `place` begins; `filled` ends it."""
        stage = self.stage(place)
        if stage.uncommitted:
            raise ProtocolError(f"{place} is loaded while MMAs that read it are not committed to any barrier")
        if stage.filled != filled:
            stage.before, stage.reads = stage.reads, []
        self._require_read(warp, place, stage.before, "loads into")
        if not stage.consumed and stage.filled != filled:
            raise ProtocolError(f"{place} is loaded again before it is read")
        stage.filled, stage.consumed = filled, False

    def multiply(self, warp: Warp, place: Place) -> None:
        """An MMA that reads `place` begins; the warp's next commit ends it."""
        stage = self.stage(place)
        if stage.filled is None and not stage.rows:
            raise ProtocolError(f"an MMA reads {place}, which is never loaded")
        if stage.filled is not None:
            warp.require(*stage.filled, "multiplies", place, "the loads into it are over")
        self._require_written(warp, place, stage, "multiplies")
        stage.consumed = stage.uncommitted = True
        if place not in warp.uncommitted:
            warp.uncommitted.append(place)

    def commit(self, warp: Warp, ends: dict[int, tuple[Key, int]]) -> None:
        """`ends` ends the warp's MMAs, as each CTA (by rank) learns of it; others learn as the first does."""
        for place in warp.uncommitted:
            stage = self.stage(place)
            stage.uncommitted = False
            stage.reads.append(ends.get(place.rank) or next(iter(ends.values())))
            stage.rows.clear()
        warp.uncommitted.clear()

    def read(self, warp: Warp, place: Place) -> None:
        """Threads of the warp read what was loaded into `place`; a proxy fence of the warp ends it."""
        stage = self.stage(place)
        if stage.filled is None:
            raise ProtocolError(f"warp {warp.index} reads {place}, which is never loaded")
        warp.require(*stage.filled, "reads", place, "the loads into it are over")
        stage.consumed = True
        warp.loads += 1
        stage.reads.append((("loads", warp.index), warp.loads))

    def write(self, warp: Warp, place: Place) -> None:
        """Threads of the warp write `place`."""
        stage = self.stage(place)
        self._require_read(warp, place, stage.reads, "writes")
        warp.rows += 1
        stage.rows[warp.index] = warp.rows

    def store(self, warp: Warp, place: Place) -> None:
        """A TMA store from `place` begins; the warp's next bulk group ends it."""
        stage = self.stage(place)
        if not stage.rows:
            raise ProtocolError(f"warp {warp.index} stores from {place}, where nothing was written for it")
        self._require_written(warp, place, stage, "stores from")
        stage.reads.append((("read", warp.index), warp.groups + 1))
        warp.open_stores.append(place)

    def commit_stores(self, warp: Warp) -> None:
        for place in warp.open_stores:
            self.stage(place).rows.clear()
        warp.open_stores.clear()
        warp.groups += 1

    def _require_written(self, warp: Warp, place: Place, stage: Stage, doing: str) -> None:
        for writer, count in stage.rows.items():
            what = "the warps that wrote it have done so and fenced their writes for the async proxy"
            warp.require(("rows", writer), count, doing, place, what)

    def _require_read(self, warp: Warp, place: Place, reads: list[tuple[Key, int]], doing: str) -> None:
        for key, count in reads:
            warp.require(key, count, doing, place, _READERS.get(key[0], "the MMAs that read it are over"))


@dataclass(slots=True)
class Accumulator:
    """TMEM columns that MMAs write: commits of which any ends the writing, and loads by warp."""

    columns: int
    writer: int = 0
    written: list[tuple[Key, int]] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)

    def require_written(self, warp: Warp, doing: str) -> None:
        """One commit that came after the MMAs is enough: it covers all that its thread issued before."""
        if not self.written:
            raise ProtocolError(f"warp {warp.index} {doing} an accumulator whose MMAs are not committed")
        if all(warp.fenced.get(key, 0) < count for key, count in self.written):
            key, count = next((end for end in self.written if warp.known.get(end[0], 0) >= end[1]), self.written[-1])
            warp.require_fenced(key, count, doing, "the accumulator", "the MMAs that write it are over")

    def require_read(self, warp: Warp, doing: str) -> None:
        for reader, count in self.reads.items():
            what = "the warps that read it have done so and fenced their reads"
            warp.require_fenced(("tmem", reader), count, doing, "the accumulator", what)


class TensorMemory:
    """Columns: allocated, written by MMAs, read by tcgen05.ld, freed."""

    def __init__(self, columns: int) -> None:
        self._limit = columns
        self._allocated: dict[int, int] = {}
        self._slots: dict[str, tuple[int, int]] = {}
        self._accumulators: dict[int, Accumulator] = {}

    @property
    def allocated(self) -> int:
        return sum(self._allocated.values())

    def allocate(self, warp: Warp, slot: str, columns: int) -> None:
        if not is_allocation(columns):
            raise ProtocolError(f"{columns} TMEM columns: an allocation is a power of two from 32 to 512")
        first = self.allocated
        if first + columns > self._limit:
            raise ProtocolError(f"{first + columns} TMEM columns, the chip has {self._limit}")
        self._slots[slot] = (first, warp.index)
        self._allocated[warp.index] = self._allocated.get(warp.index, 0) + columns
        warp.known["allocation", warp.index] = 1

    def read_address(self, warp: Warp, slot: str) -> int:
        """The first column, which the allocating warp left in shared memory."""
        if slot not in self._slots:
            raise ProtocolError(f"the TMEM address is read from [{slot}], where no allocation has left one")
        column, owner = self._slots[slot]
        warp.require(("allocation", owner), 1, "reads", "the TMEM address", "it is allocated")
        return column

    def multiply(self, warp: Warp, address: int, instruction: int, cta_group: int) -> None:
        """An MMA begins to write the accumulator at `address`; the warp's next commit ends it."""
        columns = _mma_columns(instruction, cta_group)
        first = address & 0xFFFF
        if first + columns > self.allocated:
            raise ProtocolError(
                f"an MMA writes TMEM columns {first} to {first + columns - 1}, {self.allocated} are allocated"
            )
        accumulator = self._accumulators.get(first)
        if accumulator is None:
            accumulator = self._accumulators[first] = Accumulator(columns=columns)
        for other, item in self._accumulators.items():
            overlaps = other < first + columns and first < other + item.columns
            if overlaps and (other, item.columns) != (first, columns):
                raise ProtocolError(
                    f"MMAs write TMEM columns {first} to {first + columns - 1} and, overlapping,"
                    f" {other} to {other + item.columns - 1}"
                )
        accumulator.require_read(warp, "multiplies into")
        accumulator.reads.clear()
        accumulator.written.clear()
        accumulator.writer = warp.index

    def commit(self, warp: Warp, ends: tuple[Key, int]) -> None:
        for accumulator in self._accumulators.values():
            if accumulator.writer == warp.index:
                accumulator.written.append(ends)

    def load(self, warp: Warp, address: int, columns: int) -> None:
        """The warp reads columns of its own 32 lanes."""
        first, lane = address & 0xFFFF, address >> ADDRESS_LANE_SHIFT
        own = warp_base_lane(warp.cta_warp)
        if lane != own:
            raise ProtocolError(f"warp {warp.index} reads TMEM lane {lane}; its lanes begin at {own}")
        for start, accumulator in self._accumulators.items():
            if start <= first and first + columns <= start + accumulator.columns:
                accumulator.require_written(warp, "reads")
                warp.tmem_loads += 1
                accumulator.reads[warp.index] = warp.tmem_loads
                return
        raise ProtocolError(
            f"warp {warp.index} reads TMEM columns {first} to {first + columns - 1}, which no MMA writes"
        )

    def free(self, warp: Warp, columns: int) -> None:
        if self._allocated.pop(warp.index, 0) != columns:
            raise ProtocolError(f"warp {warp.index} frees {columns} TMEM columns it did not get")
        for accumulator in self._accumulators.values():
            accumulator.require_written(warp, "frees")
            accumulator.require_read(warp, "frees")
        self._accumulators.clear()


@lru_cache(maxsize=64)
def _mma_columns(instruction: int, cta_group: int) -> int:
    """Columns that an MMA of kind f16 writes, for its instruction descriptor: its N."""
    try:
        shape = decode(instruction, "f16")
    except PtxgenError as error:
        raise ProtocolError(str(error)) from None
    if broken := shape.shape_violations(cta_group=cta_group):
        raise ProtocolError("; ".join(broken))
    return shape.n
