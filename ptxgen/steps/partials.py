"""Partials: sums over a part of K that go from CTA to CTA through global memory.

A thread stores its accumulators so that a warp's lie side by side, and the same thread of another CTA adds them to
its own: always in the order of the units, so that D does not depend on who comes first. Each warp has a flag for each
unit, raised when its lanes have stored. The warp that waits for a flag clears it, and so a launch leaves all flags as
it found them. On sm_90a the accumulators are in registers; on sm_100a slices of them are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ptxgen.ir.declarations import Parameter, Register
from ptxgen.ir.ops import AddPartial, LoadPartial, RaiseFlag, Section, StorePartial, SyncWarp, WaitFlag
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder, at
from ptxgen.steps.segments import Segments

_GROUP = "partial sums"
_VECTOR = 4
_BATCH = 16
"""Vectors that are asked for before the first is needed."""
_VECTOR_BYTES = 16
_FLAG_BYTES = 4

PARAMETERS = (
    Parameter(name="partials", kind="u64", comment="sums that other CTAs add to theirs, a slot for each unit"),
    Parameter(name="flags", kind="u64", comment="one for each warp that stores such a sum: it is there"),
)


def slot_bytes(spec: GemmSpec) -> int:
    """Accumulators of a CTA's rows of a tile, f32."""
    return spec.tile.m // spec.cta_group * spec.tile.n * 4


def slot_flags(spec: GemmSpec) -> int:
    """Warps that hold them."""
    return 4 * spec.consumers


class Partials(ABC):
    """What the warps that store do with the sum of a segment, where that is not the whole tile's."""

    def __init__(self, builder: Builder, spec: GemmSpec, segments: Segments) -> None:
        self._builder = builder
        self._segments = segments
        self._spec = spec
        self._stride = 128 * spec.consumers * _VECTOR_BYTES

    def set_up(self) -> None:
        """Where this thread's sum and this warp's flag lie in the slot of unit 0."""
        builder, registers, spec = self._builder, self._builder.registers, self._spec
        own = builder.register("own_partials", _GROUP, "b64")
        flag = builder.register("own_flags", _GROUP, "b64")
        thread, warp = registers["thread"], registers["warp"]
        if first := spec.consumer_warp:
            thread, warp = builder.register("sum_thread", _GROUP), builder.register("sum_warp", _GROUP)
            builder.integer("sub.u32", thread, registers["thread"], 32 * first, comment="thread of the consumers")
            builder.integer("sub.u32", warp, registers["warp"], first, comment="warp of the consumers")
        builder.integer("mad.wide.u32", own, thread, _VECTOR_BYTES, registers["partials"], comment="its sums")
        builder.integer("mad.wide.u32", flag, warp, _FLAG_BYTES, registers["flags"], comment="its warp's flag")
        if spec.cluster_ctas > 1:
            rank = registers["rank"]
            builder.integer("mad.wide.u32", own, rank, slot_bytes(spec), own, comment="in the slot of this CTA")
            size = slot_flags(spec) * _FLAG_BYTES
            builder.integer("mad.wide.u32", flag, rank, size, flag, comment="and its flag there")

    @contextmanager
    def of_segment(self) -> Iterator[None]:
        """The body stores a tile, where this segment begins it; else the segment's sum is handed over."""
        builder, segments = self._builder, self._segments
        inside = builder.register("begins_inside", _GROUP, "pred")
        short = builder.register("ends_inside", _GROUP, "pred")
        builder.compare("ne.u32", inside, segments.first_k_tile, 0, comment="another CTA begins the tile")
        with builder.guard("handed_over", inside, comment="else this CTA stores it"):
            builder.emit(Section(comment="partial sum to global memory"))
            place, flag = self._places(self._segments.unit)
            self._hand_over(place)
            builder.emit(SyncWarp(comment="all lanes have stored theirs"))
            with builder.guard("flag_raised", builder.registers["elected"], comment=ONE_LANE):
                builder.emit(RaiseFlag(address=at(flag), comment="this warp's sums are there"))
        with builder.guard("tile_stored", inside, comment="that CTA stores it", negate=True):
            k_tiles = builder.registers["k_tiles"]
            builder.compare("ne.u32", short, segments.end_k_tile, k_tiles, comment="others go on with it")
            with builder.guard("summed_up", short, comment="the whole tile is there"):
                self._sum_up()
            yield

    @abstractmethod
    def _hand_over(self, place: Register) -> None:
        """Store this thread's sum at `place`."""

    @abstractmethod
    def _sum_up(self) -> None:
        """Wait for the sums of the units that go on with the tile, and add them, or see to it that they are added."""

    def _await(self, flag: Register) -> None:
        builder = self._builder
        with builder.guard("flag_seen", builder.registers["elected"], comment=ONE_LANE):
            builder.emit(
                WaitFlag(
                    label=builder.label("wait_flag"),
                    value=builder.register("flag_value", _GROUP),
                    clear=builder.register("flag_clear", _GROUP, "pred"),
                    address=at(flag),
                    comment="the same warp's sums of that unit",
                )
            )

    def _store(self, place: Register, vectors: int, offset: int = 0) -> None:
        """The first accumulator registers of this thread, four at a time."""
        acc = self._builder.registers["acc"]
        for number in range(vectors):
            self._builder.emit(
                StorePartial(
                    address=at(place, offset + number * self._stride),
                    values=acc.slice(_VECTOR * number, _VECTOR),
                    comment="accumulators of this thread" if number == 0 else "",
                )
            )

    def _add(self, place: Register, vectors: int, offset: int = 0) -> None:
        """What the same thread of another CTA has stored so."""
        builder, acc, value = self._builder, self._builder.registers["acc"], self._value(vectors)
        for start in range(0, vectors, _BATCH):
            numbers = range(start, min(start + _BATCH, vectors))
            for number in numbers:
                builder.emit(
                    LoadPartial(
                        values=value.slice(_VECTOR * (number - start), _VECTOR),
                        address=at(place, offset + number * self._stride),
                        comment="sums of the same thread" if number == 0 else "",
                    )
                )
            for index in range(_VECTOR * len(numbers)):
                builder.emit(
                    AddPartial(
                        dst=acc[_VECTOR * start + index],
                        value=value[index],
                        comment="in the order of the units" if start == index == 0 else "",
                    )
                )

    def _value(self, vectors: int) -> Register:
        """What is loaded before the first of it is needed."""
        return self._builder.register("partial", _GROUP, count=_VECTOR * min(_BATCH, vectors))

    def _places(self, unit: Register) -> tuple[Register, Register]:
        """This thread's sums and this warp's flag in the slot of a unit."""
        builder, spec = self._builder, self._spec
        registers, ctas = builder.registers, spec.cluster_ctas
        place, flag = builder.register("slot_partials", _GROUP, "b64"), builder.register("slot_flag", _GROUP, "b64")
        size, flags = ctas * slot_bytes(spec), ctas * slot_flags(spec) * _FLAG_BYTES
        builder.integer("mad.wide.u32", place, unit, size, registers["own_partials"], comment="slot of the unit")
        builder.integer("mad.wide.u32", flag, unit, flags, registers["own_flags"], comment="flag of the unit")
        return place, flag


