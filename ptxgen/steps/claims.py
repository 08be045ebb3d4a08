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
    StageAddress,
    StartCursor,
    WaitBarrier,
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
            self._next(builder.registers["tile"])

    @property
    def _more(self) -> Register:
        return self._builder.register("more_tiles", _GROUP, "pred")

    @property
    def _answer(self) -> Cursor:
        return self._cursor("answer", 0)

    def _cursor(self, name: str, start_phase: int) -> Cursor:
        builder = self._builder
        return Cursor(
            name=name,
            stage_count=builder.registers["claim_depth"],
            stage=builder.register(f"{name}_slot", _GROUP),
            phase=builder.register(f"{name}_phase", _GROUP),
            wrapped=builder.register(f"{name}_wrapped", _GROUP, "pred"),
            start_phase=start_phase,
        )

    def _next(self, tile: Register | None = None) -> None:
        """The next answer: the pair's next tile, or that there is none."""
        builder, registers = self._builder, self._builder.registers
        answer = builder.register("answer", _GROUP, "b128")
        cursor = self._answer
        self._wait("wait_answer", self._of_slot("answered", cursor, 8, "the slot's answered"), cursor)
        slot = self._of_slot("answers", cursor, ANSWER_BYTES, "the slot")
        read = builder.register("slot_read", _GROUP)
        assert cursor.stage is not None
        builder.emit(
            ReadAnswer(dst=answer, address=at(slot), comment="the answer, for clusterlaunchcontrol to read"),
            IsClaimed(dst=self._more, answer=answer, comment="false: all pairs have started"),
        )
        if tile:
            builder.emit(
                ClaimedCta(dst=tile, answer=answer, predicate=self._more, comment="first CTA of the claimed pair")
            )
        builder.emit(
            FenceProxyAsync(comment="this thread's read before the next answer to the slot"),
            StageAddress(
                dst=read,
                base=registers["leader_answer_read"],
                stage=cursor.stage,
                stride=8,
                comment="the slot's answer_read in the leader",
            ),
            Arrive(address=at(read), remote=True, comment="this thread has read the answer"),
            AdvanceCursor(cursor=cursor, comment="next answer, in the next slot"),
        )
        if tile:
            builder.integer("shr.u32", tile, tile, 1, comment="the pair's id: its tile")

    def _of_slot(self, name: str, cursor: Cursor, stride: int, comment: str) -> Register:
        builder = self._builder
        address = builder.register(f"slot_{name}", _GROUP)
        assert cursor.stage is not None
        base = builder.registers[name]
        builder.emit(StageAddress(dst=address, base=base, stage=cursor.stage, stride=stride, comment=comment))
        return address

    def _wait(self, label: str, barrier: Register, cursor: Cursor, cluster: bool = False) -> None:
        builder = self._builder
        assert cursor.phase is not None
        builder.emit(
            WaitBarrier(
                label=builder.label(label),
                done=builder.register("phase_done", "mma", "pred"),
                address=at(barrier),
                parity=cursor.phase,
                cluster=cluster,
                comment="every role of both CTAs has read the slot" if cluster else "the answer is there",
            )
        )

    # ---- the warp that claims ---------------------------------------------------------------

    def claim(self, not_leader: Register, elected: Register) -> None:
        """Claim tile after tile, for both CTAs, as long as there are slots for the answers."""
        builder = self._builder
        request = self._cursor("claim", 1)
        builder.emit(
            StartCursor(cursor=request, comment="claim cursor"),
            StartCursor(cursor=self._answer, comment="answer cursor"),
        )
        with builder.do_while("claim_loop", self._more):
            answered = self._of_slot("answered", request, 8, "the slot's answered")
            with builder.guard("expected", elected, comment=ONE_LANE):
                builder.emit(
                    ArriveExpect(
                        address=at(answered), transaction_bytes=ANSWER_BYTES, comment="arrives, and expects the answer"
                    )
                )
            with builder.guard("claimed", not_leader, comment="the leader claims for both", negate=True):
                read = self._of_slot("answer_read", request, 8, "the slot's answer_read")
                self._wait("wait_read", read, request, cluster=True)
                slot = self._of_slot("answers", request, ANSWER_BYTES, "the slot")
                with builder.guard("claimed_by_one", elected, comment=ONE_LANE):
                    builder.emit(
                        ClaimCluster(
                            slot=at(slot),
                            barrier=at(answered),
                            comment="a pair that has not started; the answer goes to both CTAs",
                        )
                    )
            builder.emit(AdvanceCursor(cursor=request, comment="next claim, into the next slot"))
            self._next()
