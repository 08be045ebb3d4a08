"""Descriptors in words: the operands of an MMA as far as a text tells them."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.emulator.module import Register
from ptxgen.errors import PtxgenError
from ptxgen.hardware import instruction_descriptor, smem_descriptor
from ptxgen.review import kinds
from ptxgen.review.structure import Site
from ptxgen.review.values import Known, Number

FIRST, SECOND = "first operand", "second operand"
"""Of an MMA; which of the problem's matrices they are parts of is for the kernel to say."""
_UNKNOWN = "not known from the text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One operand of an MMA: what it is, its value as far as known, the meaning, and of a matrix in shared
    memory where it begins, with the step of its stages."""

    operand: str
    value: str
    meaning: str
    start: int | None = None
    step: int = 0
    others: tuple[int, ...] = ()
    """Where it begins for further warps, if not at `start`."""


def decoded_operands(site: Site) -> tuple[Decoded, ...]:
    """The descriptors of a tcgen05.mma or wgmma.mma_async; none for other instructions."""
    if site.kind != kinds.MMA:
        return ()
    name = site.instruction.name
    family = "sm_90a" if name.startswith("wgmma") else "sm_100a"
    if name.startswith("tcgen05.mma"):
        kind = next((word.removeprefix("kind::") for word in name.split(".") if word.startswith("kind::")), "f16")
        found = [] if name.startswith("tcgen05.mma.ws") else [_instruction(site.values[3], kind)]
        if _is_descriptor(site, 1):
            found.append(_operand(FIRST, site.values[1], family))
        else:
            found.append(Decoded(operand=FIRST, value="", meaning="in tensor memory"))
        return (*found, _operand(SECOND, site.values[2], family))
    if name.startswith("wgmma"):
        found = [_operand(FIRST, site.values[1], family)] if _is_descriptor(site, 1) else []
        return (*found, _operand(SECOND, site.values[2], family))
    return ()


def _is_descriptor(site: Site, index: int) -> bool:
    operand = site.instruction.operands[index]
    return isinstance(operand, Register) and operand.bits == 64


def _instruction(value: Known, kind: str) -> Decoded:
    operand = "instruction descriptor"
    number = value.value if isinstance(value, Number) and not value.step else None
    if not isinstance(number, int):
        return Decoded(operand=operand, value="", meaning=_UNKNOWN)
    try:
        found = instruction_descriptor.decode(number, kind)
    except PtxgenError as error:
        return Decoded(operand=operand, value=f"{number:#x}", meaning=f"not legal: {error}")
    meaning = f"M {found.m} x N {found.n}, {found.a_type} x {found.b_type} -> {found.d_type}"
    majors = f"A {found.a_major}-major, B {found.b_major}-major"
    return Decoded(operand=operand, value=f"{number:#x}", meaning=f"{meaning}, {majors}")


def _operand(operand: str, value: Known, family: str) -> Decoded:
    if not isinstance(value, Number):
        return Decoded(operand=operand, value="", meaning=_UNKNOWN)
    number = value.value if isinstance(value.value, int) else value.value[0]
    per_warp = not isinstance(value.value, int)
    try:
        found = smem_descriptor.decode(number, family)
    except PtxgenError as error:
        if value.step:
            return Decoded(operand=operand, value="", meaning=_UNKNOWN)
        return Decoded(operand=operand, value=f"{number:#x}", meaning=f"not legal: {error}")
    layout = f"swizzle {found.swizzle.name}, stride {found.stride_byte_offset} B"
    if found.swizzle.span_bytes <= 16:
        layout += f", leading {found.leading_byte_offset} B"
    which = " (the first warp's)" if per_warp else ""
    starts = () if isinstance(value.value, int) else [(each & 0x3FFF) << 4 for each in value.value]
    return Decoded(
        operand=operand,
        value=f"{number:#x}{which}",
        meaning=layout,
        start=found.start_address,
        step=value.step * 16,
        others=tuple(dict.fromkeys(start for start in starts if start != found.start_address)),
    )
