"""ThreadKernel: the first three steps, in which threads copy A and B and store D themselves.

A thread copies one 16-byte chunk of every so many rows; rows and chunks past the edge are read from
the last ones inside, and K elements past the edge are masked to zero, so nothing is out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Barrier, Cursor, Hex, Parameter, Register
from ptxgen.ir.ops import (
    CtaBarrier,
    FenceProxyAsync,
    LoadGlobal,
    Section,
    StoreShared,
)
from ptxgen.plan import Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import at
from ptxgen.steps.gemm import GemmKernel
from ptxgen.steps.staging import SWIZZLE_MASKS, swizzle_comment

_CHUNK_BYTES = 16
_GROUP = "copy"


class ThreadKernel(GemmKernel):
    """The verbs of steps 1 to 3. The only mbarrier is the one that MMAs complete on."""

    def __init__(self, spec: GemmSpec) -> None:
        super().__init__(spec, ring=False)
        row_bytes = spec.tile.k * self.plan.a.element_bytes
        self._row_chunks = row_bytes // _CHUNK_BYTES
        self._rows_a_pass = spec.threads // self._row_chunks
        self._chunk_elements = _CHUNK_BYTES // self.plan.a.element_bytes

    def _barriers(self) -> tuple[Barrier, ...]:
        return (self._released_barrier,)

    def _tensor_maps(self) -> tuple[Parameter, ...]:
        return ()

    def _counts(self) -> tuple[Parameter, ...]:
        return () if self.spec.step == 1 else super()._counts()

    def _matrices(self) -> tuple[Parameter, ...]:
        return (
            Parameter(name="a", kind="u64", comment="A[M, K]"),
            Parameter(name="b", kind="u64", comment="B[N, K]"),
            Parameter(name="d", kind="u64", comment="D[M, N]"),
            Parameter(name="a_pitch", kind="u32", comment="bytes from row to row of A"),
            Parameter(name="b_pitch", kind="u32", comment="bytes from row to row of B"),
            Parameter(name="d_pitch", kind="u32", comment="bytes from row to row of D"),
            Parameter(name="m", kind="u32", comment="M"),
            Parameter(name="n", kind="u32", comment="N"),
            Parameter(name="k", kind="u32", comment="K, at least 1"),
        )

    # ---- copies -----------------------------------------------------------------------------

    def set_up_copies(self) -> None:
        """This thread's chunk of a row, its first row, and where they lie in shared memory."""
        builder, span = self.builder, self.plan.a.swizzle.span_bytes
        registers = builder.registers
        chunk, row = builder.register("chunk", _GROUP), builder.register("copy_row", _GROUP)
        shift = self._row_chunks.bit_length() - 1
        last = self._row_chunks - 1
        builder.integer("and.b32", chunk, registers["thread"], last, comment=f"chunk of {self._row_chunks} in a row")
        builder.integer("shr.u32", row, registers["thread"], shift, comment="first row of the copy")
        place, panel = builder.register("copy_place", _GROUP), builder.register("copy_panel", _GROUP)
        in_panel = span // _CHUNK_BYTES
        builder.integer("and.b32", place, chunk, in_panel - 1, comment="chunk in the panel's row")
        builder.integer("shr.u32", panel, chunk, in_panel.bit_length() - 1, comment="panel")
        builder.integer("mul.lo.u32", place, place, _CHUNK_BYTES, comment="in bytes")
        builder.integer("mad.lo.u32", place, row, span, place, comment="row of the panel")
        for name, operand, offset in self._operands():
            address = builder.register(f"{name}_place", _GROUP)
            swizzle = builder.register("copy_swizzle", _GROUP)
            builder.integer(
                "mad.lo.u32", address, panel, operand.panel_bytes, place, comment=f"chunk of {name.upper()}"
            )
            builder.integer("add.u32", address, address, registers["ring"], comment="in shared memory")
            if offset:
                builder.integer("add.u32", address, address, offset, comment="B behind A")
            if span in SWIZZLE_MASKS:
                builder.integer("shr.u32", swizzle, address, 3, comment=swizzle_comment(span))
                mask = Hex(value=SWIZZLE_MASKS[span])
                builder.integer("and.b32", swizzle, swizzle, mask, comment="and no others,")
                builder.integer("xor.b32", address, address, swizzle, comment="permute the row's 16-byte chunks")

    def _operands(self) -> tuple[tuple[str, Operand, int], ...]:
        return ("a", self.plan.a, 0), ("b", self.plan.b, self.plan.a.tile_bytes)

    def copy_tile(self, k_tile: Register | int) -> None:
        """Copy one K tile of A and B, for the tensor core to read after the CTA's barrier."""
        builder = self.builder
        builder.emit(Section(comment="copy A and B"))
        k = self._mask_chunk(k_tile)
        for name, operand, _ in self._operands():
            self._copy(name, operand, k)
        builder.emit(
            FenceProxyAsync(comment="copied chunks before the MMAs that read them"),
            CtaBarrier(comment="A and B are there"),
        )

    def _mask_chunk(self, k_tile: Register | int) -> Register:
        """First k of this thread's chunk, moved inside; masks for its four words."""
        builder, elements = self.builder, self._chunk_elements
        registers = builder.registers
        k, left = builder.register("chunk_k", _GROUP), builder.register("k_left", _GROUP)
        builder.integer("mul.lo.u32", k, registers["chunk"], elements, comment="k of the chunk in the tile")
        builder.integer("mad.lo.u32", k, k_tile, registers["tile_k"], k, comment="first k of the chunk")
        builder.integer("sub.u32", left, registers["k"], k, comment="K elements left from there")
        mask = builder.register("k_mask", _GROUP, count=4)
        for word in range(4):
            builder.integer("sub.u32", mask[word], left, 2 * word, comment=f"elements of word {word}:")
            builder.integer("max.s32", mask[word], mask[word], 0, comment="none past K")
            builder.integer("min.s32", mask[word], mask[word], 2, comment="at most two")
            builder.integer("mul.lo.u32", mask[word], mask[word], 16, comment="in bits")
            builder.integer("shl.b32", mask[word], 1, mask[word], comment="a shift by 32 gives 0")
            builder.integer("sub.u32", mask[word], mask[word], 1, comment="ones for the elements inside")
        last = builder.register("last_k", _GROUP)
        builder.integer("sub.u32", last, registers["k"], 1, comment="last k")
        builder.integer("and.b32", last, last, Hex(value=0xFFFFFFFF & -elements), comment="first k of the last chunk")
        builder.integer("min.u32", k, k, last, comment="read inside")
        return k

    def _copy(self, name: str, operand: Operand, k: Register) -> None:
        builder, registers = self.builder, self.builder.registers
        size = {"a": "m", "b": "n"}[name]
        first = {"a": self._schedule.m_coord, "b": self._schedule.n_coord}[name]
        passes = -(-operand.rows // self._rows_a_pass)
        source = builder.register("copy_source", _GROUP, "b64")
        row = builder.register("source_row", _GROUP)
        last = builder.register("last_row", _GROUP)
        data = builder.register(f"{name}_data", _GROUP, count=4 * passes)
        builder.integer("sub.u32", last, registers[size], 1, comment=f"last row of {name.upper()}")
        builder.integer("add.u32", row, first, registers["copy_row"], comment="first row of the copy")
        clamped = builder.register("clamped_row", _GROUP)
        for number in range(passes):
            builder.integer("min.u32", clamped, row, last, comment="read inside")
            pitch = registers[f"{name}_pitch"]
            builder.integer(
                "mad.wide.u32", source, clamped, pitch, registers[name], comment=f"address of the row of {name.upper()}"
            )
            builder.integer("mad.wide.u32", source, k, operand.element_bytes, source, comment="and of the chunk in it")
            builder.emit(
                LoadGlobal(values=data.slice(4 * number, 4), address=at(source), comment=f"16 bytes of {name.upper()}")
            )
            if number + 1 < passes:
                step = self._rows_a_pass
                builder.integer("add.u32", row, row, step, comment=f"{step} rows on")
        for number in range(passes):
            values = data.slice(4 * number, 4)
            for word, value in enumerate(values):
                builder.integer("and.b32", value, value, registers["k_mask"][word], comment="zero past K")
            with self._rows_inside(name, operand, number):
                offset = number * self._rows_a_pass * operand.swizzle.span_bytes
                builder.emit(
                    StoreShared(
                        address=at(registers[f"{name}_place"], offset),
                        values=values,
                        comment=f"to {name.upper()} of the stage",
                    )
                )

    @contextmanager
    def _rows_inside(self, name: str, operand: Operand, number: int) -> Iterator[None]:
        """The last pass of a short tile has rows for some threads only."""
        rows = operand.rows - number * self._rows_a_pass
        if rows >= self._rows_a_pass:
            yield
            return
        builder = self.builder
        inside = builder.register("row_inside", _GROUP, "pred")
        builder.compare("lt.u32", inside, builder.registers["copy_row"], rows, comment=f"{rows} rows are left")
        with builder.guard(f"{name}_copied", inside, comment="no row for this thread"):
            yield

    @property
    def k_tile(self) -> Register:
        """The K loop's counter."""
        return self.builder.registers["k_tile"]

    # ---- the step's moves -------------------------------------------------------------------

    def multiply_buffer(self) -> None:
        """Warp 0 multiplies the buffer; mma_done reports it."""
        registers = self.builder.registers
        with self.builder.guard("multiplied", self._not_issuer, comment="warp 0 multiplies", negate=True):
            self._unit.multiply(Cursor(name="buffer"), registers.get("k_tile", 0), at(registers["mma_done"]))
