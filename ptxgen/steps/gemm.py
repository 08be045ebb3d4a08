"""GemmKernel: the verbs in which the steps of the ladder are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ptxgen.hardware.targets import target
from ptxgen.ir.declarations import Barrier, Cursor, Parameter, Register, SmemBuffer
from ptxgen.ir.ops import (
    AdvanceCursor,
    ArriveExpect,
    CtaBarrier,
    ElectOne,
    FenceBarrierInit,
    InitBarrier,
    LoadParameter,
    PrefetchTensorMap,
    ReadSpecial,
    Return,
    Section,
    SharedBase,
    StageAddress,
    StartCursor,
    TensorMapAddress,
    TmaLoad,
    WaitBarrier,
)
from ptxgen.ir.program import Program, Role
from ptxgen.plan import BARRIER_SLOT_BYTES, Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder, at
from ptxgen.steps.epilogue import Epilogue
from ptxgen.steps.launch import launch_text, reproduce_command
from ptxgen.steps.schedule import Schedule
from ptxgen.steps.tensor_core import TensorCore, swizzle_text

THREADS = 128
TMEM_SLOT_OFFSET = 0
_RING = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """A cursor of the K loop and the addresses of the stage that it visits."""

    cursor: Cursor
    buffer: Register
    loaded: Register


class GemmKernel:
    """Declares everything a GEMM of the ladder needs and offers its moves, one method each.

    A step calls `set_up`, takes its cursors, writes down its loops, and calls `finish`.
    """

    def __init__(self, spec: GemmSpec, *, ring: bool) -> None:
        self.spec = spec
        self.plan = spec.plan
        self._ring = ring
        builder = self.builder = Builder()
        for name in ("thread", "warp"):
            builder.register(name, "threads")
        self._elected = builder.register("elected", "threads", "pred")
        self._not_walker = builder.register("not_walker", "threads", "pred")
        self._smem = builder.register("smem", "shared memory")
        self._core = TensorCore(builder, spec)
        self._schedule = Schedule(builder, spec)
        self._epilogue = Epilogue(builder, spec, self._core, self._schedule)
        self._setup = builder.take()
        plan = self.plan
        stages = plan.pipe_depth
        self._buffers = (
            SmemBuffer(name="tmem_address", offset=TMEM_SLOT_OFFSET, nbytes=4, align=4),
            SmemBuffer(
                name="staging",
                offset=plan.staging_offset,
                nbytes=plan.staging.buffer_bytes,
                align=max(128, plan.staging.swizzle.pattern_bytes),
                stages=plan.staging.buffers,
                stage_bytes=plan.staging.buffer_bytes,
            ),
            SmemBuffer(
                name=_RING,
                offset=plan.ring_offset,
                nbytes=plan.stage_bytes,
                align=max(128, plan.a.swizzle.pattern_bytes),
                stages=stages,
                stage_bytes=plan.stage_bytes,
            ),
        )
        self._loaded_barrier = Barrier(
            name="loaded",
            offset=BARRIER_SLOT_BYTES,
            arrivals=1,
            transaction_bytes=plan.stage_bytes,
            stages=stages,
        )
        self._released_barrier = Barrier(
            name="mma_done", offset=2 * BARRIER_SLOT_BYTES, arrivals=TensorCore.release_arrivals
        )
        self._k_tiles_parameter = Parameter(name="k_tiles", kind="u32", comment="K tiles, ceil(K / tile.k), at least 1")

    # ---- set-up -----------------------------------------------------------------------------

    def set_up(self) -> None:
        """Addresses, constants, barriers, tensor memory: once per CTA."""
        builder = self.builder
        builder.emit(
            Section(comment="set-up"),
            ReadSpecial(dst=builder.registers["thread"], special="%tid.x"),
        )
        warp = builder.registers["warp"]
        builder.integer("shr.u32", warp, builder.registers["thread"], 5, comment="warp of the CTA")
        builder.compare("ne.u32", self._not_walker, warp, 0, comment="warp 0 loads, multiplies and stores")
        builder.emit(ElectOne(dst=self._elected, comment="one lane a warp issues"))
        self._name_shared_memory()
        self._name_constants()
        self._read_parameters()
        self._core.describe(builder.registers[_RING])
        with builder.guard("set_up_done", self._not_walker, comment="warp 0 sets up", negate=True):
            self._core.allocate(at(self._smem, TMEM_SLOT_OFFSET))
            with builder.guard("set_up_by_one", self._elected, comment="one thread initialises"):
                self._initialise()
        builder.emit(CtaBarrier(comment="barriers and TMEM address are there"))
        self._core.receive(at(self._smem, TMEM_SLOT_OFFSET))
        self._epilogue.set_up()

    def _name_shared_memory(self) -> None:
        builder, base = self.builder, self._smem
        builder.emit(SharedBase(dst=base, comment="control page, staging, ring"))
        per_stage = " of each stage" if self._ring else ""
        builder.smem_address("loaded", base, self._loaded_barrier, f"mbarrier{per_stage}: A and B have landed")
        builder.smem_address("mma_done", base, self._released_barrier, "mbarrier: the MMAs have read the stage")
        builder.smem_address("staging", base, self._buffers[1], "output rows on their way to D")
        what = "stages of A | B" if self._ring else "A | B"
        builder.smem_address(_RING, base, self._buffers[2], what)

    def _name_constants(self) -> None:
        builder, plan, tile = self.builder, self.plan, self.spec.tile
        if self._ring:
            builder.constant("pipe_depth", "pipeline", plan.pipe_depth, "PIPE_DEPTH")
            builder.constant("stage_bytes", "pipeline", plan.stage_bytes, "from stage to stage")
            builder.constant("stage_desc_step", "pipeline", plan.stage_bytes >> 4, "the same, in 16 bytes")
        builder.constant("load_bytes", "pipeline", plan.stage_bytes, "that the loads of A, B bring")
        builder.constant("tile_k", "pipeline", tile.k, "K elements of a stage")

    def _read_parameters(self) -> None:
        builder = self.builder
        k_tiles = builder.register("k_tiles", "pipeline")
        builder.emit(
            LoadParameter(
                dst=k_tiles,
                parameter=self._k_tiles_parameter,
                comment=self._k_tiles_parameter.comment,
            )
        )
        self._schedule.set_up()
        for parameter in self._tensor_maps():
            register = builder.register(parameter.name, "tensor maps", "b64")
            builder.emit(TensorMapAddress(dst=register, parameter=parameter, comment=parameter.comment))

    def _tensor_maps(self) -> tuple[Parameter, ...]:
        plan, spec, staging = self.plan, self.spec, self.plan.staging

        def box(name: str, shape: str, kind: str, rows: int, columns: int, swizzle: str) -> Parameter:
            comment = f"{shape} {kind}, box {columns} x {rows}, {swizzle}"
            return Parameter(name=name, kind="tensor_map", comment=comment)

        def operand(name: str, shape: str, item: Operand) -> Parameter:
            return box(name, shape, spec.operand_type, item.rows, item.panel_k, swizzle_text(item))

        span = staging.panel_span
        swizzle = "no swizzle" if span == 16 else f"{span}B swizzle"
        return (
            operand("a_map", "A[M, K]", plan.a),
            operand("b_map", "B[N, K]", plan.b),
            box("d_map", "D[M, N]", spec.output_type, staging.rows, staging.panel_columns, swizzle),
        )

    def _initialise(self) -> None:
        builder = self.builder
        registers = builder.registers
        for name in ("a_map", "b_map", "d_map"):
            builder.emit(PrefetchTensorMap(tensor_map=registers[name]))
        for barrier in (self._loaded_barrier, self._released_barrier):
            for stage in range(barrier.stages):
                builder.emit(
                    InitBarrier(
                        address=at(registers[barrier.name], 8 * stage),
                        barrier=barrier,
                        comment=f"{barrier.name}[{stage}]" if barrier.stages > 1 else barrier.name,
                    )
                )
        builder.emit(FenceBarrierInit(comment="before TMA and tcgen05 arrive on them"))

    # ---- cursors ----------------------------------------------------------------------------

    def walker_of(self, name: str, *, waits: bool) -> Walker:
        """A cursor over the stages, started before the tile loop so that it carries over."""
        builder = self.builder
        registers = builder.registers
        phase = builder.register(f"{name}_phase", name) if waits else None
        if not self._ring:
            cursor = Cursor(name=name, phase=phase)
            buffer, loaded = registers[_RING], registers["loaded"]
        else:
            cursor = Cursor(
                name=name,
                stage_count=registers["pipe_depth"],
                stage=builder.register(f"{name}_stage", name),
                phase=phase,
                wrapped=builder.register(f"{name}_wrapped", name, "pred"),
            )
            buffer = builder.register(f"{name}_buffer", name)
            loaded = builder.register(f"{name}_loaded", name)
        if self._ring or waits:
            builder.emit(StartCursor(cursor=cursor, comment=f"{name} cursor"))
        return Walker(cursor=cursor, buffer=buffer, loaded=loaded)

    def mma_cursor(self) -> Cursor:
        """The walker over the one barrier that MMAs complete on: its phase flips every K tile."""
        cursor = Cursor(name="release", phase=self.builder.register("release_phase", "mma"))
        self.builder.emit(StartCursor(cursor=cursor, comment="mma_done cursor"))
        return cursor

    # ---- loops ------------------------------------------------------------------------------

    def tiles(self) -> AbstractContextManager[None]:
        """The body runs once for every output tile of this CTA."""
        return self._schedule.tiles()

    @contextmanager
    def walker(self) -> Iterator[None]:
        """Warp 0 walks the K loop; the other warps go on and meet it before the epilogue."""
        with self.builder.guard("k_loop_done", self._not_walker, comment="the other warps wait", negate=True):
            self.builder.integer("mov.b32", self._load_k_tile, 0, comment="next K tile to load")
            yield
            if self._schedule.persistent:
                self._epilogue.staging_free()

    @contextmanager
    def first_loads(self) -> Iterator[None]:
        """The body runs for the first PIPE_DEPTH K tiles, or for all where there are fewer."""
        builder = self.builder
        count = builder.register("first_loads", "load")
        again = builder.register("more_first_loads", "load", "pred")
        builder.emit(Section(comment="fill the ring"))
        builder.integer(
            "min.u32",
            count,
            builder.registers["k_tiles"],
            builder.registers["pipe_depth"],
            comment="loads before the loop",
        )
        with builder.do_while("fill_loop", again):
            yield
            builder.compare("lt.u32", again, self._load_k_tile, count, comment="stages are empty")

    @contextmanager
    def k_loop(self) -> Iterator[None]:
        """The body runs for every K tile."""
        builder = self.builder
        k_tile = builder.register("k_tile", "mma")
        again = builder.register("more_k_tiles", "mma", "pred")
        builder.emit(Section(comment="K loop"))
        builder.integer("mov.b32", k_tile, 0, comment="K tile to multiply")
        with builder.do_while("k_loop", again):
            yield
            builder.integer("add.u32", k_tile, k_tile, 1, comment="next K tile")
            builder.compare("lt.u32", again, k_tile, builder.registers["k_tiles"], comment="K tiles remain")

    @contextmanager
    def if_loads_remain(self) -> Iterator[None]:
        """The body runs while K tile k + PIPE_DEPTH exists."""
        builder = self.builder
        remain = builder.register("loads_remain", "load", "pred")
        builder.compare(
            "lt.u32",
            remain,
            self._load_k_tile,
            builder.registers["k_tiles"],
            comment="k + PIPE_DEPTH < k_tiles",
        )
        with builder.guard("refill_skipped", remain, comment="nothing left to load"):
            yield

    # ---- moves ------------------------------------------------------------------------------

    @property
    def _load_k_tile(self) -> Register:
        return self.builder.register("load_k_tile", "load")

    def load_stage(self, walker: Walker, label: str) -> None:
        """Announce the bytes of the next K tile and copy A and B into the cursor's stage."""
        builder, plan = self.builder, self.plan
        registers = builder.registers
        self._visit(walker, buffer=True)
        k = builder.integer(
            "mul.lo.u32",
            builder.register("load_k", "load"),
            self._load_k_tile,
            registers["tile_k"],
            comment="first k of the K tile",
        )
        with builder.guard(label, self._elected, comment="one thread issues"):
            barrier = at(walker.loaded)
            builder.emit(
                ArriveExpect(
                    address=barrier,
                    transaction_bytes=registers["load_bytes"],
                    comment="bytes of A and B",
                )
            )
            offset = 0
            for operand, tensor_map, row in (
                (plan.a, "a_map", self._schedule.m_coord),
                (plan.b, "b_map", self._schedule.n_coord),
            ):
                for panel in range(operand.panels):
                    now = k
                    if panel:
                        now = builder.integer(
                            "add.u32",
                            builder.register("load_panel_k", "load"),
                            k,
                            panel * operand.panel_k,
                            comment=f"panel {panel}",
                        )
                    builder.emit(
                        TmaLoad(
                            box_bytes=operand.panel_bytes,
                            dst=at(walker.buffer, offset),
                            tensor_map=registers[tensor_map],
                            coordinates=(now, row),
                            barrier=barrier,
                        )
                    )
                    offset += operand.panel_bytes
        builder.integer("add.u32", self._load_k_tile, self._load_k_tile, 1, comment="next K tile to load")
        self.advance(walker)

    def wait_loaded(self, walker: Walker) -> None:
        """Wait until the loads of the cursor's stage have landed."""
        self._visit(walker, buffer=False)
        assert walker.cursor.phase is not None
        self._wait("wait_loaded", walker.loaded, walker.cursor.phase, "A and B have landed")

    def issue_mma(self, walker: Walker) -> None:
        """Multiply the cursor's stage; the barrier mma_done reports it."""
        builder = self.builder
        accumulate = builder.register("accumulate", "mma", "pred")
        a, b = self._core.stage_descriptors(walker.cursor)
        builder.compare(
            "ne.u32",
            accumulate,
            builder.registers["k_tile"],
            0,
            comment="the first K tile overwrites the accumulator",
        )
        with builder.guard("mma_issued", self._elected, comment="one thread issues"):
            self._core.issue(a, b, accumulate)
            self._core.release(at(builder.registers["mma_done"]))

    def wait_released(self, cursor: Cursor) -> None:
        """Wait until the MMAs have read the stage."""
        assert cursor.phase is not None
        self._wait("wait_mma", self.builder.registers["mma_done"], cursor.phase, "the MMAs are complete")
        self.builder.emit(AdvanceCursor(cursor=cursor, comment="next phase of mma_done"))

    def advance(self, walker: Walker) -> None:
        """Go to the next stage."""
        cursor = walker.cursor
        if cursor.stage is not None or cursor.phase is not None:
            self.builder.emit(AdvanceCursor(cursor=cursor, comment=f"next stage of the {cursor.name} cursor"))

    def store_tile(self) -> None:
        """The epilogue: accumulator to D."""
        self._epilogue.store_tile()

    def _visit(self, walker: Walker, *, buffer: bool) -> None:
        """Addresses of the cursor's stage, once a visit."""
        if not self._ring:
            return
        registers = self.builder.registers
        stage = walker.cursor.stage
        assert stage is not None
        if buffer:
            self.builder.emit(
                StageAddress(
                    dst=walker.buffer,
                    base=registers[_RING],
                    stage=stage,
                    stride=registers["stage_bytes"],
                    comment="A | B of the stage",
                )
            )
        self.builder.emit(
            StageAddress(
                dst=walker.loaded,
                base=registers["loaded"],
                stage=stage,
                stride=8,
                comment="its mbarrier",
            )
        )

    def _wait(self, label: str, barrier: Register, phase: Register, comment: str) -> None:
        done = self.builder.register("phase_done", "mma", "pred")
        self.builder.emit(WaitBarrier(label=label, done=done, address=at(barrier), parity=phase, comment=comment))

    # ---- the whole --------------------------------------------------------------------------

    def finish(self) -> Program:
        """Drain the stores, free tensor memory, and freeze everything into a Program."""
        builder, spec, plan = self.builder, self.spec, self.plan
        body = builder.take()
        builder.emit(Section(comment="end"))
        with builder.guard("all_done", self._not_walker, comment="warp 0 ends", negate=True):
            self._epilogue.drain()
            self._core.free()
        builder.emit(Return())
        chip = target(spec.target)
        return Program(
            name=f"gemm_step{spec.step}",
            target=spec.target,
            ptx_version=chip.ptx_version,
            command=reproduce_command(spec),
            spec_hash=spec.hash,
            launch=launch_text(spec),
            threads=THREADS,
            smem_bytes=plan.smem_bytes,
            smem_limit_bytes=chip.smem_optin_bytes,
            tmem_columns=chip.tmem_columns,
            parameters=(*self._tensor_maps(), self._k_tiles_parameter, *self._schedule.parameters),
            buffers=self._buffers,
            barriers=(self._loaded_barrier, self._released_barrier),
            named_barriers=(self._epilogue.barrier,),
            registers=tuple(builder.registers.values()),
            setup=(),
            roles=(Role(name="all", first_warp=0, warps=THREADS // 32, body=body),),
            teardown=builder.take(),
        )
