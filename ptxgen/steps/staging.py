"""Staging in shared memory: the swizzled panels from which TMA stores the output tile.

Chunk c (16 bytes) of row r lies at (r's address with its swizzle bits) XOR 16 c, in the panel of its
column: one base address a thread and one XOR a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Cursor, Hex, Register
from ptxgen.ir.ops import ConvertPair, StoreMatrix, StoreShared, SyncWarp
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at

GROUP = "epilogue"
SWIZZLE_MASKS = {128: 0x70, 64: 0x30, 32: 0x10}
"""Chunk bits that the swizzle XORs with the address bits 3 above them (PTX ISA 9.1 §5.5.7)."""


def swizzle_comment(span: int) -> str:
    """What a shift by 3 brings to the bits that choose a chunk, in words."""
    bits = SWIZZLE_MASKS[span].bit_length() - 5
    source, place = ("7", "4") if not bits else (f"7-{7 + bits}", f"4-{4 + bits}")
    return f"{span}B swizzle: address bits {source}, shifted to {place},"


class StagingWriter:
    """Common to both kinds of accumulator: the thread's row and the ring of staging buffers."""

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self.builder = builder
        self.spec = spec
        self.plan = spec.plan
        self.staging = spec.plan.staging
        self.row = builder.register("staging_row", GROUP)
        self.by_slices = spec.epilogue.staging == "slices"
        self.ring: Cursor | None = None

    def set_up(self, staging: Register | None) -> None:
        """Once per CTA: the address of this thread's first chunk in its warpgroup's staging."""
        self._place_row(staging)
        if self.by_slices and self.staging.buffers > 1:
            builder = self.builder
            self.ring = Cursor(
                name="staging",
                stage_count=builder.constant("staging_buffers", GROUP, self.staging.buffers, "staging buffers"),
                stage=builder.register("staging_buffer", GROUP),
                wrapped=builder.register("staging_wrapped", GROUP, "pred"),
            )

    def take_accumulator(self, tmem: Register) -> None:
        """Read the next tile from this accumulator in tensor memory."""
        raise NotImplementedError

    def start(self) -> None:
        """Before a tile's first slice."""

    def read(self) -> None:
        """Bring the next slice of the accumulator to registers."""

    def write(self, number: int, suffix: str) -> None:
        """Convert and stage the slice; `number` is known where slices are unrolled."""
        raise NotImplementedError

    def next(self) -> None:
        """After a slice."""

    def _place_row(self, staging: Register | None) -> None:
        raise NotImplementedError

    def _address_row(self, staging: Register | None, row: Register) -> None:
        """staging_row: the swizzled address of chunk 0 of a row."""
        builder, span = self.builder, self.staging.panel_span
        assert staging is not None
        builder.integer("mad.lo.u32", self.row, row, span, staging, comment="a row in staging")
        if span in SWIZZLE_MASKS:
            chunk = builder.register("row_swizzle", GROUP)
            mask = Hex(value=SWIZZLE_MASKS[span])
            builder.integer("shr.u32", chunk, self.row, 3, comment=swizzle_comment(span))
            builder.integer("and.b32", chunk, chunk, mask, comment="and no others,")
            builder.integer("xor.b32", self.row, self.row, chunk, comment="permute the row's 16-byte chunks")

    def buffer_address(self, dst: Register, base: Register, what: str) -> None:
        """The same place in the current staging buffer of the ring."""
        assert self.ring is not None
        self.builder.stage_address(dst, base, self.ring.stage, self.staging.buffer_bytes, what)

    def _convert(
        self, pairs: list[tuple[Register, Register]], registers: int, holds: str = "columns"
    ) -> list[Register]:
        """Pack pairs of f32 values into the first of `registers` 16-bit pair registers."""
        kind = self.spec.output_type
        out = self.builder.register("out", GROUP, count=registers)
        for index, (low, high) in enumerate(pairs):
            comment = "" if index else f"to {kind}, two {holds} a register"
            self.builder.emit(ConvertPair(dst=out[index], low=low, high=high, type=kind, comment=comment))
        return [out[index] for index in range(len(pairs))]


