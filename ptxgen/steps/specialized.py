"""SpecializedKernel: roles of their own warps, joined by rings of full and empty stages.

A producer loads. On sm_90a consumer warpgroups multiply and store, and setmaxnreg moves registers
from the producer to them. On sm_100a one warp multiplies into tensor memory and a warpgroup stores,
so a second accumulator lets the one work on while the other stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Barrier, Cursor, Register
from ptxgen.ir.ops import (
    AdvanceCursor,
    Arrive,
    LaunchDependents,
    Return,
    Section,
    SetMaxRegisters,
    StartCursor,
    WaitForGrids,
    WgmmaWait,
)
from ptxgen.ir.program import Role
from ptxgen.plan import BARRIER_SLOT_BYTES
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import ONE_LANE, at
from ptxgen.steps.gemm import GemmKernel, Walker
from ptxgen.steps.tcgen05 import Tcgen05
from ptxgen.steps.wgmma import Wgmma

STORER_THREADS = 128


class SpecializedKernel(GemmKernel):
    """What the roles of both targets share: the producer and the release of stages."""

    producer_warps: tuple[int, int]
    """First warp and number of warps of the producer; its first warp loads."""

    producer_registers: int | None = None

    roles_end = True
    """A role's warps exit with it; else they meet at the end of the kernel."""

    def __init__(self, spec: GemmSpec) -> None:
        self.released_stages = spec.pipe_depth
        super().__init__(spec, ring=True)

    @contextmanager
    def producer(self) -> Iterator[None]:
        """One warp, in which one thread issues the loads."""
        with self._role("producer", *self.producer_warps, self.producer_registers), self._loading_warp():
            self._issuer_alone = True
            yield
            self._issuer_alone = False

    @contextmanager
    def _loading_warp(self) -> Iterator[None]:
        yield

    @contextmanager
    def _role(self, name: str, first_warp: int, warps: int, registers: int | None) -> Iterator[None]:
        builder = self.builder
        if not self._roles:
            self._setup = builder.take()
        skip: Register | None = builder.register(f"not_{name}", "threads", "pred")
        opcode, bound = ("ge.u32", warps) if first_warp == 0 else ("lt.u32", first_warp)
        title = f"{name}: warps {first_warp} to {first_warp + warps - 1}"
        if warps == 1:
            opcode, bound, title = "ne.u32", first_warp, f"{name}: warp {first_warp}"
        if self.roles_end and warps + sum(role.warps for role in self._roles) == self.spec.threads // 32:
            skip, title = None, f"{title}; the others have ended"
        with builder.block() as test:
            builder.emit(Section(comment=title))
            warp = self._warp
            if warps > 1 and 0 < first_warp < self.spec.threads // 32 - warps:
                opcode, bound = "ge.u32", warps
                warp = builder.register(f"{name}_warp", "threads")
                comment = f"warp of the {name}s; a large number in warps before them"
                builder.integer("sub.u32", warp, self._warp, first_warp, comment=comment)
            if skip:
                builder.compare(opcode, skip, warp, bound, comment=f"not a {name}")
        with builder.block() as body:
            if registers is not None:
                grow = name in ("consumer", "storer")
                whom = "consumers" if self.spec.target == "sm_90a" else "storers"
                what = "take registers" if grow else f"give up registers for the {whom}"
                builder.emit(SetMaxRegisters(registers=registers, grow=grow, comment=what))
            builder.scope = f"{name}_"
            yield
            builder.scope = ""
            if self.roles_end:
                self._end_role()
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

    def _end_role(self) -> None:
        """The last thing that a role's warps do."""
        self.builder.emit(Return())

    def _end(self) -> None:
        """Roles end one by one."""

    def wait_for_predecessor(self) -> None:
        """Set-up touches no matrix, so it may overlap the kernel before, which may write A and B or read D."""
        if self.spec.dependent_launch:
            self.builder.emit(WaitForGrids(comment="the kernel before is over: A and B are there, D may be written"))

    def let_successor_start(self) -> None:
        """All loads are issued: the kernel behind may set itself up on the SMs that become free."""
        if self.spec.dependent_launch:
            self.builder.emit(LaunchDependents(comment="the kernel behind may start"))

    @contextmanager
    def load_loop(self) -> Iterator[None]:
        """The body runs for every K tile of the producer."""
        builder = self.builder
        again = builder.register("more_loads", "load", "pred")
        builder.integer("mov.b32", self._load_k_tile, self._schedule.first_k_tile, comment="next K tile to load")
        with builder.do_while("load_loop", again):
            yield
            end = self._schedule.end_k_tile
            builder.compare("lt.u32", again, self._load_k_tile, end, comment="K tiles remain")

    def wait_free(self, walker: Walker, label: str = "wait_free") -> None:
        """Wait until the cursor's stage is released."""
        self.builder.wait(label, self._released_of(walker.cursor), walker.cursor.phase, "the stage is free")

    def wait_all_released(self, walker: Walker) -> None:
        """After the last tile: no other CTA's report on a stage is still on its way to this one."""
        builder = self.builder
        left = builder.register("stages_left", "load")
        again = builder.register("more_stages", "load", "pred")
        builder.emit(
            Section(comment="this CTA ends when no report on a stage is still on its way to it from the other")
        )
        builder.integer("mov.b32", left, builder.registers["pipe_depth"], comment="stages to see released")
        with builder.do_while("tail_loop", again):
            self.wait_free(walker, "wait_tail")
            self.advance(walker)
            builder.integer("sub.u32", left, left, 1, comment="one stage less")
            builder.compare("ne.u32", again, left, 0, comment="stages remain")

    def _released_of(self, cursor: Cursor) -> Register:
        address = self.builder.register(f"{cursor.name}_released", cursor.name)
        released = self.builder.registers["released"]
        self.builder.stage_address(address, released, cursor.stage, 8, "mbarrier of its release")
        return address


