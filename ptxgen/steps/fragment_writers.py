"""The way out of wgmma's accumulators: fragments in registers, to staging as they are or transposed."""

from __future__ import annotations

from ptxgen.ir.declarations import Register
from ptxgen.ir.ops import StoreMatrix, StoreShared
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at
from ptxgen.steps.staging import GROUP, StagingWriter


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


class WideTransposedWriter(StagingWriter):
    """The same in 32-bit elements, each stored alone, without bank conflicts.

    Four lanes hold eight rows of one column of D, two each; lanes from four on the next columns, of which a warp has
    twice eight. In the row after a thread's first the swizzle exchanges chunks in pairs: XOR 16. Eight columns are two
    chunks, XOR 32.
    """

    def _place_row(self, staging: Register | None) -> None:
        """The thread's first element."""
        builder, registers, panel_bytes = self.builder, self.builder.registers, self.staging.panel_bytes
        lane, row = builder.register("lane", GROUP), builder.register("row", GROUP)
        chunk, panel = builder.register("lane_chunk", GROUP), builder.register("warp_panel", GROUP)
        builder.integer("and.b32", lane, registers["thread"], 31, comment="lane of the warp")
        builder.integer("and.b32", row, lane, 3, comment="fragment: four lanes a column of D,")
        builder.integer("shl.b32", row, row, 1, comment="each with two of its rows")
        self._address_row(staging, row)
        builder.integer(
            "and.b32", chunk, registers["warp_of_group"], 1, comment="a panel has the columns of two warps,"
        )
        builder.integer("shl.b32", chunk, chunk, 4, comment="16 of each")
        builder.integer("shr.u32", lane, lane, 2, comment="column of the lane")
        builder.integer("add.u32", chunk, chunk, lane, comment="column in the panel")
        builder.integer("shl.b32", chunk, chunk, 2, comment="in bytes")
        builder.integer("xor.b32", self.row, self.row, chunk, comment="its place in the swizzled row")
        builder.integer("shr.u32", panel, registers["warp_of_group"], 1, comment="panel of the warp")
        builder.integer("mad.lo.u32", self.row, panel, panel_bytes, self.row, comment="in it")

    def write(self, number: int, suffix: str) -> None:
        builder, plan, staging = self.builder, self.plan, self.staging
        acc = builder.registers["acc"]
        places = [self.row]
        for chunks, what in ((1, "the next row"), (2, "8 columns on"), (3, "both")):
            place = builder.register(f"row_{16 * chunks}", GROUP)
            places.append(builder.integer("xor.b32", place, self.row, 16 * chunks, comment=f"chunk there: {what}"))
        for block in range(plan.row_blocks):
            of_block = f"columns {64 * block} to {64 * block + 63}, " if plan.row_blocks > 1 else ""
            for first in range(0, staging.rows, 8):
                start = plan.accumulator_index(block, first)
                for index, place in enumerate(places):
                    row = first + index % 2
                    offset = 2 * block * staging.panel_bytes + row * staging.panel_span
                    half = "second" if index // 2 else "first"
                    builder.emit(
                        StoreShared(
                            address=at(place, offset),
                            values=(acc[start + index],),
                            comment=f"{of_block}rows {row}, {row + 2}, {row + 4}, {row + 6}"
                            f" of each warp's {half} 8 columns",
                        )
                    )
