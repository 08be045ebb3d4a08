"""An entry decoded into segments: straight-line Ops, each run ended by a terminator.

Guards become wrappers; a guarded instruction that may block becomes a branch around an unguarded
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ptxgen.emulator.decode import Decode, Ends, Fuse, Op
from ptxgen.emulator.flow import EXIT, immediate_postdominators, live_in
from ptxgen.emulator.inline import inline_calls
from ptxgen.emulator.layout import Layout, Slots
from ptxgen.emulator.module import Function, Guard, ParsedModule
from ptxgen.emulator.terminators import (
    COMPUTING,
    COPYING,
    Terminator,
    blocking,
    branch,
    delivered,
    guarded,
    indexed,
    jump,
    leave,
    merging,
    settled,
    spoiled,
    then_flush,
    watched,
)
from ptxgen.emulator.values import POISON

Masked = tuple[Op, int, tuple[int, ...]]


class Segment(NamedTuple):
    """ops in order; `masked` pairs each with what it writes, for partial warps; `end` is None when
    control just falls to `following`."""

    ops: tuple[Op, ...]
    end: Terminator | None
    following: int
    instructions: int
    masked: tuple[Masked, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Code:
    """`lines[s][i]` is the line of op i of segment s, and the last one that of its terminator.
    `live_in[s]` is a bit set of slots. `shares_global`: clusters may synchronise through memory.
    `cancels_clusters`: it has clusterlaunchcontrol.try_cancel.
    `cta_groups` has the first line of each cta_group that a tcgen05 instruction names."""

    entry: Function
    slots: Slots
    layout: Layout
    segments: tuple[Segment, ...]
    lines: tuple[tuple[int, ...], ...]
    live_in: tuple[int, ...]
    shares_global: bool
    cancels_clusters: bool
    cta_groups: dict[int, int]


@dataclass(slots=True)
class _Item:
    line: int
    reads: int = 0
    writes: tuple[int, ...] = ()
    op: Op | None = None
    ends: Ends | None = None
    guard: tuple[int, bool] | None = None
    count: int = 1  # instructions
    fuse: Fuse | None = None
    tensor: bool = False
    tmem_load: bool = False
    tmem_wait: bool = False
    accumulators: int = 0  # registers that its wgmma works on
    early_use: bool = False  # of a register that a tcgen05.ld may not have delivered yet
    shares_global: bool = False
    cancels_clusters: bool = False
    cta_group: int = 0
    computes: bool = False
    copies: bool = False
    skip: int | None = None  # a synthetic branch: the item index that it may jump to

    @property
    def written(self) -> int:
        bits = 0
        for slot in self.writes:
            bits |= 1 << slot
        return bits


def build_code(module: ParsedModule, entry: Function, hooks: bool) -> Code:
    """Decodes an entry. PtxError on any instruction, modifier or operand that is not known."""
    entry = inline_calls(module, entry)
    layout = Layout(entry)
    layout.settle(entry.instructions)
    slots = Slots(entry.registers)
    items, places = _items(module, entry, slots, layout, hooks)
    return _Builder(entry, slots, layout, items, places).code()


def _items(
    module: ParsedModule, entry: Function, slots: Slots, layout: Layout, hooks: bool
) -> tuple[list[_Item], list[int]]:
    """The decoded items, and for every instruction index the index of its first item."""
    items: list[_Item] = []
    places: list[int] = []
    for instruction in entry.instructions:
        places.append(len(items))
        decode = Decode(module, entry, instruction, slots, layout, hooks)
        op = decode.run()
        guard = _guard(instruction.guard)
        item = _Item(
            decode.line,
            decode.reads,
            tuple(decode.writes),
            fuse=decode.fuse,
            tensor=decode.tensor,
            tmem_load=decode.tmem_load,
            tmem_wait=decode.tmem_wait,
            accumulators=decode.accumulators,
            shares_global=decode.shares_global,
            cancels_clusters=decode.cancels_clusters,
            cta_group=decode.cta_group,
            computes=decode.opcode in COMPUTING,
            copies=decode.opcode in COPYING,
        )
        if isinstance(op, Ends):
            item.ends = op
            if guard is not None and op.kind != "branch":
                slot, negated = guard
                around = _Item(decode.line, 1 << slot, guard=(slot, not negated))
                around.skip = len(items) + 2
                items.append(around)
                guard = None
        else:
            item.op = op
        if guard is not None:
            item.guard = guard
            item.reads |= 1 << guard[0]
        items.append(item)
    places.append(len(items))
    items.append(_Item(instruction_line(entry), ends=Ends(kind="exit")))
    return items, places


def instruction_line(entry: Function) -> int:
    return entry.instructions[-1].line if entry.instructions else entry.line


def _guard(guard: Guard | None) -> tuple[int, bool] | None:
    return None if guard is None else (1 + guard.register.index, guard.negated)


class _Builder:
    def __init__(
        self,
        entry: Function,
        slots: Slots,
        layout: Layout,
        items: list[_Item],
        places: list[int],
    ) -> None:
        self._entry, self._slots, self._layout, self._items = entry, slots, layout, items
        self._label_item = [places[index] for index in entry.labels]
        self._starts = self._find_starts()
        self._segment_at = {start: number for number, start in enumerate(self._starts)}
        self._accumulators = 0  # registers that some wgmma works on
        for item in items:
            self._accumulators |= item.accumulators

    def _targets(self, item: _Item) -> tuple[int, ...]:
        """Item indices that a terminator may jump to."""
        if item.skip is not None:
            return (item.skip,)
        if item.ends is None:
            return ()
        return tuple(self._label_item[label] for label in item.ends.targets)

    def _find_starts(self) -> list[int]:
        starts = {0}
        for index, item in enumerate(self._items):
            if item.ends is not None or item.skip is not None:
                starts.add(index + 1)
                starts.update(self._targets(item))
            if item.ends is not None and item.ends.repeats:
                starts.add(index)
        starts.discard(len(self._items))
        return sorted(starts)

    def code(self) -> Code:
        bounds = [*self._starts, len(self._items)]
        bodies = [_fused(self._items[a:b]) for a, b in pairwise(bounds)]
        successors = [self._successors(number, body[-1]) for number, body in enumerate(bodies)]
        meets = immediate_postdominators(successors)
        reads, kills = zip(*(_uses(body) for body in bodies), strict=True)
        live = live_in(successors, reads, kills)
        self._poison(live[0])
        self._unset = self._may_be_unset(live[0])
        _mark_early_uses(bodies, successors)
        segments = tuple(self._segment(n, body, meets[n]) for n, body in enumerate(bodies))
        return Code(
            entry=self._entry,
            slots=self._slots,
            layout=self._layout,
            segments=segments,
            lines=tuple(tuple(item.line for item in body) for body in bodies),
            live_in=tuple(live),
            shares_global=any(item.shares_global for item in self._items),
            cancels_clusters=any(item.cancels_clusters for item in self._items),
            cta_groups={item.cta_group: item.line for item in reversed(self._items) if item.cta_group},
        )

    def _poison(self, live: int) -> None:
        """Registers that may be read before they are written start out poisoned; a predicate
        stays None, which a branch or a select reports."""
        template, widths = self._slots.template, self._slots.widths
        for slot in range(1, self._slots.register_count):
            if live >> slot & 1 and widths[slot] > 1:
                template[slot] = POISON[widths[slot]]

    def _may_be_unset(self, live: int) -> int:
        """Registers that may hold poison: those, and what is computed from them."""
        unset = live & ~self._accumulators
        passing = [item for item in self._items if item.computes or item.copies] if unset else []
        before = -1
        while unset != before:
            before = unset
            for item in passing:
                if item.reads & unset:
                    unset |= item.written
        return unset

    def _successors(self, number: int, last: _Item) -> tuple[int, ...]:
        after = number + 1 if number + 1 < len(self._starts) else EXIT
        targets = tuple(self._segment_at[index] for index in self._targets(last))
        if last.ends is not None and last.ends.kind == "exit":
            return (EXIT,)
        if last.ends is not None and last.ends.kind == "indexed":
            return targets
        if targets and last.guard is None:
            return targets
        return (*targets, after)

    def _segment(self, number: int, body: list[_Item], meet: int) -> Segment:
        last = body[-1]
        following = number + 1
        straight = body
        end: Terminator | None = None
        if last.ends is not None or last.skip is not None:
            straight = body[:-1]
            end = self._terminator(last, following, meet)
        ops: list[Op] = []
        masked: list[Masked] = []
        for index, item in enumerate(straight):
            assert item.op is not None
            op = delivered(item.op, item.line) if item.early_use else item.op
            if item.computes and (unset := self._sized(item.reads & self._unset)):
                op = spoiled(op, unset, tuple((slot, self._slots.widths[slot]) for slot in item.writes))
            writes = tuple(slot for slot in item.writes if slot != self._slots.sink)
            widths = tuple((slot, self._slots.widths[slot]) for slot in writes)
            shared = self._shared_with_wgmma(item)
            if shared:
                op = watched(op, item.reads & shared, item.written & shared, item.line)
            if item.guard is not None:
                op = guarded(op, item.guard, widths)
            elif shared:
                op = merging(op, item.written, widths)
            if shared:  # before anything looks at the registers' old values
                op = settled(op, shared)
            if item.tensor and not any(later.tensor for later in straight[index + 1 :]):
                op = then_flush(op)
            ops.append(op)
            masked.append((op, 0 if item.guard or shared else item.written, writes))
        count = sum(item.count for item in body)
        return Segment(tuple(ops), end, following, count, tuple(masked))

    def _sized(self, bits: int) -> tuple[tuple[int, int], ...]:
        """The slots of a bit set, predicates aside, with their widths."""
        widths = self._slots.widths
        return tuple((slot, width) for slot, width in enumerate(widths) if bits >> slot & 1 and width > 1)

    def _shared_with_wgmma(self, item: _Item) -> int:
        """Registers of another instruction than wgmma.mma_async that some wgmma works on."""
        return 0 if item.accumulators else (item.reads | item.written) & self._accumulators

    def _terminator(self, item: _Item, following: int, meet: int) -> Terminator:
        targets = [self._segment_at[index] for index in self._targets(item)]
        ends = item.ends
        if ends is None or ends.kind == "branch":
            if item.guard is None:
                return jump(targets[0])
            return branch(item.guard, targets[0], following, meet)
        if ends.kind == "indexed":
            return indexed(ends.index, targets, meet)
        if ends.kind == "exit":
            return leave
        assert ends.op is not None
        widths = tuple((slot, self._slots.widths[slot]) for slot in item.writes)
        resume = following - 1 if ends.repeats else following
        shared = self._shared_with_wgmma(item)
        if not shared:
            return blocking(ends.op, following, resume, item.written, widths)
        op = watched(ends.op, item.reads & shared, item.written & shared, item.line)
        return settled(blocking(op, following, resume, item.written, widths), shared)


def _fused(body: list[_Item]) -> list[_Item]:
    """Runs of items that may be one op, made one item."""
    out: list[_Item] = []
    run: list[_Item] = []
    written = 0
    for item in body:
        fits = item.fuse is not None and item.guard is None
        joins = fits and run and run[0].fuse is not None and item.fuse is not None and run[0].fuse.key == item.fuse.key
        if not joins or (item.reads | item.written) & written:
            out.extend(_one(run))
            run, written = [], 0
        if fits:
            run.append(item)
            written |= item.written
        else:
            out.append(item)
    return [*out, *_one(run)]


def _one(run: list[_Item]) -> list[_Item]:
    if len(run) < 2:
        return run
    first = run[0]
    assert first.fuse is not None
    reads = 0
    writes: list[int] = []
    for item in run:
        reads |= item.reads
        writes.extend(item.writes)
    parts = [item.fuse.part for item in run if item.fuse is not None]
    return [_Item(first.line, reads, tuple(writes), op=first.fuse.build(parts), count=len(run))]


def _mark_early_uses(bodies: list[list[_Item]], successors: list[tuple[int, ...]]) -> None:
    """Marks items that touch a tcgen05.ld's destination where no tcgen05.wait::ld came between on
    every way; the hardware makes such a read wait, but not the reads' order with memory."""
    if not any(item.tmem_load for body in bodies for item in body):
        return
    pending = [0] * len(bodies)
    work = list(range(len(bodies)))
    while work:
        number = work.pop()
        loads = pending[number]
        for item in bodies[number]:
            touched = (item.reads | item.written) & loads
            item.early_use |= bool(touched)
            if (item.tmem_wait or touched) and item.guard is None:
                loads = 0
            if item.tmem_load:
                loads |= item.written
        for after in successors[number]:
            if after != EXIT and loads & ~pending[after]:
                pending[after] |= loads
                work.append(after)


def _uses(body: list[_Item]) -> tuple[int, int]:
    reads = kills = 0
    for item in body:
        reads |= item.reads & ~kills
        if item.guard is None:
            kills |= item.written
    return reads, kills
