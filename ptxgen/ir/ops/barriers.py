"""mbarriers, barriers of threads, and the cursors that walk over a ring of stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptxgen.ir.declarations import Address, Barrier, Cursor, NamedBarrier, Operand, Register, SmemBuffer
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SmemAddress(Op):
    """Address of a declared buffer or barrier (its stage 0)."""

    dst: Register
    base: Register
    place: SmemBuffer | Barrier


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StageAddress(Op):
    """Address of the cursor's stage: base + stage x stride. Once per stage visit."""

    dst: Register
    base: Register
    stage: Register
    stride: Operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class InitBarrier(Op):
    """Initialise one mbarrier with its arrival count."""

    address: Address
    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FenceBarrierInit(Op):
    """Make the initialised mbarriers visible to the asynchronous units."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CtaBarrier(Op):
    """Barrier 0: all threads of the CTA."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClusterBarrier(Op):
    """All threads of all CTAs of the cluster; ordered: with their accesses of memory, at the cost of a fence."""

    ordered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MapAddress(Op):
    """The address of the same place in another CTA of the cluster."""

    dst: Register
    address: Register
    rank: Register | int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SyncNamedBarrier(Op):
    """Barrier among the threads of some warps; the id may come from a register."""

    barrier: NamedBarrier
    id: Operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SyncWarp(Op):
    """The lanes of a warp meet; ptxas moves no loads across."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Arrive(Op):
    """Every executing thread arrives once; remote: perhaps in another CTA of the cluster.

    What has been waited for and read asynchronously is reported, of other accesses of memory nothing. relaxed: in so
    many words; what a fence before it has released comes first for the threads of that CTA too.
    """

    address: Address
    remote: bool = False
    relaxed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ArriveExpect(Op):
    """Arrive once and announce the bytes that TMA loads of this phase will bring."""

    address: Address
    transaction_bytes: Operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitBarrier(Op):
    """Wait until the phase with this parity is complete; relaxed: by arrivals that are, from other CTAs too.

    suspend_ns: how long the thread may sleep before it looks again.
    """

    label: str
    done: Register
    address: Address
    parity: Operand
    relaxed: bool = False
    suspend_ns: Register | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FenceProxyAsync(Op):
    """Order this thread's accesses of shared memory before those by the asynchronous proxy.

    cluster: "release", before a relaxed arrive, or "acquire", after a relaxed wait, where those are of another CTA's.
    """

    cluster: Literal["", "release", "acquire"] = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StartCursor(Op):
    """Stage 0, start phase."""

    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AdvanceCursor(Op):
    """Next stage; the phase flips when the stage wraps, or every time without a ring."""

    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SkipStages(Op):
    """Go `count` stages on, past what other warps wait for; `barrier` is what the cursor waits on."""

    cursor: Cursor
    count: Register
    turns: Register
    barrier: Barrier
