"""Tensor copies against a slow element-by-element oracle."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator.tma import BoundTensor
from ptxgen.errors import MachineError, NotSupportedError
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tensor_map import TensorMap

BASE = 0x10000
SMEM_BYTES = 1 << 15


class Memory:
    """One buffer of global memory from BASE on."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data.reshape(-1).view(np.uint8)

    def view(self, address: int, nbytes: int) -> np.ndarray:
        if not BASE <= address <= address + nbytes <= BASE + self.data.size:
            raise MachineError("out-of-bounds", f"{nbytes} bytes at {address:#x}")
        return self.data[address - BASE : address - BASE + nbytes]


def noise(nbytes: int, seed: int = 1) -> np.ndarray:
    """Bytes that are never zero, so that fills show."""
    return np.random.default_rng(seed).integers(1, 256, nbytes, dtype=np.uint8)


def extent(tensor: TensorMap) -> int:
    steps = (tensor.element_type.bytes, *tensor.strides_bytes)
    return sum((size - 1) * step for size, step in zip(tensor.dims, steps, strict=True)) + steps[0]


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMap:
    swizzle = draw(st.sampled_from(Swizzle))
    kind = element_type(draw(st.sampled_from(["u8", "f16", "bf16", "f32", "u64"])))
    rank = draw(st.integers(1, 5))
    limit = swizzle.span_bytes if swizzle is not Swizzle.NONE else 64
    inner = draw(st.sampled_from([size for size in (16, 32, 48, 64, 128) if size <= limit])) // kind.bytes
    dims = [draw(st.integers(1, 2 * inner + 3))]
    strides = []
    stride = dims[0] * kind.bytes
    for _ in range(rank - 1):
        stride = -(-stride // 16) * 16 + 16 * draw(st.integers(0, 1))
        strides.append(stride)
        dims.append(draw(st.integers(1, 5)))
        stride *= dims[-1]
    outer_limit = {1: 1, 2: 16, 3: 4, 4: 3, 5: 2}[rank]
    return TensorMap(
        element_type=kind,
        address=BASE,
        dims=tuple(dims),
        strides_bytes=tuple(strides),
        box=(inner, *(draw(st.integers(1, outer_limit)) for _ in range(rank - 1))),
        element_strides=(1, *(draw(st.integers(1, 3)) for _ in range(rank - 1))),
        swizzle=swizzle,
        oob_fill=draw(st.sampled_from(["zero", "nan"])) if kind.is_float else "zero",
    )


def draw_coordinates(data: st.DataObject, tensor: TensorMap, lowest: int) -> tuple[int, ...]:
    per_16_bytes = 16 // tensor.element_type.bytes
    inner = data.draw(st.integers(lowest, 1 + tensor.dims[0] // per_16_bytes)) * per_16_bytes
    return (inner, *(data.draw(st.integers(3 * lowest, size)) for size in tensor.dims[1:]))


def box_elements(tensor: TensorMap, coordinates: tuple[int, ...]) -> list[tuple[int, tuple[int, ...], bool]]:
    """(byte offset in global memory, position, inside) of every box element, innermost fastest."""
    steps = (tensor.element_type.bytes, *tensor.strides_bytes)
    result = []
    for reversed_place in product(*(range(size) for size in tensor.box_elements[::-1])):
        place = reversed_place[::-1]
        position = tuple(
            coordinate + index * (stride if dimension else 1)
            for dimension, (coordinate, index, stride) in enumerate(
                zip(coordinates, place, tensor.element_strides, strict=True)
            )
        )
        inside = all(0 <= where < size for where, size in zip(position, tensor.dims, strict=True))
        result.append((sum(where * step for where, step in zip(position, steps, strict=True)), position, inside))
    return result


NANS = {2: b"\xf7\x7f", 4: b"\xf7\x7f\xf7\x7f"}


def expected_box(tensor: TensorMap, coordinates: tuple[int, ...], data: np.ndarray) -> bytes:
    size = tensor.element_type.bytes
    fill = bytes(size) if tensor.oob_fill == "zero" else NANS[size]
    return b"".join(
        data[offset : offset + size].tobytes() if inside else fill
        for offset, _, inside in box_elements(tensor, coordinates)
    )


def expected_smem(smem: np.ndarray, address: int, box: bytes, tensor: TensorMap) -> np.ndarray:
    """With a swizzle, every row of the box has a span of its own."""
    image: np.ndarray = smem.copy()
    inner = tensor.inner_box_bytes
    pitch = inner if tensor.swizzle is Swizzle.NONE else tensor.swizzle.span_bytes
    for index, byte in enumerate(box):
        image[tensor.swizzle.apply(address + index // inner * pitch + index % inner)] = byte
    return image


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_load_equals_the_oracle(data: st.DataObject) -> None:
    tensor = data.draw(tensor_maps())
    coordinates = draw_coordinates(data, tensor, -1)
    memory, smem = noise(extent(tensor)), noise(SMEM_BYTES, 2)
    address = 128 * data.draw(st.integers(0, 16))
    bound = BoundTensor(tensor, Memory(memory))
    box = expected_box(tensor, coordinates, memory)
    wanted = expected_smem(smem, address, box, tensor)
    assert bound.load_box(coordinates).tobytes() == box
    before = smem.copy()
    bound.load(coordinates, smem, address)
    assert np.array_equal(smem, wanted)
    assert bound.gather(smem, address).tobytes() == box
    changed = np.flatnonzero(smem != before)
    first, count = bound.smem_range(address)
    assert changed.size == 0 or first <= changed.min() <= changed.max() < first + count


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_read_ranges_are_the_elements_inside(data: st.DataObject) -> None:
    tensor = data.draw(tensor_maps())
    coordinates = draw_coordinates(data, tensor, -1)
    bound = BoundTensor(tensor, Memory(noise(extent(tensor))))
    size = tensor.element_type.bytes
    wanted = {
        BASE + offset + byte
        for offset, _, inside in box_elements(tensor, coordinates)
        if inside
        for byte in range(size)
    }
    ranges = bound.read_ranges(coordinates)
    assert {address for first, count in ranges for address in range(first, first + count)} == wanted
    assert all(sum(ranges[i]) < ranges[i + 1][0] for i in range(len(ranges) - 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_store_equals_the_oracle(data: st.DataObject) -> None:
    """Outer dimensions clip per element, the innermost where a 16-byte chunk starts outside."""
    tensor = data.draw(tensor_maps())
    coordinates = draw_coordinates(data, tensor, 0)
    before = noise(-(-extent(tensor) // 16) * 16)
    memory, box = before.copy(), noise(tensor.box_bytes, 3)
    bound = BoundTensor(tensor, Memory(memory))
    wanted, size = before.copy(), tensor.element_type.bytes
    written: set[int] = set()
    for index, (offset, position, _) in enumerate(box_elements(tensor, coordinates)):
        chunk_start = position[0] * size // 16 * 16
        inside = chunk_start < tensor.dims[0] * size and all(
            where < limit for where, limit in zip(position[1:], tensor.dims[1:], strict=True)
        )
        if inside:
            wanted[offset : offset + size] = box[index * size : index * size + size]
            written.update(range(BASE + offset, BASE + offset + size))
    bound.store_box(coordinates, box)
    assert np.array_equal(memory, wanted)
    ranges = bound.write_ranges(coordinates)
    assert {address for first, count in ranges for address in range(first, first + count)} == written
    rows = [memory[first - BASE : first - BASE + count] for first, count in ranges]
    assert bound.clipped(coordinates, box).tobytes() == b"".join(row.tobytes() for row in rows)


def matrix(rows: int, columns: int, box: tuple[int, int], kind: str = "f16", **fields: object) -> TensorMap:
    size = element_type(kind).bytes
    pitch = -(-columns * size // 16) * 16
    return TensorMap(
        element_type=element_type(kind),
        address=BASE,
        dims=(columns, rows),
        strides_bytes=(pitch,),
        box=box,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
@pytest.mark.parametrize("coordinates", [(0, 0), (16, 72), (16, 80), (-16, -8), (64, 0), (0, 200)])
def test_operand_tiles(swizzle: Swizzle, coordinates: tuple[int, int]) -> None:
    """Tiles of the size that kernels use, inside, across every edge, and wholly outside."""
    tensor = matrix(200, 136, (swizzle.span_bytes // 2, 128), swizzle=swizzle)
    memory, smem = noise(extent(tensor)), noise(SMEM_BYTES, 2)
    wanted = expected_smem(smem, 1024, expected_box(tensor, coordinates, memory), tensor)
    BoundTensor(tensor, Memory(memory)).load(coordinates, smem, 1024)
    assert np.array_equal(smem, wanted)


def test_rows_shorter_than_the_swizzle_span_start_a_span_each() -> None:
    """Seen on an H200: 96-byte rows lie 128 bytes apart, and the bytes between them keep their values."""
    tensor = matrix(4, 48, (48, 4), swizzle=Swizzle.B128)
    memory, smem = noise(extent(tensor)), np.zeros(1024, np.uint8)
    BoundTensor(tensor, Memory(memory)).load((0, 0), smem, 0)
    rows = [smem[[Swizzle.B128.apply(128 * row + byte) for byte in range(128)]] for row in range(8)]
    for row in range(4):
        assert np.array_equal(rows[row][:96], memory[96 * row : 96 * (row + 1)])
        assert not rows[row][96:].any()
    assert not np.any(rows[4:])


def test_store_into_an_unpadded_buffer() -> None:
    """The clipped chunk of the last row needs bytes behind it; earlier rows do not."""
    tensor = matrix(4, 5, (8, 2))
    memory = noise(extent(tensor))
    bound = BoundTensor(tensor, Memory(memory))
    bound.store_box((0, 1), np.zeros(32, np.uint8))
    assert not memory[16:48].any()
    with pytest.raises(MachineError) as error:
        bound.store_box((0, 2), np.zeros(32, np.uint8))
    assert error.value.rule == "out-of-bounds"


def test_tensor_beyond_its_buffer() -> None:
    tensor = matrix(4, 8, (8, 2))
    bound = BoundTensor(tensor, Memory(noise(extent(tensor) - 1)))
    with pytest.raises(MachineError) as error:
        bound.load((0, 0), np.zeros(1024, np.uint8), 0)
    assert error.value.rule == "out-of-bounds"


def test_destination_beyond_shared_memory() -> None:
    tensor = matrix(8, 64, (64, 8), swizzle=Swizzle.B128)
    bound = BoundTensor(tensor, Memory(noise(extent(tensor))))
    smem = np.zeros(1024, np.uint8)
    bound.load((0, 0), smem, 0)
    for coordinates in ((0, 0), (0, 4)):
        with pytest.raises(MachineError) as error:
            bound.load(coordinates, smem, 128)
        assert error.value.rule == "out-of-bounds"


def test_rules() -> None:
    bound = BoundTensor(matrix(8, 64, (64, 8)), Memory(noise(1024)))
    smem, box = np.zeros(2048, np.uint8), np.zeros(1024, np.uint8)
    for action in (
        lambda: bound.load((4, 0), smem, 0),
        lambda: bound.store_box((4, 0), box),
        lambda: bound.load((0, 0, 0), smem, 0),
        lambda: bound.store_box((0, -1), box),
        lambda: bound.write_ranges((-8, 0)),
        lambda: bound.read_ranges((1, 0)),
    ):
        with pytest.raises(MachineError) as error:
            action()
        assert error.value.rule == "illegal-tensor-copy"
    with pytest.raises(MachineError, match="0x40") as error:
        bound.load((0, 0), smem, 64)
    assert error.value.rule == "misaligned-address"


@pytest.mark.parametrize("kind", ["tf32", "f32_ftz", "u4_align8"])
def test_types_that_are_not_modelled(kind: str) -> None:
    tensor = TensorMap(element_type=element_type(kind), address=BASE, dims=(64,), strides_bytes=(), box=(32,))
    with pytest.raises(NotSupportedError, match=kind):
        BoundTensor(tensor, Memory(noise(1024)))


def test_interleave_is_not_modelled() -> None:
    tensor = TensorMap(
        element_type=element_type("f16"),
        address=BASE,
        dims=(8, 8, 8),
        strides_bytes=(16, 128),
        box=(8, 8, 8),
        interleave="16B",
    )
    with pytest.raises(NotSupportedError, match="interleave"):
        BoundTensor(tensor, Memory(noise(1024)))


STORAGE = {"f32": "f4", "f16": "f2", "u32": "u4", "s32": "i4", "u64": "u8"}


def raw(kind: str, values: list[float]) -> np.ndarray:
    if kind == "bf16":
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array(values, STORAGE[kind])


@pytest.mark.parametrize(
    ("operation", "kind", "old", "new", "wanted"),
    [
        (
            "add",
            "f32",
            [1, 2e-38, -3],
            [0.5, -1.5e-38, 3],
            [1.5, np.float32(2e-38) - np.float32(1.5e-38), 0],  # subnormal, and stays
        ),
        (
            "add",
            "f16",
            [1, 2048, 4],
            [0.25, 1, -4],
            [1.25, 2048, 0],
        ),
        ("add", "bf16", [1, 256, 257], [2, 1, 1], [3, 256, 256]),
        ("max", "bf16", [1, -2, 3], [2, -4, 0], [2, -2, 3]),
        (
            "min",
            "f16",
            [1, -2, 3],
            [2, -4, 0],
            [1, -4, 0],
        ),
        *(
            (operation, kind, [0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, -0.0], wanted)
            for operation, wanted in (("min", [0.0, -0.0, -0.0, -0.0]), ("max", [0.0, 0.0, 0.0, -0.0]))
            for kind in ("f16", "bf16")
        ),
        (
            "add",
            "u32",
            [1, 2**32 - 1, 7],
            [1, 2, 0],
            [2, 1, 7],
        ),
        ("min", "s32", [-1, 5, 0], [1, 4, 0], [-1, 4, 0]),
        ("inc", "u32", [1, 4, 9], [4, 4, 4], [2, 0, 0]),
        ("dec", "u32", [1, 0, 9], [4, 4, 4], [0, 4, 4]),
        ("and", "u64", [12, 3], [10, 1], [8, 1]),
        ("or", "s32", [12, 3], [10, 4], [14, 7]),
        ("xor", "u32", [12, 3], [10, 3], [6, 0]),
    ],
)
def test_reductions(operation: str, kind: str, old: list[float], new: list[float], wanted: list[float]) -> None:
    """Element by element, and clipped: the second row of the box lies outside."""
    count, dtype = len(old), raw(kind, old).dtype
    inner = 32 // dtype.itemsize
    memory, box, expected = (np.zeros((2, inner), dtype) for _ in range(3))
    memory[0, :count], box[:, :count], expected[0, :count] = raw(kind, old), raw(kind, new), raw(kind, wanted)
    tensor = TensorMap(
        element_type=element_type(kind), address=BASE, dims=(inner, 1), strides_bytes=(32,), box=(inner, 2)
    )
    BoundTensor(tensor, Memory(memory)).reduce_box((0, 0), box.reshape(-1).view(np.uint8), operation)
    assert memory.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("operation", "kind"), [("min", "f32"), ("inc", "s32"), ("and", "f16"), ("mul", "u32")])
def test_reductions_that_do_not_exist(operation: str, kind: str) -> None:
    bound = BoundTensor(matrix(1, 16, (16, 1), kind), Memory(noise(64)))
    with pytest.raises(NotSupportedError, match=f"{operation} of {kind}"):
        bound.reduce_box((0, 0), np.zeros(bound.tensor_map.box_bytes, np.uint8), operation)
