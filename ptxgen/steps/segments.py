"""Segments: ranges of a tile's K tiles, where several CTAs (or clusters) divide a tile among them.

K tiles are dealt out in units. A unit is a range of `share` or `share` + 1 of them, `parts` of which cover one tile
(split-K), or all tiles of the last waves, whose K tiles count on from tile to tile (stream-K); the tiles of the waves
before are units of their own. CTA c takes units c, c + grid, ... A segment is what a unit has of one tile: a unit of
split-K is one, a unit of stream-K may begin inside a tile, hold whole ones, and end inside another.

Only a unit's first segment can begin inside a tile. Its sum goes to the CTA whose segment begins the tile, which
waits for the units behind its own, in order. That ends, wherever CTAs run at once: in stream-K it waits for units
whose first segment, which waits for nobody, is the first thing that their CTAs do; in split-K, of no more parts than
CTAs, it waits for CTAs of which each has yet to end tiles of lower ids at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Register
from ptxgen.ir.ops import Compare, ReadSpecial, Section
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder

_GROUP = "segments"


class Segments:
    """The walk over a CTA's segments, the same in every role.

    `first_k_tile` and `end_k_tile` bound the present one in its tile; `unit` numbers the sums that are handed over,
    `part` counts the units of a tile, or of all tiles that are divided.
    """

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        self._split = spec.scheduler.split_k
        self._streams = spec.scheduler.stream_k
        self._clustered = spec.cluster_ctas > 1
        self._walker = "cluster" if self._clustered else "CTA"
        self.first_k_tile = builder.register("first_k_tile", _GROUP)
        self.end_k_tile = builder.register("end_k_tile", _GROUP)
        self.unit = builder.register("unit", _GROUP)
        self.part = self.unit if self._streams else builder.register("part", _GROUP)

    def _register(self, name: str) -> Register:
        return self._builder.register(name, _GROUP)

    def set_up(self) -> None:
        """What all units have in common, once per CTA, after the counts of tiles and K tiles."""
        builder, registers = self._builder, self._builder.registers
        grid, parts, share, longer = (self._register(name) for name in ("grid_size", "parts", "share", "longer_parts"))
        dealt, units = self._register("dealt_k_tiles"), self._register("unit_count")
        special = "%nclusterid.x" if self._clustered else "%nctaid.x"
        builder.emit(ReadSpecial(dst=grid, special=special, comment=f"{self._walker}s in the grid"))
        tiles, k_tiles = registers["tile_count"], registers["k_tiles"]
        if self._streams:
            whole, divided = self._register("whole_tiles"), self._register("divided_tiles")
            builder.integer("sub.u32", whole, tiles, 1, comment="of the tiles before the last")
            builder.integer("div.u32", whole, whole, grid, comment="waves before the last one,")
            builder.integer("max.u32", whole, whole, 1, comment="if there are any,")
            builder.integer("sub.u32", whole, whole, 1, comment="but for one of them:")
            builder.integer("mul.lo.u32", whole, whole, grid, comment="their tiles are not divided")
            builder.integer("sub.u32", divided, tiles, whole, comment="tiles that are divided")
            builder.integer("mul.lo.u32", dealt, divided, k_tiles, comment="their K tiles are dealt out")
            builder.integer("min.u32", parts, grid, dealt, comment=f"in a part for each {self._walker}")
        else:
            builder.integer("mov.b32", dealt, k_tiles, comment="a tile's K tiles are dealt out")
            builder.integer("min.u32", parts, dealt, self._split, comment="in parts, none of them empty,")
            builder.integer("min.u32", parts, parts, grid, comment=f"and no more than {self._walker}s")
        builder.integer("div.u32", share, dealt, parts, comment="K tiles of a part,")
        builder.integer("rem.u32", longer, dealt, parts, comment="one more for as many of the first parts")
        if self._streams:
            builder.integer("add.u32", units, parts, registers["whole_tiles"], comment="parts and whole tiles")
        else:
            builder.integer("mul.lo.u32", units, parts, tiles, comment="parts of all tiles")

    @contextmanager
    def each(self) -> Iterator[None]:
        """The body runs for every segment of this CTA, with `tile`, `first_k_tile` and `end_k_tile` set."""
        builder, registers = self._builder, self._builder.registers
        leave = builder.register("no_unit_left", _GROUP, "pred")
        special = "%clusterid.x" if self._clustered else "%ctaid.x"
        builder.emit(
            Section(comment=f"units of K tiles: this {self._walker}'s id, then every grid-th"),
            ReadSpecial(dst=self.unit, special=special, comment="first unit"),
        )
        head = Compare(
            opcode="ge.u32", dst=leave, left=self.unit, right=registers["unit_count"], comment="no unit is left"
        )
        with builder.while_not("unit_loop", "units_done", leave, (head,)):
            left = self._begin_unit()
            if self._streams:
                with self._each_of_unit(left):
                    yield
            else:
                end = self.end_k_tile
                builder.integer("add.u32", end, self.first_k_tile, left, comment="behind its last one")
                yield
            builder.integer(
                "add.u32", self.unit, self.unit, registers["grid_size"], comment=f"next unit of this {self._walker}"
            )

    def _begin_unit(self) -> Register:
        """The unit's tile, its first K tile there, and (returned) the number of its K tiles."""
        builder, registers = self._builder, self._builder.registers
        tile, left = builder.register("tile", "tile scheduler"), self._register("left_k_tiles")
        first, part, k_tiles = self.first_k_tile, self.part, registers["k_tiles"]
        if not self._streams:
            builder.integer("div.u32", tile, self.unit, registers["parts"], comment="tile of the unit")
            builder.integer("rem.u32", part, self.unit, registers["parts"], comment="its part of the tile")
        self._measure(part, left)
        builder.integer("min.u32", first, part, registers["longer_parts"], comment="longer parts before it")
        builder.integer("mad.lo.u32", first, part, registers["share"], first, comment="K tiles before it")
        if not self._streams:
            return left
        is_whole, whole = builder.register("is_whole", _GROUP, "pred"), self._register("whole_tile")
        builder.integer("div.u32", tile, first, k_tiles, comment="tile in which it begins")
        builder.integer("rem.u32", first, first, k_tiles, comment="and where")
        builder.integer("sub.u32", whole, self.unit, registers["parts"], comment="if it is behind the parts,")
        builder.integer("add.u32", whole, whole, registers["divided_tiles"], comment="it is a tile behind these:")
        builder.compare("ge.u32", is_whole, self.unit, registers["parts"], comment="a whole tile")
        builder.integer("selp.b32", tile, whole, tile, is_whole, comment="that tile,")
        builder.integer("selp.b32", first, 0, first, is_whole, comment="from its beginning,")
        builder.integer("selp.b32", left, k_tiles, left, is_whole, comment="all of it")
        return left

    @contextmanager
    def _each_of_unit(self, left: Register) -> Iterator[None]:
        """A unit of stream-K goes on from tile to tile."""
        builder, registers = self._builder, self._builder.registers
        again = builder.register("more_of_unit", _GROUP, "pred")
        first, end, tile = self.first_k_tile, self.end_k_tile, registers["tile"]
        with builder.do_while("segment_loop", again):
            builder.integer("add.u32", end, first, left, comment="behind the unit's last K tile,")
            builder.integer("min.u32", end, end, registers["k_tiles"], comment="if it ends in this tile")
            yield
            builder.integer("add.u32", left, left, first, comment="without the K tiles of this segment")
            builder.integer("sub.u32", left, left, end, comment="so many are left to the unit")
            builder.integer("add.u32", tile, tile, 1, comment="the next tile,")
            builder.integer("mov.b32", first, 0, comment="from its beginning")
            builder.compare("ne.u32", again, left, 0, comment="the unit goes on")

    def _measure(self, part: Register, length: Register) -> None:
        """The number of K tiles of a part."""
        builder, registers = self._builder, self._builder.registers
        is_longer = builder.register("is_longer", _GROUP, "pred")
        builder.compare("lt.u32", is_longer, part, registers["longer_parts"], comment="one of the longer parts")
        builder.integer("selp.b32", length, 1, 0, is_longer, comment="one more")
        builder.integer("add.u32", length, length, registers["share"], comment="K tiles of the part")

    @contextmanager
    def each_behind(self, label: str = "other_loop") -> Iterator[tuple[Register, Register]]:
        """The body runs for every unit behind this one that works on the same tile, in order: with the register of
        its number, and that of the K tiles of the tile which are summed up with it."""
        builder, registers = self._builder, self._builder.registers
        unit, covered = self._register("other_unit"), self._register("covered_k_tiles")
        part = unit if self._streams else self._register("other_part")
        length, again = self._register("other_k_tiles"), builder.register("more_units", _GROUP, "pred")
        builder.integer("mov.b32", covered, self.end_k_tile, comment="K tiles summed up so far")
        builder.integer("mov.b32", unit, self.unit, comment="from the units")
        if part is not unit:
            builder.integer("mov.b32", part, self.part, comment="and parts")
        with builder.do_while(label, again):
            builder.integer("add.u32", unit, unit, 1, comment="behind this one")
            if part is not unit:
                builder.integer("add.u32", part, part, 1, comment="in the same tile")
            yield unit, covered
            self._measure(part, length)
            builder.integer("add.u32", covered, covered, length, comment="summed up, with that unit's")
            builder.compare("lt.u32", again, covered, registers["k_tiles"], comment="the tile is not yet whole")
