"""A warp: 32 lanes, their registers, and the fragments they split into when they diverge.

Lanes that take different ways at a branch become fragments, each with its own program counter;
they join again at the branch's immediate post-dominator. Fragments are scheduled independently, so
lanes that wait do not hold up the others (as on hardware since Volta).

Registers are shared by all fragments. A fragment keeps the other lanes' values only of registers
that are live where those lanes stand (`kept`); all others it overwrites freely, so that a value
computed in a one-lane region stays a plain int.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen.emulator import events
from ptxgen.emulator.code import Code
from ptxgen.emulator.terminators import STOP, SWITCH
from ptxgen.emulator.values import ALL_LANES, Lanes, Registers, Value, lane_value, mask_of, merge
from ptxgen.errors import MachineError

if TYPE_CHECKING:
    from ptxgen.emulator.cta import Cta


class Wait:
    """Why a fragment stands still: what, on which line, and the object it waits for.

    `spins`: a failed test that the program may repeat; everything else is woken by its event.
    `describe` gives the state of the awaited object, asked only for a deadlock report.
    """

    __slots__ = ("detail", "kind", "line", "spins", "target")

    def __init__(self, kind: str, line: int, spins: bool = False, target: Any = None, detail: Any = None) -> None:
        self.kind, self.line, self.spins = kind, line, spins
        self.target, self.detail = target, detail

    def same_as(self, other: Wait | None) -> bool:
        return (
            other is not None
            and (self.kind, self.line, self.target, self.detail)
            == (other.kind, other.line, other.target, other.detail)
        )  # fmt: skip


class Join:
    """A reconvergence point and the lanes that are to meet there."""

    __slots__ = ("arrived", "expected", "parent", "pc")

    def __init__(self, pc: int, expected: int, parent: Join | None) -> None:
        self.pc, self.expected, self.parent = pc, expected, parent
        self.arrived = 0


class Fragment:
    """Lanes that run together. `wait` is None while they can go on. `polled` is the last look at global memory that
    others may change: the line, what was seen where, and the cluster's activity then."""

    __slots__ = ("bits", "join", "pc", "polled", "wait", "warp")

    def __init__(self, warp: Warp, pc: int, bits: int, join: Join | None) -> None:
        self.warp, self.pc, self.bits, self.join = warp, pc, bits, join
        self.wait: Wait | None = None
        self.polled: tuple[int, int, int, int] | None = None


