"""The tensor core: tcgen05.mma of kind::f16 on one CTA or on a pair of CTAs.

D (m x n) = A (m x k) · B (n x k)ᵀ, plus D. Products and sums are f32; real chips promise no order
of summation. Instructions that follow each other on one accumulator run as one matrix product.

On a pair (cta_group::2) each CTA holds half the rows of A and half the rows of B, at the same places
in its own memories, and gets its half of the rows of D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.emulator.reductions import bf16_to_f32
from ptxgen.emulator.smem_layout import Bytes, Ranges, SmemOperand
from ptxgen.emulator.tmem import Tmem, TmemRegion
from ptxgen.errors import MachineError, NotSupportedError, SpecError
from ptxgen.hardware import instruction_descriptor, smem_descriptor
from ptxgen.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from ptxgen.hardware.smem_descriptor import Major
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tmem import COLUMNS, LANES, accumulator_layout, unpack_address

if TYPE_CHECKING:
    from numpy.typing import NDArray

Steps = Sequence[tuple[int, int]]
"""(descriptor of A or TMEM address of A, descriptor of B) of consecutive instructions."""

# Columns of A in TMEM per instruction: 32 bytes of K.
_A_COLUMNS = 8

# NumPy converts f16 slowly; one look-up in 256 KiB is twice as fast.
_F16_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

# f16 accumulators leave the upper half of their word undefined: a NaN to whoever reads it.
_UPPER_HALF = np.uint32(0xFFFF0000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaAccesses:
    """What a batch of instructions touches, in each CTA. D is written, and read when `reads_d`."""

    a_smem: Ranges
    b_smem: Ranges
    spans: tuple[tuple[tuple[int, int], ...], ...]
    """The same as [start, stop), of A and of B."""
    a_tmem: TmemRegion | None
    d: TmemRegion
    reads_d: bool


def mma(
    tmem: Tmem,
    smem: Bytes,
    *,
    d_address: int,
    steps: Steps,
    idesc: int,
    accumulate: bool,
    kind: str = "f16",
    a_in_tmem: bool = False,
    scale_d: int = 0,
    disabled_lanes: tuple[int, ...] = (),
    peer: tuple[Tmem, Bytes] | None = None,
) -> None:
    """Execute consecutive tcgen05.mma instructions on the accumulator at `d_address`.

    `accumulate` is the first instruction's enable-input-d, the others accumulate; every
    instruction that does scales D by 2^-scale_d first. `disabled_lanes` are four mask words a CTA.
    `smem` is the CTA's whole shared memory, indexed by address. `peer` makes it cta_group::2: the
    memories of the pair's odd CTA, the others being the even one's. MachineError:
    illegal-descriptor, illegal-instruction-descriptor, out-of-bounds, tmem-lane-access,
    tmem-use-after-dealloc.
    """
    sides = ((tmem, smem),) if peer is None else ((tmem, smem), peer)
    plan = _plan(idesc, kind, tuple(steps), a_in_tmem, len(sides))
    if len(steps) > 1 and (scale_d or plan.d_is_f16):
        # Every instruction rounds or scales D: no common product.
        for step in steps:
            mma(
                tmem,
                smem,
                d_address=d_address,
                steps=(step,),
                idesc=idesc,
                accumulate=accumulate,
                kind=kind,
                a_in_tmem=a_in_tmem,
                scale_d=scale_d,
                disabled_lanes=disabled_lanes,
                peer=peer,
            )
            accumulate = True
        return
    lane, column = plan.locate_d(d_address)
    for memory, _ in sides:
        memory.check_columns(column, plan.columns)
    with np.errstate(all="ignore"):
        b = plan.b(smem)
        if peer is not None:
            b = np.concatenate([b, plan.b(peer[1])])
        for side, (memory, shared) in enumerate(sides):
            mask = disabled_lanes[4 * side : 4 * side + 4]
            if plan.is_plain and not (scale_d or any(mask)):
                tile = memory.floats[column : column + plan.n]
                a = plan.a(memory, shared)
                if accumulate:
                    tile += np.matmul(b, a, out=_scratch(plan.n, LANES))
                else:
                    np.matmul(b, a, out=tile)
            else:
                _update(memory, plan, lane, column, plan.product(memory, shared, b), accumulate, scale_d, mask)


@lru_cache(maxsize=1024)
def mma_accesses(
    *,
    d_address: int,
    steps: tuple[tuple[int, int], ...],
    idesc: int,
    accumulate: bool,
    kind: str = "f16",
    a_in_tmem: bool = False,
    disabled_lanes: tuple[int, ...] = (),
    cta_group: int = 1,
) -> MmaAccesses:
    """What `mma` with the same arguments reads and writes in each CTA, for observers; `disabled_lanes`
    are the four words of that CTA."""
    plan = _plan(idesc, kind, steps, a_in_tmem, cta_group)
    lane, column = plan.locate_d(d_address)
    lanes = _lane_ranges(plan.lanes(lane)[plan.enabled(lane, disabled_lanes)])
    a_tmem = None
    if a_in_tmem:
        columns = tuple((first, first + _A_COLUMNS) for _, first in plan.a_addresses)
        a_tmem = TmemRegion(lanes=_lane_ranges(plan.lanes(plan.a_addresses[0][0])), columns=columns)
    a_smem, b_smem = plan.a_operand.ranges() if plan.a_operand else (), plan.b_operand.ranges()
    return MmaAccesses(
        a_smem=a_smem,
        b_smem=b_smem,
        spans=tuple(tuple((start, start + size) for start, size in ranges) for ranges in (a_smem, b_smem)),
        a_tmem=a_tmem,
        d=TmemRegion(lanes=lanes, columns=((column, column + plan.columns),)),
        reads_d=accumulate or len(steps) > 1,
    )


def widen(raw: NDArray[Any], element: str, negate: bool = False) -> NDArray[np.float32]:
    """Raw f16 or bf16 elements as f32 in an array of the same shape."""
    values: NDArray[np.float32] = _F16_VALUES.take(raw) if element == "f16" else bf16_to_f32(raw)
    if negate:
        np.negative(values, out=values)
    return values


class _Plan:
    """Everything about a batch that does not depend on the contents of memory.

    `rows` and `b_rows` are the rows of A (and D) and of B in one CTA, `columns` what D takes of its
    tensor memory. `halves`: D's two halves of n lie above each other in its lanes (m 128 on a pair).
    """

    __slots__ = (
        "_row_lanes", "a_addresses", "a_operand", "b_operand", "columns", "d_is_f16", "descriptor", "halves",
        "is_plain", "n", "rows", "starts",
    )  # fmt: skip

    def __init__(self, descriptor: InstructionDescriptor, steps: Steps, a_in_tmem: bool, ctas: int) -> None:
        self.descriptor = descriptor
        self.n, self.rows = descriptor.n, descriptor.m // ctas
        layout = accumulator_layout(descriptor.m, descriptor.n, cta_group=ctas)
        self.columns = layout.columns
        self.halves = self.columns < self.n
        lanes = range(LANES) if self.halves else layout.row_lanes[: self.rows]
        self._row_lanes = np.array(lanes, dtype=np.intp)
        self.starts = (0,) if len(lanes) == LANES else (0, 16)  # lanes that D and A may start at
        self.d_is_f16 = descriptor.d_type == "f16"
        self.is_plain = self.rows == LANES and not self.d_is_f16
        self.a_operand: SmemOperand | None = None
        self.a_addresses: tuple[tuple[int, int], ...] = ()
        if a_in_tmem:
            self.a_addresses = tuple(self._locate_a(address) for address, _ in steps)
        else:
            self.a_operand = self._operand("A", [a for a, _ in steps], descriptor.a_major, self.rows)
        self.b_operand = self._operand("B", [b for _, b in steps], descriptor.b_major, self.n // ctas)

    def _operand(self, name: str, values: Sequence[int], major: Major, mn: int) -> SmemOperand:
        try:
            decoded = [smem_descriptor.decode(value, "sm_100a") for value in values]
        except SpecError as error:
            raise MachineError("illegal-descriptor", f"operand {name}: {error}") from None
        if major == "MN" and any(descriptor.swizzle is Swizzle.B128_ATOM32 for descriptor in decoded):
            raise MachineError(
                "illegal-descriptor",
                f"operand {name} is MN-major with the 32-byte-atom swizzle, which only 32-bit elements have",
            )
        return SmemOperand(decoded, major=major, element_bytes=2, mn=mn, k=self.descriptor.k)

    def _locate_a(self, address: int) -> tuple[int, int]:
        if self.descriptor.a_major != "K":
            raise MachineError("illegal-instruction-descriptor", "A in TMEM is K-major; the descriptor says MN-major")
        lane, column = unpack_address(address)
        self._check_lane("A", lane)
        if column + _A_COLUMNS > COLUMNS:
            raise MachineError("out-of-bounds", f"A at TMEM column {column} needs {_A_COLUMNS} of {COLUMNS} columns")
        return lane, column

    def _check_lane(self, name: str, lane: int) -> None:
        if lane not in self.starts:
            legal = " or ".join(map(str, self.starts))
            raise MachineError(
                "tmem-lane-access",
                f"{name} of an MMA with m {self.descriptor.m} at TMEM lane {lane}: it starts at lane {legal}",
            )

    def locate_d(self, address: int) -> tuple[int, int]:
        """(lane, column) of the accumulator; MachineError when it cannot start there."""
        lane, column = unpack_address(address)
        self._check_lane("D", lane)
        if self.a_addresses and any(a_lane != lane for a_lane, _ in self.a_addresses):
            raise MachineError("tmem-lane-access", "A and D in TMEM start at different lanes of the 16-lane halves")
        if column + self.columns > COLUMNS:
            raise MachineError("out-of-bounds", f"D at TMEM column {column} needs {self.columns} columns of {COLUMNS}")
        return lane, column

    def lanes(self, base: int) -> NDArray[np.intp]:
        """TMEM lane of every row; with `halves` of every row of both halves."""
        return self._row_lanes + base

    def enabled(self, base: int, disabled_lanes: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which rows the mask lets through."""
        lanes = self.lanes(base)
        if not any(disabled_lanes):
            return np.ones(lanes.size, np.bool_)
        words = np.array(disabled_lanes, dtype=np.uint32)
        let_through: NDArray[np.bool_] = (words[lanes // 32] >> (lanes % 32).astype(np.uint32) & 1) == 0
        return let_through

    def a(self, tmem: Tmem, smem: Bytes) -> NDArray[np.float32]:
        """The CTA's rows of A as (k, rows) of f32: the right factor of Dᵀ = B · Aᵀ. From tensor memory
        with `halves` come the rows of both halves."""
        described = self.descriptor
        if self.a_operand:
            values = widen(self.a_operand.gather(smem), described.a_type, described.negate_a)
            return _oriented(values, self.a_operand.major == "MN")
        blocks = []
        for lane, column in self.a_addresses:
            tmem.check_columns(column, _A_COLUMNS)
            blocks.append(tmem.words[column : column + _A_COLUMNS, self.lanes(lane)])
        pairs: NDArray[np.uint16] = np.ascontiguousarray(np.concatenate(blocks).T).view(np.uint16)
        return _oriented(widen(pairs, described.a_type, described.negate_a), False)

    def b(self, smem: Bytes) -> NDArray[np.float32]:
        """The CTA's rows of B, by k, of f32."""
        values = widen(self.b_operand.gather(smem), self.descriptor.b_type, self.descriptor.negate_b)
        return _oriented(values, self.b_operand.major != "MN")

    def product(self, tmem: Tmem, smem: Bytes, b: NDArray[np.float32]) -> NDArray[np.float32]:
        """B · Aᵀ as D lies in the CTA's tensor memory: (columns, lanes)."""
        a = self.a(tmem, smem)
        if not self.halves:
            whole: NDArray[np.float32] = np.matmul(b, a)
            return whole
        low, high = (a, a) if self.a_operand else (a[:, : self.rows], a[:, self.rows :])
        return np.concatenate([b[: self.columns] @ low, b[self.columns :] @ high], axis=1)


@lru_cache(maxsize=1024)
def _plan(idesc: int, kind: str, steps: tuple[tuple[int, int], ...], a_in_tmem: bool, cta_group: int) -> _Plan:
    if kind != "f16" and kind in KINDS:
        raise NotSupportedError(f"tcgen05.mma.kind::{kind} is not modelled; kind::f16 is")
    try:
        described = instruction_descriptor.decode(idesc, kind)
    except SpecError as error:
        raise MachineError("illegal-instruction-descriptor", str(error)) from None
    if described.sparse:
        raise NotSupportedError("sparse tcgen05.mma is not modelled")
    violations = list(described.shape_violations(cta_group=cta_group))
    if described.reuse_shift:
        violations.append(f"bits 30-31 are {described.reuse_shift}: only tcgen05.mma.ws reuses B")
    if violations:
        raise MachineError("illegal-instruction-descriptor", f"{idesc:#010x}: {'; '.join(violations)}")
    return _Plan(described, steps, a_in_tmem, cta_group)


def _oriented(values: NDArray[np.float32], as_it_is: bool) -> NDArray[np.float32]:
    oriented: NDArray[np.float32] = values if as_it_is else values.T
    return oriented


@lru_cache(maxsize=64)
def _scratch(n: int, m: int) -> NDArray[np.float32]:
    return np.empty((n, m), np.float32)


def _lane_ranges(lanes: NDArray[np.intp]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for lane in map(int, lanes):
        if ranges and ranges[-1][1] == lane:
            ranges[-1] = (ranges[-1][0], lane + 1)
        else:
            ranges.append((lane, lane + 1))
    return tuple(ranges)


def _update(
    tmem: Tmem,
    plan: _Plan,
    lane: int,
    column: int,
    product: NDArray[np.float32],
    accumulate: bool,
    scale_d: int,
    disabled_lanes: tuple[int, ...],
) -> None:
    """D update where it is not a plain 128-lane f32 tile; `product` is (columns, lanes)."""
    rows = plan.enabled(lane, disabled_lanes)
    lanes, product = plan.lanes(lane)[rows], product[:, rows]
    words = tmem.words[column : column + plan.columns]
    if accumulate:
        old = words[:, lanes]
        values = _F16_VALUES.take(old & 0xFFFF) if plan.d_is_f16 else old.view(np.float32)
        product = product + values * np.float32(2.0**-scale_d)
    if plan.d_is_f16:
        words[:, lanes] = product.astype(np.float16).view(np.uint16) | _UPPER_HALF
    else:
        words[:, lanes] = product.view(np.uint32)
