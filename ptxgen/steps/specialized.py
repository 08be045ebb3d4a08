"""SpecializedKernel: roles of their own warpgroups, joined by a ring of full and empty stages.

On sm_90a one producer warpgroup loads (one thread of it) and one or two consumer warpgroups multiply
and store; setmaxnreg moves registers from the one to the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Cursor, Register
from ptxgen.ir.ops import AdvanceCursor, Arrive, Return, Section, SetMaxRegisters, StartCursor, WgmmaWait
from ptxgen.ir.program import Role
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import at
from ptxgen.steps.gemm import GemmKernel, Walker
from ptxgen.steps.wgmma import Wgmma

PRODUCER_REGISTERS = 24
CONSUMER_REGISTERS = 240


class SpecializedKernel(GemmKernel):
    """The verbs of step 7. Stage release is an mbarrier of each stage, `released`."""

    def __init__(self, spec: GemmSpec) -> None:
        self.released_stages = spec.pipe_depth
        super().__init__(spec, ring=True)
        assert isinstance(self._unit, Wgmma)
        self._wgmma: Wgmma = self._unit

    @contextmanager
    def producer(self) -> Iterator[None]:
        """The first warpgroup; of it only warp 0 goes on."""
        with (
            self._role("producer", 0, 4, PRODUCER_REGISTERS),
            self.builder.guard("idle", self._not_issuer, comment="one warp loads", negate=True),
        ):
            self._issuer_alone = True
            yield
            self._issuer_alone = False

    @contextmanager
    def consumers(self) -> Iterator[None]:
        """The other warpgroups; each takes its rows of A, of staging and of D."""
        with self._role("consumer", 4, 4 * self.spec.consumers, CONSUMER_REGISTERS):
            self._wgmma.take_rows()
            self._epilogue.set_up()
            yield
            self._epilogue.drain()

    @contextmanager
    def _role(self, name: str, first_warp: int, warps: int, registers: int) -> Iterator[None]:
        builder = self.builder
        if not self._roles:
            self._setup = builder.take()
        skip = builder.register(f"not_{name}", "threads", "pred")
        opcode, bound = ("ge.u32", warps) if first_warp == 0 else ("lt.u32", first_warp)
        with builder.block() as test:
            builder.emit(Section(comment=f"{name}: warps {first_warp} to {first_warp + warps - 1}"))
            builder.compare(opcode, skip, builder.registers["warp"], bound, comment=f"not a {name}")
        with builder.block() as body:
            grow = registers == CONSUMER_REGISTERS
            verb = "take" if grow else "give up"
            builder.emit(SetMaxRegisters(registers=registers, grow=grow, comment=f"{verb} registers"))
            builder.scope = f"{name}_"
            yield
            builder.scope = ""
            builder.emit(Return())
        self._roles.append(
            Role(
                name=name,
                first_warp=first_warp,
                warps=warps,
                test=tuple(test),
                skip=skip,
                body=tuple(body),
                registers=registers,
            )
        )

    @contextmanager
    def load_loop(self) -> Iterator[None]:
        """The body runs for every K tile of the producer."""
        builder = self.builder
        again = builder.register("more_loads", "load", "pred")
        builder.integer("mov.b32", self._load_k_tile, 0, comment="next K tile to load")
        with builder.do_while("load_loop", again):
            yield
            k_tiles = builder.registers["k_tiles"]
            builder.compare("lt.u32", again, self._load_k_tile, k_tiles, comment="K tiles remain")

    def wait_free(self, walker: Walker) -> None:
        """Wait until all consumer warps have released the cursor's stage."""
        address = self._released_of(walker.cursor)
        assert walker.cursor.phase is not None
        self._wait("wait_free", address, walker.cursor.phase, "the stage is free")

    def release_cursor(self) -> Cursor:
        """The consumers' second walker: it trails the first by the batch that is still in flight."""
        builder = self.builder
        cursor = Cursor(
            name="release",
            stage_count=builder.registers["pipe_depth"],
            stage=builder.register("release_stage", "mma"),
            wrapped=builder.register("release_wrapped", "mma", "pred"),
        )
        builder.emit(StartCursor(cursor=cursor, comment="release cursor"))
        return cursor

    def issue_batch(self, walker: Walker) -> None:
        """Start multiplying the cursor's stage."""
        self._wgmma.issue(walker.cursor, self.builder.registers["k_tile"])

    def release_previous(self, cursor: Cursor) -> None:
        """One batch stays in flight; the stage of the one before it is free."""
        builder = self.builder
        builder.emit(WgmmaWait(pending=1, comment="the batch before is complete"))
        accumulate = builder.registers["accumulate"]
        with builder.guard("nothing_to_release", accumulate, comment="not in the first K tile"):
            self._release(cursor, "released_by_one")

    def release_last(self, cursor: Cursor) -> None:
        """The last batch is complete: the accumulator is there and its stage is free."""
        self.builder.emit(WgmmaWait(pending=0, comment="the accumulator is complete"))
        self._release(cursor, "released_last")
        if self._schedule.persistent:
            self._epilogue.staging_free()

    def _release(self, cursor: Cursor, label: str) -> None:
        builder = self.builder
        address = self._released_of(cursor)
        with builder.guard(label, self._elected, comment="one lane a warp"):
            builder.emit(Arrive(address=at(address), comment="this warp has read the stage"))
        builder.emit(AdvanceCursor(cursor=cursor, comment="next stage to release"))

    def _released_of(self, cursor: Cursor) -> Register:
        address = self.builder.register(f"{cursor.name}_released", cursor.name)
        self._stage_address(address, self.builder.registers["released"], cursor, 8, "mbarrier of its release")
        return address
