"""Registers: special ones, parameters, constants, integers, and the order of tiles."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.ir.declarations import Hex, Operand, Parameter, Register
from ptxgen.ir.ops.base import Op

INTEGER_OPCODES = frozenset(
    "add.u32 sub.u32 mul.lo.u32 mad.lo.u32 mad.wide.u32 div.u32 rem.u32 min.u32 max.u32 shl.b32 shr.u32"
    " and.b32 or.b32 xor.b32 mov.b32 selp.b32 add.s64 min.s32 max.s32 cvt.u32.u64".split()
)

COMPARE_OPCODES = frozenset("eq.u32 ne.u32 lt.u32 le.u32 gt.u32 ge.u32".split())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadSpecial(Op):
    """Read a special register such as %tid.x."""

    dst: Register
    special: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SharedBase(Op):
    """Take the address of the one dynamic shared-memory array."""

    dst: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadParameter(Op):
    """Read a 32-bit parameter."""

    dst: Register
    parameter: Parameter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TensorMapAddress(Op):
    """Take the generic address of a tensor map parameter."""

    dst: Register
    parameter: Parameter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetConstant(Op):
    """Give a constant of the spec its name; ptxas folds it."""

    dst: Register
    value: Hex | int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Integer(Op):
    """One integer instruction out of INTEGER_OPCODES, with a mandatory comment."""

    opcode: str
    dst: Register
    sources: tuple[Operand, ...]

    def __post_init__(self) -> None:
        if self.opcode not in INTEGER_OPCODES:
            raise ValueError(f"integer opcode {self.opcode!r} is not in the fixed set")
        if not self.comment:
            raise ValueError(f"{self.opcode} into {self.dst} needs a comment")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Compare(Op):
    """Set a predicate from an unsigned comparison out of COMPARE_OPCODES."""

    opcode: str
    dst: Register
    left: Operand
    right: Operand

    def __post_init__(self) -> None:
        if self.opcode not in COMPARE_OPCODES:
            raise ValueError(f"comparison {self.opcode!r} is not in the fixed set")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ElectOne(Op):
    """Choose one lane of the warp; executed once, by whole warps, before any divergence."""

    dst: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowMajorTile(Op):
    """Tile id to tile coordinates: m = id div n_tiles, n = id rem n_tiles."""

    tile: Register
    m_tile: Register
    n_tile: Register
    n_tiles: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupedTile(Op):
    """Tile id to tile coordinates in bands of `group` tile rows, walked column by column.

    band = id div span; first = band x group; rows = min(m_tiles - first, group);
    rest = id - band x span; n = rest div rows; m = first + rest - n x rows.
    """

    tile: Register
    m_tile: Register
    n_tile: Register
    m_tiles: Register
    group: Register
    span: Register
    band: Register
    first: Register
    rows: Register
    rest: Register
