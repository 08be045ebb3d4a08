"""The matrix unit of sm_100a: tcgen05.mma into tensor memory, issued by one thread."""

from __future__ import annotations

from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.smem_descriptor import MAX_SMEM_OFFSET, SmemDescriptor
from ptxgen.ir.declarations import Address, Cursor, Hex, Operand, Register
from ptxgen.ir.ops import (
    AllocTmem,
    CommitMma,
    DeallocTmem,
    DescriptorBase,
    FenceAfterSync,
    FenceBeforeSync,
    Mma,
    ReadTmemAddress,
    RelinquishTmem,
    SetConstant,
    StageDescriptor,
)
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder
from ptxgen.steps.matrix_unit import swizzle_text
from ptxgen.steps.tmem_writers import DirectWriter, TmemWriter, WideWriter

_GROUP = "tensor core"


class Tcgen05:
    """tcgen05 on one CTA: one elected thread issues, a commit reports completion."""

    single_walker = True

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        self._spec = spec
        self._plan = spec.plan
        register = builder.register
        self.tmem = register("tmem", _GROUP)
        self._row = register("tmem_row", _GROUP)
        self._idesc = register("idesc", _GROUP)
        self._bases = {name: register(f"ring_{name}_desc", _GROUP, "b64") for name in ("a", "b")}
        self.tmem_columns = self._plan.tmem_columns
        self._several = spec.accumulators * spec.consumers > 1
        self.release_arrivals = spec.consumers
        self.release_text = "the commit of its MMAs arrives"
        if spec.consumers > 1:
            self.release_text = "the commit of each multiplying warp arrives"
        writer = TmemWriter
        if spec.epilogue.store == "direct":
            writer = DirectWriter if spec.roles == "unified" else WideWriter
        self.writer = writer(builder, spec, self._row)

    # ---- set-up and end ---------------------------------------------------------------------

    def allocate(self, slot: Address) -> None:
        """One warp allocates the accumulator's columns; the address goes through `slot`."""
        group = self._spec.cta_group
        what = "the accumulators, their" if self._several else "the accumulator, its"
        self._builder.emit(
            AllocTmem(
                cta_group=group,
                address=slot,
                columns=self.tmem_columns,
                comment=f"whole warp: {what} address to SMEM",
            ),
            RelinquishTmem(cta_group=group, comment="this CTA allocates no more"),
        )

    def receive(self, slot: Address) -> None:
        """Every warp learns the address and its own 32 lanes, after the CTA's barrier."""
        builder = self._builder
        which = "first accumulator" if self._several else "accumulator"
        builder.emit(
            FenceAfterSync(comment="TMEM is used only after its allocation"),
            ReadTmemAddress(dst=self.tmem, address=slot, comment=f"address of the {which}: lane << 16 | column"),
        )
        if self._spec.accumulators == self._spec.consumers == 1:
            self.writer.take_accumulator(self.tmem)

    def free(self) -> None:
        """The allocating warp frees the columns."""
        self._builder.emit(
            DeallocTmem(
                cta_group=self._spec.cta_group,
                tmem=self.tmem,
                columns=self.tmem_columns,
                comment=f"whole warp: frees the accumulator{'s' if self._several else ''}",
            )
        )

    # ---- the main loop ----------------------------------------------------------------------

    def describe(self, ring: Register) -> None:
        """Compute once what every MMA needs: instruction descriptor, descriptors of stage 0."""
        spec, builder = self._spec, self._builder
        rows = spec.tile.m // spec.consumers
        instruction = InstructionDescriptor(
            m=rows,
            n=spec.tile.n,
            d_type=spec.accumulate_type,
            a_type=spec.operand_type,
            b_type=spec.operand_type,
        )
        shape = f"{rows} x {spec.tile.n}, {spec.operand_type} -> {spec.accumulate_type}"
        builder.emit(
            SetConstant(
                dst=self._idesc,
                value=Hex(value=instruction.encode()),
                comment=f"instruction descriptor: {shape}; {instruction.fields_text()}",
            )
        )
        describe_stage_0(builder, spec, ring, self._bases)

    def multiply(
        self,
        cursor: Cursor,
        k_tile: Register | int,
        done: Address,
        tmem: Register | None = None,
        first_k_tile: Operand = 0,
    ) -> None:
        """One thread issues an MMA for every 32 bytes of K and commits them to the mbarrier.

        `tmem` is the accumulator's address where there are several.
        """
        builder, plan = self._builder, self._plan
        a, b = self._stage_descriptors(cursor)
        accumulate: Register | int = 0
        if isinstance(k_tile, Register):
            accumulate = builder.register("accumulate", "mma", "pred")
            builder.compare(
                "ne.u32", accumulate, k_tile, first_k_tile, comment="the first K tile overwrites the accumulator"
            )
        a_step = builder.register("a_desc_k", _GROUP, "b64")
        b_step = builder.register("b_desc_k", _GROUP, "b64")
        with builder.guard("mma_issued", builder.registers["elected"], comment=ONE_LANE):
            for index, (a_offset, b_offset) in enumerate(zip(plan.a.mma_offsets, plan.b.mma_offsets, strict=True)):
                a_now, b_now = a, b
                if index:
                    a_now = builder.integer(
                        "add.s64", a_step, a, a_offset >> 4, comment=f"A + {a_offset} bytes, in units of 16"
                    )
                    b_now = builder.integer("add.s64", b_step, b, b_offset >> 4, comment=f"B + {b_offset} bytes")
                first = index * plan.mma_k
                builder.emit(
                    Mma(
                        cta_group=self._spec.cta_group,
                        tmem=tmem or self.tmem,
                        a=a_now,
                        b=b_now,
                        instruction=self._idesc,
                        accumulate=1 if index else accumulate,
                        comment=f"k {first} to {first + plan.mma_k - 1}",
                    )
                )
            self.commit(done, "arrives when the MMAs so far are complete")

    def commit(self, done: Address, comment: str) -> None:
        """The mbarrier, of a pair the one in both CTAs, completes with the MMAs issued so far."""
        mask = self._builder.registers.get("pair_mask")
        self._builder.emit(CommitMma(cta_group=self._spec.cta_group, address=done, mask=mask, comment=comment))

    def take_rows(self, group: Register) -> None:
        """One of two multiplying warps: its rows of A, behind those of the first."""
        a = self._bases["a"]
        step = self._plan.staging.rows * self._plan.a.swizzle.span_bytes >> 4
        self._builder.integer("mad.wide.u32", a, group, step, a, comment="the rows of A of this multiplying warp")

    def _stage_descriptors(self, cursor: Cursor) -> tuple[Register, Register]:
        """Descriptors of A and B in the cursor's stage."""
        if cursor.stage is None:
            return self._bases["a"], self._bases["b"]
        return (
            stage_descriptor(self._builder, "a", self._bases["a"], cursor.stage),
            stage_descriptor(self._builder, "b", self._bases["b"], cursor.stage),
        )

    # ---- the accumulator --------------------------------------------------------------------

    def accumulator_ready(self) -> None:
        """Order reads of the accumulator after the barrier that announced it."""
        self._builder.emit(FenceAfterSync(comment="reads of the accumulator: not before it is complete"))

    def accumulator_read(self, before: str) -> None:
        """Order this thread's reads before the barrier through which TMEM is handed back."""
        self._builder.emit(FenceBeforeSync(comment=f"reads of the accumulator: done before the {before}"))

    def accumulator_returned(self, what: str) -> None:
        """Order the next MMA, or the deallocation, after that barrier."""
        self._builder.emit(FenceAfterSync(comment=f"{what}: not before the accumulator is free"))


