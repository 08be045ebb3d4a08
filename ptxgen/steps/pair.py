"""PairKernel: two CTAs of a cluster compute one tile with cta_group::2.

Each CTA loads half of the rows of A and half of the rows of B into its own shared memory, and their
bytes complete on the mbarrier of the pair's leader. The leader issues the MMAs, which read both and
write each CTA's rows of D into its own tensor memory; its commits arrive in both CTAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Cursor, Hex, Register
from ptxgen.ir.ops import (
    ArriveExpect,
    ClusterBarrier,
    MapAddress,
    ReadSpecial,
    Return,
    Section,
    SetConstant,
)
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import at
from ptxgen.steps.gemm import Walker
from ptxgen.steps.specialized import TmemKernel

_GROUP = "pair"


class PairKernel(TmemKernel):
    """The verbs of step 8: step 7's roles in each of two CTAs, but for the leader's multiplier."""

    roles_end = False

    def __init__(self, spec: GemmSpec) -> None:
        super().__init__(spec)
        self._rank = self.builder.register("rank", _GROUP)
        self._not_leader = self.builder.register("not_leader", _GROUP, "pred")
        self._mask = self.builder.register("pair_mask", _GROUP, "b16")

    # ---- set-up and end ---------------------------------------------------------------------

    def _name_constants(self) -> None:
        super()._name_constants()
        builder = self.builder
        builder.emit(ReadSpecial(dst=self._rank, special="%cluster_ctarank", comment="CTA of the pair"))
        builder.compare("ne.u32", self._not_leader, self._rank, 0, comment="CTA 0 leads: it multiplies")
        builder.emit(SetConstant(dst=self._mask, value=Hex(value=0b11), comment="both CTAs of the pair"))
        for name in ("loaded", "acc_empty"):
            builder.emit(
                MapAddress(
                    dst=builder.register(f"leader_{name}", _GROUP),
                    address=builder.registers[name],
                    rank=0,
                    comment=f"{name} in the leader",
                )
            )

    def _join_cluster(self) -> None:
        self.builder.emit(ClusterBarrier(comment="both CTAs have started"))

    def _meet(self, comment: str) -> None:
        self.builder.emit(ClusterBarrier(comment=f"{comment}, in both CTAs"))

    def _end_storers(self) -> None:
        """Tensor memory is freed only when both CTAs are done."""
        self._epilogue.drain()

    def _end(self) -> None:
        builder = self.builder
        builder.emit(
            Section(comment="end"),
            ClusterBarrier(comment="nothing more arrives in either CTA, both have read their accumulators"),
        )
        with builder.guard("all_done", self._not_issuer, comment="warp 0 frees", negate=True):
            self._unit.accumulator_returned("deallocation")
            self._unit.free()
        builder.emit(Return())

    # ---- the producer -----------------------------------------------------------------------

    def _visit(self, walker: Walker, *, buffer: bool) -> None:
        super()._visit(walker, buffer=buffer)
        if buffer:
            leader = self.builder.registers["leader_loaded"]
            stage = walker.cursor.stage
            self.builder.stage_address(self._signal(walker), leader, stage, 8, "the same in the leader")

    def _signal(self, walker: Walker) -> Register:
        return self.builder.register(f"{walker.cursor.name}_signal", walker.cursor.name)

    def _expect(self, walker: Walker) -> None:
        builder = self.builder
        with builder.guard("expected", self._not_leader, comment="the leader expects for both", negate=True):
            builder.emit(
                ArriveExpect(
                    address=at(walker.loaded),
                    transaction_bytes=builder.registers["load_bytes"],
                    comment="arrives, and expects A and B of both CTAs",
                )
            )

    # ---- multiplier and storers -------------------------------------------------------------

    @contextmanager
    def multiplier(self) -> Iterator[None]:
        """One warp of the leader."""
        with (
            super().multiplier(),
            self.builder.guard("idle", self._not_leader, comment="the leader multiplies", negate=True),
        ):
            yield

    def _take_accumulator(self, name: str, group: Register) -> None:
        super()._take_accumulator(name, group)
        leader = self.builder.registers["leader_acc_empty"]
        address = self.builder.register(f"{name}_leader", name)
        self.builder.stage_address(address, leader, group, 8, "the same in the leader")

    def _wait_accumulator(self, label: str, barrier: str, cursor: Cursor, comment: str) -> None:
        if barrier != "acc_empty":
            super()._wait_accumulator(label, barrier, cursor, comment)
            return
        self.builder.wait(label, self._barrier_of(barrier, cursor), cursor.phase, comment, relaxed=True)

    def _returned_to(self, cursor: Cursor) -> Register:
        leader = self.builder.registers["leader_acc_empty"]
        if self._group:
            return self.builder.registers[f"{cursor.name}_leader"]
        if cursor.stage is None:
            return leader
        address = self.builder.register(f"{cursor.name}_empty", cursor.name)
        self.builder.stage_address(address, leader, cursor.stage, 8, "its acc_empty in the leader")
        return address