class WarpgroupKernel(SpecializedKernel):
    """sm_90a: consumer warpgroups multiply and store."""

    producer_warps = (0, 4)
    producer_registers = 24
    consumer_registers = 240
    entry_registers = 168
    """An SM's 65,536 registers for three warpgroups; for two, enough that the consumer's can grow."""

    def __init__(self, spec: GemmSpec) -> None:
        super().__init__(spec)
        assert isinstance(self._unit, Wgmma)
        self._wgmma: Wgmma = self._unit

    def _issuer_does(self) -> str:
        return "sets up and loads"

    @contextmanager
    def _loading_warp(self) -> Iterator[None]:
        with self.builder.guard("idle", self._not_issuer, comment="one warp loads, the others end", negate=True):
            yield

    @contextmanager
    def consumers(self) -> Iterator[None]:
        """The other warpgroups; each takes its part of the tile and of staging."""
        with self._role("consumer", 4, 4 * self.spec.consumers, self.consumer_registers):
            self._epilogue.set_up()
            self._wgmma.take_rows(self.builder.registers.get("consumer_group"))
            yield
            self._epilogue.drain()

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
        self._wgmma.issue(walker.cursor, self.builder.registers["k_tile"], self._schedule.first_k_tile)

    def release_previous(self, cursor: Cursor) -> None:
        """One batch stays in flight; the stage of the one before it is free."""
        builder = self.builder
        builder.emit(WgmmaWait(pending=1, comment="the batch before is complete"))
        accumulate = builder.registers["accumulate"]
        with builder.guard("nothing_to_release", accumulate, comment="not in the first K tile"):
            self._release(cursor, "stage_released")

    def release_last(self, cursor: Cursor) -> None:
        """The last batch is complete: the accumulator is there and its stage is free."""
        self.builder.emit(WgmmaWait(pending=0, comment="the accumulator is complete"))
        self._release(cursor, "last_stage_released")

    def _release(self, cursor: Cursor, label: str) -> None:
        builder = self.builder
        arrivals = self._release_arrivals(cursor)
        with builder.guard(label, self._elected, comment=ONE_LANE):
            builder.emit(*arrivals)
        builder.emit(AdvanceCursor(cursor=cursor, comment="next stage to release"))

    def _release_arrivals(self, cursor: Cursor) -> list[Arrive]:
        """How one lane says that its warp has read the cursor's stage."""
        return [Arrive(address=at(self._released_of(cursor)), comment="this warp has read the stage")]


