"""Bulk copies, tensor and plain (PTX ISA 9.1 §9.7.9.25 to 27): issued per thread, run by the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.groups import groups_of
from ptxgen.emulator.memory import GLOBAL_BASE, SHARED_RESERVED_BYTES
from ptxgen.emulator.smem_layout import gather_swizzled
from ptxgen.emulator.tensor_maps import Tensor
from ptxgen.emulator.tma import BoundTensor
from ptxgen.emulator.values import POISON32, Registers, lane_value, lanes_of
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def complete_tx(op: AsyncOp | None, cta: Cta, offset: int, size: int) -> None:
    """The end of a load: its bytes arrive at the mbarrier."""
    state = cta.barriers.get(offset)
    if state is None:
        raise MachineError("barrier-not-initialised", f"no mbarrier was initialised at shared address {offset:#x}")
    phase = state.phase
    done = state.complete_tx(size)
    unit = cta.unit
    if op is not None and unit.observed:
        unit.emit(
            events.MbarrierComplete(
                *unit.place(op), barrier=offset, owner=cta.rank, tx_bytes=size, phase=phase, completed=done,
                async_id=op.id,
            )
        )  # fmt: skip
    if done:
        cta.phase_completed(offset)


def poisoned(data: Any) -> bool:
    return bool((data.view(np.uint32) == POISON32).any())


def shared_span(cta: Cta, offset: int, size: int, write: bool) -> None:
    """Bounds of a bulk access to shared memory, and no live mbarrier under a write."""
    if not SHARED_RESERVED_BYTES <= offset <= cta.smem_end - size:
        raise MachineError(
            "out-of-bounds",
            f"bytes [{offset:#x}, {offset + size:#x}) are outside shared memory "
            f"[{SHARED_RESERVED_BYTES:#x}, {cta.smem_end:#x})",
        )
    if write and offset < cta.barrier_high:
        cta.check_store(offset, offset + size)


def report(op: AsyncOp, space: str, kind: str, ranges: events.Ranges, owner: int = 0) -> None:
    unit = op.cta.unit
    unit.emit(
        events.Access(
            *unit.place(op), space=space, kind=kind, proxy="async", ranges=ranges, owner=owner, async_id=op.id
        )
    )


def _report_map(op: AsyncOp, address: int) -> None:
    """A copy reads its tensor map; one that is a parameter nobody can have written."""
    if address >= GLOBAL_BASE:
        spans = ((address, address + TENSOR_MAP_BYTES),)
        unit = op.cta.unit
        unit.emit(
            events.Access(*unit.place(op), space="global", kind="read", proxy="tensormap", ranges=spans, async_id=op.id)
        )


def _box_ranges(
    bound: BoundTensor, rows: Callable[[tuple[int, ...]], tuple[Any, int]], where: tuple[int, ...]
) -> events.BoxRanges:
    return events.BoxRanges(bound.bounds(where), partial(rows, where))


# -- tensor copies ------------------------------------------------------------------------------


class _TensorAddress:
    """`[map, {coordinates}]`."""

    def __init__(self, d: Decode, rank: int) -> None:
        self.slot, self.offset, operand = d.address()
        if operand.coordinates is None:
            d.fail("a tensor copy needs coordinates: [map, {c0, …}]")
        if len(operand.coordinates) != rank:
            d.fail(f"{len(operand.coordinates)} coordinates for .{rank}d")
        self.coordinates = [d.src("s32", operand=c) for c in operand.coordinates]

    def resolve(self, r: Registers, lane: int) -> tuple[Tensor, tuple[int, ...], int]:
        """The tensor, the coordinates, and where its map lies."""
        address = lane_value(r[self.slot], lane) + self.offset
        if address & 0xFFFFFFFF == POISON32:
            raise MachineError("uninitialised-read", "the address of the tensor map was never written")
        tensor = r[0].cta.unit.launch.maps.at(address)
        where = []
        for slot in self.coordinates:
            c = r[slot]
            c = c if type(c) is int else c.item(lane)
            where.append(c if c < 0x80000000 else c - 0x100000000)
        return tensor, tuple(where), address


def _rank(d: Decode) -> int:
    return int(d.choice("1d", "2d", "3d", "4d", "5d")[0])


def _unsupported(d: Decode) -> None:
    for mode in ("tile::gather4", "tile::scatter4", "im2col", "im2col_no_offs", "im2col::w", "im2col::w::128"):
        if d.has(mode):
            raise NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} with .{mode} is not modelled")


@instruction("cp.async.bulk.tensor")
def tensor_copy(d: Decode) -> Op:
    rank = _rank(d)
    _unsupported(d)
    d.flag("tile")
    target = d.choice("shared::cta", "shared::cluster", "global")
    if target == "global":
        d.require("shared::cta", "bulk_group")
        return _tensor_store(d, rank, "")
    d.require("global", "mbarrier::complete_tx::bytes")
    pair = d.optional("cta_group::1", "cta_group::2") == "cta_group::2"
    multicast = d.flag("multicast::cluster")
    hint = d.flag("L2::cache_hint")
    destination, shift, _ = d.address()
    source = _TensorAddress(d, rank)
    barrier, barrier_shift, _ = d.address()
    mask = d.src("b16") if multicast else None
    if hint:
        d.src("b64")
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        for lane in lanes_of(warp.bits):
            tensor, where, map_address = source.resolve(r, lane)
            cta, offset = warp.cta.owner(lane_value(r[destination], lane) + shift)
            holder, signal = warp.cta.owner(lane_value(r[barrier], lane) + barrier_shift)
            if mask is not None:
                targets = warp.cta.multicast(lane_value(r[mask], lane))
            elif holder is cta or (pair and holder.rank ^ 1 == cta.rank):
                targets = [cta]
            else:
                raise MachineError("illegal-tensor-copy", other_barrier(cta, holder, pair))
            for target in targets:
                # Under cta_group::2 the signal goes to the CTA of the target's pair that is even, or odd, as the
                # mbarrier's is (PTX ISA 9.1 §9.7.9.27.1.2).
                signalled = warp.cta.neighbour(target.rank & ~1 | holder.rank & 1) if pair else target
                signalled.barrier_at(signal)
                _issue_load(warp, lane, line, tensor, where, map_address, target, offset, signalled, signal)

    return op


def other_barrier(cta: Cta, holder: Cta, pair: bool = False) -> str:
    allowed = "that CTA or the other of its pair" if pair else "that CTA, unless .cta_group::2 is given"
    return f"a load into CTA {cta.rank} of the cluster signals an mbarrier of CTA {holder.rank}, not of {allowed}"


def _issue_load(
    warp: Any,
    lane: int,
    line: int,
    tensor: Tensor,
    where: tuple[int, ...],
    map_address: int,
    cta: Cta,
    offset: int,
    signalled: Cta,
    signal: int,
) -> None:
    """Loads into `cta`, and signals the mbarrier at `signal` of `signalled`."""
    unit = cta.unit

    def perform(op: AsyncOp | None) -> None:
        shared_span(cta, offset, tensor.smem_bytes, write=True)
        if op is not None and unit.observed:
            _report_map(op, map_address)
            report(op, "global", "read", _box_ranges(tensor.bound, tensor.bound.read_rows, where))
            start, count = tensor.bound.smem_range(offset)
            report(op, "shared", "write", ((start, start + count),), cta.rank)
        unit.log.box(False, line, tensor.map, where)
        tensor.bound.load(where, cta.smem.data, offset)
        complete_tx(op, signalled, signal, tensor.box_bytes)

    if unit.engine.fast:
        perform(None)
        unit.activity += 1
        return
    tensor.bound.check(where, offset)
    op = AsyncOp(
        "tensor-load", warp, lane, line, perform, barrier=(signalled.rank, signal), reaches=(cta.rank, signalled.rank)
    )
    unit.engine.issue(op, issue_event(op, "mbarrier", signal, signalled.rank, where) if unit.observed else None)


def issue_event(
    op: AsyncOp, mechanism: str, barrier: int = -1, owner: int = 0, detail: Any = None
) -> Callable[[int], events.Event]:
    where = op.cta.unit.place(op)

    def event(async_id: int) -> events.Event:
        return events.AsyncIssue(
            *where, kind=op.kind, async_id=async_id, mechanism=mechanism, barrier=barrier, owner=owner, detail=detail
        )

    return event


@instruction("cp.reduce.async.bulk.tensor")
def tensor_reduce(d: Decode) -> Op:
    rank = _rank(d)
    _unsupported(d)
    d.flag("tile")
    operation = d.choice(*REDUCTIONS)
    d.require("global", "shared::cta", "bulk_group")
    return _tensor_store(d, rank, operation)


def _tensor_store(d: Decode, rank: int, operation: str) -> Op:
    hint = d.flag("L2::cache_hint")
    target = _TensorAddress(d, rank)
    source, shift, _ = d.address()
    if hint:
        d.src("b64")
    line = d.line
    if operation:
        d.shares_global = True

    def op(r: Registers) -> None:
        warp = r[0]
        for lane in lanes_of(warp.bits):
            tensor, where, map_address = target.resolve(r, lane)
            cta, offset = warp.cta.owner(lane_value(r[source], lane) + shift)
            tensor.bound.check_store(where, offset)
            _issue_store(warp, lane, line, tensor, where, map_address, cta, offset, operation)

    return op


def _issue_store(
    warp: Any,
    lane: int,
    line: int,
    tensor: Tensor,
    where: tuple[int, ...],
    map_address: int,
    cta: Cta,
    offset: int,
    operation: str,
) -> None:
    unit = cta.unit
    held: list[Any] = []

    def read(op: AsyncOp) -> None:
        shared_span(cta, offset, tensor.smem_bytes, write=False)
        if unit.observed:
            _report_map(op, map_address)
            start, count = tensor.bound.smem_range(offset)
            report(op, "shared", "read", ((start, start + count),), cta.rank)
        box = tensor.map
        dense = gather_swizzled(cta.smem.data, offset, tensor.box_bytes, box.inner_box_bytes, box.swizzle)
        if poisoned(dense) and poisoned(tensor.bound.clipped(where, dense)):
            unit.note("uninitialised-read", "a bulk store copies shared memory that was never written", warp, line)
        held.append(dense)

    def perform(op: AsyncOp) -> None:
        if unit.observed:
            ranges = _box_ranges(tensor.bound, tensor.bound.write_rows, where)
            report(op, "global", "atomic" if operation else "write", ranges)
        if not unit.launch.one_process:
            unit.log.box(True, line, tensor.map, where)
        if operation:
            tensor.bound.reduce_box(where, held.pop(), operation)
        else:
            tensor.bound.store_box(where, held.pop())

    op = AsyncOp("tensor-reduce" if operation else "tensor-store", warp, lane, line, perform, read=read)
    unit.engine.issue(op, issue_event(op, "bulk-group", detail=where) if unit.observed else None)
    groups_of(warp.bulk, lane).add(op)


# -- prefetches ---------------------------------------------------------------------------------


@instruction("cp.async.bulk.prefetch", "cp.async.bulk.prefetch.tensor")
def prefetch(d: Decode) -> Op:
    """Only the rules are checked: caches are not modelled."""
    tensor = d.opcode.endswith("tensor")
    rank = _rank(d) if tensor else 0
    _unsupported(d)
    d.flag("tile")
    d.require("L2", "global")
    hint = d.flag("L2::cache_hint")
    if not tensor:
        d.address()
        d.src("u32")
        if hint:
            d.src("b64")
        return _no_effect
    source = _TensorAddress(d, rank)
    if hint:
        d.src("b64")

    def op(r: Registers) -> None:
        for lane in lanes_of(r[0].bits):
            tensor_map, where, _ = source.resolve(r, lane)
            tensor_map.bound.check(where)

    return op


def _no_effect(r: Registers) -> None:
    return
