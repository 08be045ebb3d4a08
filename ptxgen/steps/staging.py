"""Staging in shared memory: the swizzled panels from which TMA stores the output tile.

Chunk c (16 bytes) of row r lies at (r's address with its swizzle bits) XOR 16 c, in the panel of its
column: one base address a thread and one XOR a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Cursor, Hex, Register
from ptxgen.ir.ops import ConvertPair, StoreShared, SyncWarp
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
