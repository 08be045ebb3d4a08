"""What a target lowers: the verbs of its matrix unit, as the steps and the epilogue call them."""

from __future__ import annotations

from typing import Protocol

from ptxgen.ir.declarations import Address, Cursor, Register
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder
from ptxgen.steps.staging import StagingWriter


class MatrixUnit(Protocol):
    """Multiplies stages into an accumulator and brings the accumulator to staging."""

    single_walker: bool
    """One warp walks the K loop and the others meet it before the epilogue; else all warps walk."""

    release_arrivals: int
    """Arrivals on mma_done with which all walkers have released a stage."""

    release_text: str
    """Whose arrivals those are, in words."""

    @property
    def writer(self) -> StagingWriter:
        """Brings the accumulator's slices to staging."""

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory that `allocate` takes; 0 where accumulators are registers."""

    def allocate(self, slot: Address) -> None:
        """Set-up by warp 0, all lanes."""

    def receive(self, slot: Address) -> None:
        """Set-up by every warp, after the CTA's barrier."""

    def free(self) -> None:
        """The end, by warp 0."""

    def describe(self, ring: Register) -> None:
        """Compute once what every multiplication needs."""

    def multiply(self, cursor: Cursor, k_tile: Register | int, done: Address) -> None:
        """Multiply the cursor's stage and report on the mbarrier `done` that it may be refilled."""

    def accumulator_ready(self) -> None:
        """After the barrier that announces the accumulator."""

    def accumulator_read(self, before: str) -> None:
        """Before the barrier, named for the comment, through which the accumulator is handed back."""

    def accumulator_returned(self, what: str) -> None:
        """After that barrier: what comes next to the accumulator, named for the comment."""


def swizzle_text(span: int) -> str:
    """A swizzle, by its span in bytes, as comments name it."""
    return "no swizzle" if span == 16 else f"{span}B swizzle"


def matrix_unit(builder: Builder, spec: GemmSpec) -> MatrixUnit:
    """The matrix unit of the spec's target."""
    from ptxgen.steps.tcgen05 import Tcgen05
    from ptxgen.steps.wgmma import Wgmma

    return Wgmma(builder, spec) if spec.target == "sm_90a" else Tcgen05(builder, spec)
