"""The way out of tensor memory: slices of columns to registers, and from there to staging or to D."""

from __future__ import annotations

from ptxgen.ir.declarations import Hex, Register
from ptxgen.ir.ops import LoadTmem, StoreGlobal, WaitTmemLoad
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at
from ptxgen.steps.staging import GROUP, RowWriter

TMEM_LANE_SHIFT = 16
"""A TMEM address has its lane in bits 31-16 and its column in bits 15-0 (PTX ISA 9.1 §9.7.16.1)."""

_WIDE_BYTES = 32


class TmemWriter(RowWriter):
    """Slices of columns from tensor memory: register i of a thread is column i of its row."""

    def __init__(self, builder: Builder, spec: GemmSpec, tmem_row: Register) -> None:
        super().__init__(builder, spec)
        self._tmem_row = tmem_row
        self._slice = builder.register("slice_tmem", "epilogue")

    def take_accumulator(self, tmem: Register) -> None:
        several = self.spec.consumers > 1
        warp = self.builder.registers["warp_of_group" if several else "warp"]
        lanes = Hex(value=32 << TMEM_LANE_SHIFT)
        self.builder.integer("mad.lo.u32", self._tmem_row, warp, lanes, tmem, comment="32 lanes a warp, in bits 16-31")

    def start(self) -> None:
        self.builder.integer("mov.b32", self._slice, self._tmem_row, comment="first slice of the accumulator")
        super().start()

    def read(self) -> None:
        builder, width = self.builder, self.plan.slice_n
        acc = builder.register("acc", "epilogue", count=width)
        start = 0
        for count in _powers_of_two(width):
            builder.emit(
                LoadTmem(
                    registers=acc.slice(start, count),
                    address=at(self._slice, start),
                    comment=f"whole warp: columns {start} to {start + count - 1} of the slice",
                )
            )
            start += count
        builder.emit(WaitTmemLoad(comment="the columns are in registers"))


class DirectWriter(TmemWriter):
    """Straight to D: every thread stores its row in 16-byte chunks, those inside D.

    The last chunk of a row may reach past N, up to the next 16 bytes, as TMA stores do.
    """

    def set_up(self, staging: Register | None) -> None:
        self._place_row(staging)

    def _address_row(self, staging: Register | None, row: Register) -> None:
        builder = self.builder
        builder.integer("mov.b32", builder.register("tile_row", GROUP), row, comment="this thread's row of the tile")

    def start(self) -> None:
        builder, registers = self.builder, self.builder.registers
        builder.integer("mov.b32", self._slice, self._tmem_row, comment="first slice of the accumulator")
        row = builder.register("d_row", GROUP)
        inside = builder.register("d_row_inside", GROUP, "pred")
        limit = builder.register("d_columns", GROUP)
        column = builder.register("d_column", GROUP)
        address = builder.register("d_address", GROUP, "b64")
        builder.integer("add.u32", row, registers["m_coord"], registers["tile_row"], comment="row of D")
        builder.compare("lt.u32", inside, row, registers["m"], comment="the row is inside D")
        builder.integer("selp.b32", limit, registers["n"], 0, inside, comment="columns of D in this row")
        builder.integer("mov.b32", column, registers["n_coord"], comment="first column of the slice")
        builder.integer("mad.wide.u32", address, row, registers["d_pitch"], registers["d"], comment="its address")
        size = self.staging.element_bytes
        builder.integer("mad.wide.u32", address, column, size, address, comment="of the slice in it")

    def _stage(self, values: list[Register]) -> None:
        self._store_chunks(values, self.builder.registers["d_columns"])

    def _store_chunks(self, values: list[Register], limit: Register) -> None:
        """Chunks of 16 bytes that begin before column `limit`."""
        builder, registers = self.builder, self.builder.registers
        chunk_columns = 16 // self.staging.element_bytes
        column, inside = registers["d_column"], builder.register("chunk_inside", GROUP, "pred")
        for first in range(0, len(values), 4):
            now = column
            if first:
                now = builder.register("chunk_column", GROUP)
                step = first // 4 * chunk_columns
                builder.integer("add.u32", now, column, step, comment=f"column of chunk {first // 4}")
            builder.compare("lt.u32", inside, now, limit, comment="the chunk begins inside")
            builder.emit(
                StoreGlobal(
                    predicate=inside,
                    address=at(registers["d_address"], 4 * first),
                    values=tuple(values[first : first + 4]),
                    comment=f"columns {self._column(first)} to {self._column(first + 4) - 1} of the slice",
                )
            )

    def next(self) -> None:
        builder, plan = self.builder, self.plan
        registers = builder.registers
        column, address = registers["d_column"], registers["d_address"]
        self._end_slice()
        builder.integer("add.u32", self._slice, self._slice, plan.slice_n, comment="next slice of the accumulator")
        builder.integer("add.u32", column, column, plan.slice_n, comment="first column of the slice")
        builder.integer("add.s64", address, address, plan.slice_bytes, comment="and its address")


