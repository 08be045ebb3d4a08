"""Tensor maps: every rule alone, all at once, and the derived sizes and codes."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.hardware.element_types import ELEMENT_TYPES, element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import MINIMUM_PTX_VERSION, TARGETS, target, target_loads_on
from ptxgen.hardware.tensor_map import TensorMap

LEGAL: dict[str, Any] = {
    "element_type": element_type("f16"),
    "address": 0x10000,
    "dims": (200, 300),
    "strides_bytes": (400,),
    "box": (64, 128),
    "swizzle": Swizzle.B128,
}


def test_legal_map() -> None:
    tensor = TensorMap(**LEGAL, l2_promotion=128, oob_fill="nan")
    assert (tensor.rank, tensor.element_strides) == (2, (1, 1))
    assert (tensor.box_bytes, tensor.inner_box_bytes) == (64 * 128 * 2, 128)
    assert (tensor.data_type_code, tensor.swizzle_code, tensor.interleave_code) == (6, 3, 0)
    assert (tensor.l2_promotion_code, tensor.oob_fill_code) == (2, 1)
    assert hash(tensor) == hash(TensorMap(**LEGAL, l2_promotion=128, oob_fill="nan"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"element_type": element_type("e2m1")}, "no element type e2m1"),
        ({"address": 0x10008}, "address 0x10008"),
        ({"address": -16}, "address -0x10"),
        ({"dims": (0, 300)}, "dims"),
        ({"dims": (200, 2**32 + 1)}, "dims"),
        ({"strides_bytes": (408,)}, "strides"),
        ({"strides_bytes": (2**40,)}, "strides"),
        ({"strides_bytes": (400, 400)}, "2 strides for rank 2"),
        ({"box": (64,)}, "box (64,) has 1 sizes for rank 2"),
        ({"box": (64, 257)}, "1..256"),
        ({"box": (64, 0)}, "1..256"),
        ({"box": (60, 128)}, "120 bytes is not a multiple of 16"),
        ({"box": (128, 128)}, "256 bytes exceeds the 128-byte span"),
        ({"element_strides": (1, 9)}, "element strides"),
        ({"element_strides": (1,)}, "1 element strides for rank 2"),
        ({"l2_promotion": 32}, "L2 promotion 32"),
        ({"element_type": element_type("s16"), "oob_fill": "nan"}, "NaN fill"),
        ({"interleave": "16B"}, "rank 2 is not in 3..5"),
        (
            {"dims": (1,) * 6, "strides_bytes": (16,) * 5, "box": (64,) * 6, "element_strides": (1,) * 6},
            "rank 6 is not in 1..5",
        ),
        (
            {"interleave": "32B", "dims": (64, 8, 8), "strides_bytes": (128, 1024), "box": (8, 8, 8)},
            "interleave 32B needs swizzle B32",
        ),
        (
            {"element_type": element_type("u4_align16"), "dims": (200, 8), "strides_bytes": (128,), "box": (128, 8)},
            "200",
        ),
        ({"element_type": element_type("u6_align16"), "dims": (256, 8), "strides_bytes": (192,)}, "inner box 64"),
        (
            {
                "element_type": element_type("u4_align16"),
                "dims": (256, 8),
                "strides_bytes": (128,),
                "box": (128, 8),
                "swizzle": Swizzle.B64,
            },
            "swizzle B64 does not go with u4_align16",
        ),
        (
            {
                "element_type": element_type("u4_align16"),
                "dims": (256, 8),
                "strides_bytes": (144,),
                "box": (128, 8),
            },
            "multiples of 32 bytes",
        ),
    ],
)
def test_each_rule_alone(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as error:
        TensorMap(**{**LEGAL, **change})
    assert len(error.value.violations) == 1, error.value.violations
    assert words in error.value.violations[0]


def test_all_rules_at_once() -> None:
    with pytest.raises(SpecError) as error:
        TensorMap(
            element_type=element_type("e3m2"),
            address=3,
            dims=(0,) * 6,
            strides_bytes=(5,),
            box=(300, 0),
            element_strides=(0,),
            swizzle=Swizzle.B32,
            l2_promotion=7,
            oob_fill="nan",
        )
    text = "\n".join(error.value.violations)
    for part in (
        "no element type",
        "address 0x3",
        "rank 6",
        "dims",
        "1 strides for rank 6",
        "multiples of 16",
        "has 2 sizes",
        "1..256",
        "225 bytes is not a multiple of 16",
        "exceeds the 32-byte span",
        "1 element strides",
        "1..8",
        "L2 promotion 7",
        "NaN fill",
    ):
        assert part in text
    assert len(error.value.violations) == 14


def test_element_strides_shorten_the_copy_but_not_the_innermost() -> None:
    tensor = TensorMap(**{**LEGAL, "element_strides": (4, 3)})
    assert tensor.box_elements == (64, 43)
    assert tensor.box_bytes == 64 * 43 * 2


def test_element_types() -> None:
    assert element_type("bf16").bytes == 2
    assert element_type("bf16").tensor_map_code == 9
    assert element_type("e2m1").is_packed
    with pytest.raises(ValueError, match="4 bits"):
        _ = element_type("e2m1").bytes
    with pytest.raises(UnknownNameError, match="did you mean 'bf16'"):
        element_type("bf61")
    assert all(name == kind.name for name, kind in ELEMENT_TYPES.items())


def test_targets() -> None:
    blackwell, hopper = target("sm_100a"), target("sm_90a")
    assert (blackwell.sm_count, hopper.sm_count) == (148, 132)
    assert (blackwell.smem_optin_bytes, blackwell.smem_per_sm_bytes) == (232448, 233472)
    assert blackwell.smem_optin_bytes + blackwell.smem_reserved_bytes == blackwell.smem_per_sm_bytes
    assert blackwell.has_tcgen05
    assert not hopper.has_tcgen05
    assert all(MINIMUM_PTX_VERSION[name] == chip.ptx_version for name, chip in TARGETS.items())
    with pytest.raises(UnknownNameError, match="did you mean 'sm_100a'"):
        target("sm_100")


@pytest.mark.parametrize(
    ("name", "loads", "refused"),
    [
        ("sm_90a", [(9, 0)], [(10, 0), (8, 9)]),
        ("sm_100a", [(10, 0)], [(10, 3), (9, 0), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(11, 0), (12, 0), (9, 0)]),
        ("sm_103a", [(10, 3)], [(10, 0)]),
        ("sm_103f", [(10, 3)], [(10, 0)]),
        ("sm_101a", [(11, 0)], [(10, 1)]),
        ("sm_90", [(9, 0), (10, 0), (12, 0)], [(8, 9)]),
    ],
)
def test_which_target_loads_where(name: str, loads: list[tuple[int, int]], refused: list[tuple[int, int]]) -> None:
    assert all(target_loads_on(name, capability) for capability in loads)
    assert not any(target_loads_on(name, capability) for capability in refused)


def test_target_names_that_are_none() -> None:
    for name in ("compute_90", "sm_", "sm_x", "gfx90a"):
        with pytest.raises(UnknownNameError):
            target_loads_on(name, (9, 0))