class RowWriter(StagingWriter):
    """Every thread owns a row of the tile (tensor memory, 32x32b loads): 16-byte stores along it."""

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        super().__init__(builder, spec)
        self._slice_row = builder.register("slice_row", GROUP)

    @property
    def _narrow(self) -> bool:
        """A slice fills only a part of a panel's row."""
        return self.plan.slice_bytes < self.staging.panel_span

    def _place_row(self, staging: Register | None) -> None:
        builder = self.builder
        row = builder.registers["thread"]
        if self.spec.consumers > 1:
            row = builder.register("row", GROUP)
            builder.integer("and.b32", row, builder.registers["thread"], 127, comment="row of the warpgroup")
        if self.staging.rows == 64:
            lane = builder.register("lane", GROUP)
            row = builder.register("row", GROUP)
            builder.integer("and.b32", lane, builder.registers["thread"], 31, comment="lane of the warp")
            builder.integer("mad.lo.u32", row, builder.registers["warp"], 16, lane, comment="row of the tile")
            has_row = builder.register("has_row", GROUP, "pred")
            builder.compare("lt.u32", has_row, lane, 16, comment="a warp holds 16 rows of M = 64")
        self._address_row(staging, row)

    def start(self) -> None:
        builder = self.builder
        if self._narrow:
            byte = builder.register("slice_byte", GROUP)
            builder.integer("mov.b32", byte, 0, comment="first byte of the slice in its row of D")
        elif not self.ring:
            builder.integer("mov.b32", self._slice_row, self.row, comment="first slice of the row")

    def write(self, number: int, suffix: str) -> None:
        acc = self.builder.registers["acc"]
        with self._rows_of_thread(suffix):
            values = [acc[index] for index in range(self.plan.slice_n)]
            if self.spec.output_type != "f32":
                values = self._convert(list(zip(values[::2], values[1::2], strict=True)), len(values) // 2)
            self._stage(values)

    def _end_slice(self) -> None:
        """ptxas would begin the loads of all unrolled slices at once, and spill their registers."""
        if self.spec.epilogue.unroll and not self.by_slices and self.plan.slice_n < self.spec.tile.n:
            self.builder.emit(SyncWarp(comment="one slice in registers at a time"))

    @contextmanager
    def _rows_of_thread(self, suffix: str) -> Iterator[None]:
        """Only threads that hold an output row; M = 64 leaves lanes 16 to 31 undefined."""
        if self.staging.rows == 128:
            yield
            return
        has_row = self.builder.registers["has_row"]
        with self.builder.guard(f"rows_staged{suffix}", has_row, comment="lanes 0 to 15 hold rows"):
            yield

    def _column(self, register: int) -> int:
        """The column of the slice that begins in the register of this number."""
        return register * 4 // self.staging.element_bytes

    def _stage(self, values: list[Register]) -> None:
        builder, staging = self.builder, self.staging
        base = self._slice_address()
        in_panel = min(self.plan.slice_bytes, staging.panel_span) // 16
        panels = self.plan.slice_bytes // 16 // in_panel
        for chunk in range(in_panel):
            address = base
            if chunk:
                address = builder.register("chunk_row", GROUP)
                builder.integer("xor.b32", address, base, 16 * chunk, comment=f"chunk {chunk} of the slice")
            for panel in range(panels):
                first = 4 * (panel * in_panel + chunk)
                builder.emit(
                    StoreShared(
                        address=at(address, panel * staging.panel_bytes),
                        values=tuple(values[first : first + 4]),
                        comment=f"columns {self._column(first)} to {self._column(first + 4) - 1} of the slice",
                    )
                )

    def _slice_address(self) -> Register:
        builder, staging, row = self.builder, self.staging, self._slice_row
        if self.ring:
            self.buffer_address(row, self.row, "this row in the staging buffer")
        elif self._narrow:
            byte = builder.registers["slice_byte"]
            inside = builder.register("panel_byte", GROUP)
            panel = builder.register("panel_row", GROUP)
            last = Hex(value=staging.panel_span - 1)
            builder.integer("and.b32", inside, byte, last, comment="the same in its panel's row")
            builder.integer("sub.u32", panel, byte, inside, comment="bytes of a row in the panels before")
            builder.integer("xor.b32", row, self.row, inside, comment="chunk 0 of the slice, swizzled")
            builder.integer(
                "mad.lo.u32", row, panel, staging.rows, row, comment=f"behind {staging.rows} rows of those panels"
            )
        return row

    def next(self) -> None:
        builder, staging, plan = self.builder, self.staging, self.plan
        tmem = builder.registers["slice_tmem"]
        self._end_slice()
        builder.integer("add.u32", tmem, tmem, plan.slice_n, comment="next slice of the accumulator")
        if self.by_slices:
            return
        if self._narrow:
            byte = builder.registers["slice_byte"]
            builder.integer("add.u32", byte, byte, plan.slice_bytes, comment="first byte of the next slice")
        else:
            step = plan.slice_bytes // staging.panel_span * staging.panel_bytes
            builder.integer(
                "add.u32", self._slice_row, self._slice_row, step, comment="behind the panels of this slice"
            )


class FragmentWriter(StagingWriter):
    """Every thread owns the wgmma fragment of its warp's 16 rows, for each block of 64 rows.

    Register i of a thread holds row l/4 + 8 ((i >> 1) & 1) and column 8 (i >> 2) + 2 (l % 4) + (i & 1)
    of the warp's rows. 16-bit output goes through stmatrix, whose matrices are 8 rows of one chunk;
    32-bit output is stored two columns at a time.
    """

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        super().__init__(builder, spec)
        self._packed = spec.output_type != "f32"

    def _place_row(self, staging: Register | None) -> None:
        """First row and chunk that this lane addresses, in its warpgroup's first block of rows."""
        builder, panel_bytes = self.builder, self.staging.panel_bytes
        lane = builder.register("lane", GROUP)
        row = builder.register("row", GROUP)
        chunk = builder.register("lane_chunk", GROUP)
        builder.integer("and.b32", lane, builder.registers["thread"], 31, comment="lane of the warp")
        if self._packed:
            builder.integer("and.b32", row, lane, 15, comment="stmatrix: lanes address 16 rows")
            builder.integer("shr.u32", chunk, lane, 4, comment="of two chunks: lanes 16 on the second")
        else:
            builder.integer("shr.u32", row, lane, 2, comment="fragment: four lanes a row")
            builder.integer("and.b32", chunk, lane, 3, comment="of two columns each")
        warp = builder.registers["warp"] if self.spec.roles == "unified" else builder.registers["warp_of_group"]
        builder.integer("mad.lo.u32", row, warp, 16, row, comment="row of the warpgroup")
        self._address_row(staging, row)
        if self._packed and self.staging.panel_span == 16:
            builder.integer("mad.lo.u32", self.row, chunk, panel_bytes, self.row, comment="chunks are panels")
        elif self._packed:
            builder.integer("shl.b32", chunk, chunk, 4, comment="chunk in bytes")
            builder.integer("xor.b32", self.row, self.row, chunk, comment="its place in the swizzled row")
        elif self.staging.panel_span == 16:
            half = builder.register("lane_half", GROUP)
            builder.integer("shr.u32", half, chunk, 1, comment="chunk of the lane")
            builder.integer("mad.lo.u32", self.row, half, panel_bytes, self.row, comment="a panel")
            builder.integer("and.b32", half, chunk, 1, comment="half of the chunk")
            builder.integer("mad.lo.u32", self.row, half, 8, self.row, comment="8 bytes")
        else:
            builder.integer("shl.b32", chunk, chunk, 3, comment="columns in bytes")
            builder.integer("xor.b32", self.row, self.row, chunk, comment="their place in the swizzled row")

    def write(self, number: int, suffix: str) -> None:
        plan, staging = self.plan, self.staging
        base = self.row
        if self.ring:
            base = self.builder.register("slice_row", GROUP)
            self.buffer_address(base, self.row, "this row in the staging buffer")
        first = 0 if self.by_slices else number * plan.slice_bytes
        for column in range(0, plan.slice_n, 16):
            width = min(16, plan.slice_n - column)
            byte = first + column * staging.element_bytes
            for block in range(plan.row_blocks):
                start = plan.accumulator_index(block, number * plan.slice_n + column)
                offset = block * 64 * staging.panel_span
                rows = f"rows {64 * block} to {64 * block + 63}, " if plan.row_blocks > 1 else ""
                first_column = column if self.by_slices else number * plan.slice_n + column
                self._store_columns(base, byte, offset, start, width, (rows, first_column))

    def _store_columns(
        self, base: Register, byte: int, offset: int, start: int, width: int, where: tuple[str, int]
    ) -> None:
        """16 (or the last 8) columns of the warp's 16 rows, from accumulator register `start` on."""
        acc = self.builder.registers["acc"]
        if self._packed:
            pairs = [(acc[start + i], acc[start + i + 1]) for i in range(0, width // 2, 2)]
            values = tuple(self._convert(pairs, 4))
            address = self._chunk_address(base, byte)
            rows, column = where
            comment = f"{rows}columns {column} to {column + width - 1}"
            self.builder.emit(StoreMatrix(address=at(address[0], address[1] + offset), values=values, comment=comment))
            return
        for group in range(width // 8):
            register, extra = self._chunk_address(base, byte + 32 * group)
            for half in range(2):
                i = start + 4 * group + 2 * half
                self.builder.emit(
                    StoreShared(
                        address=at(register, extra + offset + 8 * half * self.staging.panel_span),
                        values=(acc[i], acc[i + 1]),
                        comment=f"{where[0]}columns {where[1] + 8 * group} to {where[1] + 8 * group + 7}"
                        + f", rows {'8 to 15' if half else '0 to 7'} of the warp",
                    )
                )

    def _chunk_address(self, base: Register, byte: int) -> tuple[Register, int]:
        """(register, offset) of a byte of the row: XOR inside the panel, panels by offset."""
        builder, staging = self.builder, self.staging
        inside = byte % staging.panel_span
        panel = byte // staging.panel_span * staging.panel_bytes
        if not inside:
            return base, panel
        name = builder.register(f"row_{inside}", GROUP)
        builder.integer("xor.b32", name, base, inside, comment=f"byte {inside} of the panel's row")
        return name, panel


class TransposedWriter(StagingWriter):
    """The wgmma fragment of a transposed tile: its rows, 64 a block, are columns of D, and fill a panel's row.

    stmatrix transposes as it stores: lanes 0 to 7 address eight rows of D at the first eight of the warp's 16
    columns, lanes 8 to 15 the same rows at the others, and lanes from 16 on the next eight rows.
    """

    def _place_row(self, staging: Register | None) -> None:
        """The row and chunk that this lane addresses, in the first panel."""
        builder, registers = self.builder, self.builder.registers
        lane, row = builder.register("lane", GROUP), builder.register("row", GROUP)
        half, chunk = builder.register("lane_half", GROUP), builder.register("lane_chunk", GROUP)
        builder.integer("and.b32", lane, registers["thread"], 31, comment="lane of the warp")
        builder.integer("and.b32", row, lane, 7, comment="stmatrix: 8 lanes address rows of D,")
        builder.integer("shr.u32", half, lane, 4, comment="lanes 16 on")
        builder.integer("mad.lo.u32", row, half, 8, row, comment="the next 8 rows,")
        builder.integer("shr.u32", chunk, lane, 3, comment="every other 8 lanes")
        builder.integer("and.b32", chunk, chunk, 1, comment="the second chunk of columns")
        builder.integer("mad.lo.u32", chunk, registers["warp_of_group"], 2, chunk, comment="of the warp's two")
        self._address_row(staging, row)
        builder.integer("shl.b32", chunk, chunk, 4, comment="chunk in bytes")
        builder.integer("xor.b32", self.row, self.row, chunk, comment="its place in the swizzled row")

    def write(self, number: int, suffix: str) -> None:
        plan, staging = self.plan, self.staging
        acc = self.builder.registers["acc"]
        for block in range(plan.row_blocks):
            for first in range(0, staging.rows, 16):
                rows = min(16, staging.rows - first)
                start = plan.accumulator_index(block, first)
                pairs = [(acc[start + i], acc[start + i + 1]) for i in range(0, rows // 2, 2)]
                values = self._convert(pairs, 4, "rows")
                self.builder.emit(
                    StoreMatrix(
                        address=at(self.row, block * staging.panel_bytes + first * staging.panel_span),
                        values=tuple(values),
                        transposed=True,
                        comment=f"rows {first} to {first + rows - 1}, columns {64 * block} to {64 * block + 63}",
                    )
                )
