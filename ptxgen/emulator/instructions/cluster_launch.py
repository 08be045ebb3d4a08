"""clusterlaunchcontrol: a running cluster takes the work of one that has not started (PTX ISA 9.1
§9.7.13.17).

A response is 16 bytes that only query_cancel can read. Here they are the first CTA's x, y and z and a
word that is 1 if a cluster was cancelled; coordinates of a failure are poison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.bulk_copy import complete_tx, issue_event, other_barrier, report, shared_span
from ptxgen.emulator.values import POISON32, Lanes, Registers, from_lanes, lane_value, lanes_of
from ptxgen.errors import MachineError

_BYTES = 16
_CANCELLED = 3  # index of the word


@instruction("clusterlaunchcontrol.try_cancel")
def try_cancel(d: Decode) -> Op:
    d.require("async", "mbarrier::complete_tx::bytes", "b128")
    d.optional("shared::cta")
    multicast = d.flag("multicast::cluster::all")
    response, shift, _ = d.address()
    barrier, barrier_shift, _ = d.address()
    d.cancels_clusters = True
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        for lane in lanes_of(warp.bits):
            cta, offset = warp.cta.owner(lane_value(r[response], lane) + shift)
            holder, signal = warp.cta.owner(lane_value(r[barrier], lane) + barrier_shift)
            if cta is not warp.cta or holder is not cta:
                raise MachineError("out-of-bounds", other_barrier(warp.cta, cta if cta is not warp.cta else holder))
            if offset % _BYTES:
                raise MachineError(
                    "misaligned-address", f"the response at shared address {offset:#x} is not aligned to 16 bytes"
                )
            if cta.cancel_failed:
                raise MachineError(
                    "cancel-after-failure",
                    "try_cancel after query_cancel has shown that an earlier one failed: what it does is undefined",
                )
            take = _Request(unit)
            targets = [warp.cta.neighbour(other.rank) for other in unit.ctas] if multicast else [warp.cta]
            for target in targets:
                target.barrier_at(signal)
                _issue(warp, lane, line, target, offset, signal, take)

    return op


class _Request:
    """One request; its outcome is settled when the first of its responses is written."""

    def __init__(self, unit: Any) -> None:
        self._unit = unit
        self._words: tuple[int, ...] | None = None

    def words(self) -> tuple[int, ...]:
        if self._words is None:
            taken = self._unit.backlog.cancel()
            if taken is None:
                self._words = (POISON32, POISON32, POISON32, 0)
            else:
                self._words = (*self._unit.launch.ctas_of(taken)[0], 1)
        return self._words


def _issue(warp: Any, lane: int, line: int, cta: Cta, offset: int, signal: int, request: _Request) -> None:
    unit = cta.unit

    def perform(op: AsyncOp) -> None:
        shared_span(cta, offset, _BYTES, write=True)
        if unit.observed:
            report(op, "shared", "write", ((offset, offset + _BYTES),), cta.rank)
        cta.smem.data[offset : offset + _BYTES] = np.array(request.words(), np.uint32).view(np.uint8)
        complete_tx(op, cta, signal, _BYTES)

    op = AsyncOp("try-cancel", warp, lane, line, perform, barrier=(cta.rank, signal), reaches=(cta.rank,))
    unit.engine.issue(op, issue_event(op, "mbarrier", signal, cta.rank) if unit.observed else None)


# -- queries ------------------------------------------------------------------------------------


def _words(value: Any) -> Lanes:
    """A response register as (lanes, 4) words; one row where all lanes hold the same."""
    if type(value) is int:
        return np.frombuffer(value.to_bytes(_BYTES, "little"), np.uint32)[None]
    words: Lanes = value.view(np.uint32)
    return words


def _word(value: Any, index: int) -> Any:
    column = np.ascontiguousarray(_words(value)[:, index])
    return column.item(0) if column.size == 1 else from_lanes(column)


@instruction("clusterlaunchcontrol.query_cancel.is_canceled")
def is_canceled(d: Decode) -> Op:
    d.require("pred", "b128")
    out, response = d.dst("pred"), d.src("b128")

    def op(r: Registers) -> None:
        warp = r[0]
        flag = _word(r[response], _CANCELLED)
        mine = np.atleast_1d(flag if type(flag) is int or warp.active is None else flag[warp.active])
        if (mine > 1).any():
            raise MachineError(
                "uninitialised-read",
                "query_cancel of 16 bytes that no try_cancel has written\n"
                "  missing, before they are read: a wait for the mbarrier that try_cancel signals, in a phase that"
                " expects the 16 bytes",
            )
        if (mine == 0).any():
            warp.cta.cancel_failed = True
        r[out] = flag == 1

    return op


_FIRST = "clusterlaunchcontrol.query_cancel.get_first_ctaid"
_AXES = ("x", "y", "z")


@instruction(_FIRST, *(f"{_FIRST}::{axis}" for axis in _AXES))
def first_ctaid(d: Decode) -> Op:
    """Coordinates in the grid; undefined, here poison, when no cluster was cancelled."""
    axis = d.opcode.rpartition("::")[2]
    whole = d.opcode == _FIRST
    d.require(*(("v4",) if whole else ()), "b32", "b128")
    outs = d.vector("b32", write=True) if whole else [d.dst("b32")]
    if whole and len(outs) != 4:
        d.fail(f"{d.opcode}.v4 has 4 destinations, not {len(outs)}")
    response = d.src("b128")
    results = [(index if whole else _AXES.index(axis), slot) for index, slot in enumerate(outs[:3])]
    rest = outs[3:]

    def op(r: Registers) -> None:
        value = r[response]
        for index, slot in results:
            r[slot] = _word(value, index)
        for slot in rest:
            r[slot] = POISON32

    return op
