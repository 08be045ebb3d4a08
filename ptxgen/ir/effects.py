"""Which registers an op reads, and which it writes."""

from __future__ import annotations

import dataclasses

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Address, Register

_WRITTEN_FIELDS: dict[type[ir.Op], tuple[str, ...]] = {
    ir.DescriptorBase: ("dst", "low"),
    ir.GroupedTile: ("m_tile", "n_tile", "band", "first", "rows", "rest"),
    ir.LoadGlobal: ("values",),
    ir.LoadPartial: ("values",),
    ir.LoadTmem: ("registers",),
    ir.RowMajorTile: ("m_tile", "n_tile"),
    ir.TmaLoad: (),
    ir.WaitBarrier: ("done",),
    ir.WaitFlag: ("value", "clear"),
    ir.Wgmma: ("registers",),
}
"""Fields with the registers that an op writes, where they are not just `dst`."""


def effects(op: ir.Op) -> tuple[list[Register], list[Register]]:
    """The registers that an op itself reads, and those that it writes."""
    reads: list[Register] = []
    writes: list[Register] = []
    if isinstance(op, (ir.StartCursor, ir.AdvanceCursor, ir.SkipStages)):
        cursor = op.cursor
        walked = [register for register in (cursor.stage, cursor.phase) if register]
        if isinstance(op, ir.StartCursor):
            return [], walked
        reads = [*walked, *([cursor.stage_count] if cursor.stage_count else [])]
        if isinstance(op, ir.SkipStages):
            return [*reads, op.count], [*walked, op.turns]
        return reads, [*walked, *([cursor.wrapped] if cursor.wrapped else [])]
    written, read = _fields(type(op))
    for name in read:
        _collect(getattr(op, name), reads)
    for name in written:
        _collect(getattr(op, name), writes)
    return reads, writes


_FIELDS: dict[type[ir.Op], tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _fields(kind: type[ir.Op]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the fields with the registers that an op of this kind writes, and that it reads."""
    if kind not in _FIELDS:
        names = [item.name for item in dataclasses.fields(kind) if item.name not in ("comment", "head", "body")]
        writes = _WRITTEN_FIELDS.get(kind, ("dst",))
        _FIELDS[kind] = tuple(n for n in names if n in writes), tuple(n for n in names if n not in writes)
    return _FIELDS[kind]


def _collect(value: object, found: list[Register]) -> None:
    if isinstance(value, Register):
        found.append(value)
    elif isinstance(value, tuple):
        for item in value:
            _collect(item, found)
    elif isinstance(value, Address):
        found.append(value.base)
