"""The matrix unit of sm_90a: wgmma, issued by whole warpgroups, accumulators in registers.

Its first operand has blocks of 64 rows, its second groups of 8. They are A's rows and B's, or the other way round
where `swap_ab` has the transpose of D computed.
"""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Address, Cursor, Operand, Register
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder
from ptxgen.steps.fragment_writers import FragmentWriter, TransposedWriter, WideTransposedWriter
from ptxgen.steps.tcgen05 import describe_stage_0, stage_descriptor

_GROUP = "tensor core"


class Wgmma:
    """A warpgroup multiplies blocks of 64 rows; each of its warps releases the stage."""

    single_walker = False
    tmem_columns = 0

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        self._spec = spec
        self._plan = spec.plan
        self._bases = {name: builder.register(f"ring_{name}_desc", _GROUP, "b64") for name in ("a", "b")}
        self._acc = builder.register("acc", "epilogue", count=self._plan.accumulator_registers)
        self.release_arrivals = 4 * spec.tile_consumers * spec.cluster_ctas
        everywhere = " of both CTAs" if spec.cluster_ctas > 1 else ""
        self.release_text = f"a lane of each multiplying warp{everywhere} arrives"
        transposed = WideTransposedWriter if spec.output_type == "f32" else TransposedWriter
        self.writer = (transposed if spec.swap_ab else FragmentWriter)(builder, spec)
        self._rows, self._columns = ("b", "a") if spec.swap_ab else ("a", "b")

    def allocate(self, slot: Address) -> None:
        """Accumulators are registers."""

    receive = allocate

    def free(self) -> None:
        """Accumulators are registers."""

    def describe(self, ring: Register) -> None:
        """SMEM descriptors of stage 0."""
        describe_stage_0(self._builder, self._spec, ring, self._bases)

    def take_rows(self, group: Register | None) -> None:
        """Where two consumers divide a tile: `group`, 0 or 1, starts at its own blocks of rows."""
        if self._spec.tile_consumers == 1:
            return
        assert group is not None
        base, step = self._bases[self._rows], self._plan.row_blocks * 64 * self._plan.a.swizzle.span_bytes >> 4
        comment = f"the rows of {self._rows.upper()} of this consumer"
        self._builder.integer("mad.wide.u32", base, group, step, base, comment=comment)

    def multiply(self, cursor: Cursor, k_tile: Register | int, done: Address) -> None:
        """Multiply, wait for it, and let one lane of every warp release the stage."""
        builder = self._builder
        self.issue(cursor, k_tile)
        builder.emit(ir.WgmmaWait(pending=0, comment="the stage is read, the accumulator is there"))
        with builder.guard("stage_released", builder.registers["elected"], comment=ONE_LANE):
            builder.emit(ir.Arrive(address=done, comment="this warp has read the stage"))

    def issue(self, cursor: Cursor, k_tile: Register | int, first_k_tile: Operand = 0) -> None:
        """One batch: for every block of 64 rows, 32 bytes of K at a time."""
        builder, plan, spec = self._builder, self._plan, self._spec
        bases = dict(self._bases)
        if cursor.stage is not None:
            bases = {name: stage_descriptor(builder, name, base, cursor.stage) for name, base in bases.items()}
        rows, columns = bases[self._rows], bases[self._columns]
        accumulate = builder.register("accumulate", "mma", "pred")
        builder.compare(
            "ne.u32", accumulate, k_tile, first_k_tile, comment="the first K tile overwrites the accumulator"
        )
        steps = {name: builder.register(f"{name}_desc_k", _GROUP, "b64") for name in ("a", "b")}
        builder.emit(ir.WgmmaFence(comment="whole warpgroup, converged: registers before wgmma"))
        rows_step, columns_step = steps[self._rows], steps[self._columns]
        offsets = {"a": plan.a.mma_offsets, "b": plan.b.mma_offsets}
        of_d = "columns" if spec.swap_ab else "rows"
        for index, (rows_k, columns_k) in enumerate(zip(offsets[self._rows], offsets[self._columns], strict=True)):
            columns_now = columns
            if index:
                comment = f"{self._columns.upper()} + {columns_k} bytes"
                columns_now = builder.integer("add.s64", columns_step, columns, columns_k >> 4, comment=comment)
            for block in range(plan.row_blocks):
                offset = rows_k + block * 64 * plan.a.swizzle.span_bytes
                rows_now = rows
                if offset:
                    comment = f"{self._rows.upper()} + {offset} bytes, in units of 16"
                    rows_now = builder.integer("add.s64", rows_step, rows, offset >> 4, comment=comment)
                first = index * plan.mma_k
                builder.emit(
                    ir.Wgmma(
                        registers=self._acc.slice(plan.accumulator_index(block, 0), plan.mma_n // 2),
                        a=rows_now,
                        b=columns_now,
                        n=plan.mma_n,
                        type=spec.operand_type,
                        accumulate=1 if index else accumulate,
                        comment=f"{of_d} {64 * block} to {64 * block + 63}, k {first} to {first + plan.mma_k - 1}",
                    )
                )
        builder.emit(ir.WgmmaCommit(comment="the K tile's batch"))

    def accumulator_ready(self) -> None:
        """Accumulators are registers."""

    def accumulator_read(self, before: str) -> None:
        """Accumulators are registers."""

    accumulator_returned = accumulator_read
