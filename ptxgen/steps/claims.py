"""TileClaims: tiles by cluster launch control (clusterlaunchcontrol, sm_100a).

The grid has a cluster for every tile. A cluster that runs computes its own tile, and claims the tiles
of clusters that have not started, which then never do. One warp asks, ahead of the others: its answers
wait in a ring of slots, the same in every CTA, and a slot is written again when every role of every CTA
has read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Barrier, Cursor, Register, SmemBuffer
from ptxgen.ir.ops import (
    AdvanceCursor,
    Arrive,
    ArriveExpect,
    ClaimCluster,
    ClaimedCta,
    FenceProxyAsync,
    IsClaimed,
    MapAddress,
    ReadAnswer,
    ReadSpecial,
    Section,
    StartCursor,
)
from ptxgen.plan import BARRIER_SLOT_BYTES
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder, at

_GROUP = "tile scheduler"
ANSWER_BYTES = 16


class TileClaims:
    """What a pair's roles do to get their next tile, and what the warp that claims it does."""

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        slots = spec.scheduler.claim_slots
        storers, multipliers, others = 4 * spec.consumers, spec.consumers, 2
        readers = 32 * (2 * (storers + others) + multipliers)
        self.answered = Barrier(
            name="answered",
            offset=5 * BARRIER_SLOT_BYTES,
            arrivals=1,
            transaction_bytes=ANSWER_BYTES,
            stages=slots,
        )
        self.answer_read = Barrier(name="answer_read", offset=6 * BARRIER_SLOT_BYTES, arrivals=readers, stages=slots)
        self.answers = SmemBuffer(
            name="answers",
            offset=7 * BARRIER_SLOT_BYTES,
            nbytes=ANSWER_BYTES,
            align=ANSWER_BYTES,
            stages=slots,
            stage_bytes=ANSWER_BYTES,
        )
        self._slots = slots

    def name_shared_memory(self, base: Register) -> None:
        builder = self._builder
        builder.smem_address("answered", base, self.answered, "mbarrier of each slot: the answer is there")
        builder.smem_address("answer_read", base, self.answer_read, "mbarrier of each slot: every role has read it")
        builder.smem_address("answers", base, self.answers, "slots for the answers to claims of tiles")

    def name_constants(self) -> None:
        builder = self._builder
        builder.constant("claim_depth", _GROUP, self._slots, "tiles claimed ahead")
        builder.emit(
            MapAddress(
                dst=builder.register("leader_answer_read", _GROUP),
                address=builder.registers["answer_read"],
                rank=0,
                comment="answer_read in the leader",
            )
        )

    # ---- every role -------------------------------------------------------------------------

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """The body runs for the pair's own tile and for every one that it has claimed."""
        builder = self._builder
        builder.emit(
            Section(comment="output tiles: this pair's id, then those of pairs that never start"),
            StartCursor(cursor=self._answer, comment="answer cursor"),
            ReadSpecial(dst=builder.register("tile", _GROUP), special="%clusterid.x", comment="first tile"),
        )
        with builder.do_while("tile_loop", self._more):
            yield
            builder.emit(Section(comment="next tile"))
            self._read(*self._place(), builder.registers["tile"])

    @property
    def _more(self) -> Register:
        return self._builder.register("more_tiles", _GROUP, "pred")

    @property
    def _answer(self) -> Cursor:
        """A role's walker over the slots."""
        builder = self._builder
        return Cursor(
            name="answer",
            stage_count=builder.registers["claim_depth"],
            stage=builder.register("answer_slot", _GROUP),
            phase=builder.register("answer_phase", _GROUP),
            wrapped=builder.register("answer_wrapped", _GROUP, "pred"),
        )

    def _place(self) -> tuple[Register, Register]:
        """The cursor's slot and the mbarrier of its answer."""
        return (
            self._of_slot("answers", ANSWER_BYTES, "the slot"),
            self._of_slot("answered", 8, "the slot's answered"),
        )

    def _read(self, slot: Register, answered: Register, tile: Register | None) -> None:
        """The next answer: the pair's next tile, or that there is none."""
        builder, cursor = self._builder, self._answer
        answer = builder.register("answer", _GROUP, "b128")
        builder.wait("wait_answer", answered, cursor.phase, "the answer is there")
        builder.emit(
            ReadAnswer(dst=answer, address=at(slot), comment="the answer, for clusterlaunchcontrol to read"),
            IsClaimed(dst=self._more, answer=answer, comment="false: all pairs have started"),
        )
        if tile:
            builder.emit(
                ClaimedCta(dst=tile, answer=answer, predicate=self._more, comment="first CTA of the claimed pair")
            )
        builder.emit(
            FenceProxyAsync(cluster="release", comment="this thread's read before the next answer to the slot")
        )
        read = self._of_slot("leader_answer_read", 8, "the slot's answer_read in the leader")
        builder.emit(
            Arrive(address=at(read), remote=True, relaxed=True, comment="this thread has read the answer"),
            AdvanceCursor(cursor=cursor, comment="next answer, in the next slot"),
        )
        if tile:
            builder.integer("shr.u32", tile, tile, 1, comment="the pair's id: its tile")

    def _of_slot(self, name: str, stride: int, comment: str) -> Register:
        builder = self._builder
        address = builder.register(f"slot_{name}", _GROUP)
        builder.stage_address(address, builder.registers[name], self._answer.stage, stride, comment)
        return address

    # ---- the warp that claims ---------------------------------------------------------------

    def claim(self, not_leader: Register, elected: Register) -> None:
        """Claim tile after tile, for both CTAs, as long as there are slots for the answers."""
        builder = self._builder
        phase = self._answer.phase
        assert phase is not None
        before = builder.register("last_phase", _GROUP)
        builder.emit(StartCursor(cursor=self._answer, comment="answer cursor"))
        with builder.do_while("claim_loop", self._more):
            slot, answered = self._place()
            with builder.guard("expected", elected, comment=ONE_LANE):
                builder.emit(
                    ArriveExpect(
                        address=at(answered), transaction_bytes=ANSWER_BYTES, comment="arrives, and expects the answer"
                    )
                )
            with builder.guard("claimed", not_leader, comment="the leader claims for both", negate=True):
                read = self._of_slot("answer_read", 8, "the slot's answer_read")
                builder.integer(
                    "xor.b32", before, phase, 1, comment="of the answer before it; before the first, passed"
                )
                builder.wait("wait_read", read, before, "every role of both CTAs has read the slot", relaxed=True)
                builder.emit(FenceProxyAsync(cluster="acquire", comment="those reads before the next answer"))
                with builder.guard("claim_issued", elected, comment=ONE_LANE):
                    builder.emit(
                        ClaimCluster(
                            slot=at(slot),
                            barrier=at(answered),
                            comment="a pair that has not started; the answer goes to both CTAs",
                        )
                    )
            self._read(slot, answered, None)
