"""Fences and memory barriers (PTX ISA 9.1 §9.7.13.4, §9.7.16.11).

Memory here is sequentially consistent between warps, so fences have no effect; observers see them.
"""

from __future__ import annotations

from ptxgen.emulator import events
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.access import Access
from ptxgen.emulator.memory import GLOBAL_BASE
from ptxgen.emulator.values import Registers, lane_value, lanes_of
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES


@instruction("membar")
def membar(d: Decode) -> Op:
    if d.flag("proxy"):
        _proxy(d)
    else:
        d.choice("cta", "gl", "sys")
    return _fence(d)


@instruction("fence")
def fence(d: Decode) -> Op:
    if d.flag("proxy"):
        acquired = _proxy(d)
        if acquired is not None:
            return _acquire_map(d, acquired)
    elif d.flag("mbarrier_init"):
        d.require("release", "cluster")
    else:
        order = d.choice("sc", "acq_rel", "acquire", "release", default="acq_rel")
        restrict = d.optional("sync_restrict::shared::cluster", "sync_restrict::shared::cta")
        if restrict and order not in ("acquire", "release"):
            d.fail(f".{restrict} needs .acquire or .release")
        d.choice("cta", "cluster", "gpu", "sys")
    return _fence(d)


def _proxy(d: Decode) -> Access | None:
    """Takes a proxy fence; returns the tensor map that it acquires."""
    kind = d.choice("alias", "async", "async::generic", "tensormap::generic")
    if kind == "async":
        d.optional("global", "shared::cta", "shared::cluster")
    elif kind == "async::generic":
        d.choice("acquire", "release")
        d.choice("sync_restrict::shared::cluster", "sync_restrict::shared::cta")
        d.require("cluster")
    elif kind == "tensormap::generic":
        order = d.choice("acquire", "release")
        d.choice("cta", "cluster", "gpu", "sys")
        if order == "acquire":
            acquired = Access(d, "", 16, 1)
            if d.integer("the size") != TENSOR_MAP_BYTES:
                d.fail(f"the size of fence.proxy.tensormap is {TENSOR_MAP_BYTES}")
            return acquired
    return None


def _acquire_map(d: Decode, acquired: Access) -> Op:
    """fence.proxy.tensormap::generic.acquire, of a map at a generic address."""
    line, name = d.line, d.item.name

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        addresses = acquired.addresses(r)
        for address in {lane_value(addresses, lane) for lane in lanes_of(warp.bits)}:
            if address >= GLOBAL_BASE:
                unit.launch.memory.read(address, TENSOR_MAP_BYTES)
                if d.hooks:
                    lanes = sum(1 << lane for lane in lanes_of(warp.bits) if lane_value(addresses, lane) == address)
                    unit.emit(events.Fence(*unit.where(warp, lanes, line), name=name, address=address))

    return op


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def tcgen05_fence(d: Decode) -> Op:
    return _fence(d)


def _fence(d: Decode) -> Op:
    if not d.hooks:
        return _no_effect
    line, name = d.line, d.item.name

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        unit.emit(events.Fence(*unit.where(warp, warp.bits, line), name=name))

    return op


def _no_effect(r: Registers) -> None:
    return
