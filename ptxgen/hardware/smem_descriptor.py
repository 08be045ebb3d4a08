"""The 64-bit shared-memory matrix descriptor of tcgen05 (sm_100a) and wgmma (sm_90a).

PTX ISA 9.1 §9.7.16.4.1 (Table 40) and §9.7.15.5.1.2.2; the two differ in a constant and in the
coding of the swizzle:

    bits    field                                     sm_100a          sm_90a
    0-13    start address >> 4
    16-29   leading byte offset >> 4
    32-45   stride byte offset >> 4
    46-48   constant                                  0b001            0
    49-51   base offset
    52      leading offset is an absolute address     sm_103a only     0
    61-63   swizzle                                   3 bits           2 bits at 62-63
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.hardware.swizzle import Swizzle

if TYPE_CHECKING:
    from collections.abc import Iterator

Major = Literal["K", "MN"]

MAX_SMEM_OFFSET = 0x3FFF0  # 18-bit addresses and offsets in units of 16 bytes

_SWIZZLE_CODES: dict[str, dict[Swizzle, int]] = {
    "sm_100a": {
        Swizzle.NONE: 0,
        Swizzle.B128_ATOM32: 1,
        Swizzle.B128: 2,
        Swizzle.B64: 4,
        Swizzle.B32: 6,
    },
    "sm_90a": {Swizzle.NONE: 0, Swizzle.B128: 2, Swizzle.B64: 4, Swizzle.B32: 6},
}
_CONSTANTS = {"sm_100a": 0b001, "sm_90a": 0}  # bits 46-48
_RESERVED_BITS = (
    (14, 15),
    (30, 31),
    (53, 60),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmemDescriptor:
    """Where a tensor core finds one operand of one instruction in shared memory.

    `start_address` is a CTA-relative shared address (mask the CTA rank away first). The offsets
    are bytes; what they step over depends on major and swizzle, see `operand_offset`. Swizzled
    K-major operands ignore `leading_byte_offset`; writing 16 (field value 1) is customary.
    `base_offset` is 0 iff the swizzle pattern starts at a multiple of `swizzle.pattern_bytes`.
    """

    start_address: int
    leading_byte_offset: int
    stride_byte_offset: int
    swizzle: Swizzle
    base_offset: int = 0
    absolute_lbo: bool = False

    def __post_init__(self) -> None:
        violations = [
            f"{name} {value} is not a multiple of 16 in 0..{MAX_SMEM_OFFSET}"
            for name, value in (
                ("start_address", self.start_address),
                ("leading_byte_offset", self.leading_byte_offset),
                ("stride_byte_offset", self.stride_byte_offset),
            )
            if value % 16 or not 0 <= value <= MAX_SMEM_OFFSET
        ]
        if not 0 <= self.base_offset <= 7:
            violations.append(f"base_offset {self.base_offset} is not in 0..7")
        if self.swizzle not in _SWIZZLE_CODES["sm_100a"]:
            violations.append(f"no matrix descriptor has swizzle {self.swizzle.name}")
        if violations:
            raise SpecError("this shared-memory matrix descriptor", violations)

    def encode(self, target: str = "sm_100a") -> int:
        """The 64-bit value for `target`."""
        codes = _codes(target)
        violations = []
        if self.swizzle not in codes:
            violations.append(f"{target} has no descriptor swizzle {self.swizzle.name}")
        if self.absolute_lbo and target == "sm_90a":
            violations.append("absolute_lbo (bit 52) does not exist on sm_90a")
        if violations:
            raise SpecError("this shared-memory matrix descriptor", violations)
        return (
            self.start_address >> 4  # 0-13
            | self.leading_byte_offset >> 4 << 16  # 16-29
            | self.stride_byte_offset >> 4 << 32  # 32-45
            | _CONSTANTS[target] << 46  # 46-48
            | self.base_offset << 49  # 49-51
            | int(self.absolute_lbo) << 52  # 52
            | codes[self.swizzle] << 61  # 61-63
        )

    def fields_text(self, target: str = "sm_100a") -> str:
        """The constant fields, above the start address, with their bits, name and coded value, for a comment."""
        swizzled = self.swizzle is not Swizzle.NONE
        constant = _CONSTANTS[target]
        name = f"{self.swizzle.span_bytes}B swizzle" if swizzled else "no swizzle"
        return "; ".join(
            (
                f"bits 16-29: leading byte offset / 16 = {self.leading_byte_offset >> 4}"
                + (" (unused where swizzled)" if swizzled else ""),
                f"32-45: stride byte offset / 16 = {self.stride_byte_offset >> 4}",
                *([f"46-48: constant = {constant}"] if constant else []),
                f"61-63: {name} = {_codes(target)[self.swizzle]}",
            )
        )


def decode(value: int, target: str = "sm_100a") -> SmemDescriptor:
    """Inverse of `SmemDescriptor.encode`; SpecError lists every illegal field of `value`."""
    codes = _codes(target)
    violations = [
        f"reserved bits {low}-{high} are {value >> low & (1 << high - low + 1) - 1:#x}, not 0"
        for low, high in _RESERVED_BITS
        if value >> low & (1 << high - low + 1) - 1
    ]
    constant = value >> 46 & 7
    if constant != _CONSTANTS[target]:
        violations.append(f"bits 46-48 are {constant:#05b}, not {_CONSTANTS[target]:#05b}")
    code = value >> 61 & 7
    swizzles = [swizzle for swizzle, known in codes.items() if known == code]
    if not swizzles:
        violations.append(f"swizzle code {code} in bits 61-63 is none of {sorted(codes.values())}")
    if value >> 52 & 1 and target == "sm_90a":
        violations.append("bit 52 is set, which is reserved on sm_90a")
    if not 0 <= value < 1 << 64:
        violations.append("the value does not fit 64 bits")
    if violations:
        raise SpecError(f"matrix descriptor {value:#018x} on {target}", violations)
    return SmemDescriptor(
        start_address=(value & 0x3FFF) << 4,
        leading_byte_offset=(value >> 16 & 0x3FFF) << 4,
        stride_byte_offset=(value >> 32 & 0x3FFF) << 4,
        swizzle=swizzles[0],
        base_offset=value >> 49 & 7,
        absolute_lbo=bool(value >> 52 & 1),
    )


def operand_offset(descriptor: SmemDescriptor, *, major: Major, element_bytes: int, mn: int, k: int) -> int:
    """Byte offset of element (mn, k) from the start address, before the swizzle.

    PTX ISA 9.1 §9.7.16.3.3. The address of the element is
    `swizzle.apply(start_address + operand_offset(...))`.
    """
    mn_chunk, mn_byte = divmod(mn * element_bytes, 16)
    k_chunk, k_byte = divmod(k * element_bytes, 16)
    lbo, sbo = descriptor.leading_byte_offset, descriptor.stride_byte_offset
    span = descriptor.swizzle.span_bytes
    if major == "K":
        rows = mn // 8 * sbo
        if descriptor.swizzle is Swizzle.NONE:
            return rows + mn % 8 * 16 + k_chunk * lbo + k_byte
        return rows + mn % 8 * span + k * element_bytes
    if descriptor.swizzle is Swizzle.NONE:
        return mn_chunk * sbo + mn_byte + k // 8 * lbo + k % 8 * 16
    rows_of_group = 4 if descriptor.swizzle is Swizzle.B128_ATOM32 else 8
    atom, byte = divmod(mn * element_bytes, span)
    return atom * lbo + byte + k // rows_of_group * sbo + k % rows_of_group * span


def k_step_offset(*, swizzle: Swizzle, major: Major, step: int, stride_bytes: int, k_elements: int = 16) -> int:
    """Bytes to add to the start address for the `step`-th instruction along K.

    Every dense instruction takes 32 bytes (`k_elements`) of K. K-major: `stride_bytes` is the size
    of a panel, all rows by `swizzle.span_bytes` of K. MN-major: `stride_bytes` is the distance
    between groups of 8 rows of K (4 with the 32-byte atom), the descriptor's stride offset or,
    without a swizzle, its leading offset.
    """
    if major == "MN":
        group = 4 if swizzle is Swizzle.B128_ATOM32 else 8
        return step * (k_elements // group) * stride_bytes
    panel, byte = divmod(32 * step, swizzle.span_bytes)
    return panel * stride_bytes + byte


def operand_addresses(
    descriptor: SmemDescriptor, *, major: Major, element_bytes: int, mn_count: int, k_count: int
) -> Iterator[int]:
    """Swizzled byte addresses of all elements, mn outermost (slow; for explanation and tests)."""
    for mn in range(mn_count):
        for k in range(k_count):
            offset = operand_offset(descriptor, major=major, element_bytes=element_bytes, mn=mn, k=k)
            yield descriptor.swizzle.apply(descriptor.start_address + offset)


def _codes(target: str) -> dict[Swizzle, int]:
    try:
        return _SWIZZLE_CODES[target]
    except KeyError:
        raise UnknownNameError("descriptor target", target, _SWIZZLE_CODES) from None
