"""The tensor core of sm_100a: tcgen05.mma into tensor memory.

The verbs here (issue an MMA, release the stage, read the accumulator) are what a target lowers; the
steps and the epilogue call them and do not know how.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.smem_descriptor import SmemDescriptor
from ptxgen.ir.declarations import Address, Cursor, Hex, Register
from ptxgen.ir.ops import (
    AllocTmem,
    CommitMma,
    DeallocTmem,
    DescriptorBase,
    FenceAfterSync,
    FenceBeforeSync,
    LoadTmem,
    Mma,
    ReadTmemAddress,
    RelinquishTmem,
    SetConstant,
    StageDescriptor,
    WaitTmemLoad,
)
from ptxgen.plan import Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at

TMEM_LANE_SHIFT = 16
"""A TMEM address has its lane in bits 31-16 and its column in bits 15-0 (PTX ISA 9.1 §9.7.16.1)."""

_GROUP = "tensor core"


class TensorCore:
    """tcgen05 on one CTA: one elected thread issues, a commit reports completion."""

    walker_warps = 1
    """Warps that walk the K loop."""

    release_arrivals = 1
    """Arrivals that release a stage: the one of tcgen05.commit."""

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        self._spec = spec
        self._plan = spec.plan
        register = builder.register
        self.tmem = register("tmem", _GROUP)
        self._row = register("tmem_row", _GROUP)
        self._idesc = register("idesc", _GROUP)
        self._bases = {name: register(f"ring_{name}_desc", _GROUP, "b64") for name in ("a", "b")}
        self.columns = self._plan.tmem_columns

    # ---- set-up and end ---------------------------------------------------------------------

    def allocate(self, slot: Address) -> None:
        """One warp allocates the accumulator's columns; the address goes through `slot`."""
        self._builder.emit(
            AllocTmem(address=slot, columns=self.columns, comment="columns of the accumulator"),
            RelinquishTmem(comment="a co-resident CTA may allocate"),
        )

    def receive(self, slot: Address) -> None:
        """Every warp learns the address and its own 32 lanes, after the CTA's barrier."""
        builder = self._builder
        builder.emit(
            FenceAfterSync(comment="TMEM is used only after its allocation"),
            ReadTmemAddress(dst=self.tmem, address=slot, comment="accumulator: lane 0, column 0"),
        )
        warp = builder.registers["warp"]
        lane_stride = 32 << TMEM_LANE_SHIFT
        builder.integer("mad.lo.u32", self._row, warp, lane_stride, self.tmem, comment="this warp's 32 lanes")

    def free(self) -> None:
        """The allocating warp frees the columns."""
        self._builder.emit(DeallocTmem(tmem=self.tmem, columns=self.columns, comment="free the accumulator"))

    # ---- the main loop ----------------------------------------------------------------------

    def describe(self, ring: Register) -> None:
        """Compute once what every MMA needs: instruction descriptor, descriptors of stage 0."""
        spec, plan, builder = self._spec, self._plan, self._builder
        instruction = InstructionDescriptor(
            m=spec.tile.m,
            n=spec.tile.n,
            d_type=spec.accumulate_type,
            a_type=spec.operand_type,
            b_type=spec.operand_type,
        )
        shape = f"{spec.tile.m} x {spec.tile.n}, {spec.operand_type} -> {spec.accumulate_type}"
        builder.emit(
            SetConstant(
                dst=self._idesc,
                value=Hex(value=instruction.encode()),
                comment=f"instruction descriptor: {shape}",
            )
        )
        low = builder.register("desc_low", _GROUP)
        offsets = {"a": 0, "b": plan.a.tile_bytes}
        for name, operand in (("a", plan.a), ("b", plan.b)):
            builder.emit(
                DescriptorBase(
                    dst=self._bases[name],
                    address=ring,
                    offset=offsets[name],
                    fields=Hex(value=descriptor_fields(operand)),
                    low=low,
                    comment=f"SMEM descriptor of {name.upper()}, stage 0:"
                    f" K-major, {swizzle_text(operand)}, {operand.stride_byte_offset} bytes between"
                    " 8-row groups",
                )
            )

    def stage_descriptors(self, cursor: Cursor) -> tuple[Register, Register]:
        """Descriptors of A and B in the cursor's stage."""
        if cursor.stage is None:
            return self._bases["a"], self._bases["b"]
        builder = self._builder
        stride = builder.registers["stage_desc_step"]
        found = []
        for name in ("a", "b"):
            desc = builder.register(f"{name}_desc", _GROUP, "b64")
            builder.emit(
                StageDescriptor(
                    dst=desc,
                    base=self._bases[name],
                    stage=cursor.stage,
                    stride=stride,
                    comment=f"{name.upper()} of the stage",
                )
            )
            found.append(desc)
        return found[0], found[1]

    def issue(self, a: Register, b: Register, accumulate: Register) -> None:
        """Multiply one stage: an MMA for every 32 bytes of K."""
        builder, plan = self._builder, self._plan
        a_step = builder.register("a_desc_k", _GROUP, "b64")
        b_step = builder.register("b_desc_k", _GROUP, "b64")
        steps = zip(plan.a.mma_offsets, plan.b.mma_offsets, strict=True)
        k_elements = self._spec.tile.k // len(plan.a.mma_offsets)
        for index, (a_offset, b_offset) in enumerate(steps):
            first, last = index * k_elements, (index + 1) * k_elements - 1
            a_now, b_now = a, b
            if index:
                a_now = builder.integer("add.s64", a_step, a, a_offset >> 4, comment=f"A + {a_offset} bytes")
                b_now = builder.integer("add.s64", b_step, b, b_offset >> 4, comment=f"B + {b_offset} bytes")
            builder.emit(
                Mma(
                    tmem=self.tmem,
                    a=a_now,
                    b=b_now,
                    instruction=self._idesc,
                    accumulate=1 if index else accumulate,
                    comment=f"k {first} to {last}",
                )
            )

    def release(self, barrier: Address) -> None:
        """Report on the barrier when the issued MMAs are complete and the stage is free."""
        self._builder.emit(CommitMma(address=barrier, comment="arrives when the MMAs are done"))

    # ---- the accumulator --------------------------------------------------------------------

    def accumulator_ready(self) -> None:
        """Order reads of the accumulator after the barrier that announced it."""
        self._builder.emit(FenceAfterSync(comment="read the accumulator after the barrier"))

    def accumulator_read(self) -> None:
        """Order this thread's reads before the barrier through which TMEM is handed back."""
        self._builder.emit(FenceBeforeSync(comment="TMEM was read before the barrier"))

    def accumulator_returned(self) -> None:
        """Order the next MMA, or the deallocation, after that barrier."""
        self._builder.emit(FenceAfterSync(comment="the next MMA comes after the barrier"))

    def start_slices(self) -> None:
        builder = self._builder
        builder.integer(
            "mov.b32",
            builder.register("slice_tmem", "epilogue"),
            self._row,
            comment="first slice of the accumulator",
        )

    def read_slice(self) -> Register:
        """Read the next slice of columns: register i of a thread is column i of its row."""
        builder, width = self._builder, self._plan.slice_n
        acc = builder.register("acc", "epilogue", count=width)
        tmem = builder.registers["slice_tmem"]
        start = 0
        for count in _powers_of_two(width):
            builder.emit(
                LoadTmem(
                    registers=acc.slice(start, count),
                    address=at(tmem, start),
                    comment=f"columns {start} to {start + count - 1} of the slice",
                )
            )
            start += count
        builder.emit(WaitTmemLoad(comment="the columns are in registers"))
        return acc

    def next_slice(self) -> None:
        tmem = self._builder.registers["slice_tmem"]
        self._builder.integer("add.u32", tmem, tmem, self._plan.slice_n, comment="next slice of the accumulator")

    @contextmanager
    def rows_of_thread(self, suffix: str) -> Iterator[None]:
        """Only threads that hold an output row; M = 64 leaves lanes 16 to 31 undefined."""
        if self._spec.tile.m == 128:
            yield
            return
        has_row = self._builder.registers["has_row"]
        with self._builder.guard(f"rows_staged{suffix}", has_row, comment="lanes 0 to 15 hold rows"):
            yield


def descriptor_fields(operand: Operand) -> int:
    """All fields of an operand's SMEM descriptor but the start address."""
    return SmemDescriptor(
        start_address=0,
        leading_byte_offset=operand.leading_byte_offset,
        stride_byte_offset=operand.stride_byte_offset,
        swizzle=operand.swizzle,
    ).encode("sm_100a")


def swizzle_text(operand: Operand) -> str:
    span = operand.swizzle.span_bytes
    return "no swizzle" if span == 16 else f"{span}B swizzle"


def _powers_of_two(width: int) -> tuple[int, ...]:
    """Split a slice into loads of a power of two of columns, the widest first."""
    return tuple(size for size in (64, 32, 16) if width & size)
