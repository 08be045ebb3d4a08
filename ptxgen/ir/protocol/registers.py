"""What ops leave in registers: integers and predicates, addresses of places, stages and phases of cursors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ptxgen.ir import ops as ir
from ptxgen.ir.declarations import Barrier, Register
from ptxgen.ir.program import WARP_THREADS
from ptxgen.ir.protocol.cluster import Cluster, Handler
from ptxgen.ir.protocol.knowledge import ELECTED, Place, ProtocolError, Warp


def integer(cluster: Cluster, warp: Warp, op: ir.Integer, lanes: int) -> None:
    """An address stays the address of the same place, whatever is added to it."""
    env = warp.env
    values = [env[s.name] if s.__class__ is Register else warp.value(s) for s in op.sources]
    for value in values:
        if value.__class__ is Place:
            env[op.dst.name] = value
            return
    env[op.dst.name] = _INTEGER[op.opcode](*values)


def compare(cluster: Cluster, warp: Warp, op: ir.Compare, lanes: int) -> None:
    warp.env[op.dst.name] = _COMPARE[op.opcode](warp.value(op.left), warp.value(op.right))


def read_special(cluster: Cluster, warp: Warp, op: ir.ReadSpecial, lanes: int) -> None:
    specials = {
        "%tid.x": warp.cta_warp * WARP_THREADS,
        "%ctaid.x": cluster.worker,
        "%clusterid.x": cluster.worker,
        "%nctaid.x": cluster.grid,
        "%nclusterid.x": cluster.grid,
        "%cluster_ctarank": warp.rank,
    }
    warp.env[op.dst.name] = specials.get(op.special, 0)


def load_parameter(cluster: Cluster, warp: Warp, op: ir.LoadParameter, lanes: int) -> None:
    warp.env[op.dst.name] = cluster.parameters.get(op.parameter.name, 1)


def set_constant(cluster: Cluster, warp: Warp, op: ir.SetConstant, lanes: int) -> None:
    warp.env[op.dst.name] = warp.value(op.value)


def elect_one(cluster: Cluster, warp: Warp, op: ir.ElectOne, lanes: int) -> None:
    warp.env[op.dst.name] = ELECTED


def tile(cluster: Cluster, warp: Warp, op: ir.RowMajorTile | ir.GroupedTile, lanes: int) -> None:
    warp.env[op.m_tile.name] = warp.env[op.n_tile.name] = 0


def map_address(cluster: Cluster, warp: Warp, op: ir.MapAddress, lanes: int) -> None:
    warp.env[op.dst.name] = warp.address(op.address, op.address)._replace(rank=warp.value(op.rank))


def stage_address(cluster: Cluster, warp: Warp, op: ir.StageAddress | ir.StageDescriptor, lanes: int) -> None:
    base = warp.address(op.base, op.base)
    stride, stage = warp.value(op.stride), warp.value(op.stage)
    declared = cluster.declared[base.name]
    wanted = 8 if isinstance(declared, Barrier) else declared.stage_bytes
    if isinstance(op, ir.StageDescriptor):
        wanted >>= 4
    if stride != wanted:
        raise ProtocolError(f"{op.dst}: stages of {base.name} lie {wanted} apart, not {stride}")
    warp.env[op.dst.name] = Place(base.name, base.stage + stage, base.rank)


def descriptor_base(cluster: Cluster, warp: Warp, op: ir.DescriptorBase, lanes: int) -> None:
    warp.env[op.dst.name] = warp.value(op.address)


def start_cursor(cluster: Cluster, warp: Warp, op: ir.StartCursor, lanes: int) -> None:
    if op.cursor.stage is not None:
        warp.env[op.cursor.stage.name] = 0
    if op.cursor.phase is not None:
        warp.env[op.cursor.phase.name] = op.cursor.start_phase


def advance_cursor(cluster: Cluster, warp: Warp, op: ir.AdvanceCursor | ir.SkipStages, lanes: int) -> None:
    cursor, env = op.cursor, warp.env
    flips = True
    if cursor.stage is not None and cursor.stage_count is not None:
        stage = warp.value(cursor.stage) + 1
        flips = stage == warp.value(cursor.stage_count)
        env[cursor.stage.name] = 0 if flips else stage
    if cursor.phase is not None and flips:
        env[cursor.phase.name] = warp.value(cursor.phase) ^ 1


def skip_stages(cluster: Cluster, warp: Warp, op: ir.SkipStages, lanes: int) -> None:
    for _ in range(warp.value(op.count)):
        place = Place(op.barrier.name, warp.env[op.cursor.stage.name], warp.rank)  # type: ignore[union-attr,arg-type]
        warp.waits[place] = warp.waits.get(place, 0) + 1
        advance_cursor(cluster, warp, op, lanes)


def _signed(bits: int) -> int:
    return bits - (bits >> 31 << 32)


_INTEGER: dict[str, Callable[..., int]] = {
    "add.u32": lambda a, b: (a + b) & 0xFFFFFFFF,
    "add.s64": operator.add,
    "sub.u32": lambda a, b: (a - b) & 0xFFFFFFFF,
    "mul.lo.u32": lambda a, b: (a * b) & 0xFFFFFFFF,
    "mad.lo.u32": lambda a, b, c: (a * b + c) & 0xFFFFFFFF,
    "mad.wide.u32": lambda a, b, c: a * b + c,
    "div.u32": operator.floordiv,
    "rem.u32": operator.mod,
    "min.u32": min,
    "max.u32": max,
    "shl.b32": lambda a, b: (a << b) & 0xFFFFFFFF,
    "shr.u32": operator.rshift,
    "and.b32": operator.and_,
    "or.b32": operator.or_,
    "xor.b32": operator.xor,
    "mov.b32": lambda a: a,
    "selp.b32": lambda a, b, p: a if p else b,
    "min.s32": lambda a, b: min(a, b, key=_signed),
    "max.s32": lambda a, b: max(a, b, key=_signed),
    "cvt.u32.u64": lambda a: a & 0xFFFFFFFF,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq.u32": operator.eq,
    "ne.u32": operator.ne,
    "lt.u32": operator.lt,
    "le.u32": operator.le,
    "gt.u32": operator.gt,
    "ge.u32": operator.ge,
}
HANDLERS: dict[type[ir.Op], Handler] = {
    ir.Integer: integer,
    ir.Compare: compare,
    ir.ReadSpecial: read_special,
    ir.LoadParameter: load_parameter,
    ir.SetConstant: set_constant,
    ir.ElectOne: elect_one,
    ir.RowMajorTile: tile,
    ir.GroupedTile: tile,
    ir.MapAddress: map_address,
    ir.StageAddress: stage_address,
    ir.StageDescriptor: stage_address,
    ir.DescriptorBase: descriptor_base,
    ir.StartCursor: start_cursor,
    ir.AdvanceCursor: advance_cursor,
    ir.SkipStages: skip_stages,
}
