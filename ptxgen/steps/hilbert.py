"""Tile ids along Hilbert curves: in squares of a power of two of tiles, which follow each other along a band.

Each two bits of a tile's number in its square, from the top, name a quadrant, in the order of a curve that
is turned by the quadrants around it. The four ways it may be turned are two bits, swap and complement, which
the quadrants 0 and 3 change: a state that only ever takes XORs. Squares that the problem's edge cuts are
walked column by column, so every id of every problem has one tile.
"""

from __future__ import annotations

from ptxgen.ir.declarations import Hex, Register
from ptxgen.steps.builder import Builder

_GROUP = "tile scheduler"
_CURVE = ((0, 0), (0, 1), (1, 1), (1, 0))
"""(row, column) of the quadrants in the order of the curve that is not turned."""
_SWAP, _COMPLEMENT = 1, 2
_TURNS = (_SWAP, 0, 0, _SWAP | _COMPLEMENT)
"""What each quadrant changes for the quadrants inside it."""


def _quadrant(state: int, digit: int) -> int:
    row, column = _CURVE[digit]
    if state & _SWAP:
        row, column = column, row
    return (row << 1 | column) ^ (3 if state & _COMPLEMENT else 0)


QUADRANTS = sum(_quadrant(state, digit) << (8 * state + 2 * digit) for state in range(4) for digit in range(4))
TURNS = sum(turn << (2 * digit) for digit, turn in enumerate(_TURNS))


def locate(builder: Builder, tile: Register, m_tile: Register, n_tile: Register, side: int) -> None:
    """Set m_tile and n_tile of a tile id; `group` and `span` are the rows and the tiles of a band."""
    registers = builder.registers

    def scratch(name: str) -> Register:
        return builder.register(name, _GROUP)

    def integer(opcode: str, name: str, *sources: Register | Hex | int | str, comment: str) -> None:
        values = (registers[item] if isinstance(item, str) else item for item in sources)
        builder.integer(opcode, scratch(name), *values, comment=comment)

    integer("div.u32", "band", tile, "span", comment=f"bands of {side} tile rows")
    integer("mul.lo.u32", "first", "band", "group", comment="first tile row of the band")
    integer("sub.u32", "rows", "m_tiles", "first", comment="the last band may be lower")
    integer("min.u32", "rows", "rows", "group", comment="tile rows in the band")
    integer("mul.lo.u32", "rest", "band", "span", comment="tiles before the band")
    integer("sub.u32", "rest", tile, "rest", comment="id in the band")
    integer("mul.lo.u32", "square_tiles", "rows", side, comment="tiles of a square of the band")
    integer("div.u32", "square", "rest", "square_tiles", comment="square of the band")
    integer("mul.lo.u32", "left", "square", side, comment="its first tile column")
    integer("sub.u32", "columns", "n_tiles", "left", comment="the last square may be narrower")
    integer("min.u32", "columns", "columns", side, comment="tile columns of the square")
    integer("mul.lo.u32", "square", "square", "square_tiles", comment="tiles of the squares before")
    integer("sub.u32", "rest", "rest", "square", comment="id in the square")
    integer("mul.lo.u32", "square_tiles", "rows", "columns", comment="tiles of this square")
    whole = builder.register("whole_square", _GROUP, "pred")
    builder.compare("eq.u32", whole, registers["square_tiles"], side * side, comment="it is a whole one")
    builder.integer("rem.u32", m_tile, registers["rest"], registers["rows"], comment="a cut one: column by column")
    builder.integer("div.u32", n_tile, registers["rest"], registers["rows"], comment="its tile column")
    for name in ("curve_m", "curve_n", "curve_state"):
        integer("mov.b32", name, 0, comment="the curve, from the whole square down")
    integer("mov.b32", "curve_shift", 2 * (side.bit_length() - 1), comment="two bits a quadrant")
    again = builder.register("more_quadrants", _GROUP, "pred")
    with builder.do_while("curve_loop", again):
        integer("sub.u32", "curve_shift", "curve_shift", 2, comment="next quadrant inside")
        integer("shr.u32", "curve_digit", "rest", "curve_shift", comment="its number")
        integer("and.b32", "curve_digit", "curve_digit", 3, comment="along the curve")
        integer("shl.b32", "curve_digit", "curve_digit", 1, comment="in bits of the tables")
        integer("mad.lo.u32", "curve_place", "curve_state", 8, "curve_digit", comment="as the curve is turned here")
        integer("mov.b32", "curve_table", Hex(value=QUADRANTS), comment="quadrants: row, column")
        integer("shr.u32", "curve_table", "curve_table", "curve_place", comment="of this turn and number")
        integer("and.b32", "curve_place", "curve_table", 1, comment="column of the quadrant")
        integer("mad.lo.u32", "curve_n", "curve_n", 2, "curve_place", comment="one bit more")
        integer("shr.u32", "curve_table", "curve_table", 1, comment="row of the quadrant")
        integer("and.b32", "curve_table", "curve_table", 1, comment="alone")
        integer("mad.lo.u32", "curve_m", "curve_m", 2, "curve_table", comment="one bit more")
        integer("mov.b32", "curve_table", Hex(value=TURNS), comment="turns by number")
        integer("shr.u32", "curve_table", "curve_table", "curve_digit", comment="of this number")
        integer("and.b32", "curve_table", "curve_table", 3, comment="swap, complement")
        integer("xor.b32", "curve_state", "curve_state", "curve_table", comment="for the quadrants inside")
        builder.compare("ne.u32", again, registers["curve_shift"], 0, comment="quadrants remain")
    for name, dst, start in (("m", m_tile, "first"), ("n", n_tile, "left")):
        builder.integer("selp.b32", dst, registers[f"curve_{name}"], dst, whole, comment=f"{name} in the square")
        builder.integer("add.u32", dst, dst, registers[start], comment="+ where it begins")
