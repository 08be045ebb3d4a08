"""ld, st and their kin: generic-proxy accesses to every state space (PTX ISA 9.1 §9.7.9).

Addresses are resolved to a block of bytes once per access; lanes that lie in different windows or
buffers are served one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.memory import (
    CONST_WINDOW,
    GLOBAL_BASE,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_RESERVED_BYTES,
    SHARED_WINDOW,
    Block,
    local_offsets,
    poisoned,
)
from ptxgen.emulator.module import TYPE_BITS, Address, Symbol
from ptxgen.emulator.values import LANES, MASK, POISON32, SIGNED, UNSIGNED, Lanes, Registers, Value, to_lanes, to_signed
from ptxgen.errors import MachineError

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry", "param::func")
TYPES = (
    "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64",
)  # fmt: skip
ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
_LOW = (1 << RANK_SHIFT) - 1
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def cache_modifiers(d: Decode) -> bool:
    """Takes cache, eviction and prefetch modifiers; True when a cache-policy operand follows."""
    d.optional("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
    d.optional(
        "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"
    )
    d.optional("L2::evict_normal", "L2::evict_first", "L2::evict_last")
    d.optional("L2::64B", "L2::128B", "L2::256B")
    return d.flag("L2::cache_hint")


class Access:
    """A decoded address operand: where it points and how wide the access is."""

    def __init__(self, d: Decode, space: str, size: int, count: int) -> None:
        self.space = space.partition("::")[0]
        self.size, self.count = size, count
        self.total = size * count
        if self.total > 32:
            d.fail(f"an access of {self.total} bytes is too wide")
        self.line, self.name = d.line, d.item.name
        base, offset, operand = d.address()
        self.base, self.offset = base, offset
        if self.space == "param":
            symbol = operand.base
            if isinstance(symbol, Symbol) and not d.layout.is_parameter(symbol.variable):
                self.space = "local"  # a call's argument or result lives in the thread's frame
        if isinstance(operand.base, Symbol) and self.space == "":
            d.fail(f"{self.name} of a variable needs the variable's state space")
        self.local_bytes = d.layout

    def addresses(self, r: Registers) -> Value:
        """The address per lane in its space, or one int for all."""
        a = r[self.base]
        if self.offset:
            if type(a) is int:
                return a + self.offset
            return a + a.dtype.type(self.offset & MASK[8 * a.dtype.itemsize])
        return a

    def where(self, r: Registers, address: int) -> tuple[Block, int, Cta | None]:
        """The block and offset of one address; the CTA when it is shared memory."""
        cta: Cta = r[0].cta
        space = self.space
        if space == "":
            window = address >> 32 << 32
            if address >= GLOBAL_BASE:
                space = "global"
            else:
                space = _WINDOW_SPACE.get(window, "")
                if not space:
                    self.outside(address, "generic")
                address -= window
        elif space == "shared" and address >= SHARED_WINDOW:
            address -= SHARED_WINDOW
        if address % self.total:
            raise MachineError(
                "misaligned-address", f"address {address:#x} of a {self.total}-byte access is not a multiple of it"
            )
        if space == "shared":
            owner, offset = cta.owner(address)
            if not SHARED_RESERVED_BYTES <= offset <= owner.smem_end - self.total:
                self.outside(offset, "shared", owner)
            return owner.smem, offset, owner
        if space == "global":
            buffer = cta.unit.launch.memory.find(address, self.total)
            return buffer.block, address - buffer.address, None
        if space == "param":
            return self._within(cta.unit.launch.parameters, address, "parameter"), address, None
        if space == "const":
            return self._within(cta.unit.launch.constants, address, "constant"), address, None
        raise AssertionError(space)

    def _within(self, block: Block, offset: int, what: str) -> Block:
        if offset + self.total > block.size:
            self.outside(offset, what)
        return block

    def outside(self, address: int, space: str, cta: Cta | None = None) -> None:
        if address & MASK[32] == POISON32:
            raise MachineError("uninitialised-read", f"the {space} address comes from uninitialised memory or registers")
        limit = f"; shared memory is [{SHARED_RESERVED_BYTES:#x}, {cta.smem_end:#x})" if cta else ""
        raise MachineError("out-of-bounds", f"{space} address {address:#x} ({self.total} bytes) is outside{limit}")

    def local(self, r: Registers, address: Value) -> tuple[Block, Lanes]:
        """The warp's local block and each lane's offset in it."""
        warp = r[0]
        frame = -(-warp.code.layout.local_bytes // 16) * 16
        if warp.local is None:
            warp.local = Block(poisoned(max(16, frame * LANES)))
        if type(address) is not int:
            address = np.where(mask_or_all(warp), address.astype(np.int64), 0)
        low, high = (int(np.min(address)), int(np.max(address)))
        if low < 0 or high + self.total > frame:
            self.outside(high, "local")
        return warp.local, local_offsets(address, frame)


def mask_or_all(warp: Any) -> Any:
    return True if warp.active is None else warp.active


_WINDOW_SPACE = {SHARED_WINDOW: "shared", LOCAL_WINDOW: "local", PARAM_WINDOW: "param", CONST_WINDOW: "const"}


def lane_groups(access: Access, warp: Any, addresses: Lanes) -> list[tuple[Block, Lanes, Lanes, Cta | None]]:
    """(block, lanes, offsets, CTA) of the active lanes, by what they point into."""
    active = np.arange(LANES) if warp.active is None else np.flatnonzero(warp.active)
    if access.total > 1:
        low = int(np.bitwise_or.reduce(addresses if warp.active is None else addresses[active]))
        if low & (access.total - 1):
            bad = next(int(addresses[i]) for i in active if int(addresses[i]) % access.total)
            raise MachineError(
                "misaligned-address", f"address {bad:#x} of a {access.total}-byte access is not a multiple of it"
            )
    mine = addresses if warp.active is None else addresses[active]
    r = warp.r
    first = int(mine[0])
    block, offset, cta = access.where(r, first)
    delta = first - offset
    if delta:
        offsets = (mine - mine.dtype.type(delta)).astype(np.int64)
    else:
        offsets = mine.astype(np.int64)
    low, high = int(offsets.min()), int(offsets.max())
    floor = 0 if cta is None else SHARED_RESERVED_BYTES
    top = block.size if cta is None else cta.smem_end
    if low >= floor and high + access.total <= top and cta is None and access.space in ("global", ""):
        buffer = warp.cta.unit.launch.memory.find(first)
        top = buffer.size_bytes
    if low >= floor and high + access.total <= top:
        return [(block, active, offsets, cta)]
    groups = []
    for lane, address in zip(active.tolist(), mine.tolist(), strict=True):
        block, offset, cta = access.where(r, address)
        groups.append((block, np.array([lane]), np.array([offset]), cta))
    return groups


# -- events and logs ----------------------------------------------------------------------------


def report_access(
    access: Access, r: Registers, kind: str, order: str, block: Block, offsets: Any, cta: Cta | None, lanes: int
) -> None:
    """Tells observers of one access; offsets are relative to the block."""
    warp = r[0]
    unit = warp.cta.unit
    base = 0
    space = "shared"
    if cta is None:
        space = "global"
        base = _base_of(unit.launch.memory, block)
        if base < 0:
            return  # parameters, constants and local frames are private
    spans = tuple((base + o, base + o + access.total) for o in np.atleast_1d(offsets).tolist())
    unit.emit(
        events.Access(
            **unit.where(warp, lanes, access.line), space=space, kind=kind, proxy="generic", ranges=spans,
            owner=cta.rank if cta is not None else 0, order=order,
        )
    )  # fmt: skip


def _base_of(memory: Any, block: Block) -> int:
    for buffer in memory.buffers:
        if buffer.block is block:
            return int(buffer.address)
    return -1


def _order(d: Decode) -> str:
    order = d.optional(*ORDERS)
    d.optional(*SCOPES)
    return order or "weak"


def shares(d: Decode, space: str, order: str) -> None:
    """Marks accesses through which clusters may synchronise."""
    if space in ("", "global") and order not in ("weak", ""):
        d.shares_global = True


# -- loads --------------------------------------------------------------------------------------


@instruction("ld", "ldu")
def ld(d: Decode) -> Op:
    kind = d.type(TYPES)
    vector = d.optional("v2", "v4", "v8")
    order = _order(d)
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
    if hint:
        d.src("b64")
    extend = [_widen(kind, d.slots.widths[slot]) for slot in outs]
    plain = all(e is None for e in extend)
    return _load(access, outs, extend, plain, order, d.hooks)


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


def _load(
    access: Access, outs: list[int], extend: list[Any], plain: bool, order: str, hooks: bool
) -> Op:
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
        elif cta is None and address >= GLOBAL_BASE:
            r[0].cta.unit.log.span(False, line, address, total)

    def by_lane(r: Registers, addresses: Lanes) -> None:
        warp = r[0]
        if local or access.space == "" and addresses.item(0) >> 32 << 32 == LOCAL_WINDOW:
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
            for block, lanes, offsets, cta in groups:
                for target, loaded in zip(values, block.load_lanes(offsets, size, count), strict=True):
                    target[lanes] = loaded
        for i, slot in enumerate(outs):
            r[slot] = values[i] if plain or extend[i] is None else extend[i](values[i])
        if hooks:
            for block, lanes, offsets, cta in groups:
                bits = sum(1 << int(lane) for lane in lanes)
                report_access(access, r, "read", order, block, offsets, cta, bits)
        elif not shared and addresses.item(0) >= GLOBAL_BASE:
            mine = addresses if warp.active is None else addresses[warp.active]
            warp.cta.unit.log.lanes(False, line, mine, total)

    def op(r: Registers) -> None:
        a = access.addresses(r)
        if type(a) is int and not local and a >> 32 << 32 != LOCAL_WINDOW:
            uniform(r, a)
        else:
            by_lane(r, to_lanes(a, 64) if type(a) is int else a)

    return op


# -- stores -------------------------------------------------------------------------------------


@instruction("st")
def st(d: Decode) -> Op:
    kind = d.type(TYPES)
    vector = d.optional("v2", "v4", "v8")
    order = _order(d)
    space = d.optional(*SPACES)
    hint = cache_modifiers(d)
    shares(d, space, order)
    if space == "const" or (space.startswith("param") and _stores_entry_parameter(d)):
        d.fail("constants and entry parameters cannot be written")
    count = int(vector[1:]) if vector else 1
    access = Access(d, space, TYPE_BITS[kind] // 8, count)
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
            report_access(access, r, "write", order, block, offset, cta, warp.bits)
        elif cta is None and address >= GLOBAL_BASE:
            unit.log.span(True, line, address, total)

    def by_lane(r: Registers, addresses: Lanes, values: list[Value]) -> None:
        warp = r[0]
        if local or access.space == "" and addresses.item(0) >> 32 << 32 == LOCAL_WINDOW:
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
                block.store_lanes(offsets, size, values)
            else:
                block.store_lanes(offsets, size, [to_lanes(v, width)[lanes] for v in values])
            if hooks:
                bits = sum(1 << int(lane) for lane in lanes)
                report_access(access, r, "write", order, block, offsets, cta, bits)
        unit = warp.cta.unit
        unit.activity += 1
        if groups[0][3] is None and addresses.item(int(groups[0][1][0])) >= GLOBAL_BASE:
            _check_poison(warp, line, values, size)
            if not hooks:
                unit.log.lanes(True, line, addresses if warp.active is None else addresses[warp.active], total)

    def op(r: Registers) -> None:
        a = access.addresses(r)
        values = values_of(r)
        if type(a) is int and not local and a >> 32 << 32 != LOCAL_WINDOW:
            uniform(r, a, values)
        else:
            by_lane(r, to_lanes(a, 64) if type(a) is int else a, values)

    return op


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
                "uninitialised-read", "a value from uninitialised memory or registers is stored to global memory", warp, line
            )
            return


@instruction("prefetch", "prefetchu")
def prefetch(d: Decode) -> Op:
    """No effect here; the address is checked by the access that follows."""
    d.optional("L1", "L2")
    d.optional("global", "local", "param", "const")
    d.optional("L2::evict_last", "L2::evict_normal")
    d.flag("tensormap")
    d.address()
    return _no_effect


@instruction("createpolicy")
def createpolicy(d: Decode) -> Op:
    """Cache policies have no effect; the value is opaque (PTX ISA 9.1 §9.7.9.18)."""
    form = d.choice("fractional", "range", "cvt")
    d.optional("L2", "global")
    d.flag("global")
    d.optional("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged")
    d.optional("L2::evict_first", "L2::evict_unchanged")
    d.require("b64")
    out = d.dst("b64")
    if form == "range":
        d.address()
        d.src("u32")
        d.src("u32")
    elif form == "cvt":
        d.src("b64")
    elif d.operands:
        d.src("f32")

    def op(r: Registers) -> None:
        r[out] = 0x12F0000000000000

    return op


@instruction("applypriority", "discard")
def hint(d: Decode) -> Op:
    d.flag("global")
    d.optional("L2::evict_normal", "L2")
    d.address()
    d.integer("the size")
    return _no_effect


def _no_effect(r: Registers) -> None:
    return


