"""wgmma, the matrix product of a warpgroup (PTX ISA 9.1 §9.7.15). See ptxgen.emulator.warpgroup."""

from __future__ import annotations

from typing import Any

from ptxgen.emulator import events
from ptxgen.emulator.accumulators import bit_set, block_of, form_of
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.module import Immediate, Vector
from ptxgen.emulator.values import Registers, Value
from ptxgen.emulator.warpgroup import Instruction, member_of, require_whole
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.smem_descriptor import Major

_SHAPES = {f"m64n{n}k{k}": (n, k) for k in (16, 8, 32) for n in range(8, 257, 8)}
_D_TYPES = ("f32", "f16", "s32")
_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip
_MIXED = (("e4m3", "e5m2"), ("s8", "u8"))
_INTEGER_N = (8, *range(16, 257, 16), 24)


@instruction("wgmma.mma_async")
def mma_async(d: Decode) -> Op:
    d.require("sync", "aligned")
    name = d.choice(*_SHAPES)
    n, k = _SHAPES[name]
    d_type, a_type, b_type = d.choice(*_D_TYPES), d.choice(*_K), d.choice(*_K)
    integers = d_type == "s32"
    if _K[a_type] != k or d_type not in _RESULTS[a_type] or (integers and n not in _INTEGER_N):
        d.fail(f"wgmma.mma_async.{name} has no form .{d_type}.{a_type}.{b_type}")
    if a_type != b_type and not any(a_type in kinds and b_type in kinds for kinds in _MIXED):
        d.fail(f"wgmma.mma_async does not multiply .{a_type} by .{b_type}")
    saturate = integers and d.flag("satfinite")
    slots = d.vector("b32", write=True)
    registers = n // 4 if d_type == "f16" else n // 2
    if len(slots) != registers:
        d.fail(f"D of {name} in .{d_type} has {registers} registers, not {len(slots)}")
    a, a_slots = _a_operand(d)
    b = d.src("b64")
    scale_d, negated, reads_d = _scale_d(d)
    negate = False
    if not integers:
        scales = d.integer("imm-scale-a"), d.integer("imm-scale-b")
        if any(scale not in (-1, 1) for scale in scales):
            d.fail(f"imm-scale-a and imm-scale-b are 1 or -1, not {scales[0]} and {scales[1]}")
        negate = scales[0] != scales[1]
    majors: list[Major] = ["K", "K"]
    if k == 16:
        for place in (1,) if a_slots else (0, 1):
            transposed = d.integer("a transpose flag")
            if transposed not in (0, 1):
                d.fail(f"imm-trans-a and imm-trans-b are 0 or 1, not {transposed}")
            majors[place] = "MN" if transposed else "K"
    form = form_of(
        n=n, d_type=d_type, a_type=a_type, b_type=b_type, a_major=majors[0], b_major=majors[1],
        a_in_registers=bool(a_slots), negate=negate, saturate=saturate,
    )  # fmt: skip
    block = block_of(tuple(slots), n, d_type)
    d.accumulators = block.bits | bit_set(a_slots)
    if reads_d:
        d.reads |= block.bits
    mma = Instruction(form, block, d.accumulators, d.line)
    in_registers = bool(a_slots)

    def op(r: Registers) -> None:
        warp = r[0]
        require_whole(warp, "wgmma.mma_async")
        x, y, p = (0 if in_registers else r[a]), r[b], r[scale_d]
        if type(x) is not int or type(y) is not int:
            x, y = _descriptor(x, "A"), _descriptor(y, "B")
        if type(p) is not bool:
            p = _agreed(p)
        member_of(warp).issue(mma, x, y, p is not negated, a_slots)

    return op


@instruction("wgmma.mma_async.sp")
def sparse(d: Decode) -> Op:
    raise NotSupportedError(f"{d.module.file}:{d.line}: sparse wgmma.mma_async is not modelled")


def _a_operand(d: Decode) -> tuple[int, list[int]]:
    """A's descriptor, or its four registers."""
    if not d.operands or not isinstance(d.operands[0], Vector):
        return d.src("b64"), []
    slots = d.vector("b32", write=False)
    if len(slots) != 4:
        d.fail(f"A in registers takes 4 registers, not {len(slots)}")
    return 0, slots


def _scale_d(d: Decode) -> tuple[int, bool, bool]:
    """scale-d, a predicate or the literal 0 or 1: slot, negated, and whether D may be read."""
    operand = d.operands[0] if d.operands else None
    if isinstance(operand, Immediate):
        literal = d.integer("scale-d")
        if literal not in (0, 1):
            d.fail(f"scale-d is a predicate, 0 or 1, not {literal}")
        return d.slots.constant(bool(literal), 1), False, bool(literal)
    return *d.predicate(), True


def _descriptor(value: Value, name: str) -> int:
    if type(value) is int:
        return value
    if (value != value[0]).any():
        raise MachineError("illegal-descriptor", f"the matrix descriptor of {name} differs between lanes of the warp")
    return int(value[0])


def _agreed(p: Any) -> bool:
    if p is None:
        raise MachineError("uninitialised-read", "scale-d was never written")
    if p.any() != p.all():
        raise MachineError("divergent-aligned-instruction", "scale-d differs between the lanes of the warp")
    return bool(p[0])


@instruction("wgmma.fence")
def fence(d: Decode) -> Op:
    d.require("sync", "aligned")
    line, hooks, name = d.line, d.hooks, d.item.name

    def op(r: Registers) -> None:
        warp = r[0]
        require_whole(warp, "wgmma.fence")
        member_of(warp).fence()
        if hooks:
            unit = warp.cta.unit
            unit.emit(events.Fence(*unit.where(warp, warp.bits, line), name=name))

    return op


@instruction("wgmma.commit_group")
def commit_group(d: Decode) -> Op:
    d.require("sync", "aligned")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        require_whole(warp, "wgmma.commit_group")
        tracked = member_of(warp).commit()
        if hooks:
            unit = warp.cta.unit
            unit.emit(events.Commit(*unit.where(warp, warp.bits, line), mechanism="wgmma-group", tracked=tracked))

    return op


@instruction("wgmma.wait_group")
def wait_group(d: Decode) -> Ends:
    d.require("sync", "aligned")
    pending = d.integer("the number of groups")
    if pending < 0:
        d.fail(f"{pending} groups cannot be pending")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> bool:
        warp = r[0]
        require_whole(warp, "wgmma.wait_group")
        covered = member_of(warp).wait(pending, line)
        if covered is None:
            return False
        if hooks:
            unit = warp.cta.unit
            where = unit.where(warp, warp.bits, line)
            unit.emit(events.WaitGroup(*where, mechanism="wgmma-group", pending=pending, covered=covered))
        return True

    return Ends(kind="blocking", op=op, repeats=True)
