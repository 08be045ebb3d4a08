"""The closed set of operations. Each has one template macro of the same name in snake case.

Three ops have a structure and no text of their own: Guard, While and DoWhile. `flatten` turns them
into Branch and Label, so that loops and guards stay flat in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ptxgen.ir.declarations import (
    Address,
    Barrier,
    Cursor,
    Hex,
    NamedBarrier,
    Operand,
    Parameter,
    Register,
    SmemBuffer,
)

INTEGER_OPCODES = frozenset(
    "add.u32 sub.u32 mul.lo.u32 mad.lo.u32 mad.wide.u32 div.u32 rem.u32 min.u32 max.u32 shl.b32 shr.u32"
    " and.b32 or.b32 xor.b32 mov.b32 selp.b32 add.s64 min.s32 max.s32 cvt.u32.u64".split()
)
COMPARE_OPCODES = frozenset("eq.u32 ne.u32 lt.u32 le.u32 gt.u32 ge.u32".split())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Op:
    """Base of all operations; the comment becomes part of the text.

    Equality, hash and representation are written once, here: to generate them for every operation takes
    longer than all the rest of a cold start's imports.
    """

    comment: str = ""

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__name__}({fields})"


# ---- scalar ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadSpecial(Op):
    """Read a special register such as %tid.x."""

    dst: Register
    special: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SharedBase(Op):
    """Take the address of the one dynamic shared-memory array."""

    dst: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadParameter(Op):
    """Read a 32-bit parameter."""

    dst: Register
    parameter: Parameter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TensorMapAddress(Op):
    """Take the generic address of a tensor map parameter."""

    dst: Register
    parameter: Parameter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetConstant(Op):
    """Give a constant of the spec its name; ptxas folds it."""

    dst: Register
    value: Hex | int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Integer(Op):
    """One integer instruction out of INTEGER_OPCODES, with a mandatory comment."""

    opcode: str
    dst: Register
    sources: tuple[Operand, ...]

    def __post_init__(self) -> None:
        if self.opcode not in INTEGER_OPCODES:
            raise ValueError(f"integer opcode {self.opcode!r} is not in the fixed set")
        if not self.comment:
            raise ValueError(f"{self.opcode} into {self.dst} needs a comment")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Compare(Op):
    """Set a predicate from an unsigned comparison out of COMPARE_OPCODES."""

    opcode: str
    dst: Register
    left: Operand
    right: Operand

    def __post_init__(self) -> None:
        if self.opcode not in COMPARE_OPCODES:
            raise ValueError(f"comparison {self.opcode!r} is not in the fixed set")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ElectOne(Op):
    """Choose one lane of the warp; executed once, by whole warps, before any divergence."""

    dst: Register


# ---- control --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Section(Op):
    """A heading in the text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Label(Op):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class KeepRolled(Op):
    """Tell ptxas not to unroll the loop whose first block this is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Branch(Op):
    """Jump to a label, always or where the predicate has the wanted value."""

    target: str
    predicate: Register | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Return(Op):
    """End the thread."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Guard(Op):
    """Run the body only where the predicate is true (negate: false); else go on at the label."""

    label: str
    predicate: Register
    body: tuple[Op, ...]
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class While(Op):
    """Loop tested at the top: the head computes `leave`, which ends the loop at `done`.

    rolled: ptxas must keep the loop, so that its registers are those of one turn (ptxas 13.0
    heeds the pragma in loops tested at the top only).
    """

    label: str
    done: str
    head: tuple[Op, ...]
    leave: Register
    body: tuple[Op, ...]
    rolled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DoWhile(Op):
    """Loop tested at the bottom: the body computes `again`; it runs at least once."""

    label: str
    body: tuple[Op, ...]
    again: Register


# ---- shared memory and barriers -------------------------------------------------------------


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

    ordered: the thread's accesses of memory come first for the threads of that CTA too, which costs a
    fence of the whole GPU. Without it, what has been waited for and read asynchronously is reported.
    """

    address: Address
    remote: bool = False
    ordered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ArriveExpect(Op):
    """Arrive once and announce the bytes that TMA loads of this phase will bring."""

    address: Address
    transaction_bytes: Operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitBarrier(Op):
    """Wait until the phase with this parity is complete; cluster: arrivals come from other CTAs too.

    suspend_ns: how long the thread may sleep before it looks again.
    """

    label: str
    done: Register
    address: Address
    parity: Operand
    cluster: bool = False
    suspend_ns: Register | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FenceProxyAsync(Op):
    """Order this thread's shared-memory writes before reads by the asynchronous proxy."""


# ---- cursors --------------------------------------------------------------------------------


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


# ---- global memory --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadGlobal(Op):
    """Load 16 bytes of one thread, from memory that the kernel does not write."""

    values: tuple[Register, ...]
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreGlobal(Op):
    """Store 16 or 32 bytes of one thread where the predicate is true."""

    predicate: Register
    address: Address
    values: tuple[Register, ...]

    @property
    def count(self) -> int:
        return len(self.values)