class FragmentPartials(Partials):
    """Of accumulators in registers: all of them at once."""

    def __init__(self, builder: Builder, spec: GemmSpec, segments: Segments) -> None:
        super().__init__(builder, spec, segments)
        self._vectors = spec.plan.accumulator_registers // _VECTOR

    def _hand_over(self, place: Register) -> None:
        self._store(place, self._vectors)

    def _sum_up(self) -> None:
        builder = self._builder
        self._value(self._vectors)
        builder.emit(Section(comment="partial sums of the units that go on with the tile"))
        with self._segments.each_behind() as (unit, _):
            place, flag = self._places(unit)
            self._await(flag)
            builder.emit(SyncWarp(comment="they are there for all lanes"))
            self._add(place, self._vectors)


Slice: TypeAlias = "Callable[[int, str], None]"


class SlicePartials(Partials):
    """Of accumulators in tensor memory: slice by slice, as they come to registers.

    `each_slice` runs a body for each slice of the accumulator, with the slice in registers, and hands the accumulator
    back.
    """

    def __init__(
        self, builder: Builder, spec: GemmSpec, segments: Segments, each_slice: Callable[[Slice], None]
    ) -> None:
        super().__init__(builder, spec, segments)
        self._each_slice = each_slice
        self._vectors = spec.plan.slice_n // _VECTOR
        self._rolled = not spec.epilogue.unroll and spec.tile.n > spec.plan.slice_n

    def _hand_over(self, place: Register) -> None:
        def store(number: int, suffix: str) -> None:
            self._store(self._of_slice(place), self._vectors, self._offset(number))

        self._each_slice(store)

    def _sum_up(self) -> None:
        builder = self._builder
        builder.emit(Section(comment="partial sums of the units that go on with the tile"))
        with self._segments.each_behind() as (unit, _):
            self._await(self._places(unit)[1])
        builder.emit(SyncWarp(comment="they are there for all lanes"))

    def add_slice(self, number: int, suffix: str) -> None:
        """To a slice in registers, what the others have of it."""
        builder = self._builder
        short = builder.registers["ends_inside"]
        with (
            builder.guard(f"slice_summed_up{suffix}", short, comment="the whole tile is there"),
            self._segments.each_behind(f"sum_loop{suffix}") as (unit, _),
        ):
            place, _ = self._places(unit)
            self._add(self._of_slice(place), self._vectors, self._offset(number))

    def _of_slice(self, place: Register) -> Register:
        if not self._rolled:
            return place
        builder = self._builder
        now = builder.register("slice_partials", _GROUP, "b64")
        step = self._vectors * self._stride
        builder.integer("mad.wide.u32", now, builder.registers["slice"], step, place, comment="of the slice in it")
        return now

    def _offset(self, number: int) -> int:
        return 0 if self._rolled else number * self._vectors * self._stride
