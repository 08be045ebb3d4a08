"""TurnsKernel: two consumers, each with tiles of its own, that take turns at the tensor cores (ping-pong).

The producer fills the ring tile by tile. A consumer's K loop begins when the other's has ended, so that the
other stores its tile meanwhile; it goes past the stages of the other's tiles without waiting for them. Its
turn also says that the ring has come as far as the stages before its own, without which a parity would be
ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Barrier, Cursor, Register
from ptxgen.ir.ops import AdvanceCursor, Arrive, SkipStages
from ptxgen.plan import BARRIER_SLOT_BYTES
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import at
from ptxgen.steps.gemm import Walker
from ptxgen.steps.multicast import MulticastKernel

_GROUP = "turns"


class TurnsKernel(MulticastKernel):
    """Step 10 with consumer_tiles=own."""

    def __init__(self, spec: GemmSpec) -> None:
        self._turn = Barrier(name="turn", offset=3 * BARRIER_SLOT_BYTES, arrivals=4, stages=2)
        super().__init__(spec)

    def _barriers(self) -> tuple[Barrier, ...]:
        return (*super()._barriers(), self._turn)

    def _name_shared_memory(self) -> None:
        super()._name_shared_memory()
        self.builder.smem_address("turn", self._smem, self._turn, "mbarrier of each consumer: its turn")

    @contextmanager
    def consumer_tiles(self, walker: Walker, release: Cursor) -> Iterator[None]:
        builder, registers = self.builder, self.builder.registers
        group = registers["consumer_group"]
        mine, other = builder.register("own_turn", _GROUP), builder.register("other_turn", _GROUP)
        builder.stage_address(mine, registers["turn"], group, 8, "its own turn")
        peer = builder.register("other_group", _GROUP)
        builder.integer("xor.b32", peer, group, 1, comment="the other consumer")
        builder.stage_address(other, registers["turn"], peer, 8, "the other's turn")
        phase = builder.register("turn_phase", _GROUP)
        builder.integer("mov.b32", phase, peer, comment="consumer 0 begins: phase 1 of its turn is over")
        skipped = builder.register("skipped_k_tiles", _GROUP)
        builder.integer("mul.lo.u32", skipped, group, registers["k_tiles"], comment="K tiles of the first tile")
        self._skip(walker, skipped, "consumer 1 begins after them")
        with self._schedule.tiles(turn=group, located=False):
            assert release.stage is not None and walker.cursor.stage is not None
            builder.integer("mov.b32", release.stage, walker.cursor.stage, comment="first stage to release")
            self.builder.wait("wait_turn", mine, phase, "the other's K loop has ended")
            builder.emit(AdvanceCursor(cursor=Cursor(name="turn", phase=phase), comment="next turn"))
            yield

    def end_turn(self, walker: Walker) -> None:
        self._pass_turn()
        self._skip(walker, self.builder.registers["k_tiles"], "past the other's tile")

    def _pass_turn(self) -> None:
        builder = self.builder
        with builder.guard("turn_ended", self._elected, comment="one lane a warp"):
            builder.emit(Arrive(address=at(builder.registers["other_turn"]), comment="the other's turn"))

    def _skip(self, walker: Walker, count: Register, comment: str) -> None:
        builder = self.builder
        builder.emit(
            SkipStages(
                cursor=walker.cursor,
                count=count,
                turns=builder.register("ring_turns", _GROUP),
                barrier=self._loaded_barrier,
                comment=comment,
            )
        )