def stage_descriptor(builder: Builder, name: str, base: Register, stage: Register) -> Register:
    """SMEM descriptor of an operand in a stage."""
    desc = builder.register(f"{name}_desc", _GROUP, "b64")
    builder.emit(
        StageDescriptor(
            dst=desc,
            base=base,
            stage=stage,
            stride=builder.registers["stage_desc_step"],
            comment=f"{name.upper()} of the stage",
        )
    )
    return desc


def describe_stage_0(builder: Builder, spec: GemmSpec, ring: Register, bases: dict[str, Register]) -> None:
    """SMEM descriptors of A and B in stage 0 of the ring."""
    plan = spec.plan
    low = builder.register("desc_low", _GROUP)
    whose = "; the leader's: its rank, in bits 24 and up of addresses, is 0" if spec.cta_group == 2 else ""
    if spec.multicast != (1, 1):
        inside = builder.register("ring_in_cta", _GROUP)
        mask = Hex(value=MAX_SMEM_OFFSET)
        ring = builder.integer("and.b32", inside, ring, mask, comment="without the CTA's rank, for descriptors")
    for name, operand, offset in (("a", plan.a, 0), ("b", plan.b, plan.a.tile_bytes)):
        descriptor = SmemDescriptor(
            start_address=0,
            leading_byte_offset=operand.leading_byte_offset,
            stride_byte_offset=operand.stride_byte_offset,
            swizzle=operand.swizzle,
        )
        what = f"{name.upper()}, stage 0: K-major, {swizzle_text(operand.swizzle.span_bytes)}"
        builder.emit(
            DescriptorBase(
                dst=bases[name],
                address=ring,
                offset=offset,
                fields=Hex(value=descriptor.encode(spec.target)),
                fields_comment=descriptor.fields_text(spec.target),
                low=low,
                comment=f"SMEM descriptor of {what}, {operand.stride_byte_offset} bytes between 8-row groups{whose}",
            )
        )
