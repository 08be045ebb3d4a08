"""The arithmetic of wgmma and the registers that hold its operands (PTX ISA 9.1 §9.7.15.5).

D (64 x n) = A (64 x k) · B (n x k)ᵀ, plus D. Products and sums are f32 (s32 for integers, f16 rounded
once an instruction); real chips promise no order of summation. Instructions that follow each other
on one accumulator run as one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.emulator.smem_layout import Bytes, Ranges, SmemOperand
from ptxgen.emulator.tensor_core import widen
from ptxgen.emulator.values import POISON, Lanes, Value, to_lanes
from ptxgen.errors import MachineError, SpecError
from ptxgen.hardware import smem_descriptor
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.fragments import WGMMA_M
from ptxgen.hardware.smem_descriptor import Major

WARPS = 4
K_BYTES = 32
"""K of one instruction."""

_EXACT_K = 256
"""Products of two 8-bit integers that f32 sums exactly."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """What a wgmma.mma_async says beside its operands. `negate`: exactly one of the scales is -1.
    Forms are equal only to themselves: see `form_of`."""

    n: int
    d_type: str
    a_type: str
    b_type: str
    a_major: Major = "K"
    b_major: Major = "K"
    a_in_registers: bool = False
    negate: bool = False
    saturate: bool = False

    @property
    def k(self) -> int:
        return K_BYTES * 8 // element_type(self.a_type).bits


form_of = lru_cache(maxsize=1024)(Form)
"""The one Form with these fields."""


class RegisterBlock:
    """The registers of D, in order: `slots` of the warp's value list, the same as a bit set.

    f32 and s32 fill n / 2 registers, f16 n / 4. Blocks are equal only to themselves: see `block_of`.
    """

    __slots__ = ("bits", "d_type", "first", "n", "slots", "stop")

    def __init__(self, slots: tuple[int, ...], n: int, d_type: str) -> None:
        self.slots, self.n, self.d_type = slots, n, d_type
        self.bits = bit_set(slots)
        self.first, self.stop = slots[0], slots[0] + len(slots)
        if slots != tuple(range(self.first, self.stop)):
            self.stop = 0

    def read(self, registers: list[Value]) -> list[Value]:
        if self.stop:
            return registers[self.first : self.stop]
        return [registers[slot] for slot in self.slots]

    def write(self, registers: list[Value], values: list[Value]) -> None:
        if self.stop:
            registers[self.first : self.stop] = values
            return
        for slot, value in zip(self.slots, values, strict=True):
            registers[slot] = value


def bit_set(slots: Sequence[int]) -> int:
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


block_of = lru_cache(maxsize=1024)(RegisterBlock)
"""The one RegisterBlock of these registers, this n and this type."""


class Accumulator:
    """D of a warpgroup: `values` are its 64 x n elements as f32 (f16 too) or s32.

    `registers` and `insert` map them to a warp's registers: element (row, column) of a warp's 16
    rows lies in lane 4 * (row % 8) + column % 8 // 2.
    """

    __slots__ = ("_d_type", "_n", "_rows", "values")

    def __init__(self, block: RegisterBlock) -> None:
        self._n, self._d_type = block.n, block.d_type
        self.values: NDArray[Any] = np.empty((WGMMA_M, block.n), np.int32 if block.d_type == "s32" else np.float32)
        self._rows: NDArray[np.uint32] | None = None

    def add(self, form: Form, product: NDArray[np.float32], accumulate: bool) -> None:
        """D plus `product`, or D replaced by it."""
        self._rows = None
        if form.d_type == "s32":
            self._add_integers(product, accumulate, form.saturate)
        elif form.negate:
            np.subtract(self.values if accumulate else np.float32(0), product, out=self.values)
        elif accumulate:
            self.values += product
        else:
            self.values[:] = product
        if form.d_type == "f16":
            self.values[:] = self.values.astype(np.float16)

    def _add_integers(self, product: NDArray[np.float32], accumulate: bool, saturate: bool) -> None:
        total = product.astype(np.int64)
        if accumulate:
            total += self.values
        if saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        self.values[:] = total.astype(np.int32)  # wraps

    def registers(self, warp: int) -> list[Lanes]:
        """What the registers of warp 0 to 3 of the warpgroup hold."""
        if self._rows is None:
            self._rows = self._spread()
        return list(self._rows[warp])

    def _spread(self) -> NDArray[np.uint32]:
        if self._d_type == "f16":  # a register holds two neighbouring columns
            pairs = self.values.astype(np.float16).view(np.uint32).reshape(WARPS, 2, 8, self._n // 8, 4)
            return np.ascontiguousarray(pairs.transpose(0, 3, 1, 2, 4)).reshape(WARPS, -1, 32)
        words = self.values.view(np.uint32).reshape(WARPS, 2, 8, self._n // 8, 4, 2)
        return np.ascontiguousarray(words.transpose(0, 3, 1, 5, 2, 4)).reshape(WARPS, -1, 32)

    def insert(self, warp: int, registers: Sequence[Value]) -> None:
        """The inverse: a warp's rows of D out of its registers."""
        self._rows = None
        rows = self.values[16 * warp : 16 * warp + 16]
        words = np.stack([to_lanes(value, 32) for value in registers])
        if self._d_type == "f16":
            pairs = words.view(np.float16).reshape(self._n // 8, 2, 8, 4, 2).transpose(1, 2, 0, 3, 4)
            rows[:] = pairs.reshape(16, self._n)
            return
        rows.view(np.uint32)[:] = words.reshape(self._n // 8, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, self._n)


def a_rows(registers: Sequence[Value], element_bits: int) -> NDArray[Any]:
    """A warp's 16 rows of A, 32 bytes of K each, out of its four registers."""
    words = np.stack([to_lanes(value, 32) for value in registers])
    parts = words.view(f"u{element_bits // 8}").reshape(2, 2, 8, 4, 32 // element_bits)
    rows: NDArray[Any] = parts.transpose(1, 2, 0, 3, 4).reshape(16, -1)
    return rows


# -- products -----------------------------------------------------------------------------------


class Operands:
    """Widened operands of one moment, so that blocks of rows share their B."""

    def __init__(self, smem: Bytes) -> None:
        self._smem = smem
        self._known: dict[SmemOperand, NDArray[np.float32]] = {}

    def shared(self, operand: SmemOperand, kind: str, transposed: bool) -> NDArray[np.float32]:
        values = self._known.get(operand)
        if values is None:
            values = self._known[operand] = _numbers(operand.gather(self._smem), kind)
        oriented: NDArray[np.float32] = values.T if transposed else values
        return oriented


def _numbers(raw: NDArray[Any], kind: str) -> NDArray[np.float32]:
    if kind in ("f16", "bf16"):
        return widen(raw, kind)
    values: NDArray[np.float32]
    # The low 13 bits of tf32 do not count.
    values = (raw & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else _eight_bit_values(kind).take(raw)
    return values


@lru_cache(maxsize=4)
def _eight_bit_values(kind: str) -> NDArray[np.float32]:
    """The numbers that the 256 patterns of a type stand for."""
    import ml_dtypes

    types: dict[str, Any] = {
        "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
    }  # fmt: skip
    values: NDArray[np.float32] = np.arange(256, dtype=np.uint8).view(types[kind]).astype(np.float32)
    return values


@lru_cache(maxsize=2048)
def smem_operand(form: Form, name: str, descriptors: tuple[int, ...]) -> SmemOperand:
    """Operand "A" or "B" of consecutive instructions; MachineError where a descriptor is illegal."""
    try:
        decoded = [smem_descriptor.decode(value, "sm_90a") for value in descriptors]
    except SpecError as error:
        if POISON[64] in descriptors:
            raise MachineError("uninitialised-read", f"the matrix descriptor of {name} was never written") from None
        raise MachineError("illegal-descriptor", f"operand {name}: {error}") from None
    a = name == "A"
    return SmemOperand(
        decoded,
        major=form.a_major if a else form.b_major,
        element_bytes=element_type(form.a_type if a else form.b_type).bits // 8,
        mn=WGMMA_M if a else form.n,
        k=form.k,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive instructions of one form on one accumulator. `a` are descriptors, or for A in
    registers the 64 rows of each instruction."""

    form: Form
    a: tuple[Any, ...]
    b: tuple[int, ...]

    def ranges(self) -> tuple[Ranges, Ranges]:
        """The shared memory that A and B come from."""
        a: Ranges = () if self.form.a_in_registers else smem_operand(self.form, "A", self.a).ranges()
        return a, smem_operand(self.form, "B", self.b).ranges()

    def add_to(self, accumulator: Accumulator, accumulate: bool, operands: Operands) -> None:
        """Multiplies; `accumulate` is the first instruction's scale-d."""
        form = self.form
        most = len(self.b)
        if form.d_type == "f16":
            most = 1  # every instruction rounds
        elif form.d_type == "s32":
            most = 1 if form.saturate else _EXACT_K // form.k
        for start in range(0, len(self.b), most):
            a, b = self.a[start : start + most], self.b[start : start + most]
            product = _scratch(form.n)
            np.matmul(self._left(a, operands), self._right(b, operands), out=product)
            accumulator.add(form, product, accumulate or start > 0)

    def _left(self, a: tuple[Any, ...], operands: Operands) -> NDArray[np.float32]:
        form = self.form
        if form.a_in_registers:
            return _numbers(np.concatenate(a, axis=1), form.a_type)
        return operands.shared(smem_operand(form, "A", a), form.a_type, form.a_major == "MN")

    def _right(self, b: tuple[int, ...], operands: Operands) -> NDArray[np.float32]:
        form = self.form
        return operands.shared(smem_operand(form, "B", b), form.b_type, form.b_major == "K")


@lru_cache(maxsize=64)
def _scratch(n: int) -> NDArray[np.float32]:
    return np.empty((WGMMA_M, n), np.float32)
