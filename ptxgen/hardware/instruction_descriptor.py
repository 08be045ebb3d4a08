"""The 32-bit instruction descriptor of tcgen05.mma (PTX ISA 9.1 §9.7.16.4.2, Tables 42-44).

    bits    f16, tf32, f8f6f4, i8             mxf8f6f4, mxf4, mxf4nvf4
    0-1     sparsity selector                 0
    2       sparse                            sparse
    3       saturate (i8)                     0
    4-5     D type: f16 0, f32 1, s32 2       scale-factor id of B
    7-9     A type                            A type
    10-12   B type                            B type (mxf4*: 10-11)
    13, 14  negate A, B (not i8)              negate A, B
    15, 16  A, B are MN-major                 A, B are MN-major (not mxf4*)
    17-22   N >> 3                            N >> 3
    23      0                                 scale type: ue4m3 0, ue8m0 1
    24-28   M >> 4                            M >> 4 (only bits 27-28 can be set)
    29-30   0                                 scale-factor id of A
    30-31   shift of the .ws B reuse          31: K is 96 (mxf4*)

M and N are those of the CTA pair under cta_group::2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError, UnknownNameError

if TYPE_CHECKING:
    from ptxgen.hardware.smem_descriptor import Major

_F8F6F4 = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
OPERAND_CODES: dict[str, dict[str, int]] = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": _F8F6F4,
    "i8": {"u8": 0, "s8": 1},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
KINDS = tuple(OPERAND_CODES)
BLOCK_SCALED_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")
_FOUR_BIT_KINDS = ("mxf4", "mxf4nvf4")
D_CODES = {"f16": 0, "f32": 1, "s32": 2}
_D_TYPES = {"f16": ("f16", "f32"), "tf32": ("f32",), "f8f6f4": ("f16", "f32"), "i8": ("s32",)}
_SCALE_CODES = {"ue4m3": 0, "ue8m0": 1}
_SCALE_TYPES = {"mxf8f6f4": ("ue8m0",), "mxf4": ("ue8m0",), "mxf4nvf4": ("ue8m0", "ue4m3")}
_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionDescriptor:
    """Shape, types and modifiers of one tcgen05.mma.

    `kind` may be left out where `a_type` settles it (f16, tf32, f8f6f4, i8). Block-scaled kinds
    have no D type (always f32) and need `scale_type`. `scale_id_a`, `scale_id_b` choose the byte
    of a scale-factor column. Construction checks what can be encoded; whether the hardware has
    the shape depends on the CTA group: see `shape_violations`.
    """

    m: int
    n: int
    d_type: str = "f32"
    a_type: str
    b_type: str
    a_major: Major = "K"
    b_major: Major = "K"
    kind: str = ""
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    sparsity_selector: int = 0
    reuse_shift: int = 0
    scale_type: str | None = None
    scale_id_a: int = 0
    scale_id_b: int = 0
    k96: bool = False

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", kind_of(self.a_type))
        if self.kind not in KINDS:
            raise UnknownNameError("tcgen05.mma kind", self.kind, KINDS)
        violations = self._violations()
        if violations:
            raise SpecError(f"a tcgen05.mma of kind {self.kind} as described", violations)

    def _violations(self) -> list[str]:
        kind, scaled = self.kind, self.kind in BLOCK_SCALED_KINDS
        codes = OPERAND_CODES[kind]
        selector, shift = self.sparsity_selector, self.reuse_shift
        rules = [
            (self.m in range(16, 257, 16), f"m {self.m} is not a multiple of 16 in 16..256"),
            (self.n in range(8, 257, 8), f"n {self.n} is not a multiple of 8 in 8..256"),
            (self.a_type in codes, f"a_type {self.a_type} is none of {', '.join(codes)}"),
            (self.b_type in codes, f"b_type {self.b_type} is none of {', '.join(codes)}"),
            (0 <= selector <= 3, f"sparsity_selector {selector} is not in 0..3"),
            (self.sparse or not selector, "a sparsity_selector needs sparse"),
            (0 <= shift <= 3, f"reuse_shift {shift} is not in 0..3"),
            (not self.saturate or kind == "i8", "saturate is for kind i8 only"),
            (not (self.negate_a or self.negate_b) or kind != "i8", "kind i8 has no negation"),
            (not self.k96 or kind in _FOUR_BIT_KINDS, "k96 is for kinds mxf4 and mxf4nvf4 only"),
        ]
        if scaled:
            scales = _SCALE_TYPES[kind]
            ids = (0, 2) if kind in _FOUR_BIT_KINDS else (0, 1, 2, 3)
            rules += [
                (self.d_type == "f32", f"d_type {self.d_type} is not f32"),
                (
                    self.scale_type in scales,
                    f"scale_type {self.scale_type} is none of {', '.join(scales)}",
                ),
                (self.scale_id_a in ids, f"scale_id_a {self.scale_id_a} is none of {ids}"),
                (self.scale_id_b in ids, f"scale_id_b {self.scale_id_b} is none of {ids}"),
                (self.m in (128, 256), f"m {self.m}: block-scaled kinds have m 128 or 256"),
                (not selector, "block-scaled kinds have no sparsity_selector"),
                (not shift, "block-scaled kinds have no reuse_shift"),
            ]
            if kind in _FOUR_BIT_KINDS:
                both_k = self.a_major == self.b_major == "K"
                rules.append((both_k, f"kind {kind} has no MN-major operands"))
        else:
            d_types = ("f32",) if self.a_type == "bf16" or self.b_type == "bf16" else _D_TYPES[kind]
            rules += [
                (self.d_type in d_types, f"d_type {self.d_type} is none of {', '.join(d_types)}"),
                (self.scale_type is None, f"kind {kind} has no scale factors"),
                (self.scale_id_a == self.scale_id_b == 0, f"kind {kind} has no scale-factor ids"),
            ]
        return [text for holds, text in rules if not holds]

    @property
    def k(self) -> int:
        """Elements of K of one instruction (twice the dense figure when sparse)."""
        return (96 if self.k96 else _K[self.kind]) * (2 if self.sparse else 1)

    def encode(self) -> int:
        """The 32-bit value."""
        codes = OPERAND_CODES[self.kind]
        value = (
            int(self.sparse) << 2  # 2
            | codes[self.a_type] << 7  # 7-9
            | codes[self.b_type] << 10  # 10-12
            | int(self.negate_a) << 13  # 13
            | int(self.negate_b) << 14  # 14
            | int(self.a_major == "MN") << 15  # 15
            | int(self.b_major == "MN") << 16  # 16
            | self.n >> 3 << 17  # 17-22
            | self.m >> 4 << 24  # 24-28
        )
        if self.scale_type is not None:
            return (
                value
                | self.scale_id_b << 4  # 4-5
                | _SCALE_CODES[self.scale_type] << 23  # 23
                | self.scale_id_a << 29  # 29-30
                | int(self.k96) << 31  # 31
            )
        return (
            value
            | self.sparsity_selector  # 0-1
            | int(self.saturate) << 3  # 3
            | D_CODES[self.d_type] << 4  # 4-5
            | self.reuse_shift << 30  # 30-31
        )

    def fields_text(self) -> str:
        """Each field of a plain (not block-scaled) kind with its bits, name and coded value, for a comment."""
        codes, major = OPERAND_CODES[self.kind], {"K": 0, "MN": 1}
        return "; ".join(
            (
                f"bits 4-5: D {self.d_type} = {D_CODES[self.d_type]}",
                f"7-9: A {self.a_type} = {codes[self.a_type]}",
                f"10-12: B {self.b_type} = {codes[self.b_type]}",
                f"15: A {self.a_major}-major = {major[self.a_major]}",
                f"16: B {self.b_major}-major = {major[self.b_major]}",
                f"17-22: N / 8 = {self.n >> 3}",
                f"24-28: M / 16 = {self.m >> 4}",
            )
        )

    def shape_violations(self, *, cta_group: int = 1, weight_stationary: bool = False) -> tuple[str, ...]:
        """Rules of PTX ISA 9.1 §9.7.16.2.1 (Tables 39, 52) that m and n break, each in words."""
        m, n, kind = self.m, self.n, self.kind
        if weight_stationary:
            wide = () if self.sparse else (256,)
            return _not_in(m, (32, 64, 128), ".ws: m") + _not_in(n, (64, 128, *wide), ".ws: n")
        pair = cta_group == 2
        where = f"kind {kind} under cta_group::{cta_group}"
        if kind in BLOCK_SCALED_KINDS:
            ms: tuple[int, ...] = ((256,) if self.sparse else (128, 256)) if pair else (128,)
        else:
            ms = (128, 256) if pair else (64, 128)
        step = 16 if pair else 8
        ns = tuple(range(step, 257, step))
        if kind == "i8":
            ns = tuple(range(32, 257, 32)) if pair else (8, 16, 24, *range(32, 257, 16))
        if kind in ("i8", "f8f6f4", "mxf8f6f4") and self.b_major == "MN":
            step = 32 if pair else 16
            ns = tuple(n for n in ns if n % step == 0)
            where += " with an MN-major B of 8-bit elements"
        return _not_in(m, ms, f"{where}: m") + _not_in(n, ns, f"{where}: n")


def kind_of(a_type: str) -> str:
    """The plain (not block-scaled) kind that multiplies `a_type`."""
    for kind in ("f16", "tf32", "f8f6f4", "i8"):
        if a_type in OPERAND_CODES[kind]:
            return kind
    known = [name for kind in ("f16", "tf32", "f8f6f4", "i8") for name in OPERAND_CODES[kind]]
    raise UnknownNameError("operand type of tcgen05.mma", a_type, known)


def decode(value: int, kind: str) -> InstructionDescriptor:
    """Inverse of `InstructionDescriptor.encode`; SpecError lists every illegal field."""
    if kind not in KINDS:
        raise UnknownNameError("tcgen05.mma kind", kind, KINDS)
    scaled = kind in BLOCK_SCALED_KINDS
    subject = f"instruction descriptor {value:#010x} of kind {kind}"
    types = {code: name for name, code in OPERAND_CODES[kind].items()}
    d_types = {code: name for name, code in D_CODES.items()}
    a_code, b_code, d_code = value >> 7 & 7, value >> 10 & 7, value >> 4 & 3
    reserved: tuple[int, ...] = (0, 1, 3, 6, 24, 25, 26) if scaled else (6, 23, 29)
    if kind == "mxf8f6f4":
        reserved += (31,)
    violations = [f"reserved bit {bit} is set" for bit in reserved if value >> bit & 1]
    violations += [
        f"{name} type code {code} in bits {bits} is none of {sorted(types)}"
        for name, code, bits in (("A", a_code, "7-9"), ("B", b_code, "10-12"))
        if code not in types
    ]
    if not scaled and d_code not in d_types:
        violations.append(f"D type code {d_code} in bits 4-5 is none of {sorted(d_types)}")
    if not 0 <= value < 1 << 32:
        violations.append("the value does not fit 32 bits")
    if violations:
        raise SpecError(subject, violations)
    scale_types = {code: name for name, code in _SCALE_CODES.items()}
    try:
        return InstructionDescriptor(
            kind=kind,
            m=(value >> 24 & 0x1F) << 4,
            n=(value >> 17 & 0x3F) << 3,
            d_type="f32" if scaled else d_types[d_code],
            a_type=types[a_code],
            b_type=types[b_code],
            a_major="MN" if value >> 15 & 1 else "K",
            b_major="MN" if value >> 16 & 1 else "K",
            negate_a=bool(value >> 13 & 1),
            negate_b=bool(value >> 14 & 1),
            saturate=not scaled and bool(value >> 3 & 1),
            sparse=bool(value >> 2 & 1),
            sparsity_selector=0 if scaled else value & 3,
            reuse_shift=0 if scaled else value >> 30 & 3,
            scale_type=scale_types[value >> 23 & 1] if scaled else None,
            scale_id_a=value >> 29 & 3 if scaled else 0,
            scale_id_b=d_code if scaled else 0,
            k96=scaled and bool(value >> 31 & 1),
        )
    except SpecError as error:
        raise SpecError(subject, error.violations) from None


def _not_in(value: int, allowed: tuple[int, ...], name: str) -> tuple[str, ...]:
    if value in allowed:
        return ()
    return (f"{name} {value} is none of {', '.join(map(str, allowed))}",)