class WideWriter(DirectWriter):
    """Straight to D in 32-byte stores where a slice lies inside D; at its edges in 16-byte chunks.

    32-byte stores need rows of D that begin at multiples of 32 bytes; 16 are all that is promised.
    Predicates choose, not branches, because the warp loads the next slice together.
    """

    def set_up(self, staging: Register | None) -> None:
        super().set_up(staging)
        builder, registers = self.builder, self.builder.registers
        bits = builder.register("d_bits", GROUP)
        aligned = builder.register("d_aligned", GROUP, "pred")
        builder.integer("cvt.u32.u64", bits, registers["d"], comment="where D begins")
        builder.integer("or.b32", bits, bits, registers["d_pitch"], comment="and how far its rows lie apart:")
        builder.integer("and.b32", bits, bits, _WIDE_BYTES - 1, comment="below 32 bytes")
        builder.compare("eq.u32", aligned, bits, 0, comment="32-byte stores are aligned")

    def _address_row(self, staging: Register | None, row: Register) -> None:
        rows = self.builder.registers.get("group_rows")
        if rows is None:
            super()._address_row(staging, row)
            return
        tile_row = self.builder.register("tile_row", GROUP)
        self.builder.integer("add.u32", tile_row, row, rows, comment="this thread's row of the tile")

    def start(self) -> None:
        super().start()
        builder, registers = self.builder, self.builder.registers
        wide = builder.register("wide_columns", GROUP)
        limit, aligned = registers["d_columns"], registers["d_aligned"]
        builder.integer("selp.b32", wide, limit, 0, aligned, comment="columns that 32-byte stores may reach")

    def _stage(self, values: list[Register]) -> None:
        builder, registers = self.builder, self.builder.registers
        column, address = registers["d_column"], registers["d_address"]
        end = builder.register("d_slice_end", GROUP)
        whole = builder.register("slice_whole", GROUP, "pred")
        narrow = builder.register("narrow_columns", GROUP)
        builder.integer("add.u32", end, column, self.plan.slice_n, comment="column behind the slice")
        builder.compare("le.u32", whole, end, registers["wide_columns"], comment="all of the slice is inside")
        builder.integer("selp.b32", narrow, 0, registers["d_columns"], whole, comment="else chunk by chunk")
        for first in range(0, len(values), 8):
            stored = tuple(values[first : first + 8])
            builder.emit(
                StoreGlobal(
                    predicate=whole,
                    address=at(address, 4 * first),
                    values=stored,
                    comment=f"columns {self._column(first)} to {self._column(first + 8) - 1} of the slice",
                )
            )
        self._store_chunks(values, narrow)


def _powers_of_two(width: int) -> tuple[int, ...]:
    """Split a slice into loads of a power of two of columns, the widest first."""
    return tuple(size for size in (64, 32, 16) if width & size)
