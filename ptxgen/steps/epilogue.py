"""The epilogue: accumulator slices to registers, to staging, to D by TMA stores."""

from __future__ import annotations

from ptxgen.ir.declarations import Cursor, Hex, NamedBarrier, Register
from ptxgen.ir.ops import (
    AdvanceCursor,
    CommitStores,
    Compare,
    ConvertPair,
    FenceProxyAsync,
    Section,
    StageAddress,
    StartCursor,
    StoreShared,
    SyncNamedBarrier,
    TmaStore,
    WaitStores,
)
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at
from ptxgen.steps.schedule import Schedule
from ptxgen.steps.tensor_core import TensorCore

_GROUP = "epilogue"
_SWIZZLE_MASKS = {128: 0x70, 64: 0x30, 32: 0x10}
"""Chunk bits that the swizzle XORs with the address bits 3 above them (PTX ISA 9.1 §5.5.7)."""


class Epilogue:
    """Four warps stage the tile, swizzled as its tensor map wants it; one thread stores it."""

    def __init__(self, builder: Builder, spec: GemmSpec, tensor_core: TensorCore, schedule: Schedule) -> None:
        self._builder = builder
        self._spec = spec
        self._plan = spec.plan
        self._staging = spec.plan.staging
        self._core = tensor_core
        self._schedule = schedule
        self.barrier = NamedBarrier(name="epilogue", id=1, threads=128)
        self._row = builder.register("staging_row", _GROUP)
        self._slice_row = builder.register("slice_row", _GROUP)
        self._by_slices = spec.epilogue.staging == "slices"
        self._slices = spec.tile.n // self._plan.slice_n
        self._ring: Cursor | None = None

    def set_up(self) -> None:
        """Address of this thread's row in staging, with the swizzle of its 16-byte chunk 0."""
        builder, span = self._builder, self._staging.panel_span
        registers = builder.registers
        row = registers["thread"]
        if self._spec.tile.m == 64:
            lane = builder.register("lane", _GROUP)
            row = builder.register("row", _GROUP)
            builder.integer("and.b32", lane, registers["thread"], 31, comment="lane of the warp")
            builder.integer("mad.lo.u32", row, registers["warp"], 16, lane, comment="row of the tile")
            builder.compare(
                "lt.u32",
                builder.register("has_row", _GROUP, "pred"),
                lane,
                16,
                comment="a warp holds 16 rows of M = 64",
            )
        builder.integer("mad.lo.u32", self._row, row, span, registers["staging"], comment="row in staging")
        if span in _SWIZZLE_MASKS:
            chunk = builder.register("row_swizzle", _GROUP)
            builder.integer("shr.u32", chunk, self._row, 3, comment=f"{span}B swizzle:")
            builder.integer("and.b32", chunk, chunk, Hex(value=_SWIZZLE_MASKS[span]), comment="bits of the row")
            builder.integer("xor.b32", self._row, self._row, chunk, comment="move its chunks")
        if self._by_slices and self._staging.buffers > 1:
            self._ring = Cursor(
                name="staging",
                stage_count=builder.constant("staging_buffers", _GROUP, self._staging.buffers, "staging buffers"),
                stage=builder.register("staging_buffer", _GROUP),
                wrapped=builder.register("staging_wrapped", _GROUP, "pred"),
            )

    def store_tile(self) -> None:
        """Everything between the K loop and the next tile."""
        builder, core = self._builder, self._core
        builder.emit(
            Section(comment="epilogue"),
            SyncNamedBarrier(barrier=self.barrier, comment="the accumulator is complete, staging is free"),
        )
        core.accumulator_ready()
        core.start_slices()
        self._start_slices()
        if self._spec.epilogue.unroll or self._slices == 1:
            for number in range(self._slices):
                self._slice(f"_{number}" if self._slices > 1 else "")
        else:
            leave = builder.register("no_slice_left", _GROUP, "pred")
            index = builder.register("slice", _GROUP)
            builder.integer("mov.b32", index, 0, comment="slice of the tile")
            head = Compare(opcode="ge.u32", dst=leave, left=index, right=self._slices)
            with builder.while_not("slice_loop", "slices_done", leave, (head,), rolled=True):
                self._slice("")
                builder.integer("add.u32", index, index, 1, comment="next slice")
        if not self._by_slices:
            self._hand_over()
            self._store("stores_issued", self._schedule.n_coord, builder.registers["staging"])
        core.accumulator_returned()

    def drain(self) -> None:
        """The issuer's stores are complete, for everyone to see, before the CTA ends."""
        self._builder.emit(WaitStores(pending=0, read=False, comment="D is written"))

    def staging_free(self) -> None:
        """The issuer's stores of the last tile have left staging."""
        self._builder.emit(WaitStores(pending=0, read=True, comment="the last tile has left staging"))

    # ---- one slice --------------------------------------------------------------------------

    def _start_slices(self) -> None:
        builder = self._builder
        if self._by_slices:
            builder.integer(
                "mov.b32",
                builder.register("slice_n_coord", _GROUP),
                self._schedule.n_coord,
                comment="first column of the slice",
            )
            if self._ring:
                builder.emit(StartCursor(cursor=self._ring, comment="first staging buffer"))
        if self._narrow:
            builder.integer("mov.b32", builder.register("slice_byte", _GROUP), 0, comment="byte of the row")
        elif not self._ring:
            builder.integer("mov.b32", self._slice_row, self._row, comment="first slice of the row")

    @property
    def _narrow(self) -> bool:
        """A slice fills only a part of a panel's row."""
        return self._plan.slice_bytes < self._staging.panel_span

    def _slice(self, suffix: str) -> None:
        builder = self._builder
        acc = self._core.read_slice()
        if self._by_slices and self._staging.buffers == 1:
            self.staging_free()
            builder.emit(SyncNamedBarrier(barrier=self.barrier, comment="staging is free"))
        with self._core.rows_of_thread(suffix):
            self._stage(self._convert(acc))
        source = builder.registers["staging"]
        if self._by_slices:
            if self._staging.buffers > 1:
                pending = self._staging.buffers - 2
                builder.emit(WaitStores(pending=pending, read=True, comment="the next staging buffer is free"))
            if self._ring:
                source = builder.register("store_source", _GROUP)
                builder.emit(self._buffer_address(source, builder.registers["staging"], "its panels"))
            self._hand_over()
            self._store(f"stores_issued{suffix}", builder.registers["slice_n_coord"], source)
        self._next_slice()

    def _convert(self, acc: Register) -> Register:
        kind = self._spec.output_type
        if kind == "f32":
            return acc
        builder, pairs = self._builder, self._plan.slice_n // 2
        out = builder.register("out", _GROUP, count=pairs)
        for pair in range(pairs):
            builder.emit(
                ConvertPair(
                    dst=out[pair],
                    low=acc[2 * pair],
                    high=acc[2 * pair + 1],
                    type=kind,
                    comment="" if pair else f"to {kind}, two columns a register",
                )
            )
        return out

    def _stage(self, values: Register) -> None:
        """16-byte stores; chunk c of a row lies at its swizzled base XOR 16 c."""
        builder, staging = self._builder, self._staging
        base = self._slice_address()
        in_panel = min(self._plan.slice_bytes, staging.panel_span) // 16
        panels = self._plan.slice_bytes // 16 // in_panel
        for chunk in range(in_panel):
            address = base
            if chunk:
                address = builder.integer(
                    "xor.b32",
                    builder.register("chunk_row", _GROUP),
                    base,
                    16 * chunk,
                    comment=f"chunk {chunk}",
                )
            for panel in range(panels):
                first = 4 * (panel * in_panel + chunk)
                builder.emit(
                    StoreShared(
                        address=at(address, panel * staging.panel_bytes),
                        values=values.slice(first, 4),
                        comment=f"panel {panel}" if panels > 1 else "",
                    )
                )

    def _slice_address(self) -> Register:
        builder, staging, row = self._builder, self._staging, self._slice_row
        if self._ring:
            builder.emit(self._buffer_address(row, self._row, "its row"))
        elif self._narrow:
            byte = builder.registers["slice_byte"]
            inside = builder.register("panel_byte", _GROUP)
            panel = builder.register("panel_row", _GROUP)
            last = Hex(value=staging.panel_span - 1)
            builder.integer("and.b32", inside, byte, last, comment="byte in the panel's row")
            builder.integer("sub.u32", panel, byte, inside, comment="row bytes before the panel")
            builder.integer("xor.b32", row, self._row, inside, comment="chunk in the panel's row")
            builder.integer("mad.lo.u32", row, panel, staging.rows, row, comment="+ the panels before")
        return row

    def _buffer_address(self, dst: Register, base: Register, what: str) -> StageAddress:
        assert self._ring is not None and self._ring.stage is not None
        return StageAddress(
            dst=dst,
            base=base,
            stage=self._ring.stage,
            stride=self._staging.buffer_bytes,
            comment=f"staging buffer: {what}",
        )

    def _hand_over(self) -> None:
        """Staged rows become visible to the TMA store, and the read TMEM to the next MMA."""
        self._builder.emit(FenceProxyAsync(comment="staged rows before the store that reads them"))
        self._core.accumulator_read()
        self._builder.emit(SyncNamedBarrier(barrier=self.barrier, comment="all rows are staged"))

    def _store(self, label: str, column: Register, source: Register) -> None:
        builder, staging = self._builder, self._staging
        registers = builder.registers
        with (
            builder.guard(label, registers["not_walker"], comment="warp 0 stores", negate=True),
            builder.guard(f"{label}_by_one", registers["elected"], comment="one thread issues"),
        ):
            for panel in range(staging.panels):
                now = column
                if panel:
                    now = builder.integer(
                        "add.u32",
                        builder.register("panel_n_coord", _GROUP),
                        column,
                        panel * staging.panel_columns,
                        comment=f"panel {panel}",
                    )
                builder.emit(
                    TmaStore(
                        box_bytes=staging.panel_bytes,
                        tensor_map=registers["d_map"],
                        coordinates=(now, self._schedule.m_coord),
                        src=at(source, panel * staging.panel_bytes),
                    )
                )
            builder.emit(CommitStores(comment="one group a hand-over"))

    def _next_slice(self) -> None:
        builder, staging, plan = self._builder, self._staging, self._plan
        registers = builder.registers
        self._core.next_slice()
        if self._by_slices:
            column = registers["slice_n_coord"]
            builder.integer("add.u32", column, column, plan.slice_n, comment="first column of the slice")
            if self._ring:
                builder.emit(AdvanceCursor(cursor=self._ring, comment="next staging buffer"))
        elif self._narrow:
            byte = registers["slice_byte"]
            builder.integer("add.u32", byte, byte, plan.slice_bytes, comment="byte of the row")
        else:
            step = plan.slice_bytes // staging.panel_span * staging.panel_bytes
            builder.integer("add.u32", self._slice_row, self._slice_row, step, comment="panels of the slice")
