"""Step 10's kernel on sm_100a: a pair that returns accumulators early, and choices beyond the tutorial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Barrier, Parameter, SmemBuffer
from ptxgen.ir.ops import Section
from ptxgen.spec import GemmSpec
from ptxgen.steps.builder import Builder
from ptxgen.steps.claims import TileClaims
from ptxgen.steps.epilogue import Epilogue
from ptxgen.steps.matrix_unit import MatrixUnit
from ptxgen.steps.pair import PairKernel
from ptxgen.steps.partials import PARAMETERS, Slice, SlicePartials
from ptxgen.steps.schedule import Schedule
from ptxgen.steps.staging import GROUP

_DRIVER_REGISTERS = 56
_REGISTERS = {1: (128, 200), 2: (168, 224)}
"""Registers a thread starts with, and those of a storer, by consumers: two and three warpgroups' sums agree."""


_WIDE_STORES = (8, 8)
"""PTX ISA release notes: 256-bit loads and stores since 8.8."""


class StreamingEpilogue(Epilogue):
    """Slices of an accumulator in tensor memory, which is handed back when the last one is in registers."""

    returns_early = True

    def __init__(self, builder: Builder, spec: GemmSpec, unit: MatrixUnit, schedule: Schedule) -> None:
        super().__init__(builder, spec, unit, schedule)
        self._direct = spec.epilogue.store == "direct"
        if self._direct:
            self.barriers = ()
        self.partials: SlicePartials | None = None
        if schedule.segments:
            self.partials = SlicePartials(builder, spec, schedule.segments, self._read_slices)

    def staging_free(self) -> None:
        if not self._direct:
            super().staging_free()

    def drain(self) -> None:
        if not self._direct:
            super().drain()

    def store_tile(self) -> None:
        if not self._direct:
            super().store_tile()
            return
        self._builder.emit(Section(comment="epilogue"))
        self._unit.accumulator_ready()
        self._writer.start()
        self._each_slice(self._slice_direct)

    def _read_slices(self, slice: Slice) -> None:
        """Every slice of the accumulator comes to registers, and goes nowhere else."""
        self._unit.accumulator_ready()
        self._writer.start()

        def read(number: int, suffix: str) -> None:
            self._writer.read()
            self._return_early(number, suffix)
            slice(number, suffix)
            self._writer.next()

        self._each_slice(read, "_handed_over")

    def _in_registers(self, number: int, suffix: str) -> None:
        self._return_early(number, suffix)
        if self.partials:
            self.partials.add_slice(number, suffix)

    def _return_early(self, number: int, suffix: str) -> None:
        """After the last slice the accumulator may be overwritten."""
        assert self._empty is not None
        last = self._slices - 1
        if self._spec.epilogue.unroll or not last:
            if number == last:
                self._hand_back(self._empty)
            return
        builder = self._builder
        is_last = builder.register("last_slice", GROUP, "pred")
        builder.compare("eq.u32", is_last, builder.registers["slice"], last, comment="nothing more to read")
        with builder.guard(f"accumulator_kept{suffix}", is_last, comment="slices remain"):
            self._hand_back(self._empty)


class StreamingPairKernel(PairKernel):
    """The verbs of step 10."""

    epilogue_kind = StreamingEpilogue
    _epilogue: StreamingEpilogue

    def __init__(self, spec: GemmSpec) -> None:
        self._direct = spec.epilogue.store == "direct"
        if self._direct:
            self.ptx_version = _WIDE_STORES
        super().__init__(spec)
        if not spec.setmaxnreg:
            self.resident_ctas = 1
        else:
            self.entry_registers, self.storer_registers = _REGISTERS[spec.consumers]

    def give_up_registers(self) -> None:
        """The warpgroup that only issues leaves registers to the storers."""
        if self.spec.setmaxnreg:
            with self._role("driver", self._storer_warps, 4, _DRIVER_REGISTERS):
                pass

    def claim_tiles(self) -> None:
        """The scheduler's role, where tiles are claimed: one warp of each CTA, the leader's asks."""
        if self._claims:
            with self._role("scheduler", self.producer_warps[0] + 1, 1, None):
                self._claims.claim(self._not_leader, self._elected)

    # ---- set-up -----------------------------------------------------------------------------

    def _tensor_maps(self) -> tuple[Parameter, ...]:
        maps = super()._tensor_maps()
        return maps[:2] if self._direct else maps

    def _matrices(self) -> tuple[Parameter, ...]:
        partials = PARAMETERS if self._epilogue.partials else ()
        if not self._direct:
            return partials
        return (
            Parameter(name="d", kind="u64", comment="D[M, N]"),
            Parameter(name="d_pitch", kind="u32", comment="bytes from row to row of D"),
            Parameter(name="m", kind="u32", comment="M"),
            Parameter(name="n", kind="u32", comment="N"),
            *partials,
        )

    # ---- the storers ------------------------------------------------------------------------

    @contextmanager
    def storers(self) -> Iterator[None]:
        with super().storers():
            if self._epilogue.partials:
                self._epilogue.partials.set_up()
            yield

    def _store_tile(self) -> None:
        if not self._epilogue.partials:
            super()._store_tile()
            return
        with self._epilogue.partials.of_segment():
            super()._store_tile()

    @property
    def _claims(self) -> TileClaims | None:
        return self._schedule.claims

    def _arrives(self, barrier: Barrier) -> str:
        if self._claims and barrier.name == "answered":
            return "the thread that expects the answer arrives"
        if self._claims and barrier.name == "answer_read":
            return "each thread of the roles of both CTAs arrives"
        return super()._arrives(barrier)

    def _name_shared_memory(self) -> None:
        super()._name_shared_memory()
        if self._claims:
            self._claims.name_shared_memory(self._smem)

    def _name_constants(self) -> None:
        super()._name_constants()
        if self._claims:
            self._claims.name_constants()

    def _barriers(self) -> tuple[Barrier, ...]:
        mine = (self._claims.answered, self._claims.answer_read) if self._claims else ()
        return (*super()._barriers(), *mine)

    def _buffers(self) -> tuple[SmemBuffer, ...]:
        return (*super()._buffers(), *([self._claims.answers] if self._claims else []))
