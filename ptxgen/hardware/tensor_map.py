"""Tensor maps: what TMA needs to know about a tensor in global memory.

The rules are those of `cuTensorMapEncodeTiled` (cuda.h, CUDA 13.0); the codes are the values of
its enums. The 128 opaque bytes are the driver's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from ptxgen.errors import SpecError
from ptxgen.hardware.swizzle import Swizzle

if TYPE_CHECKING:
    from ptxgen.hardware.element_types import ElementType

Interleave = Literal["none", "16B", "32B"]
OobFill = Literal["zero", "nan"]

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGN_BYTES = 128
"""Alignment of a `.param` that holds a tensor map (the struct of CUDA 13; 64 before)."""

SMEM_ALIGN_BYTES = 128
"""Alignment of the shared-memory side of a tensor copy."""

COORDINATE_ALIGN_BYTES = 16
"""Innermost coordinate times element size is a multiple of this, and stores clip in such units."""

_SWIZZLE_CODES = {
    Swizzle.NONE: 0,
    Swizzle.B32: 1,
    Swizzle.B64: 2,
    Swizzle.B128: 3,
    Swizzle.B128_ATOM32: 4,
    Swizzle.B128_ATOM32_FLIP8: 5,
    Swizzle.B128_ATOM64: 6,
}
_INTERLEAVE_CODES: dict[Interleave, int] = {"none": 0, "16B": 1, "32B": 2}
_L2_PROMOTION_CODES = {0: 0, 64: 1, 128: 2, 256: 3}
_OOB_CODES: dict[OobFill, int] = {"zero": 0, "nan": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A tiled tensor map. Lists run from the innermost dimension outwards.

    `address` is the global byte address; `strides_bytes` has one entry fewer than `dims` because
    the innermost dimension is dense; `l2_promotion` is 0, 64, 128 or 256 bytes. SpecError lists
    every rule that the values break.
    """

    element_type: ElementType
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: Interleave = "none"
    swizzle: Swizzle = Swizzle.NONE
    l2_promotion: int = 0
    oob_fill: OobFill = "zero"

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))
        violations = self._violations()
        if violations:
            raise SpecError(f"a tensor map of {self.element_type} {self.dims}", violations)

    def _violations(self) -> list[str]:
        element, rank, align = self.element_type, self.rank, self.element_type.align_bytes
        if self.interleave == "32B":
            align = 32
        inner_bits = self.box[0] * element.bits if self.box else 0
        inner_bytes = inner_bits / 8
        lowest_rank = 1 if self.interleave == "none" else 3
        rules = [
            (element.tensor_map_code is not None, f"tensor maps have no element type {element}"),
            (
                lowest_rank <= rank <= 5,
                f"rank {rank} is not in {lowest_rank}..5 (interleave {self.interleave})",
            ),
            (
                0 <= self.address < 2**64 and self.address % align == 0,
                f"address {self.address:#x} is not a multiple of {align} bytes",
            ),
            (
                all(1 <= size <= 2**32 for size in self.dims),
                f"dims {self.dims} are not all in 1..2^32",
            ),
            (
                len(self.strides_bytes) == max(rank - 1, 0),
                f"{len(self.strides_bytes)} strides for rank {rank}: one per outer dimension",
            ),
            (
                all(0 <= stride < 2**40 and stride % align == 0 for stride in self.strides_bytes),
                f"strides {self.strides_bytes} are not all multiples of {align} bytes below 2^40",
            ),
            (len(self.box) == rank, f"box {self.box} has {len(self.box)} sizes for rank {rank}"),
            (all(1 <= size <= 256 for size in self.box), f"box {self.box} is not all in 1..256"),
            (
                self.interleave != "none" or inner_bits % 128 == 0,
                f"an inner box of {inner_bytes:g} bytes is not a multiple of 16",
            ),
            (
                self.interleave != "none" or self.swizzle is Swizzle.NONE or inner_bytes <= self.swizzle.span_bytes,
                f"an inner box of {inner_bytes:g} bytes exceeds the {self.swizzle.span_bytes}-byte"
                f" span of swizzle {self.swizzle.name}",
            ),
            (
                self.interleave != "32B" or self.swizzle is Swizzle.B32,
                f"interleave 32B needs swizzle B32, not {self.swizzle.name}",
            ),
            (
                len(self.element_strides) == rank,
                f"{len(self.element_strides)} element strides for rank {rank}",
            ),
            (
                all(1 <= stride <= 8 for stride in self.element_strides),
                f"element strides {self.element_strides} are not all in 1..8",
            ),
            (
                self.l2_promotion in _L2_PROMOTION_CODES,
                f"L2 promotion {self.l2_promotion} is none of 0, 64, 128, 256 bytes",
            ),
            (
                self.oob_fill == "zero" or (element.is_float and not element.is_packed),
                f"NaN fill needs a floating-point type, not {element}",
            ),
        ]
        if element.align_bytes == 32 and self.dims and self.box:
            spread: tuple[Swizzle, ...] = (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM32)
            if element.bits == 6:
                spread += (Swizzle.B128_ATOM64,)
            rules += [
                (self.dims[0] % 128 == 0, f"inner size {self.dims[0]} of {element} is no multiple of 128"),
                (self.box[0] == 128, f"inner box {self.box[0]} of {element} is not 128"),
                (self.swizzle in spread, f"swizzle {self.swizzle.name} does not go with {element}"),
            ]
        return [text for holds, text in rules if not holds]

    @property
    def rank(self) -> int:
        """Number of dimensions, 1..5."""
        return len(self.dims)

    @property
    def box_elements(self) -> tuple[int, ...]:
        """Elements that one copy moves along each dimension: the box over the element strides.

        The innermost element stride counts only with an interleave.
        """
        strides = self.element_strides
        if self.interleave == "none":
            strides = (1, *strides[1:])
        return tuple(-(-size // stride) for size, stride in zip(self.box, strides, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy completes on its mbarrier; out-of-bounds elements count."""
        return prod(self.box_elements) * self.element_type.bits // 8

    @property
    def inner_box_bytes(self) -> int:
        """Bytes of one box row; with a swizzle, rows lie its span apart in shared memory."""
        return self.box_elements[0] * self.element_type.bits // 8

    @property
    def data_type_code(self) -> int:
        """CUtensorMapDataType."""
        code = self.element_type.tensor_map_code
        assert code is not None  # construction refuses types without one
        return code

    @property
    def interleave_code(self) -> int:
        """CUtensorMapInterleave."""
        return _INTERLEAVE_CODES[self.interleave]

    @property
    def swizzle_code(self) -> int:
        """CUtensorMapSwizzle."""
        return _SWIZZLE_CODES[self.swizzle]

    @property
    def l2_promotion_code(self) -> int:
        """CUtensorMapL2promotion."""
        return _L2_PROMOTION_CODES[self.l2_promotion]

    @property
    def oob_fill_code(self) -> int:
        """CUtensorMapFloatOOBfill."""
        return _OOB_CODES[self.oob_fill]
