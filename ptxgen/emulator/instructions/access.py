"""Address operands of generic-proxy accesses: what they point into, for one lane or a whole warp.

An address is resolved to a block of bytes and an offset; lanes that lie in different windows or
buffers are served one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.cta import Cta
from ptxgen.emulator.decode import Decode
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
from ptxgen.emulator.module import Symbol
from ptxgen.emulator.values import LANES, MASK, POISON32, Lanes, Registers, Value, spread
from ptxgen.errors import MachineError

SPACES = (
    "global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry", "param::func",
)  # fmt: skip
ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def cache_modifiers(d: Decode) -> bool:
    """Takes cache, eviction and prefetch modifiers; True when a cache-policy operand follows."""
    d.optional("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
    d.optional("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate")
    d.optional("L2::evict_normal", "L2::evict_first", "L2::evict_last")
    d.optional("L2::64B", "L2::128B", "L2::256B")
    return d.flag("L2::cache_hint")


class Access:
    """A decoded address operand: where it points and how wide the access is."""

    def __init__(self, d: Decode, space: str, size: int, count: int) -> None:
        self.space = space.partition("::")[0]
        self.size, self.count = size, count
        self.total = size * count
        self.scope = "gpu"
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
            if address & ~0xFFF & MASK[32] == POISON32 & ~0xFFF:  # a small offset from a pointer that holds poison
                self.outside(POISON32, self.space or "generic")
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
            raise MachineError("uninitialised-read", f"the {space} address was never written")
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
    offsets = (mine - mine.dtype.type(delta) if delta else mine).astype(np.int64)
    low, high = int(offsets.min()), int(offsets.max())
    floor = 0 if cta is None else SHARED_RESERVED_BYTES
    top = block.size if cta is None else cta.smem_end
    if low >= floor and high + access.total <= top and cta is None and first >= GLOBAL_BASE:
        buffer = warp.cta.unit.launch.memory.find(first)
        top = buffer.size_bytes
    if low >= floor and high + access.total <= top:
        return [(block, active, offsets, cta)]
    groups = []
    for lane, address in zip(active.tolist(), mine.tolist(), strict=True):
        block, offset, cta = access.where(r, address)
        groups.append((block, np.array([lane]), np.array([offset]), cta))
    return groups


# -- events -------------------------------------------------------------------------------------


def report_access(
    access: Access,
    r: Registers,
    kind: str,
    order: str,
    block: Block,
    offsets: Any,
    cta: Cta | None,
    lanes: int,
    async_id: int = 0,
    value: tuple[int, ...] | None = None,
) -> None:
    """Tells observers of one access; offsets, or ranges in shared memory, are relative to the block."""
    warp = r[0]
    unit = warp.cta.unit
    base = 0
    space = "shared"
    if cta is None:
        space = "global"
        base = _base_of(unit.launch.memory, block)
        if base < 0:
            return  # parameters, constants and local frames are private
    spans: events.Ranges
    if isinstance(offsets, events.LaneRanges):
        spans = offsets
    elif isinstance(offsets, np.ndarray):
        spans = events.LaneRanges(offsets + base if base else offsets, access.total)
    else:
        spans = ((base + offsets, base + offsets + access.total),)
    unit.emit(
        events.Access(
            *unit.where(warp, lanes, access.line), space=space, kind=kind, proxy="generic", ranges=spans,
            owner=cta.rank if cta is not None else 0, order=order, async_id=async_id, value=value, scope=access.scope,
        )
    )  # fmt: skip


def _base_of(memory: Any, block: Block) -> int:
    for buffer in memory.buffers:
        if buffer.block is block:
            return int(buffer.address)
    return -1


# -- whole warps in shared memory ---------------------------------------------------------------

_Plan = tuple[Any, events.LaneRanges, int]
_PLANS: dict[int, dict[bytes, _Plan | None]] = {1: {}, 2: {}, 4: {}, 8: {}, 16: {}}
_PLAN_LIMIT = 2048


def shared_plan(addresses: Lanes, total: int) -> _Plan | None:
    """(word indices, ranges, CTA rank) of 32 aligned addresses; None when one is not aligned or lies in another
    CTA. Address patterns of a kernel recur, so the result is cached by the addresses themselves."""
    plans = _PLANS[total]
    key = addresses.tobytes()
    if key in plans:
        return plans[key]
    plan = None
    low, high = int(addresses.min()), int(addresses.max())
    rank = low >> RANK_SHIFT
    if not int(np.bitwise_or.reduce(addresses)) & (total - 1) and high >> RANK_SHIFT == rank:
        base = rank << RANK_SHIFT
        offsets = (addresses - np.uint32(base)).astype(np.intp)
        plan = offsets >> _SHIFT[total], events.LaneRanges(offsets, total), rank
    if len(plans) >= _PLAN_LIMIT:
        plans.clear()
    plans[key] = plan
    return plan


def whole_warp(access: Access, r: Registers, write: bool) -> tuple[Cta, Any, events.LaneRanges] | None:
    """The CTA, word indices and ranges of a warp-wide shared access that breaks no rule, else None."""
    warp = r[0]
    addresses = r[access.base]
    if warp.active is not None or type(addresses) is int or addresses.itemsize != 4:
        return None
    if access.offset:
        addresses = addresses + spread(access.offset & MASK[32], 32)
    plan = shared_plan(addresses, access.total)
    if plan is None:
        return None
    cta: Cta = warp.cta
    index, ranges, rank = plan
    low, high = ranges.bounds
    if rank != cta.rank or low < SHARED_RESERVED_BYTES or high > cta.smem_end:
        return None
    if write and low < cta.barrier_high and high > cta.barrier_low:
        return None
    return cta, index, ranges
