"""Tensor maps as the kernel sees them: 128 opaque bytes in parameter or global memory.

The bits of a CUtensorMap are not documented. Here the 128 bytes hold a field each for what
tensormap.replace can change (PTX ISA 9.1 §9.7.9.27.1), so that a map may be copied and edited as
bytes; the encoding is private to the emulator and marked as such.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ptxgen.emulator.memory import PARAM_WINDOW, Bytes, GlobalMemory
from ptxgen.emulator.smem_layout import row_pitch
from ptxgen.emulator.tma import BoundTensor
from ptxgen.errors import MachineError, SpecError
from ptxgen.hardware.element_types import ELEMENT_TYPES, ElementType
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES, TensorMap

MAGIC = b"tMap"
# magic, rank-1, element type, interleave, swizzle, fill, L2; address; strides; dims; boxes; steps
_LAYOUT = struct.Struct("<4s6B6xQ4Q5I5H5B5x")
assert _LAYOUT.size <= TENSOR_MAP_BYTES

_TYPES: tuple[ElementType, ...] = tuple(t for t in ELEMENT_TYPES.values() if t.tensor_map_code is not None)
_INTERLEAVES = ("none", "16B", "32B")
_SWIZZLES = tuple(Swizzle)
_FILLS = ("zero", "nan")
_L2 = (0, 64, 128, 256)

FIELDS: dict[str, tuple[int, int, int]] = {
    "rank": (4, 1, 1),
    "elemtype": (5, 1, 1),
    "interleave_layout": (6, 1, 1),
    "swizzle_mode": (7, 1, 1),
    "fill_mode": (8, 1, 1),
    "global_address": (16, 8, 1),
    "global_stride": (24, 8, 4),
    "global_dim": (56, 4, 5),
    "box_dim": (76, 2, 5),
    "element_stride": (86, 1, 5),
}
"""What tensormap.replace can change: offset among the 128 bytes, bytes, and how many there are of it."""

_ELEMENTS = "u8 u16 u32 s32 u64 s64 f16 f32 f32_ftz f64 bf16 tf32 tf32_ftz u4_align8 u4_align16 u6_align16".split()
_CODES: dict[str, tuple[int, ...]] = {
    "elemtype": tuple(_TYPES.index(ELEMENT_TYPES[name]) for name in _ELEMENTS),
    "interleave_layout": (0, 1, 2),
    "swizzle_mode": tuple(_SWIZZLES.index(mode) for mode in (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)),
    "fill_mode": (0, 1),
}
"""What tensormap.replace's numbers stand for (PTX ISA 9.1 §9.7.9.28, table of values)."""


class _View:
    """Global memory as tensor copies want it."""

    def __init__(self, memory: GlobalMemory) -> None:
        self._memory = memory

    def view(self, address: int, nbytes: int) -> Bytes:
        return self._memory.read(address, nbytes)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor map bound to global memory. `smem_bytes` spans its box in shared memory."""

    map: TensorMap
    bound: BoundTensor
    box_bytes: int
    smem_bytes: int


class TensorMaps:
    """The tensor maps of one launch, by address and by contents. `parameters` holds what lies in parameter space."""

    def __init__(self, memory: GlobalMemory, parameters: Bytes) -> None:
        self._memory, self._parameters = memory, parameters
        self._by_address: dict[int, Tensor] = {}
        self._by_bytes: dict[bytes, Tensor] = {}

    def bind(self, tensor_map: TensorMap) -> Tensor:
        inner, size = tensor_map.inner_box_bytes, tensor_map.box_bytes
        span = (size // inner - 1) * row_pitch(inner, tensor_map.swizzle) + inner
        return Tensor(tensor_map, BoundTensor(tensor_map, _View(self._memory)), size, span)

    def parameter(self, offset: int, tensor_map: TensorMap) -> bytes:
        """Registers a map passed by value in parameter space; returns its bytes."""
        self._by_address[PARAM_WINDOW + offset] = self.bind(tensor_map)
        return self.encode(tensor_map)

    def at(self, address: int) -> Tensor:
        """The tensor whose map lies at a generic address."""
        found = self._by_address.get(address)
        if found is not None:
            return found
        if address % 64:
            raise MachineError("misaligned-address", f"tensor map address {address:#x} is not a multiple of 64")
        if address >> 32 == PARAM_WINDOW >> 32:  # one of several that a parameter holds
            offset = address & 0xFFFFFFFF
            raw = self._parameters[offset : offset + TENSOR_MAP_BYTES].tobytes()
            if raw[: len(MAGIC)] != MAGIC:
                raise MachineError("illegal-tensor-copy", f"no tensor map at parameter offset {offset:#x}")
        else:
            raw = self._memory.read(address, TENSOR_MAP_BYTES).tobytes()
        found = self._by_bytes.get(raw)
        if found is None:
            found = self._by_bytes[raw] = self.bind(decode(raw))
        return found

    def encode(self, tensor_map: TensorMap) -> bytes:
        return encode(tensor_map)


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that stand for a tensor map."""
    rank = tensor_map.rank
    packed = _LAYOUT.pack(
        MAGIC,
        rank - 1,
        _TYPES.index(tensor_map.element_type),
        _INTERLEAVES.index(tensor_map.interleave),
        _SWIZZLES.index(tensor_map.swizzle),
        _FILLS.index(tensor_map.oob_fill),
        _L2.index(tensor_map.l2_promotion),
        tensor_map.address,
        *_padded(tensor_map.strides_bytes, 4, 0),
        *(size & 0xFFFFFFFF for size in _padded(tensor_map.dims, 5, 1)),
        *_padded(tensor_map.box, 5, 1),
        *_padded(tensor_map.element_strides, 5, 1),
    )
    return packed.ljust(TENSOR_MAP_BYTES, b"\0")


def decode(raw: bytes) -> TensorMap:
    """The tensor map of 128 bytes; MachineError when they hold none or an illegal one."""
    fields = _LAYOUT.unpack(raw[: _LAYOUT.size])
    if fields[0] != MAGIC:
        raise MachineError("illegal-tensor-copy", "the address of the tensor map holds no tensor map")
    rank = fields[1] + 1
    try:
        return TensorMap(
            element_type=_TYPES[fields[2]],
            interleave=_INTERLEAVES[fields[3]],  # type: ignore[arg-type]
            swizzle=_SWIZZLES[fields[4]],
            oob_fill=_FILLS[fields[5]],  # type: ignore[arg-type]
            l2_promotion=_L2[fields[6]],
            address=fields[7],
            strides_bytes=tuple(fields[8 : 8 + rank - 1]),
            dims=tuple(size or 1 << 32 for size in fields[12 : 12 + rank]),
            box=tuple(fields[17 : 17 + rank]),
            element_strides=tuple(fields[22 : 22 + rank]),
        )
    except (SpecError, IndexError) as error:
        raise MachineError("illegal-tensor-copy", str(error)) from error


def field_value(name: str, size: int, value: int) -> int:
    """What a field of `size` bytes holds after tensormap.replace with a value."""
    codes = _CODES.get(name)
    if value >= (1 << 8 * size if codes is None else len(codes)):
        raise MachineError("illegal-tensor-copy", f"{value} is no {name} of a tensor map")
    return value if codes is None else codes[value]


def _padded(values: tuple[int, ...], count: int, fill: int) -> tuple[int, ...]:
    return (*values, *(fill for _ in range(count - len(values))))