# ---- partial sums in global memory ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StorePartial(Op):
    """Store 16 bytes of one thread for a thread of another CTA."""

    address: Address
    values: tuple[Register, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadPartial(Op):
    """Load 16 bytes that a thread of another CTA has stored."""

    values: tuple[Register, ...]
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AddPartial(Op):
    """Add an f32 value to an accumulator."""

    dst: Register
    value: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RaiseFlag(Op):
    """Set a flag in global memory: what the thread knows to be done is done for who sees it set."""

    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitFlag(Op):
    """Wait until a flag in global memory is set, and clear it again: nobody else waits for it."""

    label: str
    value: Register
    clear: Register
    address: Address


# ---- tensor memory accelerator --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PrefetchTensorMap(Op):
    """Bring a tensor map into its cache."""

    tensor_map: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CachePolicy(Op):
    """A policy for accesses: how gladly the L2 cache gives up what they bring."""

    dst: Register
    priority: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TmaLoad(Op):
    """Copy one box into shared memory; its bytes complete on the mbarrier.

    cta_group 2: the mbarrier may be the one of the pair's other CTA. mask: CTAs of the cluster (a bit
    each) that get the box, each at the same place and reported on the same mbarrier of its own.
    """

    cta_group: int = 1
    box_bytes: int
    dst: Address
    tensor_map: Register
    coordinates: tuple[Register, ...]
    barrier: Address
    mask: Register | None = None
    policy: Register | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TmaStore(Op):
    """Copy one box from shared memory, clipped at the tensor's edges, in a bulk group."""

    box_bytes: int
    tensor_map: Register
    coordinates: tuple[Register, ...]
    src: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CommitStores(Op):
    """Close the executing thread's bulk group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitStores(Op):
    """Wait until at most `pending` of the thread's bulk groups are unfinished.

    read: only until their sources have been read, so that staging may be written again.
    """

    pending: int
    read: bool


# ---- dependent launches ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitForGrids(Op):
    """Wait until the grids that this one depends on are complete and what they wrote is there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LaunchDependents(Op):
    """Grids that depend on this one may be launched once all its CTAs have said so, or ended."""


# ---- cluster launch control (sm_100a) -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClaimCluster(Op):
    """Ask for a cluster of the grid that has not started, which then never will.

    The answer of 16 bytes goes to the same place in every CTA of the cluster, and its bytes complete on
    the same mbarrier of each.
    """

    slot: Address
    barrier: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadAnswer(Op):
    """Read the answer to a claim from shared memory."""

    dst: Register
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IsClaimed(Op):
    """Whether a cluster was claimed."""

    dst: Register
    answer: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClaimedCta(Op):
    """%ctaid.x of the claimed cluster's first CTA, where the predicate says that there is one."""

    dst: Register
    answer: Register
    predicate: Register


# ---- tensor memory and tensor cores (sm_100a) -----------------------------------------------


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


# ---- tensor cores (sm_90a) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WgmmaFence(Op):
    """Order the warpgroup's accesses of accumulator registers before the wgmma that follows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Wgmma(Op):
    """D += A . B over 64 rows, n columns and 32 bytes of K, by a warpgroup, asynchronously."""

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


# ---- epilogue -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConvertPair(Op):
    """Round two f32 values to 16 bits and pack them, `low` in bits 0-15."""

    dst: Register
    low: Register
    high: Register
    type: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreShared(Op):
    """Store 8 or 16 bytes of one thread."""

    address: Address
    values: tuple[Register, ...]

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreMatrix(Op):
    """Store two or four 8 x 8 matrices of 16-bit elements; every lane addresses one row of 16 bytes."""

    address: Address
    values: tuple[Register, ...]

    @property
    def count(self) -> int:
        return len(self.values)


# ---- tile order -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowMajorTile(Op):
    """Tile id to tile coordinates: m = id div n_tiles, n = id rem n_tiles."""

    tile: Register
    m_tile: Register
    n_tile: Register
    n_tiles: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupedTile(Op):
    """Tile id to tile coordinates in bands of `group` tile rows, walked column by column.

    band = id div span; first = band x group; rows = min(m_tiles - first, group);
    rest = id - band x span; n = rest div rows; m = first + rest - n x rows.
    """

    tile: Register
    m_tile: Register
    n_tile: Register
    m_tiles: Register
    group: Register
    span: Register
    band: Register
    first: Register
    rows: Register
    rest: Register


def flatten(ops: Iterable[Op]) -> Iterator[Op]:
    """Replace Guard, While and DoWhile by Branch and Label, in text order."""
    for op in ops:
        if isinstance(op, Guard):
            yield Branch(target=op.label, predicate=op.predicate, negate=not op.negate, comment=op.comment)
            yield from flatten(op.body)
            yield Label(name=op.label)
        elif isinstance(op, While):
            yield Label(name=op.label)
            if op.rolled:
                yield KeepRolled(comment="registers of one turn only")
            yield from flatten(op.head)
            yield Branch(target=op.done, predicate=op.leave)
            yield from flatten(op.body)
            yield Branch(target=op.label)
            yield Label(name=op.done)
        elif isinstance(op, DoWhile):
            yield Label(name=op.label)
            yield from flatten(op.body)
            yield Branch(target=op.label, predicate=op.again)
        else:
            yield op
