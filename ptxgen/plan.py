"""Plan: the geometry that follows from a spec's choices.

One place computes panels, stages, staging, shared-memory offsets and tensor-memory columns; the
validation of a spec, the steps that build programs and the launch description all read it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle, swizzle_of_span
from ptxgen.hardware.targets import target
from ptxgen.hardware.tmem import allocation_columns

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

CONTROL_BYTES = 1024
"""Size of the control page: the TMEM address and the mbarriers, in fixed slots."""

BARRIER_SLOT_BYTES = 64
"""Each group of mbarriers owns one slot, room for 8 stages, so no offset moves with the depth."""

MMA_K_BYTES = 32
"""Every dense tcgen05.mma and wgmma takes 32 bytes of K (PTX ISA 9.1 §9.7.16.2.2)."""

_SPANS = (128, 64, 32, 16)


def epilogue_slices(spec: GemmSpec) -> tuple[int, ...]:
    """The legal slice widths of the spec's tile, in columns: as many as are read, or staged, at a time."""
    n = spec.tile.n
    if spec.target == "sm_90a":
        return tuple(width for width in range(8, n + 1, 8) if n % width == 0 and (width % 16 == 0 or width == n))
    return tuple(width for width in (16, 32, 48, 64) if n % width == 0)


def default_slice(spec: GemmSpec, staging: str) -> int:
    """32 columns where they divide the tile; of wgmma accumulators the whole tile, or 64 columns."""
    slices = epilogue_slices(spec)
    if spec.target != "sm_90a":
        return 32 if 32 in slices else 16
    return slices[-1] if staging == "tile" else max(width for width in slices if width <= 64 or width == slices[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How one operand's tile lies in a stage: panels of `rows` rows of one swizzle span each."""

    rows: int
    k: int
    element_bytes: int
    swizzle: Swizzle
    shared: int = 1
    """CTAs of the cluster that have the same rows: each loads a part and multicasts it to all."""

    @property
    def load_rows(self) -> int:
        """Rows of one TMA load."""
        return self.rows // self.shared

    @property
    def load_bytes(self) -> int:
        """Bytes of one TMA load: a panel, or a CTA's part of it."""
        return self.panel_bytes // self.shared

    @property
    def panel_k(self) -> int:
        """K elements in one panel: the inner box extent of its TMA load."""
        return self.swizzle.span_bytes // self.element_bytes

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.swizzle.span_bytes

    @property
    def panels(self) -> int:
        return self.k // self.panel_k

    @property
    def tile_bytes(self) -> int:
        return self.panels * self.panel_bytes

    @property
    def leading_byte_offset(self) -> int:
        """Without a swizzle the distance of two 16-byte K chunks; else ignored, written as 16."""
        return self.panel_bytes if self.swizzle is Swizzle.NONE else 16

    @property
    def stride_byte_offset(self) -> int:
        """Bytes from one group of 8 rows to the next."""
        return 8 * self.swizzle.span_bytes

    @property
    def mma_offsets(self) -> tuple[int, ...]:
        """Byte offset of each MMA's first K element from the start of the tile."""
        span = self.swizzle.span_bytes
        starts = range(0, self.k * self.element_bytes, MMA_K_BYTES)
        return tuple(start // span * self.panel_bytes + start % span for start in starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Where the output of one warpgroup waits for its TMA store: `buffers` buffers of panels."""

    rows: int
    columns: int
    element_bytes: int
    panel_span: int
    buffers: int

    @property
    def panel_columns(self) -> int:
        return self.panel_span // self.element_bytes

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.panel_span

    @property
    def panels(self) -> int:
        """Panels in one buffer."""
        return self.columns // self.panel_columns

    @property
    def buffer_bytes(self) -> int:
        """Panels cover the columns."""
        return self.rows * self.columns * self.element_bytes

    @property
    def swizzle(self) -> Swizzle:
        return swizzle_of_span(self.panel_span)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything derived from a GemmSpec. Sizes in bytes, offsets from the start of SMEM."""

    a: Operand
    b: Operand
    staging: Staging
    slice_n: int
    swap_ab: bool
    row_blocks: int
    """Blocks of 64 rows that one consumer warpgroup multiplies (wgmma)."""
    consumers: int
    staged: bool
    """The output goes through shared memory."""
    pipe_depth: int
    tmem_columns: int
    smem_limit_bytes: int

    @classmethod
    def of(cls, spec: GemmSpec) -> Plan:
        return _plan(spec)

    @property
    def mma_k(self) -> int:
        """K elements of one MMA instruction."""
        return MMA_K_BYTES // self.a.element_bytes

    @property
    def mma_operands(self) -> tuple[Operand, Operand]:
        """What an MMA takes first and second."""
        return (self.b, self.a) if self.swap_ab else (self.a, self.b)

    @property
    def mma_n(self) -> int:
        """Columns of one wgmma."""
        return self.mma_operands[1].rows

    @property
    def accumulator_registers(self) -> int:
        """f32 accumulators of one thread (wgmma): two columns of two rows in every 8 columns."""
        return self.row_blocks * self.mma_n // 2

    def accumulator_index(self, block: int, column: int) -> int:
        """First accumulator of a thread in a block of 64 rows and in 8 columns from `column` on."""
        return (block * self.mma_n + column) // 2

    @property
    def slice_bytes(self) -> int:
        """Bytes of one output row in one slice."""
        return self.slice_n * self.staging.element_bytes

    @property
    def stage_bytes(self) -> int:
        return self.a.tile_bytes + self.b.tile_bytes

    @property
    def staging_offset(self) -> int:
        return CONTROL_BYTES

    @property
    def ring_offset(self) -> int:
        """The ring comes last, so that no other offset moves with its depth."""
        end = self.staging_offset + self.staging_bytes
        return -(-end // 1024) * 1024

    @property
    def staging_bytes(self) -> int:
        if not self.staged:
            return 0
        return self.consumers * self.staging.buffers * self.staging.buffer_bytes

    @property
    def smem_bytes(self) -> int:
        return self.ring_offset + self.pipe_depth * self.stage_bytes

    @property
    def fits(self) -> bool:
        """Whether a CTA has that much shared memory."""
        return self.smem_bytes <= self.smem_limit_bytes


@lru_cache(maxsize=256)
def _plan(spec: GemmSpec) -> Plan:
    operand_bytes = element_type(spec.operand_type).bytes
    output_bytes = element_type(spec.output_type).bytes
    tile, epilogue = spec.tile, spec.epilogue
    row_bytes = tile.k * operand_bytes
    span = spec.operand_swizzle or next(span for span in _SPANS if row_bytes % span == 0)
    slice_n = epilogue.slice_n or default_slice(spec, epilogue.staging)
    columns = tile.n if epilogue.staging == "tile" else slice_n
    rows = tile.m // spec.cta_group
    if spec.swap_ab:
        columns //= spec.tile_consumers
    else:
        rows //= spec.tile_consumers
    slice_bytes = slice_n * output_bytes
    panel_span = next(
        span
        for span in _SPANS
        if columns * output_bytes % span == 0 and (slice_bytes % span == 0 or span % slice_bytes == 0)
    )
    operand = {"k": tile.k, "element_bytes": operand_bytes}
    swizzle = swizzle_of_span(span)
    chip = target(spec.target)
    return Plan(
        a=Operand(rows=tile.m // spec.cta_group, swizzle=swizzle, shared=spec.multicast[0], **operand),
        b=Operand(rows=tile.n // spec.cta_group, swizzle=swizzle, shared=spec.multicast[1], **operand),
        staging=Staging(
            rows=rows,
            columns=columns,
            element_bytes=output_bytes,
            panel_span=panel_span,
            buffers=epilogue.staging_buffers,
        ),
        slice_n=slice_n,
        swap_ab=spec.swap_ab,
        row_blocks=(tile.n if spec.swap_ab else tile.m) // 64 // spec.tile_consumers,
        consumers=spec.consumers,
        staged=epilogue.store == "tma",
        pipe_depth=spec.pipe_depth,
        tmem_columns=allocation_columns(tile.n * spec.accumulators * spec.consumers) if chip.tmem_columns else 0,
        smem_limit_bytes=chip.smem_optin_bytes,
    )
