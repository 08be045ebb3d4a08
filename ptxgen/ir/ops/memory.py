"""Loads and stores of threads: global memory, partial sums that go from CTA to CTA, output rows."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.ir.declarations import Address, Register
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadGlobal(Op):
    """Load 16 bytes of one thread, from memory that the kernel does not write."""

    values: tuple[Register, ...]
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreGlobal(Op):
    """Store 16 or 32 bytes of one thread where the predicate is true."""

    predicate: Register
    address: Address
    values: tuple[Register, ...]

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StorePartial(Op):
    """Store 16 bytes of one thread for a thread of another CTA."""

    address: Address
    values: tuple[Register, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadPartial(Op):
    """Load 16 bytes that a thread of another CTA has stored."""

    values: tuple[Register, ...]
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AddPartial(Op):
    """Add an f32 value to an accumulator."""

    dst: Register
    value: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RaiseFlag(Op):
    """Set a flag in global memory: what the thread knows to be done is done for who sees it set."""

    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitFlag(Op):
    """Wait until a flag in global memory is set, and clear it again: nobody else waits for it."""

    label: str
    value: Register
    clear: Register
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConvertPair(Op):
    """Round two f32 values to 16 bits and pack them, `low` in bits 0-15."""

    dst: Register
    low: Register
    high: Register
    type: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreShared(Op):
    """Store 8 or 16 bytes of one thread."""

    address: Address
    values: tuple[Register, ...]

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreMatrix(Op):
    """Store two or four 8 x 8 matrices of 16-bit elements; every lane addresses one row of 16 bytes.

    transposed: those rows are the columns of what the registers hold.
    """

    address: Address
    values: tuple[Register, ...]
    transposed: bool = False

    @property
    def count(self) -> int:
        return len(self.values)
