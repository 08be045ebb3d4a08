"""A CTA: shared and tensor memory, mbarriers, named barriers, warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.code import Code
from ptxgen.emulator.mbarrier import Mbarrier
from ptxgen.emulator.memory import RANK_SHIFT, SHARED_RESERVED_BYTES, SHARED_WINDOW, Block, poisoned
from ptxgen.emulator.tmem import Tmem
from ptxgen.emulator.values import ALL_LANES, LANE_INDEX, LANES, POISON32, Lanes, Value, lanes_of
from ptxgen.emulator.warp import Fragment, Warp
from ptxgen.errors import MachineError

if TYPE_CHECKING:
    from ptxgen.emulator.unit import Unit


class NamedBarrierState:
    """One of the 16 barriers of a CTA: threads that have arrived, and fragments that wait."""

    __slots__ = ("arrived", "expected", "generation", "reduction", "waiting")

    def __init__(self) -> None:
        self.arrived = 0
        self.expected = 0  # 0: all threads of the CTA
        self.generation = 0
        self.waiting: list[Fragment] = []
        self.reduction: list[Any] = []  # (fragment, slot, lanes' predicate) of bar.red

    def __str__(self) -> str:
        return f"{self.arrived} of {self.expected or 'all'} threads arrived"


class Cta:
    """`rank` is its rank in the cluster, `ctaid` its coordinates in the grid."""

    def __init__(self, unit: Unit, rank: int, ctaid: tuple[int, int, int]) -> None:
        launch = unit.launch
        self.unit, self.rank, self.ctaid = unit, rank, ctaid
        self.code: Code = launch.code
        self.smem = Block(poisoned(launch.smem_bytes))
        self.smem_end = launch.smem_bytes
        self.barriers: dict[int, Mbarrier] = {}
        self.barrier_low, self.barrier_high = 1 << 32, 0
        self.waiters: dict[int, list[Fragment]] = {}
        self.named: dict[int, NamedBarrierState] = {}
        self._tmem: Tmem | None = None
        self.tmem_users: list[Fragment] = []  # that wait for columns to become free
        self.register_pool = 0
        self.pool_waiters: list[Fragment] = []
        self.cancel_failed = False  # as a query of a clusterlaunchcontrol response has shown
        self.collectives: dict[Any, Any] = {}  # warpgroup-wide operations on their way
        self._specials: dict[tuple[str, int], Value] = {}
        self.warps = [self._warp(index) for index in range(-(-launch.threads // LANES))]
        self.live_warps = len(self.warps)

    @property
    def tmem(self) -> Tmem:
        if self._tmem is None:
            if not self.unit.launch.chip.tmem_columns:
                raise MachineError("illegal-instruction-descriptor", "this chip has no tensor memory")
            self._tmem = Tmem(fill=POISON32)
        return self._tmem

    # -- start ----------------------------------------------------------------------------------

    def _warp(self, index: int) -> Warp:
        launch = self.unit.launch
        values = list(launch.template)
        lanes = min(LANES, launch.threads - LANES * index)
        for slot, what in launch.late:
            # A special register, or an offset in shared memory, whose address names this CTA.
            values[slot] = self._special(what, index) if isinstance(what, str) else what | self.rank << RANK_SHIFT
        live = ALL_LANES if lanes == LANES else (1 << lanes) - 1
        warp = Warp(self, index, self.code, values, live)
        warp.registers_per_thread = launch.registers_per_thread
        return warp

    def _special(self, name: str, warp: int) -> Value:
        """A special register's value at the start of a warp."""
        key = (name, warp if name.startswith("%tid") or name == "%warpid" else 0)
        known = self._specials.get(key)
        if known is None:
            known = self._specials[key] = self._special_value(name, warp)
        return known

    def _special_value(self, name: str, warp: int) -> Value:
        launch = self.unit.launch
        base, _, axis = name.partition(".")
        at = "xyz".find(axis) if axis else 0
        cluster, rank = launch.cluster, self.rank
        if base == "%tid":
            thread = LANE_INDEX + LANES * warp
            x, y, _ = launch.block
            return _uniform((thread % x, thread // x % y, thread // (x * y))[at])
        if base.startswith("%lanemask_"):
            return _lanemask(base[len("%lanemask_") :])
        values: dict[str, Callable[[], Any]] = {
            "%laneid": lambda: LANE_INDEX,
            "%ntid": lambda: launch.block[at],
            "%ctaid": lambda: self.ctaid[at],
            "%nctaid": lambda: launch.grid[at],
            "%clusterid": lambda: self.ctaid[at] // cluster[at],
            "%nclusterid": lambda: launch.grid[at] // cluster[at],
            "%cluster_ctaid": lambda: self.ctaid[at] % cluster[at],
            "%cluster_nctaid": lambda: cluster[at],
            "%warpid": lambda: warp,
            "%nwarpid": lambda: launch.chip.max_threads_per_sm // LANES,
            "%smid": lambda: (self.unit.number * launch.cluster_size + rank) % launch.chip.sm_count,
            "%nsmid": lambda: launch.chip.sm_count,
            "%gridid": lambda: 1,
            "%cluster_ctarank": lambda: rank,
            "%cluster_nctarank": lambda: launch.cluster_size,
            "%is_explicit_cluster": lambda: launch.cluster_size > 1,
            "%dynamic_smem_size": lambda: launch.dynamic_smem_bytes,
            "%total_smem_size": lambda: launch.smem_bytes - SHARED_RESERVED_BYTES,
            "%aggr_smem_size": lambda: launch.smem_bytes,
            "%reserved_smem_offset_begin": lambda: 0,
            "%reserved_smem_offset_end": lambda: SHARED_RESERVED_BYTES,
            "%reserved_smem_offset_cap": lambda: SHARED_RESERVED_BYTES,
        }
        return values[base]()

    # -- other CTAs of the cluster --------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return not self.live_warps

    def neighbour(self, rank: int) -> Cta:
        """A CTA of the cluster by its rank, which must still run: its memory goes when it ends."""
        cta = self.unit.ctas[rank]
        if cta.ended:
            raise MachineError(
                "exit-with-pending-async",
                f"CTA {cta.ctaid} (rank {rank}) of the cluster has ended: its shared and tensor memory are gone",
            )
        return cta

    def require_peer(self) -> None:
        """The pair's other CTA, whose rank differs in bit 0 (PTX ISA 9.1 §9.7.16.5.1), must still run."""
        self.neighbour(self.rank ^ 1)

    def multicast(self, mask: int) -> list[Cta]:
        """The CTAs that a multicast mask names."""
        size = len(self.unit.ctas)
        if not mask or mask >> size:
            named = f"CTA {mask.bit_length() - 1} of a cluster of {size}" if mask else "no CTA"
            raise MachineError("multicast-mask", f"the multicast mask {mask:#x} names {named}")
        return [self.neighbour(rank) for rank in lanes_of(mask)]

    # -- shared addresses -----------------------------------------------------------------------

    def owner(self, address: int) -> tuple[Cta, int]:
        """The CTA and offset of a shared::cluster address (or its generic form)."""
        if address >= SHARED_WINDOW:
            if address >> 32 != SHARED_WINDOW >> 32:
                raise MachineError("out-of-bounds", f"generic address {address:#x} is not in shared memory")
            address &= 0xFFFFFFFF
        rank, offset = address >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)
        if rank == self.rank or (rank == 0 and len(self.unit.ctas) <= 1):
            return self, offset
        if rank < len(self.unit.ctas):
            return self.neighbour(rank), offset
        if address == POISON32:
            raise MachineError("uninitialised-read", "the shared address comes from uninitialised memory or registers")
        raise MachineError("out-of-bounds", f"shared address {address:#x} names CTA {rank} of the cluster")

    def barrier(self, address: int) -> tuple[Cta, int, Mbarrier]:
        """The mbarrier at a shared address: its CTA, offset and state."""
        offset = address - (self.rank << RANK_SHIFT)
        found = self.barriers.get(offset)
        if found is not None:
            return self, offset, found
        cta, offset = self.owner(address)
        found = cta.barriers.get(offset)
        if found is None:
            if offset % 8:
                raise MachineError("misaligned-address", f"mbarrier address {offset:#x} is not a multiple of 8")
            if not SHARED_RESERVED_BYTES <= offset <= cta.smem_end - 8:
                raise MachineError("out-of-bounds", f"mbarrier address {offset:#x} is outside shared memory")
            raise MachineError("barrier-not-initialised", f"no mbarrier was initialised at shared address {offset:#x}")
        return cta, offset, found

    def barrier_at(self, offset: int) -> Mbarrier:
        """The mbarrier at an offset in this CTA."""
        return self.barrier(self.rank << RANK_SHIFT | offset)[2]

    def new_barrier(self, offset: int) -> Mbarrier:
        barrier = self.barriers.get(offset)
        if barrier is None:
            barrier = self.barriers[offset] = Mbarrier()
        return barrier

    def bound_barriers(self) -> None:
        """Recomputes the address range that live mbarriers lie in."""
        live = [offset for offset, barrier in self.barriers.items() if barrier.initialised]
        self.barrier_low = min(live, default=1 << 32)
        self.barrier_high = max(live, default=-8) + 8

    def phase_completed(self, offset: int) -> None:
        """Wakes the fragments whose test of the mbarrier at `offset` failed."""
        self.unit.activity += 1
        for fragment in self.waiters.pop(offset, ()):
            fragment.wait = None

    def check_store(self, low: int, high: int) -> None:
        """No plain or bulk write may touch a live mbarrier; [low, high) is what is written."""
        if low < self.barrier_high and high > self.barrier_low:
            for offset, barrier in self.barriers.items():
                if barrier.initialised and low < offset + 8 and high > offset:
                    raise MachineError(
                        "barrier-overwritten",
                        f"bytes [{low:#x}, {high:#x}) overwrite the mbarrier at {offset:#x} ({barrier.describe()})",
                    )

    # -- exits ----------------------------------------------------------------------------------

    def lanes_exit(self, warp: Warp, lanes: int) -> None:
        self.unit.lanes_exit(self, warp, lanes)

    def warp_exits(self, warp: Warp) -> None:
        """Barriers that count all threads of the CTA no longer wait for this warp's."""
        self.live_warps -= 1
        self.unit.activity += 1
        for number, state in self.named.items():
            if state.waiting and not state.expected:
                self.settle(number, state)
        self.unit.cluster_barrier.settle()
        if not self.live_warps:
            self.unit.cta_ends(self, warp)

    def settle(self, number: int, state: NamedBarrierState) -> bool:
        """Completes a named barrier when enough threads have arrived."""
        expected = state.expected or LANES * self.live_warps
        if state.arrived < expected:
            return False
        if state.arrived > expected:
            raise MachineError(
                "named-barrier-mismatch", f"{state.arrived} threads arrived at barrier {number}; it counts {expected}"
            )
        state.generation += 1
        state.arrived = state.expected = 0
        for fragment in state.waiting:
            fragment.wait = None
        state.waiting = []
        self.unit.activity += 1
        return True


def _uniform(lanes: Lanes) -> Value:
    first = lanes.item(0)
    return first if (lanes == first).all() else lanes.astype("u4")


def _lanemask(which: str) -> Lanes:
    bit = 1 << LANE_INDEX.astype("u8")
    below = bit - 1
    masks = {"eq": bit, "lt": below, "le": below | bit, "ge": ~below, "gt": ~(below | bit)}
    return (masks[which] & 0xFFFFFFFF).astype("u4")
