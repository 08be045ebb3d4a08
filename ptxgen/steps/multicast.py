"""MulticastKernel: CTAs of a cluster, each with its own tile, that share the rows of one operand.

Each CTA loads its part of the shared operand and multicasts it, so that a stage is in both CTAs at half
the reads. A stage may be refilled when the consumers of both CTAs have read it, since each producer
writes into both; all bytes of a CTA's stage complete on its own mbarrier, whoever loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ptxgen.ir.declarations import Cursor, Hex, Parameter, Register
from ptxgen.ir.ops import Arrive, ClusterBarrier, MapAddress, ReadSpecial, SetConstant
from ptxgen.plan import Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import at
from ptxgen.steps.gemm import Walker
from ptxgen.steps.partials import PARAMETERS, FragmentPartials
from ptxgen.steps.specialized import WarpgroupKernel

_GROUP = "cluster"


class MulticastKernel(WarpgroupKernel):
    """The verbs of step 7 for one CTA or for two that share an operand."""

    def __init__(self, spec: GemmSpec) -> None:
        super().__init__(spec)
        self._clustered = spec.cluster_ctas > 1
        segments = self._schedule.segments
        self._partials = FragmentPartials(self.builder, spec, segments) if segments else None

    # ---- set-up and end ---------------------------------------------------------------------

    def _name_constants(self) -> None:
        super()._name_constants()
        if not self._clustered:
            return
        builder, registers = self.builder, self.builder.registers
        rank = builder.register("rank", _GROUP)
        builder.emit(ReadSpecial(dst=rank, special="%cluster_ctarank", comment="CTA of the cluster"))
        mask = builder.register("cluster_mask", _GROUP, "b16")
        builder.emit(SetConstant(dst=mask, value=Hex(value=0b11), comment="both CTAs of the cluster"))
        peer = builder.register("peer", _GROUP)
        builder.integer("xor.b32", peer, rank, 1, comment="the other CTA")
        builder.emit(
            MapAddress(
                dst=builder.register("peer_released", _GROUP),
                address=registers["released"],
                rank=peer,
                comment="released in the other CTA",
            )
        )
        shared = self.plan.a if self.plan.a.shared > 1 else self.plan.b
        part = builder.register("part_offset", _GROUP)
        builder.integer("mul.lo.u32", part, rank, shared.load_bytes, comment="of this CTA's part in a shared panel")

    def _matrices(self) -> tuple[Parameter, ...]:
        return PARAMETERS if self._partials else ()

    def _meet(self, comment: str) -> None:
        if not self._clustered:
            super()._meet(comment)
            return
        self.builder.emit(ClusterBarrier(ordered=False, comment=f"{comment}, in both CTAs"))

    # ---- the producer -----------------------------------------------------------------------

    def _visit(self, walker: Walker, *, buffer: bool) -> None:
        super()._visit(walker, buffer=buffer)
        if buffer and self._clustered:
            part = self._shared_part(walker)
            offset = self.builder.registers["part_offset"]
            self.builder.integer("add.u32", part, walker.buffer, offset, comment="this CTA's part of what they share")

    def _shared_part(self, walker: Walker) -> Register:
        return self.builder.register(f"{walker.cursor.name}_part", walker.cursor.name)

    def _part(self, walker: Walker, operand: Operand) -> Register:
        return self._shared_part(walker) if operand.shared > 1 else super()._part(walker, operand)

    def end_loads(self, walker: Walker) -> None:
        """After the last tile: what the other CTA's consumers say about this CTA's stages has arrived."""
        if self._clustered:
            self.wait_all_released(walker)

    # ---- the consumers ----------------------------------------------------------------------

    @contextmanager
    def consumers(self) -> Iterator[None]:
        with super().consumers():
            if self._partials:
                self._partials.set_up()
            yield

    def consumer_tiles(self, walker: Walker, release: Cursor) -> AbstractContextManager[None]:
        """The body runs for every tile of a consumer; `prepare_store` sets its coordinates."""
        return self._schedule.tiles(located=False)

    def prepare_store(self) -> None:
        """While the last batch is multiplied: where the tile is, and that staging is free."""
        self._schedule.locate()
        self._epilogue.prepare()

    def store_tile(self) -> None:
        if not self._partials:
            self._epilogue.store_tile()
            return
        with self._partials.of_segment():
            self._epilogue.store_tile()

    def end_turn(self, walker: Walker) -> None:
        """After a tile's K loop, where consumers take turns."""

    def _release_arrivals(self, cursor: Cursor) -> list[Arrive]:
        arrivals = super()._release_arrivals(cursor)
        if self._clustered:
            peer = self.builder.register(f"{cursor.name}_peer", cursor.name)
            base = self.builder.registers["peer_released"]
            self.builder.stage_address(peer, base, cursor.stage, 8, "the same in the other CTA")
            arrivals.append(Arrive(address=at(peer), remote=True, comment="its producer writes here too"))
        return arrivals
