"""Tensor memory and tcgen05 (sm_100a), and wgmma (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.ir.declarations import Address, Hex, Operand, Register
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AllocTmem(Op):
    """One warp allocates columns; the address is written to shared memory."""

    cta_group: int = 1
    address: Address
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RelinquishTmem(Op):
    """Give up the right to allocate, so that a co-resident CTA may."""

    cta_group: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadTmemAddress(Op):
    """Read the allocated address from shared memory."""

    dst: Register
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeallocTmem(Op):
    """The allocating warp frees the columns."""

    cta_group: int = 1
    tmem: Register
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FenceBeforeSync(Op):
    """Order earlier tcgen05 operations before the synchronisation that follows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FenceAfterSync(Op):
    """Order later tcgen05 operations after the synchronisation that went before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DescriptorBase(Op):
    """SMEM matrix descriptor of stage 0: constant fields plus address >> 4."""

    dst: Register
    address: Register
    offset: int
    fields: Hex
    fields_comment: str
    low: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StageDescriptor(Op):
    """Descriptor of the cursor's stage: base + stage x (stage bytes >> 4)."""

    dst: Register
    base: Register
    stage: Register
    stride: Operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Mma(Op):
    """D += A . B over 32 bytes of K; `accumulate` false (a predicate) overwrites D.

    cta_group 2: rows of A, columns of B and rows of D are halved between the CTAs of a pair.
    """

    cta_group: int = 1
    tmem: Register
    a: Register
    b: Register
    instruction: Register
    accumulate: Register | int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CommitMma(Op):
    """Arrive on the mbarrier when all the thread's earlier MMAs are complete.

    mask: CTAs of the cluster (a bit each) that the same place in each is arrived on.
    """

    cta_group: int = 1
    address: Address
    mask: Register | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadTmem(Op):
    """Load `count` columns of the warp's 32 lanes: register i of a lane is its column i."""

    registers: tuple[Register, ...]
    address: Address

    @property
    def count(self) -> int:
        return len(self.registers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitTmemLoad(Op):
    """Wait until the warp's tensor-memory loads have delivered."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WgmmaFence(Op):
    """Order the warpgroup's accesses of accumulator registers before the wgmma that follows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Wgmma(Op):
    """D += A . B over 64 rows, n columns and 32 bytes of K, by a warpgroup, asynchronously.

    a, b: descriptors of the instruction's operands, which with swap_ab are the problem's B and A.
    """

    registers: tuple[Register, ...]
    a: Register
    b: Register
    n: int
    type: str
    accumulate: Register | int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WgmmaCommit(Op):
    """Close the warpgroup's batch of wgmmas."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WgmmaWait(Op):
    """Wait until at most `pending` batches are unfinished."""

    pending: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetMaxRegisters(Op):
    """A whole warpgroup changes its registers per thread."""

    registers: int
    grow: bool

    @property
    def direction(self) -> str:
        return "inc" if self.grow else "dec"
