"""Element types of operands, accumulators and tensor maps.

Tensor-map codes are the values of `CUtensorMapDataType` (cuda.h, CUDA 13.0). The
`tensormap.replace` instruction numbers the same types differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """A scalar type of PTX.

    `tensor_map_code` is None where `cuTensorMapEncodeTiled` has no such type; 8-bit floats travel
    as u8. `align_bytes` is the alignment that tensor maps ask of addresses and strides.
    """

    name: str
    bits: int
    is_float: bool = False
    tensor_map_code: int | None = None
    align_bytes: int = 16

    @property
    def bytes(self) -> int:
        """Size in bytes; ValueError for types that are not a whole number of bytes."""
        if self.bits % 8:
            raise ValueError(f"{self.name} has {self.bits} bits: not a whole number of bytes")
        return self.bits // 8

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte in global memory."""
        return self.bits % 8 != 0

    def __str__(self) -> str:
        return self.name


def _types(*rows: tuple[str, int, bool, int | None]) -> dict[str, ElementType]:
    return {
        name: ElementType(name=name, bits=bits, is_float=is_float, tensor_map_code=code)
        for name, bits, is_float, code in rows
    }


ELEMENT_TYPES: dict[str, ElementType] = _types(
    ("f16", 16, True, 6),
    ("bf16", 16, True, 9),
    ("f32", 32, True, 7),
    ("f32_ftz", 32, True, 10),
    ("tf32", 32, True, 11),
    ("tf32_ftz", 32, True, 12),
    ("f64", 64, True, 8),
    ("e4m3", 8, True, 0),
    ("e5m2", 8, True, 0),
    ("e3m2", 6, True, None),
    ("e2m3", 6, True, None),
    ("e2m1", 4, True, None),
    ("ue8m0", 8, True, 0),
    ("ue4m3", 8, True, 0),
    ("u8", 8, False, 0),
    ("s8", 8, False, 0),
    ("u16", 16, False, 1),
    ("s16", 16, False, 1),
    ("u32", 32, False, 2),
    ("s32", 32, False, 3),
    ("u64", 64, False, 4),
    ("s64", 64, False, 5),
) | {
    # Tensor-map types of packed sub-byte data: sixteen elements fill 8 bytes (align8), or 8 or 12
    # bytes that TMA spreads over 16 bytes of shared memory (align16).
    "u4_align8": ElementType(name="u4_align8", bits=4, tensor_map_code=13),
    "u4_align16": ElementType(name="u4_align16", bits=4, tensor_map_code=14, align_bytes=32),
    "u6_align16": ElementType(name="u6_align16", bits=6, tensor_map_code=15, align_bytes=32),
}


def element_type(name: str) -> ElementType:
    """The type called `name`; UnknownNameError with the nearest name otherwise."""
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        raise UnknownNameError("element type", name, ELEMENT_TYPES) from None
