"""Launch descriptions: reading, evaluating, fitting an entry, packing arguments."""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import dataclass
from typing import Any

import pytest

from ptxgen.device.description import LaunchDescription, launch_in_header, parse_launch
from ptxgen.device.launch import Launch
from ptxgen.errors import LaunchError
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

PITCH = ["round_up", ["product", "N", 2], 16]
GOOD: dict[str, Any] = {
    "version": 1,
    "entry": "gemm",
    "grid": ["SM_COUNT", 1, 1],
    "block": [128, 1, 1],
    "cluster": [1, 1, 1],
    "dynamic_smem_bytes": 99328,
    "buffers": [
        {"name": "A", "type": "f16", "shape": ["M", "K"], "pitch_bytes": ["product", "K", 2], "fill": "input"},
        {"name": "D", "type": "f16", "shape": ["M", "N"], "pitch_bytes": PITCH, "fill": "nan"},
    ],
    "arguments": [
        {
            "name": "d_map",
            "kind": "tensor_map",
            "buffer": "D",
            "dims": ["N", "M"],
            "strides_bytes": [PITCH],
            "box": [64, 128],
            "swizzle": 128,
            "l2_promotion": 128,
        },
        {"name": "a", "kind": "buffer", "buffer": "A"},
        {"name": "tiles", "kind": "u32", "value": ["ceil_div", "K", 64]},
        {"name": "shift", "kind": "s16", "value": -3},
        {"name": "alpha", "kind": "f32", "value": 0.5},
        {"name": "raw", "kind": "bytes", "hex": "00ff10"},
    ],
    "defaults": {"M": 4096, "N": 4096, "K": 4096},
    "verify": [[128, 128, 64]],
    "preconditions": [{"expression": ["product", "M", "N"], "at_least": 1, "below": 1000000, "rule": "few elements"}],
    "expect": {"kind": "gemm", "a": "A", "b": "A", "d": "D"},
}
SMALL = {"M": 200, "N": 136, "K": 72}
B200 = target("sm_100a")


def description(**changes: Any) -> LaunchDescription:
    return LaunchDescription.from_json(GOOD | changes, "test.ptx")


def launch(problem: dict[str, int] = SMALL, **changes: Any) -> Launch:
    return Launch.of(description(**changes), problem=problem, chip=B200)


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """GOOD with one value replaced, or deleted where `to` is Ellipsis."""
    data = copy.deepcopy(GOOD)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return data


@dataclass(frozen=True)
class Param:
    name: str
    size_bytes: int
    align: int


@dataclass(frozen=True)
class Kernel:
    name: str = "gemm"
    parameters: tuple[Param, ...] = (
        Param("d_map", 128, 128),
        Param("a", 8, 8),
        Param("tiles", 4, 4),
        Param("shift", 2, 2),
        Param("alpha", 4, 4),
        Param("raw", 3, 1),
    )
    reqntid: tuple[int, int, int] | None = (128, 1, 1)
    maxntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None


def test_json_round_trip() -> None:
    read = description()
    assert LaunchDescription.from_json(json.loads(json.dumps(read.to_json())), "again") == read
    assert parse_launch(json.dumps(GOOD), "again") == read