class Warp:
    """`r` is the value list (see decode.Slots); r[0] is the warp itself.

    `bits` and `active` are the running fragment's lanes (`active` None: all 32), `live` all lanes
    that exist and have not exited, `kept` the slots whose other lanes' values are still needed.
    """

    def __init__(self, cta: Cta, index: int, code: Code, values: Registers, lanes: int) -> None:
        self.cta, self.index, self.code = cta, index, code
        self.r = values
        values[0] = self
        self.live = self.bits = lanes
        self.active: Lanes | None = None if lanes == ALL_LANES else mask_of(lanes)
        self.kept = 0
        self.pc = 0
        self.stop = STOP
        self.current = Fragment(self, 0, lanes, None)
        self.fragments = [self.current]
        self.local: Any = None  # per-thread frames, made at first use
        self.bulk: dict[int, Any] = {}  # lane -> its bulk async-groups
        self.copies: dict[int, Any] = {}  # lane -> its cp.async groups
        self.tensor_queue: list[Any] = []
        self.tmem_loads: list[Any] = []
        self.tmem_stores: list[Any] = []
        self.wgmma: Any = None  # its side of its warpgroup (warpgroup.Member), made at first use
        self.registers_per_thread = 0
        self.register_requests: list[tuple[str, int]] = []  # its setmaxnreg instructions: text, line

    # -- running --------------------------------------------------------------------------------

    def ready(self) -> Fragment | None:
        """A fragment that can run, the last one that ran first."""
        current = self.current
        if current.wait is None and current in self.fragments:
            return current
        for fragment in self.fragments:
            if fragment.wait is None:
                return fragment
        return None

    def run(self, fragment: Fragment, limit: int) -> None:
        """Runs a fragment until it stops or about `limit` instructions ran."""
        if fragment is not self.current or fragment.bits != self.bits:
            self._enter(fragment)
        r, segments = self.r, self.code.segments
        pc, stop, kept = fragment.pc, self.stop, self.kept
        count = 0
        where: Iterator[Any] | None = None
        try:
            while True:
                if pc == stop:
                    self.pc = pc
                    if self._join() == STOP:
                        break
                    pc, stop, kept = self.pc, self.stop, self.kept
                    continue
                ops, end, following, size, masked = segments[pc]
                if kept:
                    where = iter(masked)
                    for op, written, writes in where:
                        if written & kept:
                            self._merged(op, writes)
                        else:
                            op(r)
                else:
                    where = iter(ops)
                    for op in where:
                        op(r)
                where = None
                count += size
                if end is None:
                    pc = following
                    continue
                after = end(r)
                if after >= 0:
                    pc = after
                    if count > limit:
                        self.current.pc = pc
                        break
                elif after == SWITCH:
                    pc, stop, kept = self.pc, self.stop, self.kept
                else:
                    self.current.pc = self.pc
                    break
        except MachineError as error:
            lines = self.code.lines[pc]
            at = len(segments[pc].ops) if where is None else _position(where, len(segments[pc].ops))
            raise self.cta.unit.fault(error, self, lines[min(at, len(lines) - 1)]) from error
        finally:
            self.cta.unit.instructions += count

    def _merged(self, op: Any, writes: tuple[int, ...]) -> None:
        r, kept, widths = self.r, self.kept, self.code.slots.widths
        old = [(slot, r[slot]) for slot in writes if kept >> slot & 1]
        op(r)
        assert self.active is not None
        for slot, before in old:
            r[slot] = merge(self.active, r[slot], before, widths[slot])

    # -- divergence -----------------------------------------------------------------------------

    def diverge(self, paths: tuple[tuple[int, int], ...], meet: int) -> None:
        """Splits the running fragment; `paths` are (segment, lanes). Lanes whose way leads straight
        to the meeting point wait there."""
        current = self.current
        join = Join(meet, current.bits, current.join)
        if len(paths) == 2 and len(self.fragments) == 1 and join.parent is None:
            (first, first_bits), (second, second_bits) = paths
            if second == meet or first == meet:  # the usual case: a guarded region, then all lanes again
                current.pc, current.bits = (first, first_bits) if second == meet else (second, second_bits)
                current.join = join
                join.arrived = join.expected ^ current.bits
                self.pc, self.bits, self.stop = current.pc, current.bits, meet
                self.active = mask_of(current.bits)
                self.kept = self.code.live_in[meet] if meet >= 0 else 0
                return
        left = [path for path in paths if path[0] != meet]
        for _, bits in paths:
            join.arrived |= bits
        for _, bits in left:
            join.arrived &= ~bits
        current.pc, current.bits = left[0]
        current.join = join
        for pc, bits in left[1:]:
            self.fragments.append(Fragment(self, pc, bits, join))
        self._enter(current)

    def _enter(self, fragment: Fragment) -> None:
        """Makes a fragment the running one."""
        self.current = fragment
        self.bits = bits = fragment.bits
        self.pc = fragment.pc
        self.active = None if bits == ALL_LANES else mask_of(bits)
        join = fragment.join
        self.stop = STOP if join is None else join.pc
        kept, live_in = 0, self.code.live_in
        if len(self.fragments) > 1:
            joins = set()
            for other in self.fragments:
                if other is not fragment:
                    kept |= live_in[other.pc]
                    join = other.join
                    while join is not None:
                        joins.add(join)
                        join = join.parent
            for join in joins:
                if join.arrived and join.pc >= 0:
                    kept |= live_in[join.pc]
        join = fragment.join
        while join is not None:
            if join.arrived and join.pc >= 0:
                kept |= live_in[join.pc]
            join = join.parent
        self.kept = kept

    def _join(self) -> int:
        """The running fragment has come to its meeting point; STOP when others are still to come
        and no other fragment of the warp can run."""
        current = self.current
        join = current.join
        assert join is not None
        join.arrived |= current.bits
        if join.arrived == join.expected:
            current.pc, current.bits, current.join = join.pc, join.expected, join.parent
            if join.parent is None and len(self.fragments) == 1:
                self.pc, self.bits, self.stop, self.kept = join.pc, join.expected, STOP, 0
                self.active = None if join.expected == ALL_LANES else mask_of(join.expected)
            else:
                self._enter(current)
            return SWITCH
        self.fragments.remove(current)
        return self._next_fragment()

    def _next_fragment(self) -> int:
        for fragment in self.fragments:
            if fragment.wait is None:
                self._enter(fragment)
                return SWITCH
        return STOP

    def exit_lanes(self) -> int:
        """Ends the running lanes; returns what a terminator returns."""
        gone, current = self.bits, self.current
        self.cta.lanes_exit(self, gone)
        self.live &= ~gone
        self.fragments.remove(current)
        join = current.join
        while join is not None:
            join.expected &= ~gone
            if join.expected and join.arrived == join.expected:
                self.fragments.append(Fragment(self, join.pc, join.expected, join.parent))
                break
            join = join.parent
        if join is not None:  # the resumed fragment's outer joins lose the lanes too
            join = join.parent
            while join is not None:
                join.expected &= ~gone
                join = join.parent
        for fragment in self.fragments:
            while fragment.join is not None and fragment.join.expected == fragment.bits and not fragment.join.arrived:
                fragment.join = fragment.join.parent
        if not self.fragments:
            self.cta.warp_exits(self)
            return STOP
        return self._next_fragment()

    def narrow(self, bits: int) -> tuple[int, Lanes | None]:
        """Restricts the running lanes for one guarded op; widen() undoes it."""
        saved = self.bits, self.active
        self.bits, self.active = bits, mask_of(bits)
        return saved

    def widen(self, saved: tuple[int, Lanes | None]) -> None:
        self.bits, self.active = saved

    # -- services for ops -----------------------------------------------------------------------

    def wait(self, wait: Wait) -> bool:
        """Puts the running fragment to sleep; a blocking op returns this (False: stop)."""
        self.current.wait = wait
        return False

    def write(self, fragment: Fragment, slot: int, value: Value) -> None:
        """Writes a register for lanes of a fragment that is not running."""
        r, widths = self.r, self.code.slots.widths
        r[slot] = merge(mask_of(fragment.bits), value, r[slot], widths[slot])

    def lane(self, slot: int, lane: int) -> int:
        return int(lane_value(self.r[slot], lane))

    def require_converged(self, what: str) -> None:
        """For `.aligned` instructions: all live lanes of the warp must run them together."""
        if self.bits != self.live:
            raise MachineError(
                "divergent-aligned-instruction",
                f"{what} is run by lanes {self.bits:#010x} of the live {self.live:#010x}",
            )

    def deliver_loads(self, line: int) -> None:
        """A register that a tcgen05.ld writes is used before tcgen05.wait::ld: the hardware holds
        the instruction up, as it does for any load."""
        unit = self.cta.unit
        for op in self.tmem_loads:
            unit.engine.complete(op)
        if unit.observed:
            covered = tuple(op.id for op in self.tmem_loads)
            where = unit.where(self, self.bits, line)
            unit.emit(events.WaitGroup(*where, mechanism="register", pending=0, covered=covered))
        self.tmem_loads.clear()
        unit.note(
            "missing-wait-ld",
            "a destination of tcgen05.ld is used before tcgen05.wait::ld; only the register dependence orders them",
            self,
            line,
            severity="warning",
        )

    def flush_tensor(self) -> None:
        if self.tensor_queue:
            self.cta.unit.engine.flush_tensor(self)


def _position(where: Iterator[Any], count: int) -> int:
    """Index of the element that an iterator over `count` elements gave last."""
    return count - int(where.__length_hint__()) - 1  # type: ignore[attr-defined]
