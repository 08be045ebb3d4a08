"""Matrix and instruction descriptors: known values, round trips, every rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.hardware import instruction_descriptor, smem_descriptor
from ptxgen.hardware.instruction_descriptor import (
    BLOCK_SCALED_KINDS,
    KINDS,
    OPERAND_CODES,
    InstructionDescriptor,
)
from ptxgen.hardware.smem_descriptor import Major, SmemDescriptor, k_step_offset, operand_addresses, operand_offset
from ptxgen.hardware.swizzle import Swizzle

DESCRIPTOR_SWIZZLES = {
    "sm_100a": [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128, Swizzle.B128_ATOM32],
    "sm_90a": [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128],
}
OFFSETS = st.integers(0, 0x3FFF).map(lambda units: units * 16)


def descriptor(swizzle: Swizzle, leading: int, stride: int, start: int = 0) -> SmemDescriptor:
    return SmemDescriptor(start_address=start, leading_byte_offset=leading, stride_byte_offset=stride, swizzle=swizzle)


# Values that CUTLASS's host code computes for the same layouts.
@pytest.mark.parametrize(
    ("target", "swizzle", "leading", "stride", "value"),
    [
        ("sm_100a", Swizzle.B128, 16, 1024, 0x4000404000010000),
        ("sm_90a", Swizzle.B128, 16, 1024, 0x4000004000010000),
        ("sm_100a", Swizzle.B64, 16, 512, 0x8000402000010000),
        ("sm_90a", Swizzle.B64, 16, 512, 0x8000002000010000),
        ("sm_100a", Swizzle.B32, 16, 256, 0xC000401000010000),
        ("sm_90a", Swizzle.B32, 16, 256, 0xC000001000010000),
        ("sm_100a", Swizzle.NONE, 2048, 128, 0x0000400800800000),
        ("sm_90a", Swizzle.NONE, 1024, 128, 0x0000000800400000),
        ("sm_100a", Swizzle.B128, 1024, 4096, 0x4000410000400000),
        ("sm_90a", Swizzle.B128, 1024, 2048, 0x4000008000400000),
        ("sm_100a", Swizzle.B128_ATOM32, 512, 2048, 0x2000408000200000),
    ],
)
def test_smem_descriptor_known_values(target: str, swizzle: Swizzle, leading: int, stride: int, value: int) -> None:
    assert descriptor(swizzle, leading, stride).encode(target) == value
    assert smem_descriptor.decode(value, target) == descriptor(swizzle, leading, stride)


@given(st.data())
def test_smem_descriptor_round_trip(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(["sm_100a", "sm_90a"]))
    value = SmemDescriptor(
        start_address=data.draw(OFFSETS),
        leading_byte_offset=data.draw(OFFSETS),
        stride_byte_offset=data.draw(OFFSETS),
        swizzle=data.draw(st.sampled_from(DESCRIPTOR_SWIZZLES[target])),
        base_offset=data.draw(st.integers(0, 7)),
        absolute_lbo=target == "sm_100a" and data.draw(st.booleans()),
    )
    assert smem_descriptor.decode(value.encode(target), target) == value


@given(st.integers(0, 2**64 - 1), st.sampled_from(["sm_100a", "sm_90a"]))
def test_smem_descriptor_decodes_only_what_it_encodes(value: int, target: str) -> None:
    try:
        decoded = smem_descriptor.decode(value, target)
    except SpecError:
        return
    assert decoded.encode(target) == value


def test_smem_descriptor_decode_lists_every_illegal_field() -> None:
    bad = 1 << 14 | 1 << 31 | 0b010 << 46 | 1 << 60 | 3 << 61
    with pytest.raises(SpecError) as error:
        smem_descriptor.decode(bad, "sm_100a")
    text = "\n".join(error.value.violations)
    assert len(error.value.violations) == 5
    for part in ("14-15", "30-31", "46-48 are 0b010", "53-60", "swizzle code 3"):
        assert part in text
    with pytest.raises(SpecError, match="bit 52"):
        smem_descriptor.decode(1 << 52, "sm_90a")
    with pytest.raises(SpecError, match="64 bits"):
        smem_descriptor.decode(1 << 64 | 1 << 46, "sm_100a")
    with pytest.raises(UnknownNameError, match="sm_90a"):
        smem_descriptor.decode(0, "sm_90")


def test_smem_descriptor_construction_lists_every_violation() -> None:
    with pytest.raises(SpecError) as error:
        SmemDescriptor(
            start_address=8,
            leading_byte_offset=0x40000,
            stride_byte_offset=-16,
            swizzle=Swizzle.B128_ATOM64,
            base_offset=8,
        )
    assert len(error.value.violations) == 5


def test_smem_descriptor_modes_of_sm_100a_only() -> None:
    with pytest.raises(SpecError, match="B128_ATOM32"):
        descriptor(Swizzle.B128_ATOM32, 16, 512).encode("sm_90a")
    absolute = SmemDescriptor(
        start_address=0, leading_byte_offset=16, stride_byte_offset=1024, swizzle=Swizzle.B128, absolute_lbo=True
    )
    with pytest.raises(SpecError, match="bit 52"):
        absolute.encode("sm_90a")


@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_k_major_panel_fills_its_bytes_once(swizzle: Swizzle) -> None:
    rows, span = 32, swizzle.span_bytes
    panel = descriptor(swizzle, 16, 8 * span, start=1024)
    addresses = list(operand_addresses(panel, major="K", element_bytes=2, mn_count=rows, k_count=span // 2))
    assert sorted(addresses) == list(range(1024, 1024 + rows * span, 2))


def test_k_major_matches_tma_written_rows() -> None:
    """Row r, byte b of a 128-byte-swizzled box lies at r*128 + (b XOR 16*(r mod 8))."""
    panel = descriptor(Swizzle.B128, 16, 1024, start=2048)
    addresses = iter(operand_addresses(panel, major="K", element_bytes=2, mn_count=16, k_count=64))
    for row in range(16):
        for k in range(64):
            assert next(addresses) == 2048 + row * 128 + (2 * k ^ 16 * (row % 8))


@pytest.mark.parametrize(
    ("swizzle", "element_bytes", "group"),
    [(Swizzle.NONE, 2, 8), (Swizzle.B32, 2, 8), (Swizzle.B128, 2, 8), (Swizzle.B128_ATOM32, 4, 4)],
)
def test_mn_major_fills_its_bytes_once(swizzle: Swizzle, element_bytes: int, group: int) -> None:
    span = swizzle.span_bytes
    mn, k = 4 * span // element_bytes, 16
    block = group * span
    # Four atoms of MN side by side in each group of K rows.
    atom_stride, group_stride = block, 4 * block
    leading, stride = (group_stride, atom_stride) if swizzle is Swizzle.NONE else (atom_stride, group_stride)
    operand = descriptor(swizzle, leading, stride, start=1024)
    addresses = list(operand_addresses(operand, major="MN", element_bytes=element_bytes, mn_count=mn, k_count=k))
    assert sorted(addresses) == list(range(1024, 1024 + mn * k * element_bytes, element_bytes))
    # MN is contiguous inside 16-byte chunks.
    assert addresses[k] == addresses[0] + element_bytes


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_k_major_step_equals_the_layouts_own_stride(swizzle: Swizzle) -> None:
    """Advancing the start address finds the same bytes as indexing further along K."""
    rows, span = 64, swizzle.span_bytes
    panel = rows * span
    leading = panel if swizzle is Swizzle.NONE else 16
    for step in range(4):
        offset = k_step_offset(swizzle=swizzle, major="K", step=step, stride_bytes=panel)
        moved = descriptor(swizzle, leading, 8 * span, start=1024 + offset)
        for mn, k in ((0, 0), (1, 5), (9, 15), (63, 8)):
            panel_index, byte = divmod(32 * step + 2 * k, span)
            row = mn // 8 * 8 * span + mn % 8 * span
            wanted = swizzle.apply(1024 + panel_index * panel + row + byte)
            assert (
                swizzle.apply(moved.start_address + operand_offset(moved, major="K", element_bytes=2, mn=mn, k=k))
                == wanted
            )


@pytest.mark.parametrize(
    ("swizzle", "element_bytes", "k"),
    [(Swizzle.NONE, 2, 16), (Swizzle.B64, 2, 16), (Swizzle.B128, 1, 32), (Swizzle.B128_ATOM32, 4, 8)],
)
def test_mn_major_step_equals_the_layouts_own_stride(swizzle: Swizzle, element_bytes: int, k: int) -> None:
    operand = descriptor(swizzle, 8192, 1024) if swizzle is not Swizzle.NONE else descriptor(swizzle, 1024, 8192)
    for step in range(4):
        offset = k_step_offset(swizzle=swizzle, major="MN", step=step, stride_bytes=1024, k_elements=k)
        assert offset == operand_offset(operand, major="MN", element_bytes=element_bytes, mn=0, k=step * k)


BF16 = {"a_type": "bf16", "b_type": "bf16"}
F16 = {"a_type": "f16", "b_type": "f16"}
E4M3 = {"a_type": "e4m3", "b_type": "e4m3"}
E2M1 = {"a_type": "e2m1", "b_type": "e2m1"}


# Values that CUTLASS's host code computes for the same instructions.
@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({**BF16, "m": 128, "n": 256}, 0x08400490),
        ({**BF16, "m": 256, "n": 256}, 0x10400490),
        ({**F16, "m": 128, "n": 128}, 0x08200010),
        ({**F16, "m": 128, "n": 128, "d_type": "f16"}, 0x08200000),
        ({**F16, "m": 64, "n": 64}, 0x04100010),
        ({"a_type": "tf32", "b_type": "tf32", "m": 128, "n": 128}, 0x08200910),
        ({**E4M3, "m": 128, "n": 256}, 0x08400010),
        ({"a_type": "e5m2", "b_type": "e4m3", "m": 128, "n": 256}, 0x08400090),
        ({"a_type": "s8", "b_type": "s8", "d_type": "s32", "m": 128, "n": 128}, 0x082004A0),
        ({"a_type": "u8", "b_type": "s8", "d_type": "s32", "m": 128, "n": 128}, 0x08200420),
        ({**BF16, "m": 128, "n": 128, "a_major": "MN", "b_major": "MN"}, 0x08218490),
        ({**BF16, "m": 128, "n": 128, "b_major": "MN"}, 0x08210490),
        ({**E4M3, "kind": "mxf8f6f4", "scale_type": "ue8m0", "m": 128, "n": 128}, 0x08A00000),
        ({**E4M3, "kind": "mxf8f6f4", "scale_type": "ue8m0", "m": 256, "n": 256}, 0x10C00000),
        ({**E2M1, "kind": "mxf4", "scale_type": "ue8m0", "m": 128, "n": 128}, 0x08A00480),
        ({**E2M1, "kind": "mxf4nvf4", "scale_type": "ue4m3", "m": 128, "n": 256}, 0x08400480),
    ],
)
def test_instruction_descriptor_known_values(fields: dict[str, object], value: int) -> None:
    described = InstructionDescriptor(**fields)  # type: ignore[arg-type]
    assert described.encode() == value
    assert instruction_descriptor.decode(value, described.kind) == described


@st.composite
def instruction_descriptors(draw: st.DrawFn) -> InstructionDescriptor:
    kind = draw(st.sampled_from(KINDS))
    codes = st.sampled_from(sorted(OPERAND_CODES[kind]))
    a_type, b_type = draw(codes), draw(codes)
    scaled, four_bit = kind in BLOCK_SCALED_KINDS, kind.startswith("mxf4")
    majors: st.SearchStrategy[Major] = st.just("K") if four_bit else st.sampled_from(("K", "MN"))
    d_types = ["f32"]
    if kind == "f8f6f4" or (kind == "f16" and a_type == b_type == "f16"):
        d_types.append("f16")
    if kind == "i8":
        d_types = ["s32"]
    ids = st.sampled_from([0, 2] if four_bit else [0, 1, 2, 3])
    sparse = draw(st.booleans())
    negate = st.just(False) if kind == "i8" else st.booleans()
    return InstructionDescriptor(
        kind=kind,
        m=draw(st.sampled_from([128, 256] if scaled else list(range(16, 257, 16)))),
        n=draw(st.sampled_from(range(8, 257, 8))),
        d_type=draw(st.sampled_from(d_types)),
        a_type=a_type,
        b_type=b_type,
        a_major=draw(majors),
        b_major=draw(majors),
        negate_a=draw(negate),
        negate_b=draw(negate),
        saturate=kind == "i8" and draw(st.booleans()),
        sparse=sparse,
        sparsity_selector=draw(st.integers(0, 3)) if sparse and not scaled else 0,
        reuse_shift=0 if scaled else draw(st.integers(0, 3)),
        scale_type=draw(st.sampled_from(["ue8m0", "ue4m3"] if kind == "mxf4nvf4" else ["ue8m0"])) if scaled else None,
        scale_id_a=draw(ids) if scaled else 0,
        scale_id_b=draw(ids) if scaled else 0,
        k96=four_bit and draw(st.booleans()),
    )


@given(instruction_descriptors())
def test_instruction_descriptor_round_trip(described: InstructionDescriptor) -> None:
    assert instruction_descriptor.decode(described.encode(), described.kind) == described


@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS))
def test_instruction_descriptor_decodes_only_what_it_encodes(value: int, kind: str) -> None:
    try:
        decoded = instruction_descriptor.decode(value, kind)
    except SpecError:
        return
    assert decoded.encode() == value


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"m": 8}, "m 8"),
        ({"n": 12}, "n 12"),
        ({"n": 264}, "n 264"),
        ({"b_type": "s8"}, "b_type s8"),
        ({"a_type": "bf16", "d_type": "f16"}, "d_type f16"),
        ({"saturate": True}, "saturate"),
        ({"sparsity_selector": 1}, "sparse"),
        ({"reuse_shift": 4}, "reuse_shift"),
        ({"scale_type": "ue8m0"}, "scale factors"),
        ({"scale_id_b": 1}, "scale-factor ids"),
        ({"k96": True}, "k96"),
    ],
)
def test_instruction_descriptor_rules(change: dict[str, object], word: str) -> None:
    fields: dict[str, object] = {**F16, "m": 128, "n": 128, "kind": "f16", **change}
    with pytest.raises(SpecError, match=word) as error:
        InstructionDescriptor(**fields)  # type: ignore[arg-type]
    assert len(error.value.violations) == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"m": 64}, "m 64"),
        ({"d_type": "f16"}, "d_type f16"),
        ({"scale_type": None}, "scale_type None"),
        ({"scale_id_a": 1}, "scale_id_a 1"),
        ({"scale_id_b": 3}, "scale_id_b 3"),
        ({"a_major": "MN"}, "MN-major"),
        ({"reuse_shift": 1}, "reuse_shift"),
        ({"sparse": True, "sparsity_selector": 1}, "sparsity_selector"),
    ],
)
def test_block_scaled_rules(change: dict[str, object], word: str) -> None:
    fields: dict[str, object] = {**E2M1, "m": 128, "n": 128, "kind": "mxf4", "scale_type": "ue8m0", **change}
    with pytest.raises(SpecError, match=word) as error:
        InstructionDescriptor(**fields)  # type: ignore[arg-type]
    assert len(error.value.violations) == 1


def test_instruction_descriptor_decode_names_reserved_bits_and_codes() -> None:
    with pytest.raises(SpecError) as error:
        instruction_descriptor.decode(0x08200010 | 1 << 6 | 1 << 23 | 1 << 29 | 3 << 4 | 7 << 7, "f16")
    text = "\n".join(error.value.violations)
    for part in ("bit 6", "bit 23", "bit 29", "D type code 3", "A type code 7"):
        assert part in text
    with pytest.raises(UnknownNameError, match="did you mean 'f16'"):
        instruction_descriptor.decode(0, "f61")
    with pytest.raises(UnknownNameError, match="operand type"):
        InstructionDescriptor(m=128, n=128, a_type="f64", b_type="f64")


@pytest.mark.parametrize(
    ("fields", "cta_group", "legal_m", "legal_n"),
    [
        (F16, 1, {64, 128}, set(range(8, 257, 8))),
        (F16, 2, {128, 256}, set(range(16, 257, 16))),
        ({"a_type": "s8", "b_type": "s8", "d_type": "s32"}, 1, {64, 128}, {8, 16, 24} | set(range(32, 257, 16))),
        ({"a_type": "s8", "b_type": "s8", "d_type": "s32"}, 2, {128, 256}, set(range(32, 257, 32))),
        ({**E4M3, "b_major": "MN"}, 1, {64, 128}, set(range(16, 257, 16))),
        ({**E4M3, "b_major": "MN"}, 2, {128, 256}, set(range(32, 257, 32))),
        ({**E4M3, "kind": "mxf8f6f4", "scale_type": "ue8m0"}, 1, {128}, set(range(8, 257, 8))),
        ({**E2M1, "kind": "mxf4", "scale_type": "ue8m0", "sparse": True}, 2, {256}, set(range(16, 257, 16))),
    ],
)
def test_shapes(fields: dict[str, object], cta_group: int, legal_m: set[int], legal_n: set[int]) -> None:
    ms = (128, 256) if "scale_type" in fields else (64, 128, 192, 256)
    for m in ms:
        for n in range(8, 257, 8):
            described = InstructionDescriptor(m=m, n=n, **fields)  # type: ignore[arg-type]
            bad = described.shape_violations(cta_group=cta_group)
            assert len(bad) == (m not in legal_m) + (n not in legal_n)


def test_weight_stationary_shapes() -> None:
    assert not InstructionDescriptor(m=32, n=256, **F16).shape_violations(weight_stationary=True)  # type: ignore[arg-type]
    bad = InstructionDescriptor(m=48, n=32, **F16).shape_violations(weight_stationary=True)  # type: ignore[arg-type]
    assert len(bad) == 2


@pytest.mark.parametrize(
    ("fields", "k"),
    [
        (F16, 16),
        ({**F16, "sparse": True}, 32),
        ({"a_type": "tf32", "b_type": "tf32"}, 8),
        (E4M3, 32),
        ({**E2M1, "kind": "mxf4", "scale_type": "ue8m0"}, 64),
        ({**E2M1, "kind": "mxf4nvf4", "scale_type": "ue4m3", "k96": True}, 96),
    ],
)
def test_k_follows_from_the_kind(fields: dict[str, object], k: int) -> None:
    assert InstructionDescriptor(m=128, n=128, **fields).k == k  # type: ignore[arg-type]
