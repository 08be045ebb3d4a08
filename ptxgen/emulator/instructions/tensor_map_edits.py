"""Tensor maps that a kernel makes: tensormap.replace and tensormap.cp_fenceproxy (PTX ISA 9.1 §9.7.9.28, §9.7.13.4)."""

from __future__ import annotations

from ptxgen.emulator import events
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.access import SCOPES, Access
from ptxgen.emulator.memory import SHARED_RESERVED_BYTES
from ptxgen.emulator.tensor_maps import FIELDS, MAGIC, field_value
from ptxgen.emulator.values import Registers, lane_value, lanes_of
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES

_LAYOUT_FIELDS = ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode")
_ALIGN_BYTES = 64


@instruction("tensormap.replace")
def replace(d: Decode) -> Op:
    d.require("tile")
    name = d.choice(*FIELDS, "swizzle_atomicity")
    space = d.optional("global", "shared::cta")
    d.require("b1024")
    if name == "swizzle_atomicity":
        raise NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} of .{name} is not modelled")
    kind = d.type(("b64",) if name in ("global_address", "global_stride") else ("b32",))
    offset, size, count = FIELDS[name]
    access = Access(d, space, 4, 1)
    if count > 1:
        index = d.integer("the dimension")
        if not 0 <= index < count:
            d.fail(f"the dimension of .{name} is 0..{count - 1}, not {index}")
        offset += size * index
    value = d.slots.constant(d.integer("the new value"), 32) if name in _LAYOUT_FIELDS else d.src(kind)

    def op(r: Registers) -> None:
        warp = r[0]
        addresses = access.addresses(r)
        for lane in lanes_of(warp.bits):
            address = lane_value(addresses, lane)
            if address % _ALIGN_BYTES:
                raise MachineError("misaligned-address", f"tensor map address {address:#x} is not a multiple of 64")
            block, start, cta = access.where(r, address)
            block.data[start : start + len(MAGIC)] = tuple(MAGIC)
            new = field_value(name, size, lane_value(r[value], lane))
            block.data[start + offset : start + offset + size] = tuple(new.to_bytes(size, "little"))
            if cta is None:
                warp.cta.unit.log.span(True, d.line, address, TENSOR_MAP_BYTES)
            elif start < cta.barrier_high:
                cta.check_store(start, start + TENSOR_MAP_BYTES)
            if d.hooks:
                span = (start, start + TENSOR_MAP_BYTES) if cta else (address, address + TENSOR_MAP_BYTES)
                place = warp.cta.unit.where(warp, 1 << lane, d.line)
                warp.cta.unit.emit(
                    events.Access(
                        *place, space="shared" if cta else "global", kind="write", proxy="generic", ranges=(span,),
                        owner=cta.rank if cta else 0, value=(new,),
                    )
                )  # fmt: skip
        warp.cta.unit.activity += 1

    return op


@instruction("tensormap.cp_fenceproxy")
def copy_and_fence(d: Decode) -> Op:
    d.require("global", "shared::cta", "tensormap::generic", "release")
    d.choice(*SCOPES)
    d.require("sync", "aligned")
    target, source = Access(d, "global", 16, 1), Access(d, "shared::cta", 16, 1)
    if d.integer("the size") != TENSOR_MAP_BYTES:
        d.fail("the size of tensormap.cp_fenceproxy is 128")
    line, name = d.line, d.item.name

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        lane = warp.bits.bit_length() - 1
        to, at = (lane_value(access.addresses(r), lane) for access in (target, source))
        _, start, cta = source.where(r, at)
        assert cta is not None, "shared memory belongs to a CTA"
        target.where(r, to)
        if not SHARED_RESERVED_BYTES <= start <= cta.smem_end - TENSOR_MAP_BYTES:
            source.outside(start, "shared", cta)
        unit.launch.memory.read(to, TENSOR_MAP_BYTES)[:] = cta.smem.data[start : start + TENSOR_MAP_BYTES]
        unit.activity += 1
        unit.log.span(True, line, to, TENSOR_MAP_BYTES)
        if d.hooks:
            where = unit.where(warp, warp.bits, line)
            for space, kind, first in (("shared", "read", start), ("global", "write", to)):
                ranges = ((first, first + TENSOR_MAP_BYTES),)
                unit.emit(events.Access(*where, space=space, kind=kind, proxy="generic", ranges=ranges, owner=cta.rank))
            unit.emit(events.Fence(*where, name=name))

    return op
