"""tcgen05.cp (PTX ISA 9.1 §9.7.16.9)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp, sides
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.tcgen05 import group, unsupported
from ptxgen.emulator.smem_layout import check_reach
from ptxgen.emulator.tmem_copy import COPY_SHAPES, copy_accesses, copy_in
from ptxgen.emulator.values import Registers, lane_value, lanes_of

_FORMATS = ("b6x16_p32", "b4x16_p64")


@instruction("tcgen05.cp")
def cp(d: Decode) -> Op:
    cta_group = group(d)
    shape = d.choice("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
    if shape == "4x256b":
        raise unsupported(d, "with .4x256b (which lanes it writes is in no text)")
    multicast = d.optional("warpx2::02_13", "warpx2::01_23", "warpx4")
    if d.flag("b8x16") or d.optional(*_FORMATS):
        raise unsupported(d, "with decompression")
    form = COPY_SHAPES.get((shape, multicast))
    if form is None:
        legal = " or ".join(f".{other}" if other else "no multicast" for known, other in COPY_SHAPES if known == shape)
        d.fail(f"tcgen05.cp.{shape} is written with {legal}")
    target, shift, _ = d.address()
    source = d.src("b64")
    line = d.line

    def perform(op: AsyncOp | None, warp: Any, address: int, descriptor: int) -> None:
        unit = warp.cta.unit
        for rank in sides(warp.cta, cta_group):
            cta = unit.ctas[rank]
            if op is not None and unit.observed:
                ranges, region = copy_accesses(shape=form, address=address, descriptor=descriptor)
                check_reach(ranges, cta.smem.size)
                spans = tuple((start, start + size) for start, size in ranges)
                where = unit.place(op)
                unit.emit(
                    events.Access(
                        *where, space="shared", kind="read", proxy="async", ranges=spans, owner=rank, async_id=op.id
                    )
                )
                unit.emit_tmem(where, "write", region, rank, op.id)
            copy_in(cta.tmem, cta.smem.data, shape=form, address=address, descriptor=descriptor)

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        warp.flush_tensor()  # what was issued before comes before it
        if cta_group == 2:
            warp.cta.require_peer()
        for lane in lanes_of(warp.bits):
            address, descriptor = lane_value(r[target], lane) + shift, lane_value(r[source], lane)
            if unit.engine.fast:
                perform(None, warp, address, descriptor)
                unit.activity += 1
                continue
            one = AsyncOp(
                "tmem-copy", warp, lane, line, partial(perform, warp=warp, address=address, descriptor=descriptor),
                pipe=(warp.cta.rank, warp.index, lane), reaches=sides(warp.cta, cta_group),
            )  # fmt: skip
            unit.engine.issue(one, partial(_issue_event, unit.place(one)) if unit.observed else None)

    return op


def _issue_event(where: events.Place, async_id: int) -> events.Event:
    return events.AsyncIssue(*where, kind="tmem-copy", async_id=async_id, mechanism="commit")
