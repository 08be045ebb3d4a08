"""The matrix unit of sm_90a: wgmma, issued by whole warpgroups, accumulators in registers."""

from __future__ import annotations

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Address, Cursor, Operand, Register
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder
from ptxgen.steps.staging import FragmentWriter
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
        self.writer = FragmentWriter(builder, spec)

    def allocate(self, slot: Address) -> None:
        """Accumulators are registers."""

    receive = allocate

    def free(self) -> None:
        """Accumulators are registers."""

    def describe(self, ring: Register) -> None:
        """SMEM descriptors of stage 0."""
        describe_stage_0(self._builder, self._spec, ring, self._bases)

    def take_rows(self, group: Register | None) -> None:
        """Where two consumers divide a tile: `group`, 0 or 1, starts at its own rows of A."""
        if self._spec.tile_consumers == 1:
            return
        assert group is not None
        a, step = self._bases["a"], self._plan.row_blocks * 64 * self._plan.a.swizzle.span_bytes >> 4
        self._builder.integer("mad.wide.u32", a, group, step, a, comment="the rows of A of this consumer")

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
        a, b = self._bases["a"], self._bases["b"]
        if cursor.stage is not None:
            a = stage_descriptor(builder, "a", a, cursor.stage)
            b = stage_descriptor(builder, "b", b, cursor.stage)
        accumulate = builder.register("accumulate", "mma", "pred")
        builder.compare(
            "ne.u32", accumulate, k_tile, first_k_tile, comment="the first K tile overwrites the accumulator"
        )
        a_step = builder.register("a_desc_k", _GROUP, "b64")
        b_step = builder.register("b_desc_k", _GROUP, "b64")
        builder.emit(ir.WgmmaFence(comment="whole warpgroup, converged: registers before wgmma"))
        for index, (a_k, b_k) in enumerate(zip(plan.a.mma_offsets, plan.b.mma_offsets, strict=True)):
            b_now = b
            if index:
                b_now = builder.integer("add.s64", b_step, b, b_k >> 4, comment=f"B + {b_k} bytes")
            for block in range(plan.row_blocks):
                a_offset = a_k + block * 64 * plan.a.swizzle.span_bytes
                a_now = a
                if a_offset:
                    a_now = builder.integer(
                        "add.s64", a_step, a, a_offset >> 4, comment=f"A + {a_offset} bytes, in units of 16"
                    )
                first = index * plan.mma_k
                builder.emit(
                    ir.Wgmma(
                        registers=self._acc.slice(plan.accumulator_index(block, 0), spec.tile.n // 2),
                        a=a_now,
                        b=b_now,
                        n=spec.tile.n,
                        type=spec.operand_type,
                        accumulate=1 if index else accumulate,
                        comment=f"rows {64 * block} to {64 * block + 63}, k {first} to {first + plan.mma_k - 1}",
                    )
                )
        builder.emit(ir.WgmmaCommit(comment="the K tile's batch"))

    def accumulator_ready(self) -> None:
        """Accumulators are registers."""

    def accumulator_read(self, before: str) -> None:
        """Accumulators are registers."""

    accumulator_returned = accumulator_read
