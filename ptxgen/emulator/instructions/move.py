"""Moves between registers, and between address spaces' views (PTX ISA 9.1 §9.7.9)."""

from __future__ import annotations

import numpy as np

from ptxgen.emulator.decode import DYNAMIC_SPECIALS, Decode, Op, instruction
from ptxgen.emulator.layout import WINDOWS
from ptxgen.emulator.memory import GLOBAL_BASE, RANK_SHIFT, SHARED_WINDOW
from ptxgen.emulator.module import TYPE_BITS, FunctionName, Label, Register, SpecialRegister, Vector
from ptxgen.emulator.values import MASK, UNSIGNED, Registers, Value, to_lanes
from ptxgen.errors import MachineError

_TYPES = (
    "pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "bf16", "f32", "f64",
)  # fmt: skip


@instruction("mov")
def mov(d: Decode) -> Op:
    kind = d.type(_TYPES)
    d.count(2)
    target, source = d.operands
    if isinstance(target, Vector):
        d.operands.clear()
        return _unpack(d, kind, target, source)
    if isinstance(source, Vector):
        d.operands.clear()
        return _pack(d, kind, target, source)
    if isinstance(source, SpecialRegister) and source.name in DYNAMIC_SPECIALS:
        out = d.dst(kind)
        d.operand()
        return _clock(d, out, source.name)
    if isinstance(source, (Label, FunctionName)):
        d.fail("addresses of code are not supported")
    out = d.dst(kind)
    if isinstance(source, SpecialRegister):  # 16-bit reads of 32-bit special registers are legal
        a = d.special(source, kind)
        d.operand()
    else:
        a = d.src(kind)
    if kind == "pred" or not isinstance(source, Register):
        mask = MASK[TYPE_BITS[kind]]
        narrow = not isinstance(source, Register) and kind != "pred" and TYPE_BITS[kind] < 64

        def constant(r: Registers) -> None:
            v = r[a]
            r[out] = v & mask if narrow and type(v) is int else v

        if narrow:
            return constant

    def op(r: Registers) -> None:
        r[out] = r[a]

    return op


def _clock(d: Decode, out: int, name: str) -> Op:
    """Clocks advance with the instructions executed, so that runs are repeatable."""
    high = name.endswith("_hi")
    mask = MASK[64] if name in ("%clock64", "%globaltimer") else MASK[32]

    def op(r: Registers) -> None:
        unit = r[0].cta.unit
        unit.instructions += 1  # two reads in a row differ
        now = unit.instructions
        r[out] = (now >> 32 if high else now) & mask

    return op


def _parts(d: Decode, kind: str, vector: Vector) -> tuple[int, int]:
    count = len(vector.elements)
    width = TYPE_BITS[kind]
    if kind[0] != "b" or count not in (2, 4, 8) or width // count < 8:
        d.fail(f"mov.{kind} does not take a vector of {count}")
    return count, width // count


def _pack(d: Decode, kind: str, target: object, source: Vector) -> Op:
    count, part = _parts(d, kind, source)
    out = d.dst(kind, operand=target)  # type: ignore[arg-type]
    slots = [d.src(f"b{part}", operand=element) for element in source.elements]
    width = TYPE_BITS[kind]
    if kind == "b128":

        def wide(r: Registers) -> None:
            values = [r[s] for s in slots]
            if all(type(v) is int for v in values):
                r[out] = sum(v << (part * i) for i, v in enumerate(values))
            else:
                columns = [to_lanes(v, part) for v in values]
                r[out] = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint64)

        return wide
    dtype, low, high = UNSIGNED[width], slots[0], slots[-1]
    shift = dtype(part)

    def pair(r: Registers) -> None:
        x, y = r[low], r[high]
        if type(x) is int and type(y) is int:
            r[out] = y << part | x
        elif type(y) is int:
            r[out] = x.astype(dtype) | dtype(y << part)
        else:
            r[out] = y.astype(dtype) << shift | (dtype(x) if type(x) is int else x)

    def many(r: Registers) -> None:
        values = [r[s] for s in slots]
        if all(type(v) is int for v in values):
            r[out] = sum(v << (part * i) for i, v in enumerate(values))
        else:
            columns = [to_lanes(v, part) for v in values]
            r[out] = np.ascontiguousarray(np.stack(columns, axis=1)).view(dtype)[:, 0]

    return pair if count == 2 else many


