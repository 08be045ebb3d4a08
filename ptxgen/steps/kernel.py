"""Kernel: what every kernel of the ladder declares, sets up once per CTA, and is made of."""

from __future__ import annotations

from ptxgen.hardware.targets import target
from ptxgen.ir.declarations import Barrier, Parameter, SmemBuffer
from ptxgen.ir.liveness import without_unused
from ptxgen.ir.ops import (
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
    TensorMapAddress,
)
from ptxgen.ir.program import Program, Role
from ptxgen.plan import BARRIER_SLOT_BYTES
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, Builder, at
from ptxgen.steps.epilogue import Epilogue
from ptxgen.steps.launch import launch_text, reproduce_command
from ptxgen.steps.matrix_unit import matrix_unit, swizzle_text
from ptxgen.steps.schedule import Schedule

TMEM_SLOT_OFFSET = 0


class Kernel:
    """Declarations, set-up and end; what happens in between is written in the verbs of GemmKernel.

    Subclasses say which mbarriers, buffers, parameters and constants there are besides.
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
        self._thread = builder.register("thread", "threads")
        self._warp = builder.register("warp", "threads")
        self._elected = builder.register("elected", "threads", "pred")
        self._not_issuer = builder.register("not_issuer", "threads", "pred")
        self._smem = builder.register("smem", "shared memory")
        self._unit = matrix_unit(builder, spec)
        self._schedule = Schedule(builder, spec)
        self._epilogue = self.epilogue_kind(builder, spec, self._unit, self._schedule)
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
            name="ring",
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
            ReadSpecial(dst=self._thread, special="%tid.x", comment="thread of the CTA"),
        )
        builder.integer("shr.u32", self._warp, self._thread, 5, comment="warp of the CTA")
        builder.compare("ne.u32", self._not_issuer, self._warp, 0, comment=f"warp 0 {self._issuer_does()}")
        builder.emit(ElectOne(dst=self._elected, comment="the lane that issues for its warp"))
        self._name_shared_memory()
        self._name_constants()
        self._read_parameters()
        self._unit.describe(builder.registers["ring"])
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
        several = released.stages > 1
        what = "mbarrier of each stage: it may be refilled" if several else "mbarrier: the MMAs have read the stage"
        builder.smem_address(released.name, base, released, what)
        if stages_output:
            builder.smem_address("staging", base, self._staging_buffer, "output rows on their way to D")
        builder.smem_address("ring", base, self._ring_buffer, "stages of A | B" if self._ring else "A | B")

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

        def tensor_map(name: str, matrix: str, columns: int, rows: int, span: int) -> Parameter:
            comment = f"{matrix}, box {columns} x {rows}, {swizzle_text(span)}"
            return Parameter(name=name, kind="tensor_map", comment=comment)

        a, b, d = plan.a, plan.b, plan.staging
        return (
            tensor_map("a_map", f"A[M, K] {spec.operand_type}", a.panel_k, a.load_rows, a.swizzle.span_bytes),
            tensor_map("b_map", f"B[N, K] {spec.operand_type}", b.panel_k, b.load_rows, b.swizzle.span_bytes),
            tensor_map("d_map", f"D[M, N] {spec.output_type}", d.panel_columns, d.rows, d.panel_span),
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

    # ---- the whole --------------------------------------------------------------------------

    def finish(self) -> Program:
        """End the kernel, and freeze everything into a Program."""
        builder, spec = self.builder, self.spec
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
            roles=tuple(self._roles),
            teardown=builder.take(),
            resident_ctas=self.resident_ctas,
        )
        return without_unused(whole)

    def _end(self) -> None:
        """All warps are one role; warp 0 drains the stores and frees tensor memory."""
        builder, spec = self.builder, self.spec
        self._roles.append(Role(name="all", first_warp=0, warps=spec.threads // 32, body=builder.take()))
        builder.emit(Section(comment="end"))
        ends = ["waits for D"] * (spec.epilogue.store == "tma") + ["frees"] * bool(self._unit.tmem_columns)
        with builder.guard("all_done", self._not_issuer, comment=f"warp 0 {' and '.join(ends)}", negate=True):
            if spec.epilogue.store == "tma":
                self._epilogue.drain()
            self._unit.free()
        builder.emit(Return())

    def _buffers(self) -> tuple[SmemBuffer, ...]:
        slot = SmemBuffer(name="tmem_address", offset=TMEM_SLOT_OFFSET, nbytes=4, align=4)
        staging = [self._staging_buffer] if self.spec.epilogue.store == "tma" else []
        return (*([slot] if self._unit.tmem_columns else []), *staging, self._ring_buffer)
