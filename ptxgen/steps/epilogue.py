"""The epilogue: accumulator slices to registers, to staging, to D by TMA stores."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.ir.declarations import NamedBarrier, Operand, Register
from ptxgen.ir.ops import (
    AdvanceCursor,
    Arrive,
    CommitStores,
    Compare,
    FenceProxyAsync,
    Section,
    StageAddress,
    StartCursor,
    SyncNamedBarrier,
    TmaStore,
    WaitStores,
)
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder, at
from ptxgen.steps.matrix_unit import MatrixUnit
from ptxgen.steps.schedule import Schedule
from ptxgen.steps.staging import GROUP


class Epilogue:
    """A warpgroup stages its rows, swizzled as the tensor map of D wants; one thread stores them."""

    returns_early = False
    """Hands an accumulator back before its last slice is staged."""

    def __init__(self, builder: Builder, spec: GemmSpec, unit: MatrixUnit, schedule: Schedule) -> None:
        self._builder = builder
        self._spec = spec
        self._plan = spec.plan
        self._staging = spec.plan.staging
        self._unit = unit
        self._writer = unit.writer
        self._schedule = schedule
        self.barriers = tuple(
            NamedBarrier(name=f"epilogue{index or ''}", id=1 + index, threads=128) for index in range(spec.consumers)
        )
        self._slices = spec.tile.n // self._plan.slice_n
        self._barrier_id: Operand = 1
        self._not_storer = builder.registers["not_issuer"]
        self._row, self._column = schedule.m_coord, schedule.n_coord
        self._source = "staging"
        self._empty: Register | None = None
        self._prepared = False

    def set_up(self) -> None:
        """Once per CTA, or once per consumer: the places in staging."""
        if self._spec.consumers > 1 or (self._spec.roles == "specialized" and not self._unit.tmem_columns):
            self._take_part()
        self._writer.set_up(self._builder.registers.get(self._source))
        if self._writer.ring:
            self._builder.emit(StartCursor(cursor=self._writer.ring, comment="staging cursor"))

    def _take_part(self) -> None:
        """A consumer warpgroup: its first warp stores; its barrier, its staging, its part of D."""
        builder, staging = self._builder, self._staging
        warp = builder.registers["warp"]
        staged = self._spec.epilogue.store == "tma"
        if staged:
            self._not_storer = builder.register("not_first_warp", GROUP, "pred")
        place = builder.register("warp_of_group", GROUP)
        builder.integer("and.b32", place, warp, 3, comment="warp of its warpgroup")
        if staged:
            builder.compare("ne.u32", self._not_storer, place, 0, comment="its first warp stores")
        if self._spec.consumers == 1:
            return
        if staged:
            self._barrier_id = builder.register("epilogue_barrier", GROUP)
        group = builder.register("consumer_group", GROUP)
        builder.integer("shr.u32", group, warp, 2, comment="warpgroup of the CTA")
        if self._spec.consumer_warp:
            builder.integer("sub.u32", group, group, self._spec.consumer_warp // 4, comment="consumer: 0 or 1")
        if isinstance(self._barrier_id, Register):
            builder.integer("add.u32", self._barrier_id, group, 1, comment="barrier of the warpgroup: 1 or 2")
        if self._spec.tile_consumers > 1:
            axis, extent = ("columns", staging.columns) if self._spec.swap_ab else ("rows", staging.rows)
            self._group_first = builder.register(f"group_{axis}", GROUP)
            comment = f"{axis} of the warpgroups before it"
            builder.integer("mul.lo.u32", self._group_first, group, extent, comment=comment)
        if not staged:
            return
        if staging.buffers > 1:
            first = builder.register("group_buffer", GROUP)
            builder.integer(
                "mul.lo.u32", first, group, staging.buffers, comment="staging buffers of the warpgroups before it"
            )
            group = first
        source = builder.register("group_staging", GROUP)
        builder.emit(
            StageAddress(
                dst=source,
                base=builder.registers["staging"],
                stage=group,
                stride=staging.buffer_bytes,
                comment="its first staging buffer" if staging.buffers > 1 else "its staging",
            )
        )
        self._source = source.name

    def prepare(self) -> None:
        """Before the accumulator is complete: wait for staging, where `store_tile` would."""
        self._prepared = True
        if not self._writer.by_slices:
            self.staging_free()
            self._sync("staging is free")

    def store_tile(self) -> None:
        """Everything between the K loop and the next tile."""
        builder, unit = self._builder, self._unit
        builder.emit(Section(comment="epilogue"))
        if self._spec.epilogue.store == "direct":
            self._store_direct()
            return
        told = []
        if unit.single_walker and self._spec.roles == "unified":
            told.append("the accumulator is complete")
        if not (self._writer.by_slices or self._prepared) and (told or self._schedule.persistent):
            told.append("staging is free")
        if told:
            self._sync(", ".join(told))
        unit.accumulator_ready()
        if self._spec.tile_consumers > 1:
            self._find_part()
        self._start_slices()
        self._each_slice(self._slice)
        if self._empty and not self.returns_early:
            self._hand_back(self._empty, fenced=self._writer.by_slices)
        if not self._writer.by_slices:
            self._hand_over()
            self._store("", self._column, builder.registers[self._source])
        if not self._empty:
            unit.accumulator_returned("next MMA or deallocation")

    def _find_part(self) -> None:
        """This consumer's part of the tile: rows of D, or columns where wgmma computes its transpose."""
        builder, first = self._builder, self._group_first
        if self._spec.swap_ab:
            self._column = builder.register("store_n_coord", GROUP)
            builder.integer("add.u32", self._column, self._schedule.n_coord, first, comment="its columns of D")
        else:
            self._row = builder.register("store_m_coord", GROUP)
            builder.integer("add.u32", self._row, self._schedule.m_coord, first, comment="its rows of D")

    def _hand_back(self, empty: Register, *, fenced: bool = False) -> None:
        """This thread is done with the accumulator in tensor memory; `fenced`: its reads are, by the last slice."""
        if not fenced:
            self._unit.accumulator_read("arrival")
        remote = self._spec.cta_group == 2
        self._builder.emit(
            Arrive(address=at(empty), remote=remote, relaxed=remote, comment="this thread has read the accumulator")
        )

    def _store_direct(self) -> None:
        """Threads store D themselves; afterwards all of them have read the accumulator."""
        unit, writer = self._unit, self._writer
        unit.accumulator_ready()
        writer.start()
        self._each_slice(self._slice_direct)
        unit.accumulator_read("barrier")
        self._sync("the accumulator has been read")
        unit.accumulator_returned("next MMA or deallocation")

    def _slice_direct(self, number: int, suffix: str) -> None:
        self._writer.read()
        self._in_registers(number, suffix)
        self._writer.write(number, suffix)
        self._writer.next()

    def _each_slice(self, slice: Callable[[int, str], None], way: str = "") -> None:
        """The slices of a tile: unrolled, with their numbers known, or in a loop; `way` ends the labels."""
        if self._spec.epilogue.unroll or self._slices == 1:
            for number in range(self._slices):
                slice(number, f"_{number}{way}" if self._slices > 1 else way)
            return
        builder = self._builder
        leave = builder.register("no_slice_left", GROUP, "pred")
        index = builder.register("slice", GROUP)
        builder.integer("mov.b32", index, 0, comment="slice of the tile")
        head = Compare(opcode="ge.u32", dst=leave, left=index, right=self._slices, comment="no slice is left")
        with builder.while_not(f"slice_loop{way}", f"slices_done{way}", leave, (head,), rolled=True):
            slice(0, way)
            builder.integer("add.u32", index, index, 1, comment="next slice")

    def take_accumulator(self, tmem: Register, empty: Register) -> None:
        """The next tile's accumulator, and the mbarrier that hands it back."""
        self._empty = empty
        self._writer.take_accumulator(tmem)

    def drain(self) -> None:
        """The issuer's stores are complete, for everyone to see, before the CTA ends."""
        self._builder.emit(WaitStores(pending=0, read=False, comment="D is written"))

    def staging_free(self) -> None:
        """The issuer's earlier stores have read staging; slices wait for their own buffers."""
        if not self._writer.by_slices:
            self._wait_for_stores()

    def _wait_for_stores(self) -> None:
        self._builder.emit(WaitStores(pending=0, read=True, comment="this thread's earlier stores have read staging"))

    # ---- one slice --------------------------------------------------------------------------

    def _start_slices(self) -> None:
        builder = self._builder
        if self._writer.by_slices:
            column = builder.register("slice_n_coord", GROUP)
            builder.integer("mov.b32", column, self._schedule.n_coord, comment="first column of the slice")
        self._writer.start()

    def _slice(self, number: int, suffix: str) -> None:
        builder, writer, buffers = self._builder, self._writer, self._staging.buffers
        writer.read()
        self._in_registers(number, suffix)
        if writer.by_slices and buffers == 1:
            self._wait_for_stores()
            self._sync("staging is free")
        writer.write(number, suffix)
        if writer.by_slices:
            source = builder.registers[self._source]
            if writer.ring:
                builder.emit(
                    WaitStores(pending=buffers - 2, read=True, comment="stores from the next buffer have read it")
                )
                first, source = source, builder.register("store_source", GROUP)
                writer.buffer_address(source, first, "the staging buffer")
            self._hand_over()
            self._store(suffix, builder.registers["slice_n_coord"], source)
        writer.next()
        if writer.by_slices:
            column = builder.registers["slice_n_coord"]
            builder.integer("add.u32", column, column, self._plan.slice_n, comment="first column of the next slice")
            if writer.ring:
                builder.emit(AdvanceCursor(cursor=writer.ring, comment="next staging buffer"))

    def _in_registers(self, number: int, suffix: str) -> None:
        """A slice is in registers."""

    def _hand_over(self) -> None:
        """Staged rows become visible to the TMA store; where nothing else says so, the accumulator has been read."""
        self._publish_rows()
        if (self._writer.by_slices or not self._empty) and not self.returns_early:
            self._unit.accumulator_read("barrier")
        self._sync("all rows are staged")

    def _publish_rows(self) -> None:
        self._builder.emit(FenceProxyAsync(comment="this thread's staged rows before the stores of them"))

    def _sync(self, comment: str) -> None:
        self._builder.emit(SyncNamedBarrier(barrier=self.barriers[0], id=self._barrier_id, comment=comment))

    def _store(self, suffix: str, column: Register, source: Register) -> None:
        builder, staging = self._builder, self._staging
        registers = builder.registers
        with (
            builder.guard(f"store_warp_done{suffix}", self._not_storer, comment="one warp stores", negate=True),
            builder.guard(f"stores_issued{suffix}", registers["elected"], comment=ONE_LANE),
        ):
            for panel in range(staging.panels):
                now = column
                if panel:
                    now = builder.register("panel_n_coord", GROUP)
                    builder.integer(
                        "add.u32", now, column, panel * staging.panel_columns, comment=f"first column of panel {panel}"
                    )
                builder.emit(
                    TmaStore(
                        box_bytes=self._staging.rows * staging.panel_span,
                        tensor_map=registers["d_map"],
                        coordinates=(now, self._row),
                        src=at(source, panel * staging.panel_bytes),
                        comment=f"panel {panel} to D" if staging.panels > 1 else "the panel to D",
                    )
                )
            builder.emit(CommitStores(comment="these stores are one bulk group"))
