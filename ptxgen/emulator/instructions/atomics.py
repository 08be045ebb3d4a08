"""atom and red (PTX ISA 9.1 §9.7.13.5, §9.7.13.6): lane after lane, lowest first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.access import ORDERS, SCOPES, Access, cache_modifiers, report_access
from ptxgen.emulator.instructions.floats import round_bits, to_floats
from ptxgen.emulator.memory import GLOBAL_BASE
from ptxgen.emulator.module import TYPE_BITS
from ptxgen.emulator.values import MASK, UNSIGNED, Lanes, Registers, Value, lane_value, lanes_of, to_signed

_INTEGERS = ("u32", "s32", "u64", "s64")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_TYPES: dict[str, tuple[str, ...]] = {
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
    "cas": ("b16", "b32", "b64", "b128"), "exch": ("b32", "b64", "b128"),
    "add": (*_INTEGERS, *_FLOATS), "inc": ("u32",), "dec": ("u32",),
    "min": (*_INTEGERS, *_FLOATS[:4]), "max": (*_INTEGERS, *_FLOATS[:4]),
}  # fmt: skip

Combine = Callable[[int, int], int]


@instruction("atom", "red")
def atom(d: Decode) -> Op:
    kind = d.type(("b16", "b32", "b64", "b128", *_INTEGERS, *_FLOATS))
    vector = d.optional("v2", "v4", "v8")
    order = d.optional(*ORDERS) or "relaxed"
    scope = d.optional(*SCOPES) or "gpu"
    space = d.optional("global", "shared", "shared::cta", "shared::cluster")
    operation = d.choice(*_TYPES)
    d.flag("noftz")
    hint = cache_modifiers(d)
    if kind not in _TYPES[operation]:
        d.fail(f"{d.opcode}.{operation} has no type .{kind}")
    if space in ("", "global"):
        d.shares_global = True
    returns = d.opcode == "atom"
    if not returns and operation in ("cas", "exch"):
        d.fail(f"red has no operation .{operation}")
    count = int(vector[1:]) if vector else 1
    outs = d.vector(_register(kind), write=True) if returns else [d.slots.sink] * count
    access = Access(d, space, TYPE_BITS[kind] // 8, count)
    access.scope = scope
    sources = d.vector(_register(kind), write=False)
    swap = d.vector(_register(kind), write=False) if operation == "cas" else sources
    if len(outs) != count or len(sources) != count:
        d.fail(f"{d.item.name} needs {count} register(s)")
    if hint:
        d.src("b64")
    combine = _combine(operation, kind)
    return _atomic(access, outs, sources, swap, combine, order, d.hooks)


def _register(kind: str) -> str:
    return {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}.get(kind, kind)


def _combine(operation: str, kind: str) -> Combine | None:
    """old, operand -> new; None for compare-and-swap."""
    width = TYPE_BITS[kind]
    mask = MASK[width]
    if kind in _FLOATS:
        return _float_combine(operation, kind)

    def number(x: int) -> int:
        return to_signed(x, width) if kind[0] == "s" else x

    table: dict[str, Combine] = {
        "and": lambda old, x: old & x,
        "or": lambda old, x: old | x,
        "xor": lambda old, x: old ^ x,
        "exch": lambda old, x: x,
        "add": lambda old, x: (old + x) & mask,
        "inc": lambda old, x: 0 if old >= x else old + 1,
        "dec": lambda old, x: x if old == 0 or old > x else old - 1,
        "min": lambda old, x: min(old, x, key=number),
        "max": lambda old, x: max(old, x, key=number),
    }
    return table.get(operation)


def _float_combine(operation: str, kind: str) -> Combine:
    scalar, parts = (kind[:-2], 2) if kind.endswith("x2") else (kind, 1)
    width = TYPE_BITS[scalar]
    functions = {"add": np.add, "min": np.fmin, "max": np.fmax}
    function = functions[operation]

    def combine(old: int, x: int) -> int:
        result = 0
        for i in range(parts):
            a, b = (to_floats(v >> (width * i) & MASK[width], scalar) for v in (old, x))
            result |= int(round_bits(function(a, b), scalar)[0]) << (width * i)
        return result

    return combine


def _atomic(
    access: Access,
    outs: list[int],
    sources: list[int],
    swap: list[int],
    combine: Combine | None,
    order: str,
    hooks: bool,
) -> Op:
    size = access.size
    dtype = UNSIGNED.get(8 * size)

    def op(r: Registers) -> None:
        warp = r[0]
        addresses: Value = access.addresses(r)
        results: list[dict[int, int]] = [{} for _ in outs]
        for lane in lanes_of(warp.bits):
            address = lane_value(addresses, lane)
            block, offset, cta = access.where(r, address)
            if cta is not None:
                cta.check_store(offset, offset + access.total)
            for i, (source, other) in enumerate(zip(sources, swap, strict=True)):
                place = offset + i * size
                old = block.load_word(place, size)
                x = lane_value(r[source], lane)
                swapped = lane_value(r[other], lane) if old == x else old
                block.store_word(place, size, swapped if combine is None else combine(old, x))
                results[i][lane] = old
            if hooks:
                report_access(access, r, "atomic", order, block, offset, cta, 1 << lane)
            if address >= GLOBAL_BASE and not warp.cta.unit.launch.one_process:
                warp.cta.unit.log.span(True, access.line, address, access.total)
        warp.cta.unit.activity += 1
        for slot, found in zip(outs, results, strict=True):
            r[slot] = _gathered(found, dtype)

    return op


def _gathered(found: dict[int, int], dtype: type | None) -> Value:
    """Old values by lane as a register value."""
    values = set(found.values())
    if len(values) == 1:
        return values.pop()
    if dtype is None:
        words = np.zeros((32, 2), dtype=np.uint64)
        for lane, value in found.items():
            words[lane] = value & MASK[64], value >> 64
        return words
    lanes: Lanes = np.zeros(32, dtype=dtype)
    for lane, value in found.items():
        lanes[lane] = value
    return lanes