def test_expect_and_verify_may_be_absent() -> None:
    data = changed("expect", to=...)
    for key in ("verify", "preconditions", "cluster"):
        del data[key]
    read = LaunchDescription.from_json(data, "test.ptx")
    assert (read.expect, read.verify, read.preconditions, read.cluster) == (None, (), (), (1, 1, 1))
    assert LaunchDescription.from_json(read.to_json(), "again") == read


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected an object, got []"),
        (changed("version", to=2), "version 2 is not known; this ptxgen reads version 1"),
        (changed("version", to=...), "'version' is missing"),
        (changed("entry", to=""), '.entry: expected a name, got ""'),
        (changed("grid", to=[1, 1]), ".grid: expected 3 items, got [1, 1]"),
        (changed("grid", 1, to="P"), ".grid[1]: unknown symbol 'P'"),
        (changed("block", to=[128.0, 1, 1]), ".block: expected whole numbers, got [128.0, 1, 1]"),
        (changed("block", to=128), ".block: expected a list, got 128"),
        (changed("grid", 0, to=["min", "CTAS", 4]), "grid: CTAS counts the CTAs of the grid"),
        (changed("resident", to=1), ".resident: expected true or false, got 1"),
        (changed("extra", to=1), "unknown key 'extra'"),
        (changed("buffers", 0, "typ", to="f16"), "buffers[0]: unknown key 'typ'; did you mean 'type'?"),
        (changed("buffers", 0, "type", to="fp16"), "unknown type 'fp16'; did you mean 'f16'?"),
        (changed("buffers", 0, "type", to="e2m1"), "type e2m1 does not fill whole bytes"),
        (changed("buffers", 0, "fill", to="ones"), "unknown fill 'ones'"),
        (changed("buffers", 1, "name", to="A"), "names repeat: A, A"),
        (changed("buffers", 0, "scratch", to=True), "buffers[0]: a scratch buffer is no input"),
        (changed("arguments", 0, "buffer", to="E"), "arguments[0].buffer: unknown buffer 'E'"),
        (changed("arguments", 0, "swizzle", to=100), "swizzle: 100 is none of the spans 0 (none), 32, 64, 128"),
        (changed("arguments", 0, "dims", to=["N"]), "arguments[0].dims: expected 2 items"),
        (changed("arguments", 2, "kind", to="u33"), "unknown kind 'u33'; did you mean 'u32'?"),
        (changed("arguments", 4, "value", to="M"), 'arguments[4].value: expected a number, got "M"'),
        (changed("arguments", 5, "hex", to="0"), "expected an even number of hexadecimal digits"),
        (changed("defaults", "K", to=...), "defaults: 'K' is missing"),
        (changed("verify", 0, to=[1, 2]), ".verify[0]: expected 3 items"),
        (changed("expect", "d", to="C"), "expect.d: unknown d 'C'"),
        (changed("preconditions", 0, "rule", to=...), "preconditions[0]: 'rule' is missing"),
    ],
)
def test_a_wrong_description_is_refused_by_place(data: object, words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        LaunchDescription.from_json(data, "test.ptx")
    assert words in str(caught.value)
    assert str(caught.value).startswith("launch description of test.ptx")


def test_scratch_buffers_follow_the_grid() -> None:
    slots = {"name": "S", "type": "u32", "shape": ["CTAS", 4], "pitch_bytes": 16, "fill": "zero", "scratch": True}
    with_slots = description(buffers=[*GOOD["buffers"], slots], resident=True)
    assert LaunchDescription.from_json(json.loads(json.dumps(with_slots.to_json())), "again") == with_slots
    own = Launch.of(with_slots, problem=SMALL, chip=B200)
    assert own.buffer("S").rows == own.grid[0] == 148
    assert Launch.of(with_slots, problem=SMALL, chip=B200, grid=(5, 1, 1)).buffer("S").rows == 5
    with pytest.raises(LaunchError, match="a grid of 149 CTAs, which wait for each other .* has 148 SMs"):
        Launch.of(with_slots, problem=SMALL, chip=B200, grid=(149, 1, 1))


def header(text: str) -> str:
    comment = "\n".join(f"// {line}".rstrip() for line in f"launch: {text}".split("\n"))
    return f"// Code generated.\n{comment}\n\n.version 8.6\n// launch time is not a description\n.target sm_100a\n"


@pytest.mark.parametrize("indent", [None, 1, 7])
def test_header_may_break_lines_anywhere(indent: int | None) -> None:
    assert launch_in_header(header(json.dumps(GOOD, indent=indent)), "test.ptx") == description()


def test_header_absent() -> None:
    assert launch_in_header(".version 8.6\n.target sm_100a\n", "test.ptx") is None


def test_header_that_is_cut_short_names_its_line() -> None:
    text = header(json.dumps(GOOD, indent=1)).replace('//  "entry": "gemm",', '//  "entry" "gemm",')
    with pytest.raises(LaunchError, match=r"launch description of test.ptx, line 4: not JSON: Expecting ':'"):
        launch_in_header(text, "test.ptx")


def test_two_headers_are_refused() -> None:
    text = header(json.dumps(GOOD))
    with pytest.raises(LaunchError, match=r"several launch descriptions \(lines 2, 8\)"):
        launch_in_header(text + text, "test.ptx")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(LaunchError, match="nested too deeply"):
        parse_launch('{"grid": ' + "[" * 100_000, "test.ptx")


def test_sizes() -> None:
    ready = launch()
    assert ready.grid == (148, 1, 1)
    assert [(b.rows, b.columns, b.pitch_bytes, b.row_bytes) for b in ready.buffers] == [
        (200, 72, 144, 144),
        (200, 136, 272, 272),
    ]
    assert Launch.of(description(), problem=SMALL, chip=B200, grid=(7, 1, 1)).grid == (7, 1, 1)
    assert Launch.of(description(), problem=SMALL, chip=target("sm_90a")).grid == (132, 1, 1)


def test_defaults_fill_in_what_is_not_given() -> None:
    assert description().problem(M=3, K=None) == {"M": 3, "N": 4096, "K": 4096}
    with pytest.raises(LaunchError, match="N = 0; sizes are at least 1"):
        description().problem(N=0)


def test_grid_of_a_persistent_kernel_stays_one_dimensional() -> None:
    with pytest.raises(LaunchError, match=r"the grid of gemm has CTAs along x only; got \(3, 3, 1\)"):
        Launch.of(description(), problem=SMALL, chip=B200, grid=(3, 3, 1))


def test_grid_of_other_kernels_is_not_a_choice() -> None:
    fixed = description(grid=[["ceil_div", "N", 128], ["ceil_div", "M", 128], 1])
    assert not fixed.persistent
    with pytest.raises(LaunchError, match="only the grid of a persistent kernel"):
        Launch.of(fixed, problem=SMALL, chip=B200, grid=(7, 1, 1))


def test_precondition() -> None:
    with pytest.raises(LaunchError) as caught:
        launch({"M": 1000, "N": 1000, "K": 1})
    assert str(caught.value) == (
        "gemm cannot run M=1000 N=1000 K=1: few elements (the value is 1000000, the rule 1 <= value < 1000000)"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": [1, ["product", "M", 1000], 1]}, "grid y = 200000 is not in 1..65535; take a 1-D grid"),
        ({"grid": [2**31, 1, 1]}, "grid x = 2147483648 is not in 1..2147483647"),
        ({"grid": [0, 1, 1]}, "grid x = 0 is not in"),
        ({"block": [1025, 1, 1]}, "block (1025, 1, 1) has 1025 threads, not 1..1024"),
        ({"cluster": [3, 1, 1]}, "grid (148, 1, 1) is not a multiple of the cluster (3, 1, 1)"),
        ({"cluster": [0, 1, 1]}, "cluster (0, 1, 1) has an extent below 1"),
        ({"dynamic_smem_bytes": 232449}, "232449 bytes of dynamic shared memory; a CTA on B200 has 232448"),
    ],
)
def test_limits_of_the_chip(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        launch(**changes)
    assert words in str(caught.value)


def test_every_broken_limit_is_listed() -> None:
    with pytest.raises(LaunchError) as caught:
        launch(block=[2048, 1, 1], dynamic_smem_bytes=10**6)
    assert str(caught.value).count("\n  - ") == 2


def test_short_pitch() -> None:
    data = changed("buffers", 0, "pitch_bytes", to="K")
    with pytest.raises(LaunchError, match="buffer A has rows of 144 bytes but a pitch of 72"):
        Launch.of(LaunchDescription.from_json(data, "test.ptx"), problem=SMALL, chip=B200)


def test_arguments_are_packed_in_order() -> None:
    packed = launch().pack({"A": 0x7F00, "D": 0x9000}, lambda tensor_map: tensor_map)
    tensor_map, *rest = packed
    assert rest == [
        (0x7F00).to_bytes(8, "little"),
        struct.pack("<I", 2),
        struct.pack("<h", -3),
        struct.pack("<f", 0.5),
        b"\x00\xff\x10",
    ]
    assert isinstance(tensor_map, TensorMap)
    assert (tensor_map.address, tensor_map.dims, tensor_map.strides_bytes) == (0x9000, (136, 200), (272,))
    assert (tensor_map.box, tensor_map.swizzle, tensor_map.l2_promotion) == ((64, 128), Swizzle.B128, 128)


def test_tensor_map_follows_the_real_pitch() -> None:
    ready = launch()
    assert ready.pitch_is_free("D")
    assert not ready.pitch_is_free("A")  # passed as an address, so the kernel has its own idea of the pitch
    tensor_map, *_ = ready.with_pitch("D", 512).pack({"A": 0, "D": 0}, lambda tensor_map: tensor_map)
    assert isinstance(tensor_map, TensorMap)
    assert tensor_map.strides_bytes == (512,)


def test_pitch_that_tma_cannot_take_names_buffer_and_rules() -> None:
    with pytest.raises(LaunchError) as caught:
        launch().with_pitch("D", 280).pack({"A": 0, "D": 8}, lambda tensor_map: tensor_map)
    message = str(caught.value)
    assert "argument d_map, a tensor map over buffer D (200 x 136 f16, pitch 280 bytes):" in message
    assert "address 0x8 is not a multiple of 16" in message
    assert "strides (280,) are not all multiples of 16" in message


def test_scalar_out_of_range() -> None:
    data = changed("arguments", 2, "value", to=["product", "M", 2**32])
    ready = Launch.of(LaunchDescription.from_json(data, "test.ptx"), problem=SMALL, chip=B200)
    with pytest.raises(
        LaunchError, match="argument tiles is 858993459200 for M=200 N=136 K=72, which does not fit u32"
    ):
        ready.pack({"A": 0, "D": 0}, lambda tensor_map: tensor_map)


def test_entry_that_fits() -> None:
    launch().check_entry(Kernel(), "test.ptx")
    launch().check_entry(Kernel(reqntid=None, maxntid=(256, 1, 1), cluster=(1, 1, 1)), "test.ptx")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel(parameters=()), "the entry has 0 parameters: none; the description has 6 arguments: d_map (128 bytes)"),
        (
            Kernel(parameters=(Param("d_map", 128, 32), *Kernel.parameters[1:])),
            "parameter d_map holds a tensor map but is aligned to 32 bytes; declare it `.param .align 128",
        ),
        (
            Kernel(parameters=(*Kernel.parameters[:2], Param("tiles", 8, 8), *Kernel.parameters[3:])),
            "argument tiles has 4 bytes, parameter tiles 8",
        ),
        (Kernel(reqntid=(256, 1, 1)), "block (128, 1, 1) is not the entry's .reqntid (256, 1, 1)"),
        (Kernel(reqntid=None, maxntid=(64, 1, 1)), "block (128, 1, 1) has 128 threads, the entry's .maxntid allows 64"),
        (Kernel(cluster=(2, 1, 1)), "cluster (1, 1, 1) is not the entry's .reqnctapercluster (2, 1, 1)"),
    ],
)
def test_entry_that_does_not_fit(kernel: Kernel, words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        launch().check_entry(kernel, "test.ptx")
    assert words in str(caught.value)
    assert str(caught.value).startswith("the launch description does not fit entry gemm of test.ptx:\n")
