"""Shared-memory swizzles: XORs on absolute byte addresses (PTX ISA 9.1 §5.5.7).

TMA writes and the tensor cores read through the same XOR, so only the absolute address matters,
not where a tile starts. Every swizzle is its own inverse: the bits that it changes are never the
bits that it reads.
"""

from __future__ import annotations

from enum import Enum

from ptxgen.errors import SpecError


class Swizzle(Enum):
    """A swizzle mode: (span bytes, pattern bytes, ((right shift, mask), ...)).

    `address ^ ((address >> shift) & mask)` for every pair is the swizzled address.
    """

    value: tuple[int, int, tuple[tuple[int, int], ...]]

    NONE = (16, 16, ())
    B32 = (32, 256, ((3, 0x10),))  # bit 4 ^= bit 7
    B64 = (64, 512, ((3, 0x30),))  # bits 5:4 ^= bits 8:7
    B128 = (128, 1024, ((3, 0x70),))  # bits 6:4 ^= bits 9:7
    B128_ATOM32 = (128, 512, ((2, 0x60),))  # bits 6:5 ^= bits 8:7
    B128_ATOM32_FLIP8 = (128, 512, ((2, 0x60), (4, 0x08)))  # and bit 3 ^= bit 7
    B128_ATOM64 = (128, 256, ((1, 0x40),))  # bit 6 ^= bit 7

    @property
    def span_bytes(self) -> int:
        """Bytes of one row of the pattern: the widest inner box of a tensor map."""
        return self.value[0]

    @property
    def pattern_bytes(self) -> int:
        """Period of the pattern in bytes: tiles start at multiples of it."""
        return self.value[1]

    @property
    def chunk_bytes(self) -> int:
        """Bytes that stay together and in order: 16, or 8 with the 8-byte flip."""
        return 8 if self is Swizzle.B128_ATOM32_FLIP8 else 16

    def apply(self, address: int) -> int:
        """Swizzled byte address of byte `address`; an involution."""
        swizzled = address
        for shift, mask in self.value[2]:
            swizzled ^= (address >> shift) & mask
        return swizzled


_BY_SPAN = {16: Swizzle.NONE, 32: Swizzle.B32, 64: Swizzle.B64, 128: Swizzle.B128}


def swizzle_of_span(span_bytes: int) -> Swizzle:
    """The plain swizzle of a span: 128, 64 or 32 bytes; 16 means none."""
    try:
        return _BY_SPAN[span_bytes]
    except KeyError:
        raise SpecError(
            f"a swizzle span of {span_bytes} bytes",
            [f"the spans are {', '.join(map(str, _BY_SPAN))} bytes (16: no swizzle)"],
        ) from None