class TmemKernel(SpecializedKernel):
    """sm_100a: one warp multiplies, a warpgroup stores; they hand the accumulators to and fro."""

    storer_registers: int | None = None

    def __init__(self, spec: GemmSpec) -> None:
        self._storer_warps = 4 * spec.consumers
        self.producer_warps = (self._storer_warps + spec.consumers, 1)
        stages = spec.accumulators * spec.consumers
        self._full = Barrier(name="acc_full", offset=3 * BARRIER_SLOT_BYTES, arrivals=1, stages=stages)
        readers = spec.cta_group * STORER_THREADS
        self._empty = Barrier(name="acc_empty", offset=4 * BARRIER_SLOT_BYTES, arrivals=readers, stages=stages)
        super().__init__(spec)
        assert isinstance(self._unit, Tcgen05)
        self._tcgen05: Tcgen05 = self._unit
        self._group: Register | None = None

    def _barriers(self) -> tuple[Barrier, ...]:
        return (*super()._barriers(), self._full, self._empty)

    def _name_shared_memory(self) -> None:
        super()._name_shared_memory()
        builder = self.builder
        of = "mbarrier of each accumulator: it" if self._full.stages > 1 else "mbarrier: the accumulator"
        builder.smem_address("acc_full", self._smem, self._full, f"{of} is complete")
        builder.smem_address("acc_empty", self._smem, self._empty, f"{of} has been read")

    def _name_constants(self) -> None:
        super()._name_constants()
        if self.spec.accumulators > 1:
            self.builder.constant("acc_count", "pipeline", self.spec.accumulators, "accumulators")

    def _issuer_does(self) -> str:
        alone = self.spec.consumers == 1 and self.spec.epilogue.store == "tma"
        return "sets up, stores and frees TMEM" if alone else "sets up and frees TMEM"

    def _arrives(self, barrier: Barrier) -> str:
        if barrier.name == "acc_full":
            return "the commit of the tile's MMAs arrives"
        if barrier.name == "acc_empty":
            both = " of both CTAs" if self.spec.cta_group == 2 else ""
            return f"each of its storing threads{both} arrives"
        return super()._arrives(barrier)

    @contextmanager
    def multiplier(self) -> Iterator[None]:
        """One warp, in which one thread issues the MMAs."""
        with self._role("multiplier", self._storer_warps, self.spec.consumers, None):
            if self.spec.consumers > 1:
                self._group = self.builder.registers["multiplier_warp"]
                self._tcgen05.take_rows(self._group)
            yield

    @contextmanager
    def storers(self) -> Iterator[None]:
        """A warpgroup, whose warps read their own lanes of tensor memory; warp 0 stores and ends."""
        with self._role("storer", 0, self._storer_warps, self.storer_registers):
            self._epilogue.set_up()
            self._group = self.builder.registers.get("consumer_group")
            yield
            self._end_storers()

    def _end_storers(self) -> None:
        with self.builder.guard("ended", self._not_issuer, comment="warp 0 waits for D and frees", negate=True):
            self._epilogue.drain()
            self._unit.accumulator_returned("deallocation")
            self._unit.free()

    def accumulator_cursor(self, name: str, *, start_phase: int = 0) -> Cursor:
        """A walker over the accumulators, one step a tile."""
        builder = self.builder
        several = self.spec.accumulators > 1
        if self._group:
            self._take_accumulator(name, self._group)
        cursor = Cursor(
            name=name,
            stage_count=builder.registers["acc_count"] if several else None,
            stage=builder.register(f"{name}_stage", name) if several else None,
            phase=builder.register(f"{name}_phase", name),
            wrapped=builder.register(f"{name}_wrapped", name, "pred") if several else None,
            start_phase=start_phase,
        )
        builder.emit(StartCursor(cursor=cursor, comment=f"{name} cursor"))
        return cursor

    def _take_accumulator(self, name: str, group: Register) -> None:
        """One of two consumers: its accumulator and its mbarriers, the same for every tile."""
        builder, registers = self.builder, self.builder.registers
        tmem = builder.register(f"{name}_tmem", name)
        builder.integer(
            "mad.lo.u32", tmem, group, self.spec.tile.n, self._tcgen05.tmem, comment="columns of its accumulator"
        )
        for barrier in ("acc_full", "acc_empty"):
            address = builder.register(f"{name}_{barrier.removeprefix('acc_')}", name)
            builder.stage_address(address, registers[barrier], group, 8, f"its {barrier}")

    def wait_accumulator_empty(self, cursor: Cursor) -> None:
        """Wait until the storers have read the accumulator of two tiles ago, or of the last one."""
        self._wait_accumulator("wait_empty", "acc_empty", cursor, "the accumulator may be overwritten")
        self._unit.accumulator_returned("the tile's MMAs")

    def wait_accumulator_full(self, cursor: Cursor) -> None:
        """Wait until the tile's MMAs are complete."""
        self._wait_accumulator("wait_full", "acc_full", cursor, "the accumulator is complete")

    def multiply(self, walker: Walker, cursor: Cursor) -> None:
        """Multiply the cursor's stage; its release reports the read operands."""
        registers = self.builder.registers
        released = at(self._released_of(walker.cursor))
        first = self._schedule.first_k_tile
        self._tcgen05.multiply(walker.cursor, registers["k_tile"], released, self._accumulator_of(cursor), first)

    def report_accumulator(self, cursor: Cursor) -> None:
        """acc_full completes with the tile's MMAs."""
        builder = self.builder
        full = self._barrier_of("acc_full", cursor)
        with builder.guard("tile_reported", self._elected, comment=ONE_LANE):
            self._tcgen05.commit(at(full), "arrives when the tile's MMAs are complete")
        self._next_accumulator(cursor, "acc_empty")

    def store_accumulator(self, cursor: Cursor) -> None:
        """The epilogue; the accumulator is handed back as soon as it is in registers or staging."""
        if self._schedule.persistent:
            self._epilogue.staging_free()
        self._epilogue.take_accumulator(self._accumulator_of(cursor), self._returned_to(cursor))
        self._store_tile()
        self._next_accumulator(cursor, "acc_full")

    def _store_tile(self) -> None:
        self._epilogue.store_tile()

    def _next_accumulator(self, cursor: Cursor, waits: str) -> None:
        what = f"next phase of {waits}" if cursor.stage is None else "next accumulator"
        self.builder.emit(AdvanceCursor(cursor=cursor, comment=what))

    def _returned_to(self, cursor: Cursor) -> Register:
        """The mbarrier through which storers hand the accumulator back."""
        return self._barrier_of("acc_empty", cursor)

    def _wait_accumulator(self, label: str, barrier: str, cursor: Cursor, comment: str) -> None:
        self.builder.wait(label, self._barrier_of(barrier, cursor), cursor.phase, comment)

    def _barrier_of(self, barrier: str, cursor: Cursor) -> Register:
        registers = self.builder.registers
        if self._group:
            return registers[f"{cursor.name}_{barrier.removeprefix('acc_')}"]
        if cursor.stage is None:
            return registers[barrier]
        address = self.builder.register(f"{cursor.name}_{barrier.removeprefix('acc_')}", cursor.name)
        self.builder.stage_address(address, registers[barrier], cursor.stage, 8, f"its {barrier}")
        return address

    def _accumulator_of(self, cursor: Cursor) -> Register:
        if self._group:
            return self.builder.registers[f"{cursor.name}_tmem"]
        if cursor.stage is None:
            return self._tcgen05.tmem
        address = self.builder.register(f"{cursor.name}_tmem", cursor.name)
        self.builder.integer(
            "mad.lo.u32",
            address,
            cursor.stage,
            self.spec.tile.n,
            self._tcgen05.tmem,
            comment="columns of the accumulator",
        )
        return address
