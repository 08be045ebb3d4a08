"""GemmKernel: the verbs in which the steps of the ladder are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ptxgen.hardware.targets import target
from ptxgen.ir.declarations import Barrier, Cursor, Parameter, Register, SmemBuffer
from ptxgen.ir.liveness import without_unused
from ptxgen.ir.ops import (
    AdvanceCursor,
    ArriveExpect,
    CachePolicy,
    CtaBarrier,
    ElectOne,
    FenceBarrierInit,
    InitBarrier,
    LoadParameter,
    Op,
    PrefetchTensorMap,
    ReadSpecial,
    Return,
    Section,
    SharedBase,
    StageAddress,
    StartCursor,
    TensorMapAddress,
    TmaLoad,
)
from ptxgen.ir.program import Program, Role
from ptxgen.plan import BARRIER_SLOT_BYTES, Operand
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder, at
from ptxgen.steps.epilogue import Epilogue
from ptxgen.steps.launch import launch_text, reproduce_command
from ptxgen.steps.matrix_unit import matrix_unit, swizzle_text
from ptxgen.steps.schedule import Schedule

TMEM_SLOT_OFFSET = 0
_RING = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """A cursor over the stages and the addresses of the stage that it visits."""

    cursor: Cursor
    buffer: Register
    loaded: Register


class GemmKernel:
    """Declares everything a GEMM of the ladder needs and offers its moves, one method each.

    A step calls `set_up`, takes its cursors, writes down its loops, and calls `finish`.
    """

    entry_registers: int | None = None

    resident_ctas: int | None = None

    epilogue_kind: type[Epilogue] = Epilogue

    ptx_version = (0, 0)
    """The lowest that has the kernel's instructions, where the target's does not."""

    released_stages = 1
    """mbarriers that report released stages: one, or one of each stage."""

    def __init__(self, spec: GemmSpec, *, ring: bool) -> None:
        self.spec = spec
        self.plan = plan = spec.plan
        self._ring = ring
        builder = self.builder = Builder()
        for name in ("thread", "warp"):
            builder.register(name, "threads")
        self._elected = builder.register("elected", "threads", "pred")
        self._not_issuer = builder.register("not_issuer", "threads", "pred")
        self._smem = builder.register("smem", "shared memory")
        self._unit = matrix_unit(builder, spec)
        self._schedule = Schedule(builder, spec)
        self._epilogue = self.epilogue_kind(builder, spec, self._unit, self._schedule)
        self._issuer_alone = self._unit.single_walker
        self._roles: list[Role] = []
        self._setup: tuple[Op, ...] = ()
        self._staging_buffer = SmemBuffer(
            name="staging",
            offset=plan.staging_offset,
            nbytes=plan.staging.buffer_bytes,
            align=max(128, plan.staging.swizzle.pattern_bytes),
            stages=plan.consumers * plan.staging.buffers,
            stage_bytes=plan.staging.buffer_bytes,
        )
        self._ring_buffer = SmemBuffer(
            name=_RING,
            offset=plan.ring_offset,
            nbytes=plan.stage_bytes,
            align=max(128, plan.a.swizzle.pattern_bytes),
            stages=plan.pipe_depth,
            stage_bytes=plan.stage_bytes,
        )
        self._loaded_barrier = Barrier(
            name="loaded",
            offset=BARRIER_SLOT_BYTES,
            arrivals=1,
            transaction_bytes=spec.cta_group * plan.stage_bytes,
            stages=plan.pipe_depth,
        )
        self._released_barrier = Barrier(
            name="released" if self.released_stages > 1 else "mma_done",
            offset=2 * BARRIER_SLOT_BYTES,
            arrivals=self._unit.release_arrivals,
            stages=self.released_stages,
        )

    # ---- set-up -----------------------------------------------------------------------------

    def set_up(self) -> None:
        """Addresses, constants, barriers, tensor memory: once per CTA."""
        builder = self.builder
        builder.emit(
            Section(comment="set-up"),
            ReadSpecial(dst=builder.registers["thread"], special="%tid.x", comment="thread of the CTA"),
        )
        warp = builder.registers["warp"]
        builder.integer("shr.u32", warp, builder.registers["thread"], 5, comment="warp of the CTA")
        builder.compare("ne.u32", self._not_issuer, warp, 0, comment=f"warp 0 {self._issuer_does()}")
        builder.emit(ElectOne(dst=self._elected, comment="the lane that issues for its warp"))
        self._name_shared_memory()
        self._name_constants()
        self._read_parameters()
        self._unit.describe(builder.registers[_RING])
        self._join_cluster()
        with builder.guard("set_up_done", self._not_issuer, comment="warp 0 sets up for all", negate=True):
            self._unit.allocate(at(self._smem, TMEM_SLOT_OFFSET))
            with builder.guard("barriers_initialised", self._elected, comment=ONE_LANE):
                self._initialise()
        has_tmem = " and the TMEM address" if self._unit.tmem_columns else ""
        self._meet(f"the mbarriers{has_tmem} are there")
        self._unit.receive(at(self._smem, TMEM_SLOT_OFFSET))

    def _issuer_does(self) -> str:
        """What warp 0 does that the other warps do not, besides setting up."""
        if self.spec.load == "threads":
            return "multiplies"
        return "loads, multiplies and stores" if self._unit.single_walker else "issues loads and stores"

    def _join_cluster(self) -> None:
        """Before tensor memory is allocated: CTAs that share it must all have started."""

    def _meet(self, comment: str) -> None:
        """All threads that share what was set up."""
        self.builder.emit(CtaBarrier(comment=comment))

    def _name_shared_memory(self) -> None:
        builder, base = self.builder, self._smem
        stages_output = self.spec.epilogue.store == "tma"
        builder.emit(
            SharedBase(
                dst=base,
                comment=f"control page, {'staging, ' if stages_output else ''}{'ring' if self._ring else 'A and B'}",
            )
        )
        per_stage = " of each stage" if self._ring else ""
        if self.spec.load == "tma":
            builder.smem_address("loaded", base, self._loaded_barrier, f"mbarrier{per_stage}: A and B have landed")
        released = self._released_barrier
        what = "mbarrier of each stage: it may be refilled"
        if released.stages == 1:
            what = "mbarrier: the MMAs have read the stage"
        builder.smem_address(released.name, base, released, what)
        if stages_output:
            builder.smem_address("staging", base, self._staging_buffer, "output rows on their way to D")
        builder.smem_address(_RING, base, self._ring_buffer, "stages of A | B" if self._ring else "A | B")

    def _name_constants(self) -> None:
        builder, plan, tile = self.builder, self.plan, self.spec.tile
        if self._ring:
            builder.constant("pipe_depth", "pipeline", plan.pipe_depth, "PIPE_DEPTH")
            builder.constant("stage_bytes", "pipeline", plan.stage_bytes, "bytes from stage to stage")
            builder.constant(
                "stage_desc_step", "pipeline", plan.stage_bytes >> 4, "the same in the descriptors' units of 16 bytes"
            )
        if self.spec.load == "tma":
            loaded = self._loaded_barrier.transaction_bytes
            both = ", of both CTAs" if self.spec.cta_group == 2 else ""
            builder.constant("load_bytes", "pipeline", loaded, f"bytes of a stage of A and B{both}")
        builder.constant("tile_k", "pipeline", tile.k, "K elements of a stage")
        if self.spec.suspend_ns is not None:
            builder.constant("suspend_ns", "pipeline", self.spec.suspend_ns, "sleep between looks at an mbarrier")
        for name in ("a", "b"):
            priority = getattr(self.spec, f"{name}_cache")
            if priority != "evict_normal":
                policy = builder.register(f"{name}_policy", "pipeline", "b64")
                comment = f"what L2 does with {name.upper()}"
                builder.emit(CachePolicy(dst=policy, priority=priority, comment=comment))

    def _read_parameters(self) -> None:
        builder = self.builder
        for parameter in self._counts():
            register = builder.register(parameter.name, "pipeline")
            builder.emit(LoadParameter(dst=register, parameter=parameter, comment=parameter.comment))
        self._schedule.set_up()
        for tensor_map in self._tensor_maps():
            register = builder.register(tensor_map.name, "tensor maps", "b64")
            builder.emit(TensorMapAddress(dst=register, parameter=tensor_map, comment=tensor_map.comment))
        for parameter in self._matrices():
            kind = "b64" if parameter.kind == "u64" else "b32"
            register = builder.register(parameter.name, "matrices", kind)
            builder.emit(LoadParameter(dst=register, parameter=parameter, comment=parameter.comment))

    def _tensor_maps(self) -> tuple[Parameter, ...]:
        plan, spec = self.plan, self.spec

        def tensor_map(name: str, shape: str, kind: str, box: str, swizzle: str) -> Parameter:
            return Parameter(name=name, kind="tensor_map", comment=f"{shape} {kind}, box {box}, {swizzle}")

        def operand(name: str, shape: str, item: Operand) -> Parameter:
            box = f"{item.panel_k} x {item.load_rows}"
            return tensor_map(name, shape, spec.operand_type, box, swizzle_text(item))

        span = plan.staging.panel_span
        swizzle = "no swizzle" if span == 16 else f"{span}B swizzle"
        box = f"{plan.staging.panel_columns} x {plan.staging.rows}"
        return (
            operand("a_map", "A[M, K]", plan.a),
            operand("b_map", "B[N, K]", plan.b),
            tensor_map("d_map", "D[M, N]", spec.output_type, box, swizzle),
        )

    def _initialise(self) -> None:
        builder = self.builder
        for parameter in self._tensor_maps():
            matrix = parameter.name[0].upper()
            builder.emit(
                PrefetchTensorMap(
                    tensor_map=builder.registers[parameter.name], comment=f"{matrix}'s map, before its first use"
                )
            )
        for barrier in self._barriers():
            for stage in range(barrier.stages):
                name = f"{barrier.name}[{stage}]" if barrier.stages > 1 else barrier.name
                builder.emit(
                    InitBarrier(
                        address=at(builder.registers[barrier.name], 8 * stage),
                        barrier=barrier,
                        comment=f"{name}: {self._arrives(barrier)}",
                    )
                )
        builder.emit(FenceBarrierInit(comment="initialised before the asynchronous units use them"))

    def _arrives(self, barrier: Barrier) -> str:
        """Whose arrivals complete a phase."""
        return "the loading thread arrives" if barrier.name == "loaded" else self._unit.release_text

    def _barriers(self) -> tuple[Barrier, ...]:
        return (self._loaded_barrier, self._released_barrier)

    def _counts(self) -> tuple[Parameter, ...]:
        """Parameters that count K tiles."""
        return (Parameter(name="k_tiles", kind="u32", comment="K tiles, ceil(K / tile.k), at least 1"),)

    def _parameters(self) -> tuple[Parameter, ...]:
        return (*self._tensor_maps(), *self._counts(), *self._schedule.parameters, *self._matrices())

    def _matrices(self) -> tuple[Parameter, ...]:
        """Pointers, pitches and sizes, for threads that load or store themselves."""
        return ()

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
            buffer, loaded = registers[_RING], registers["loaded"]
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
        assert walker.cursor.phase is not None
        self.builder.wait("wait_loaded", walker.loaded, walker.cursor.phase, "A and B have landed")

    def issue_mma(self, walker: Walker) -> None:
        """Multiply the cursor's stage; mma_done reports when it may be refilled."""
        registers = self.builder.registers
        self._unit.multiply(walker.cursor, registers.get("k_tile", 0), at(registers["mma_done"]))

    def wait_released(self, cursor: Cursor) -> None:
        """Wait until every walker has read the stage."""
        assert cursor.phase is not None
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
        registers = self.builder.registers
        if not self._ring:
            return
        if buffer:
            stride = registers["stage_bytes"]
            self._stage_address(walker.buffer, registers[_RING], walker.cursor, stride, "A | B of the stage")
        self._stage_address(walker.loaded, registers["loaded"], walker.cursor, 8, "mbarrier of its loads")

    def _stage_address(
        self, dst: Register, base: Register, cursor: Cursor, stride: Register | int, comment: str
    ) -> None:
        assert cursor.stage is not None
        self.builder.emit(StageAddress(dst=dst, base=base, stage=cursor.stage, stride=stride, comment=comment))

    # ---- the whole --------------------------------------------------------------------------

    def finish(self) -> Program:
        """Drain the stores, free tensor memory, and freeze everything into a Program."""
        builder, spec = self.builder, self.spec
        warps = spec.threads // 32
        roles = tuple(self._roles)
        if not roles:
            roles = (Role(name="all", first_warp=0, warps=warps, body=builder.take()),)
            builder.emit(Section(comment="end"))
            ends = ["waits for D"] * (spec.epilogue.store == "tma") + ["frees"] * bool(self._unit.tmem_columns)
            with builder.guard("all_done", self._not_issuer, comment=f"warp 0 {' and '.join(ends)}", negate=True):
                if spec.epilogue.store == "tma":
                    self._epilogue.drain()
                self._unit.free()
            builder.emit(Return())
        self._end()
        chip = target(spec.target)
        whole = Program(
            name=f"gemm_step{spec.step}",
            target=spec.target,
            ptx_version=max(chip.ptx_version, self.ptx_version),
            command=reproduce_command(spec),
            spec_hash=spec.hash,
            launch=launch_text(spec),
            threads=spec.threads,
            cluster_ctas=spec.cluster_ctas,
            entry_registers=self.entry_registers,
            smem_bytes=self.plan.smem_bytes,
            smem_limit_bytes=chip.smem_optin_bytes,
            tmem_columns=chip.tmem_columns,
            parameters=self._parameters(),
            buffers=self._buffers(),
            barriers=self._barriers(),
            named_barriers=self._epilogue.barriers,
            registers=tuple(builder.registers.values()),
            setup=self._setup,
            roles=roles,
            teardown=builder.take(),
            resident_ctas=self.resident_ctas,
        )
        return without_unused(whole)

    def _end(self) -> None:
        """What specialized roles do together at last, if they do not end one by one."""

    def _buffers(self) -> tuple[SmemBuffer, ...]:
        slot = SmemBuffer(name="tmem_address", offset=TMEM_SLOT_OFFSET, nbytes=4, align=4)
        staging = [self._staging_buffer] if self.spec.epilogue.store == "tma" else []
        return (*([slot] if self._unit.tmem_columns else []), *staging, self._ring_buffer)