def _unpack(d: Decode, kind: str, target: Vector, source: object) -> Op:
    count, part = _parts(d, kind, target)
    slots = [d.dst(f"b{part}", operand=element) for element in target.elements]
    a = d.src(kind, operand=source)  # type: ignore[arg-type]
    mask, dtype = MASK[part], UNSIGNED[part]

    def op(r: Registers) -> None:
        x = r[a]
        if type(x) is int:
            for i, slot in enumerate(slots):
                r[slot] = x >> (part * i) & mask
        else:
            parts = np.ascontiguousarray(x).view(dtype).reshape(32, count)
            for i, slot in enumerate(slots):
                r[slot] = parts[:, i]

    return op


@instruction("cvta")
def cvta(d: Decode) -> Op:
    """Generic addresses have a window per space (see memory.py)."""
    to_space = d.flag("to")
    space = d.choice("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
    kind = d.type(("u32", "u64"))
    if kind == "u32":
        d.fail("cvta.u32 needs 32-bit addressing")
    base = WINDOWS[space.partition("::")[0]]
    out, a = d.dst(kind), d.src(kind)

    def op(r: Registers) -> None:
        x = r[a]
        if to_space:
            r[out] = (x - base) & MASK[64] if type(x) is int else x - np.uint64(base)
        else:
            r[out] = (x + base) & MASK[64] if type(x) is int else x + np.uint64(base)

    def same(r: Registers) -> None:
        r[out] = r[a]

    return op if base else same


@instruction("isspacep")
def isspacep(d: Decode) -> Op:
    space = d.choice("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
    out, a = d.dst("pred"), d.src("b64", wider=True)
    window = WINDOWS[space.partition("::")[0]] >> 32

    def op(r: Registers) -> None:
        x = r[a]
        if space == "global":
            r[out] = x >= GLOBAL_BASE
        elif space == "shared::cta":
            own = (SHARED_WINDOW + (r[0].cta.rank << RANK_SHIFT)) >> RANK_SHIFT
            r[out] = (x >> RANK_SHIFT if type(x) is int else x >> np.uint64(RANK_SHIFT)) == own
        else:
            r[out] = (x >> 32 if type(x) is int else x >> np.uint64(32)) == window

    return op


@instruction("mapa")
def mapa(d: Decode) -> Op:
    """The address of the same variable in another CTA of the cluster."""
    space = d.optional("shared::cluster")
    kind = d.type(("u32", "u64"))
    out, a, b = d.dst(kind), d.src(kind), d.src("u32")
    if not space and kind == "u32":
        d.fail("mapa of a generic address needs .u64")

    def one(address: int, rank: int, size: int) -> int:
        if rank >= size:
            raise MachineError("out-of-bounds", f"mapa to CTA {rank} of a cluster of {size}")
        return address & ~(0xFF << RANK_SHIFT) | rank << RANK_SHIFT

    def op(r: Registers) -> None:
        x, y = r[a], r[b]
        size = len(r[0].cta.unit.ctas)
        if type(x) is int and type(y) is int:
            r[out] = one(x, y, size)
        else:
            width, active = TYPE_BITS[kind], r[0].bits
            pairs = enumerate(zip(to_lanes(x, width).tolist(), to_lanes(y, 32).tolist(), strict=True))
            places = [one(p, q, size) if active >> lane & 1 else 0 for lane, (p, q) in pairs]
            r[out] = np.array(places, dtype=UNSIGNED[width])

    return op


@instruction("getctarank")
def getctarank(d: Decode) -> Op:
    d.flag("shared::cluster")
    kind = d.type(("u32", "u64"))
    out, a = d.dst("u32"), d.src(kind)

    def op(r: Registers) -> None:
        x: Value = r[a]
        r[out] = x >> RANK_SHIFT & 0xFF if type(x) is int else (x >> x.dtype.type(RANK_SHIFT) & 0xFF).astype("u4")

    return op
