"""Bulk copies, tensor and plain (PTX ISA 9.1 §9.7.9.25 to 27): issued per thread, run by the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.groups import groups_of
from ptxgen.emulator.memory import SHARED_RESERVED_BYTES
from ptxgen.emulator.reductions import reduce_elements
from ptxgen.emulator.smem_layout import gather_swizzled
from ptxgen.emulator.tensor_maps import Tensor
from ptxgen.emulator.tma import BoundTensor
from ptxgen.emulator.values import POISON32, Registers, lane_value, lanes_of
from ptxgen.errors import MachineError, NotSupportedError

_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_REDUCED_TYPES = ("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")


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
                **unit.place(op), barrier=offset, owner=cta.rank, tx_bytes=size, phase=phase, completed=done,
                async_id=op.id,
            )
        )  # fmt: skip
    if done:
        cta.phase_completed(offset)


def _poisoned(data: Any) -> bool:
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
            **unit.place(op), space=space, kind=kind, proxy="async", ranges=ranges, owner=owner, async_id=op.id
        )
    )


def _box_ranges(
    bound: BoundTensor, ranges: Callable[[tuple[int, ...]], Any], where: tuple[int, ...]
) -> events.BoxRanges:
    return events.BoxRanges(bound.bounds(where), lambda: tuple((start, start + size) for start, size in ranges(where)))


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

    def resolve(self, r: Registers, lane: int) -> tuple[Tensor, tuple[int, ...]]:
        address = lane_value(r[self.slot], lane) + self.offset
        if address & 0xFFFFFFFF == POISON32:
            raise MachineError("uninitialised-read", "the address of the tensor map was never written")
        tensor = r[0].cta.unit.launch.maps.at(address)
        where = []
        for slot in self.coordinates:
            c = r[slot]
            c = c if type(c) is int else c.item(lane)
            where.append(c if c < 0x80000000 else c - 0x100000000)
        return tensor, tuple(where)


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
    d.optional("cta_group::1", "cta_group::2")
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
            tensor, where = source.resolve(r, lane)
            cta, offset = warp.cta.owner(lane_value(r[destination], lane) + shift)
            _, signal, _ = warp.cta.barrier(lane_value(r[barrier], lane) + barrier_shift)
            ranks = [cta.rank]
            if mask is not None:
                chosen = lane_value(r[mask], lane)
                ranks = [rank for rank in range(16) if chosen >> rank & 1]
                if not ranks or ranks[-1] >= len(warp.cta.unit.ctas):
                    raise MachineError("illegal-tensor-copy", f"multicast mask {chosen:#x} goes beyond the cluster")
            for rank in ranks:
                _issue_load(warp, lane, line, tensor, where, warp.cta.unit.ctas[rank], offset, signal)

    return op


def _issue_load(
    warp: Any, lane: int, line: int, tensor: Tensor, where: tuple[int, ...], cta: Cta, offset: int, signal: int
) -> None:
    unit = cta.unit

    def perform(op: AsyncOp | None) -> None:
        shared_span(cta, offset, tensor.smem_bytes, write=True)
        if op is not None and unit.observed:
            report(op, "global", "read", _box_ranges(tensor.bound, tensor.bound.read_ranges, where))
            start, count = tensor.bound.smem_range(offset)
            report(op, "shared", "write", ((start, start + count),), cta.rank)
        unit.log.box(False, line, tensor.map, where)
        tensor.bound.load(where, cta.smem.data, offset)
        complete_tx(op, cta, signal, tensor.box_bytes)

    if unit.engine.fast:
        perform(None)
        unit.activity += 1
        return
    tensor.bound.check(where, offset)
    op = AsyncOp("tensor-load", warp, lane, line, perform, barrier=(cta.rank, signal))
    unit.engine.issue(op, _issue_event(op, "mbarrier", signal, cta.rank) if unit.observed else None)


def _issue_event(op: AsyncOp, mechanism: str, barrier: int = -1, owner: int = 0) -> Callable[[int], events.Event]:
    where = op.cta.unit.place(op)

    def event(async_id: int) -> events.Event:
        return events.AsyncIssue(
            **where, kind=op.kind, async_id=async_id, mechanism=mechanism, barrier=barrier, owner=owner
        )

    return event


@instruction("cp.reduce.async.bulk.tensor")
def tensor_reduce(d: Decode) -> Op:
    rank = _rank(d)
    _unsupported(d)
    d.flag("tile")
    operation = d.choice(*_REDUCTIONS)
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
            tensor, where = target.resolve(r, lane)
            cta, offset = warp.cta.owner(lane_value(r[source], lane) + shift)
            tensor.bound.check_store(where, offset)
            _issue_store(warp, lane, line, tensor, where, cta, offset, operation)

    return op


def _issue_store(
    warp: Any, lane: int, line: int, tensor: Tensor, where: tuple[int, ...], cta: Cta, offset: int, operation: str
) -> None:
    unit = cta.unit
    held: list[Any] = []

    def read(op: AsyncOp) -> None:
        shared_span(cta, offset, tensor.smem_bytes, write=False)
        if unit.observed:
            start, count = tensor.bound.smem_range(offset)
            report(op, "shared", "read", ((start, start + count),), cta.rank)
        box = tensor.map
        dense = gather_swizzled(cta.smem.data, offset, tensor.box_bytes, box.inner_box_bytes, box.swizzle)
        if _poisoned(dense) and _poisoned(tensor.bound.clipped(where, dense)):
            unit.note("uninitialised-read", "a bulk store copies shared memory that was never written", warp, line)
        held.append(dense)

    def perform(op: AsyncOp) -> None:
        if unit.observed:
            ranges = _box_ranges(tensor.bound, tensor.bound.write_ranges, where)
            report(op, "global", "atomic" if operation else "write", ranges)
        if not unit.launch.one_process:
            unit.log.box(True, line, tensor.map, where)
        if operation:
            tensor.bound.reduce_box(where, held.pop(), operation)
        else:
            tensor.bound.store_box(where, held.pop())

    op = AsyncOp("tensor-reduce" if operation else "tensor-store", warp, lane, line, perform, read=read)
    unit.engine.issue(op, _issue_event(op, "bulk-group") if unit.observed else None)
    groups_of(warp.bulk, lane).add(op)


# -- plain copies -------------------------------------------------------------------------------


@instruction("cp.async.bulk", "cp.reduce.async.bulk")
def plain_copy(d: Decode) -> Op:
    reduces = d.opcode.startswith("cp.reduce")
    kind = d.type(_REDUCED_TYPES) if reduces else ""
    target = d.choice("shared::cta", "shared::cluster", "global")
    source = d.choice("global", "shared::cta")
    if (target, source) == ("global", "global"):
        d.fail("a bulk copy has a side in shared memory")
    operation = ""
    if reduces:
        operation = d.choice(*_REDUCTIONS)
        d.flag("noftz")
    to_group = target == "global"
    d.require("bulk_group" if to_group else "mbarrier::complete_tx::bytes")
    if d.flag("multicast::cluster") or d.flag("cp_mask"):
        raise NotSupportedError(f"{d.module.file}:{d.line}: this form of {d.opcode} is not modelled")
    if reduces and not to_group:
        raise NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} into shared memory is not modelled")
    hint = d.flag("L2::cache_hint")
    destination, shift, _ = d.address()
    origin, origin_shift, _ = d.address()
    size = d.src("u32")
    barrier, barrier_shift = (0, 0) if to_group else d.address()[:2]
    if hint:
        d.src("b64")
    if reduces:
        d.shares_global = True
    line = d.line
    element = {"b32": "u32", "b64": "u64"}.get(kind, kind)

    def op(r: Registers) -> None:
        warp = r[0]
        for lane in lanes_of(warp.bits):
            to = lane_value(r[destination], lane) + shift
            start = lane_value(r[origin], lane) + origin_shift
            count = lane_value(r[size], lane)
            if count % 16 or to % 16 or start % 16:
                raise MachineError(
                    "misaligned-address", f"bulk copy of {count} bytes from {start:#x} to {to:#x}: not multiples of 16"
                )
            if to_group:
                _issue_plain_store(warp, lane, line, to, start, count, operation, element)
            else:
                _, signal, _ = warp.cta.barrier(lane_value(r[barrier], lane) + barrier_shift)
                _issue_plain_load(warp, lane, line, to, start, count, signal, source)

    return op


def _issue_plain_load(
    warp: Any, lane: int, line: int, to: int, start: int, count: int, signal: int, source: str
) -> None:
    unit = warp.cta.unit
    cta, offset = warp.cta.owner(to)

    def perform(op: AsyncOp) -> None:
        shared_span(cta, offset, count, write=True)
        if source == "global":
            data = unit.launch.memory.read(start, count)
            if unit.observed:
                report(op, "global", "read", ((start, start + count),))
            unit.log.span(False, line, start, count)
        else:
            owner, place = warp.cta.owner(start)
            shared_span(owner, place, count, write=False)
            data = owner.smem.data[place : place + count]
            if unit.observed:
                report(op, "shared", "read", ((place, place + count),), owner.rank)
        if unit.observed:
            report(op, "shared", "write", ((offset, offset + count),), cta.rank)
        cta.smem.data[offset : offset + count] = data
        complete_tx(op, cta, signal, count)

    op = AsyncOp("bulk-load", warp, lane, line, perform, barrier=(cta.rank, signal))
    unit.engine.issue(op, _issue_event(op, "mbarrier", signal, cta.rank) if unit.observed else None)


def _issue_plain_store(
    warp: Any, lane: int, line: int, to: int, start: int, count: int, operation: str, element: str
) -> None:
    unit = warp.cta.unit
    cta, offset = warp.cta.owner(start)
    held: list[Any] = []

    def read(op: AsyncOp) -> None:
        shared_span(cta, offset, count, write=False)
        if unit.observed:
            report(op, "shared", "read", ((offset, offset + count),), cta.rank)
        held.append(cta.smem.data[offset : offset + count].copy())
        if _poisoned(held[0]):
            unit.note("uninitialised-read", "a bulk store copies shared memory that was never written", warp, line)

    def perform(op: AsyncOp) -> None:
        target = unit.launch.memory.read(to, count)
        if unit.observed:
            report(op, "global", "atomic" if operation else "write", ((to, to + count),))
        if not unit.launch.one_process:
            unit.log.span(True, line, to, count)
        new = held.pop()
        target[:] = reduce_elements(operation, element, target.copy(), new) if operation else new

    op = AsyncOp("bulk-reduce" if operation else "bulk-store", warp, lane, line, perform, read=read)
    unit.engine.issue(op, _issue_event(op, "bulk-group") if unit.observed else None)
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
            bound, where = source.resolve(r, lane)
            bound.bound.check(where)

    return op


def _no_effect(r: Registers) -> None:
    return


