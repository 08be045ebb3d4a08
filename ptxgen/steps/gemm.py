"""GemmKernel: the verbs in which the steps of the ladder are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ptxgen.ir.declarations import Cursor, Register
from ptxgen.ir.ops import AdvanceCursor, ArriveExpect, Section, StartCursor, TmaLoad
from ptxgen.plan import Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, at
from ptxgen.steps.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """A cursor over the stages and the addresses of the stage that it visits."""

    cursor: Cursor
    buffer: Register
    loaded: Register


class GemmKernel(Kernel):
    """The moves of a GEMM, one method each.

    A step calls `set_up`, takes its cursors, writes down its loops, and calls `finish`.
    """

    def __init__(self, spec: GemmSpec, *, ring: bool) -> None:
        super().__init__(spec, ring=ring)
        self._issuer_alone = self._unit.single_walker

    def set_up_epilogue(self) -> None:
        """The places of the epilogue's threads in staging, before the tile loop."""
        self._epilogue.set_up()

    # ---- cursors ----------------------------------------------------------------------------

    def walker_of(self, name: str, *, waits: bool, start_phase: int = 0) -> Walker:
        """A cursor over the stages, started before the tile loop so that it carries over."""
        builder = self.builder
        registers = builder.registers
        phase = builder.register(f"{name}_phase", name) if waits else None
        if not self._ring:
            cursor = Cursor(name=name, phase=phase)
            buffer, loaded = registers["ring"], registers["loaded"]
        else:
            cursor = Cursor(
                name=name,
                stage_count=registers["pipe_depth"],
                stage=builder.register(f"{name}_stage", name),
                phase=phase,
                wrapped=builder.register(f"{name}_wrapped", name, "pred"),
                start_phase=start_phase,
            )
            buffer = builder.register(f"{name}_buffer", name)
            loaded = builder.register(f"{name}_loaded", name)
        if self._ring or waits:
            builder.emit(StartCursor(cursor=cursor, comment=f"{name} cursor"))
        return Walker(cursor=cursor, buffer=buffer, loaded=loaded)

    def release_cursor(self) -> Cursor:
        """The walker over the one mbarrier that reports released stages: its phase flips every K tile."""
        cursor = Cursor(name="release", phase=self.builder.register("release_phase", "mma"))
        self.builder.emit(StartCursor(cursor=cursor, comment="release cursor"))
        return cursor

    # ---- loops ------------------------------------------------------------------------------

    def tiles(self) -> AbstractContextManager[None]:
        """The body runs once for every output tile of this CTA."""
        return self._schedule.tiles()

    @contextmanager
    def walker(self) -> Iterator[None]:
        """The warps that walk the K loop; on sm_100a warp 0, which the others meet before the epilogue."""
        if not self._unit.single_walker:
            yield from self._walk()
            return
        with self.builder.guard(
            "k_loop_done", self._not_issuer, comment="the other warps meet it at the epilogue", negate=True
        ):
            yield from self._walk()

    def _walk(self) -> Iterator[None]:
        self.builder.integer("mov.b32", self._load_k_tile, 0, comment="next K tile to load")
        yield
        if self._schedule.persistent and self._unit.single_walker:
            self._epilogue.staging_free()

    @contextmanager
    def first_loads(self) -> Iterator[None]:
        """The body runs for the first PIPE_DEPTH K tiles, or for all where there are fewer."""
        builder = self.builder
        count = builder.register("first_loads", "load")
        again = builder.register("more_first_loads", "load", "pred")
        registers = builder.registers
        builder.emit(Section(comment="fill the ring"))
        builder.integer(
            "min.u32", count, registers["k_tiles"], registers["pipe_depth"], comment="loads before the loop"
        )
        with builder.do_while("fill_loop", again):
            yield
            builder.compare("lt.u32", again, self._load_k_tile, count, comment="stages are left to fill")

    @contextmanager
    def k_loop(self) -> Iterator[None]:
        """The body runs for every K tile."""
        builder = self.builder
        k_tile = builder.register("k_tile", "mma")
        again = builder.register("more_k_tiles", "mma", "pred")
        builder.emit(Section(comment="K loop"))
        builder.integer("mov.b32", k_tile, self._schedule.first_k_tile, comment="K tile to multiply")
        with builder.do_while("k_loop", again):
            yield
            builder.integer("add.u32", k_tile, k_tile, 1, comment="next K tile")
            builder.compare("lt.u32", again, k_tile, self._schedule.end_k_tile, comment="K tiles remain")

    @contextmanager
    def if_loads_remain(self) -> Iterator[None]:
        """The body runs while K tile k + PIPE_DEPTH exists."""
        builder = self.builder
        remain = builder.register("loads_remain", "load", "pred")
        k_tiles = builder.registers["k_tiles"]
        builder.compare("lt.u32", remain, self._load_k_tile, k_tiles, comment="K tiles are left to load")
        with builder.guard("refill_skipped", remain, comment="else the stage stays empty"):
            yield

    # ---- moves ------------------------------------------------------------------------------

    @property
    def _load_k_tile(self) -> Register:
        return self.builder.register("load_k_tile", "load")

    @contextmanager
    def _one_thread(self, label: str) -> Iterator[None]:
        """One thread of the CTA: the elected lane of the issuing warp."""
        builder = self.builder
        if self._issuer_alone:
            with builder.guard(label, self._elected, comment=ONE_LANE):
                yield
            return
        with (
            builder.guard(
                f"{label.removesuffix('_issued')}_warp_done", self._not_issuer, comment="warp 0 issues", negate=True
            ),
            builder.guard(label, self._elected, comment=ONE_LANE),
        ):
            yield

    def load_stage(self, walker: Walker, label: str) -> None:
        """Announce the bytes of the next K tile and copy A and B into the cursor's stage."""
        builder, registers = self.builder, self.builder.registers
        self._visit(walker, buffer=True)
        k = builder.register("load_k", "load")
        builder.integer("mul.lo.u32", k, self._load_k_tile, registers["tile_k"], comment="first k of the K tile")
        with self._one_thread(label):
            self._expect(walker)
            a, b = self.plan.a, self.plan.b
            self._load_panels(walker, a, "a_map", k, self._schedule.a_coord, 0)
            self._load_panels(walker, b, "b_map", k, self._schedule.b_coord, a.tile_bytes)
        builder.integer("add.u32", self._load_k_tile, self._load_k_tile, 1, comment="next K tile to load")
        self.advance(walker)

    def _signal(self, walker: Walker) -> Register:
        """The mbarrier on which the loads of the cursor's stage complete."""
        return walker.loaded

    def _expect(self, walker: Walker) -> None:
        self.builder.emit(
            ArriveExpect(
                address=at(walker.loaded),
                transaction_bytes=self.builder.registers["load_bytes"],
                comment="arrives, and expects A and B",
            )
        )

    def _load_panels(
        self, walker: Walker, operand: Operand, tensor_map: str, k: Register, row: Register, offset: int
    ) -> None:
        builder = self.builder
        for panel in range(operand.panels):
            now, what = k, ("a part of " if operand.shared > 1 else "") + tensor_map[0].upper()
            if operand.panels > 1:
                what += f", panel {panel},"
            if panel:
                now = builder.register("load_panel_k", "load")
                builder.integer("add.u32", now, k, panel * operand.panel_k, comment=f"first k of panel {panel}")
            builder.emit(
                TmaLoad(
                    cta_group=self.spec.cta_group,
                    box_bytes=operand.load_bytes,
                    dst=at(self._part(walker, operand), offset + panel * operand.panel_bytes),
                    tensor_map=builder.registers[tensor_map],
                    coordinates=(now, row),
                    comment=f"{what} to the stage{' in every CTA' if operand.shared > 1 else ''}",
                    barrier=at(self._signal(walker)),
                    mask=builder.registers["cluster_mask"] if operand.shared > 1 else None,
                    policy=builder.registers.get(f"{tensor_map[0]}_policy"),
                )
            )

    def _part(self, walker: Walker, operand: Operand) -> Register:
        """Where this CTA's part of the operand begins, but for the operand's offset in the stage."""
        return walker.buffer

    def wait_loaded(self, walker: Walker) -> None:
        """Wait until the loads of the cursor's stage have landed."""
        self._visit(walker, buffer=False)
        self.builder.wait("wait_loaded", walker.loaded, walker.cursor.phase, "A and B have landed")

    def issue_mma(self, walker: Walker) -> None:
        """Multiply the cursor's stage; mma_done reports when it may be refilled."""
        registers = self.builder.registers
        self._unit.multiply(walker.cursor, registers.get("k_tile", 0), at(registers["mma_done"]))

    def wait_released(self, cursor: Cursor) -> None:
        """Wait until every walker has read the stage."""
        done = self.builder.registers["mma_done"]
        self.builder.wait("wait_mma", done, cursor.phase, "the MMAs are complete")
        self.builder.emit(AdvanceCursor(cursor=cursor, comment="next phase of mma_done"))

    def advance(self, walker: Walker) -> None:
        """Go to the next stage."""
        cursor = walker.cursor
        if cursor.stage is not None or cursor.phase is not None:
            what = "phase" if cursor.stage is None else "stage"
            self.builder.emit(AdvanceCursor(cursor=cursor, comment=f"next {what} of the {cursor.name} cursor"))

    def store_tile(self) -> None:
        """The epilogue: accumulator to D, behind the barrier that all its warps meet at."""
        if self._schedule.persistent and not self._unit.single_walker:
            self._epilogue.staging_free()
        self._epilogue.store_tile()

    def _visit(self, walker: Walker, *, buffer: bool) -> None:
        """Addresses of the cursor's stage, once a visit."""
        if not self._ring:
            return
        registers, stage = self.builder.registers, walker.cursor.stage
        if buffer:
            stride = registers["stage_bytes"]
            self.builder.stage_address(walker.buffer, registers["ring"], stage, stride, "A | B of the stage")
        self.builder.stage_address(walker.loaded, registers["loaded"], stage, 8, "mbarrier of its loads")
