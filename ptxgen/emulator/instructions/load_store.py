"""ld and st: generic-proxy accesses to every state space (PTX ISA 9.1 §9.7.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.instructions.access import (
    ORDERS,
    SCOPES,
    SPACES,
    Access,
    cache_modifiers,
    lane_groups,
    report_access,
    whole_warp,
)
from ptxgen.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW
from ptxgen.emulator.module import TYPE_BITS, Address, Symbol
from ptxgen.emulator.values import (
    LANES,
    MASK,
    POISON32,
    SIGNED,
    UNSIGNED,
    Lanes,
    Registers,
    Value,
    to_lanes,
    to_signed,
)
from ptxgen.emulator.warp import Wait

TYPES = (
    "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64",
)  # fmt: skip


def _order(d: Decode) -> tuple[str, str]:
    """Ordering and scope."""
    order = d.optional(*ORDERS)
    return order or "weak", d.optional(*SCOPES) or "gpu"


def shares(d: Decode, space: str, order: str) -> None:
    """Marks accesses through which clusters may synchronise."""
    if space in ("", "global") and order not in ("weak", ""):
        d.shares_global = True


# -- loads --------------------------------------------------------------------------------------


@instruction("ld", "ldu")
def ld(d: Decode) -> Op | Ends:
    kind = d.type(TYPES)
    vector = d.optional("v2", "v4", "v8")
    order, scope = _order(d)
    space = d.optional(*SPACES)
    hint = cache_modifiers(d)
    d.flag("unified")
    shares(d, space, order)
    outs = d.vector(kind if TYPE_BITS[kind] > 8 else "b16", write=True, wider=True)
    count = int(vector[1:]) if vector else 1
    if len(outs) != count:
        d.fail(f"{d.item.name} needs {count} destination register(s)")
    size = TYPE_BITS[kind] // 8
    if space.startswith("param") and count == 1:
        folded = _parameter(d, kind, size, outs[0])
        if folded is not None:
            return folded
    access = Access(d, space, size, count)
    access.scope = scope
    if hint:
        d.src("b64")
    extend = [_widen(kind, d.slots.widths[slot]) for slot in outs]
    plain = all(e is None for e in extend)
    load = _load(access, outs, extend, plain, order, d.hooks)
    if d.shares_global and count == 1:
        return Ends(kind="blocking", op=_look(access, load))
    return load


def _look(access: Access, load: Op) -> Callable[[Registers], bool]:
    """A load of what other clusters may write. Who loads the same again, and nothing has happened meanwhile, waits
    for a change: the warp stands still until memory is different, and now and then goes round once."""
    line, size = access.line, access.size

    def op(r: Registers) -> bool:
        warp = r[0]
        address = access.addresses(r)
        load(r)
        if type(address) is not int or address < GLOBAL_BASE:
            return True
        block, offset, _ = access.where(r, address)
        unit, fragment = warp.cta.unit, warp.current
        seen = line, address, block.load_word(offset, size), unit.activity
        if fragment.polled != seen:
            fragment.polled = seen
            return True
        unit.polls.append(fragment)
        detail = f"{size} bytes at {address:#x} hold {seen[2]:#x}"
        return bool(warp.wait(Wait("memory", line, spins=True, target=(block, offset, size, seen[2]), detail=detail)))

    return op


def _parameter(d: Decode, kind: str, size: int, out: int) -> Op | None:
    """A load of an entry parameter at a fixed offset: a constant of the launch."""
    operand = d.operands[0] if d.operands else None
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol):
        return None
    variable = operand.base.variable
    if not d.layout.is_parameter(variable):
        return None
    offset = operand.base.offset + operand.offset
    if not 0 <= offset <= variable.size_bytes - size:
        d.fail(f"offset {offset} is outside parameter {variable.name} ({variable.size_bytes} bytes)")
    if offset % size:
        d.fail(f"offset {offset} of a {size}-byte load is not a multiple of it")
    d.operands.pop(0)
    a = d.slots.at_start(8 * size, variable.name, "param", d.layout.place(variable) + offset, size)
    extend = _widen(kind, d.slots.widths[out])

    def op(r: Registers) -> None:
        r[out] = r[a] if extend is None else extend(r[a])

    return op


def _widen(kind: str, bits: int) -> Callable[[Value], Value] | None:
    """From the type's width to the register's; None when they are equal."""
    width = TYPE_BITS[kind]
    if bits in (width, 0):
        return None
    if kind[0] == "s":

        def signed(x: Value) -> Value:
            if type(x) is int:
                return to_signed(x, width) & MASK[bits]
            return x.view(SIGNED[width]).astype(SIGNED[bits]).view(UNSIGNED[bits])

        return signed
    return lambda x: x if type(x) is int else x.astype(UNSIGNED[bits])


def _load(access: Access, outs: list[int], extend: list[Any], plain: bool, order: str, hooks: bool) -> Op:
    size, count, total = access.size, access.count, access.total
    local = access.space == "local"
    shared = access.space == "shared"
    line = access.line

    def uniform(r: Registers, address: int) -> None:
        block, offset, cta = access.where(r, address)
        for i, slot in enumerate(outs):
            v = block.load_word(offset + i * size, size)
            r[slot] = v if plain or extend[i] is None else extend[i](v)
        if hooks:
            report_access(access, r, "read", order, block, offset, cta, r[0].bits)
        if cta is None and address >= GLOBAL_BASE:
            r[0].cta.unit.log.span(False, line, address, total)

    def by_lane(r: Registers, addresses: Lanes) -> None:
        warp = r[0]
        lead = addresses.item(_first(warp.bits))
        if local or (access.space == "" and lead >> 32 << 32 == LOCAL_WINDOW):
            if not local:
                addresses = addresses & np.uint64(MASK[32])
            block, offsets = access.local(r, addresses)
            groups: list[Any] = [(block, np.arange(LANES), offsets, None)]
        else:
            groups = lane_groups(access, warp, addresses)
        if len(groups) == 1 and len(groups[0][1]) == LANES:
            block, _, offsets, cta = groups[0]
            values = block.load_lanes(offsets, size, count)
        else:
            values = [np.zeros((LANES, 2) if size == 16 else LANES, dtype=UNSIGNED[min(64, 8 * size)]) for _ in outs]
            for block, lanes, offsets, _ in groups:
                for target, loaded in zip(values, block.load_lanes(offsets, size, count), strict=True):
                    target[lanes] = loaded
        for i, slot in enumerate(outs):
            r[slot] = values[i] if plain or extend[i] is None else extend[i](values[i])
        if hooks:
            for block, lanes, offsets, cta in groups:
                bits = warp.bits if len(groups) == 1 else sum(1 << int(lane) for lane in lanes)
                report_access(access, r, "read", order, block, offsets, cta, bits)
        if not shared and lead >= GLOBAL_BASE:
            mine = addresses if warp.active is None else addresses[warp.active]
            warp.cta.unit.log.lanes(False, line, mine, total)

    def op(r: Registers) -> None:
        a = access.addresses(r)
        if type(a) is int and not local and a >> 32 << 32 != LOCAL_WINDOW:
            uniform(r, a)
        else:
            by_lane(r, to_lanes(a, 64) if type(a) is int else a)

    if not shared or total > 16 or not plain:
        return op

    def whole(r: Registers) -> None:
        found = whole_warp(access, r, write=False)
        if found is None:
            op(r)
            return
        cta, index, ranges = found
        values = cta.smem.load_words(index, size, count)
        for slot, v in zip(outs, values, strict=True):
            r[slot] = v
        if hooks:
            report_access(access, r, "read", order, cta.smem, ranges, cta, r[0].bits)

    return whole


def _first(lanes: int) -> int:
    """The lowest lane that takes part: what the others hold does not matter."""
    return (lanes & -lanes).bit_length() - 1


# -- stores -------------------------------------------------------------------------------------


@instruction("st")
def st(d: Decode) -> Op:
    kind = d.type(TYPES)
    vector = d.optional("v2", "v4", "v8")
    order, scope = _order(d)
    space = d.optional(*SPACES)
    hint = cache_modifiers(d)
    shares(d, space, order)
    if space == "const" or (space.startswith("param") and _stores_entry_parameter(d)):
        d.fail("constants and entry parameters cannot be written")
    count = int(vector[1:]) if vector else 1
    access = Access(d, space, TYPE_BITS[kind] // 8, count)
    access.scope = scope
    sources = d.vector(kind if TYPE_BITS[kind] > 8 else "b16", write=False, wider=True)
    if len(sources) != count:
        d.fail(f"{d.item.name} needs {count} source register(s)")
    if hint:
        d.src("b64")
    narrow = [d.slots.widths[slot] > TYPE_BITS[kind] for slot in sources]
    return _store(access, sources, narrow if any(narrow) else [], TYPE_BITS[kind], order, d.hooks)


def _stores_entry_parameter(d: Decode) -> bool:
    operand = d.operands[0] if d.operands else None
    return (
        isinstance(operand, Address)
        and isinstance(operand.base, Symbol)
        and d.layout.is_parameter(operand.base.variable)
    )


def _store(access: Access, sources: list[int], narrow: list[bool], width: int, order: str, hooks: bool) -> Op:
    size, total = access.size, access.total
    local = access.space == "local"
    line = access.line
    mask, dtype = MASK[width], UNSIGNED.get(width)

    def values_of(r: Registers) -> list[Value]:
        if not narrow:
            return [r[slot] for slot in sources]
        out = []
        for slot in sources:
            v = r[slot]
            out.append(v & mask if type(v) is int else v.astype(dtype))
        return out

    def uniform(r: Registers, address: int, values: list[Value]) -> None:
        """All active lanes to one address: the highest lane's value stays."""
        warp = r[0]
        block, offset, cta = access.where(r, address)
        if cta is not None:
            if offset < cta.barrier_high:
                cta.check_store(offset, offset + total)
        elif address >= GLOBAL_BASE:
            _check_poison(warp, line, values, size)
        last = warp.bits.bit_length() - 1
        for i, v in enumerate(values):
            if type(v) is not int:
                v = v.item(last) if v.ndim == 1 else v.item(last, 0) | v.item(last, 1) << 64
            block.store_word(offset + i * size, size, v)
        unit = warp.cta.unit
        unit.activity += 1
        if hooks:
            same = tuple(values) if all(type(v) is int for v in values) else None
            report_access(access, r, "write", order, block, offset, cta, warp.bits, value=same)
        if cta is None and address >= GLOBAL_BASE:
            unit.log.span(True, line, address, total)

    def by_lane(r: Registers, addresses: Lanes, values: list[Value]) -> None:
        warp = r[0]
        lead = addresses.item(_first(warp.bits))
        if local or (access.space == "" and lead >> 32 << 32 == LOCAL_WINDOW):
            if not local:
                addresses = addresses & np.uint64(MASK[32])
            block, offsets = access.local(r, addresses)
            lanes = np.arange(LANES) if warp.active is None else np.flatnonzero(warp.active)
            groups: list[Any] = [(block, lanes, offsets[lanes], None)]
        else:
            groups = lane_groups(access, warp, addresses)
        whole = len(groups) == 1 and len(groups[0][1]) == LANES
        for block, lanes, offsets, cta in groups:
            if cta is not None and cta.barrier_high:
                low = int(offsets.min())
                if low < cta.barrier_high and int(offsets.max()) + total > cta.barrier_low:
                    for offset in offsets.tolist():
                        cta.check_store(offset, offset + total)
            if whole and total <= 16 and size < 16:
                block.store_lanes(offsets, size, [to_lanes(v, width) for v in values])
            else:
                block.store_lanes(offsets, size, [to_lanes(v, width)[lanes] for v in values])
            if hooks:
                bits = warp.bits if len(groups) == 1 else sum(1 << int(lane) for lane in lanes)
                report_access(access, r, "write", order, block, offsets, cta, bits)
        unit = warp.cta.unit
        unit.activity += 1
        if groups[0][3] is None and lead >= GLOBAL_BASE:
            _check_poison(warp, line, values, size)
            unit.log.lanes(True, line, addresses if warp.active is None else addresses[warp.active], total)

    def op(r: Registers) -> None:
        a = access.addresses(r)
        values = values_of(r)
        if type(a) is int and not local and a >> 32 << 32 != LOCAL_WINDOW:
            uniform(r, a, values)
        else:
            by_lane(r, to_lanes(a, 64) if type(a) is int else a, values)

    if access.space != "shared" or total > 16 or size > 8 or narrow:
        return op

    def whole(r: Registers) -> None:
        found = whole_warp(access, r, write=True)
        if found is None:
            op(r)
            return
        cta, index, ranges = found
        cta.smem.store_words(index, size, [to_lanes(r[slot], width) for slot in sources])
        cta.unit.activity += 1
        if hooks:
            report_access(access, r, "write", order, cta.smem, ranges, cta, r[0].bits)

    return whole


def _check_poison(warp: Any, line: int, values: list[Value], size: int) -> None:
    """Uninitialised data may be loaded and moved, but not stored to global memory."""
    if size < 4:
        return
    for v in values:
        if type(v) is int:
            found = v & MASK[32] == POISON32
        else:
            words = v.view(np.uint32) if v.flags.c_contiguous else np.ascontiguousarray(v).view(np.uint32)
            hits = words == POISON32
            if warp.active is not None:
                hits = hits.reshape(LANES, -1)[warp.active]
            found = bool(hits.any())
        if found:
            warp.cta.unit.note(
                "uninitialised-read", "a value that was never written is stored to global memory", warp, line
            )
            return
