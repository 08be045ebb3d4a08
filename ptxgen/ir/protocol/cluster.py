"""What the warps of a cluster share while a Program's synchronisation is played through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ptxgen.ir.declarations import Address, Barrier, Register, SmemBuffer
from ptxgen.ir.program import Program
from ptxgen.ir.protocol.hazards import Mbarrier, SharedMemory, TensorMemory
from ptxgen.ir.protocol.knowledge import Place, ProtocolError, Warp


class Cluster:
    """Launch parameters, mbarriers, shared and tensor memory of CTA or cluster `worker` of `grid`."""

    def __init__(self, program: Program, parameters: dict[str, int], worker: int, grid: int) -> None:
        self.ctas = program.cluster_ctas
        self.parameters = parameters
        self.worker, self.grid = worker, grid
        self.declared: dict[str, SmemBuffer | Barrier] = {}
        self.declared.update({buffer.name: buffer for buffer in program.buffers})
        self.declared.update({barrier.name: barrier for barrier in program.barriers})
        self.mbarriers: dict[Place, Mbarrier] = {}
        self.smem = SharedMemory()
        self.tmem = [TensorMemory(program.tmem_columns) for _ in range(self.ctas)]
        self.unclaimed = parameters["m_tiles"] * parameters["n_tiles"] - 1
        self.answers: dict[Place, bool] = {}

    def place(self, warp: Warp, address: Address) -> Place:
        """What lies at an address."""
        value = warp.address(address.base, address)
        declared = self.declared[value.name]
        if isinstance(declared, Barrier):
            value = Place(value.name, value.stage + address.offset // 8, value.rank)
        if not 0 <= value.stage < declared.stages:
            raise ProtocolError(f"{address}: {value.name} has no stage {value.stage}")
        return value

    def mbarrier(self, warp: Warp, place: Place, init: str = "init") -> Mbarrier:
        """The mbarrier at `place`, which the warp must know to be initialised."""
        barrier = self.mbarriers.get(place)
        if barrier is None:
            raise ProtocolError(f"barrier {place} is used before its init")
        owner, number = barrier.init
        if owner != warp.index or init != "init":
            what = "it is initialised" if init == "init" else "it is initialised and fenced for the async proxy"
            warp.require((init, owner), number, "uses barrier", place, what)
        return barrier

    def ranks(self, warp: Warp, mask: Register | None, what: str) -> list[int]:
        """The CTAs that a mask names; with none, the warp's own."""
        if mask is None:
            return [warp.rank]
        bits = warp.value(mask)
        if not bits or bits >> self.ctas:
            raise ProtocolError(f"{what} to CTAs {bits:#x} of {self.ctas}")
        return [rank for rank in range(self.ctas) if bits >> rank & 1]

    def end(self, warps: Iterable[Warp]) -> None:
        """All warps have ended: nothing may be under way."""
        for place, barrier in self.mbarriers.items():
            if barrier.pending != barrier.declared.arrivals or barrier.tx:
                raise ProtocolError(f"barrier {place} ends inside a phase: {barrier}")
            own = [warp.known for warp in warps if warp.rank == place.rank]
            over = max(known.get(("phase", place), 0) for known in own)
            if barrier.declared.transaction_bytes and over < barrier.completed:
                raise ProtocolError(
                    f"CTA {place.rank} may end before the bytes of phase {barrier.completed - 1} of {place} are"
                    " there: none of its warps waits for them"
                )
            for key, (count, phase) in barrier.from_afar.items():
                if over < phase and all(known.get(key, 0) < count for known in own):
                    raise ProtocolError(
                        f"CTA {place.rank} may end before an arrival of another CTA reaches {place}: none of"
                        f" its warps knows that it has, or that phase {phase - 1} is over"
                    )
        for warp in warps:
            if warp.open_stores or warp.known.get(("done", warp.index), 0) < warp.groups:
                raise ProtocolError(f"warp {warp.index} ends before its TMA stores are complete")
        if any(tmem.allocated for tmem in self.tmem):
            raise ProtocolError(f"{max(tmem.allocated for tmem in self.tmem)} TMEM columns are never freed")


Handler: TypeAlias = Callable[[Cluster, Warp, Any, int], None]
"""What an op does when so many lanes of a warp execute it."""
