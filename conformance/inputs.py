"""What buffers hold before a launch: the same bytes on every device and in every run."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ptxgen.device.arrays import make_matrix
from ptxgen.device.launch import BufferShape
from ptxgen.errors import UnknownNameError

Bytes: TypeAlias = "NDArray[np.uint8]"

KINDS = ("bytes", "index", "integers", "floats", "finite")

# Zeros, ones, the ends of the subnormal and of the normal range, a tie of every rounding, infinities,
# NaNs that are quiet, signalling, with payload and of either sign.
_SPECIAL = {
    "f16": "0000 8000 3c00 bc00 0001 8001 03ff 83ff 0400 8400 7bff fbff 6400 6401 3555 7c00 fc00 7e00 7c01 7dff"
    " fe2a ffff",
    "bf16": "0000 8000 3f80 bf80 0001 8001 007f 807f 0080 8080 7f7f ff7f 4380 4381 3eab 7f80 ff80 7fc0 7f81 7fbf"
    " ffea ffff",
    "f32": "00000000 80000000 3f800000 bf800000 00000001 80000001 007fffff 807fffff 00800000 80800000 7f7fffff"
    " ff7fffff 4b800000 4b800001 3eaaaaab 7f800000 ff800000 7fc00000 7f800001 7fbfffff ffc12345 ffffffff"
    " 477fe000 477fefff 477ff000 c77ff000 33000000 33000001 33800000 387fc000 387fe000 38800000 7f7f8000 7f7f7fff"
    " 00008000 00018000 3f801000 3f803000 3f808000 3f818000",
    "f64": "0000000000000000 8000000000000000 3ff0000000000000 bff0000000000000 0000000000000001 000fffffffffffff"
    " 0010000000000000 7fefffffffffffff 7ff0000000000000 fff0000000000000 7ff8000000000000 7ff0000000000001",
}


def contents(shape: BufferShape, kind: Any, seed: str) -> Bytes:
    """All bytes of a buffer, those between its rows included.

    `kind` is a list of words, written as integers or hexadecimal texts, or one of
    bytes: random bytes; index: element i holds i, modulo what fits; integers: -8..8, exact in any sum of
    products that a probe forms; floats: special values of the buffer's type and random bits, mixed;
    finite: the same without infinities and NaNs. `seed` tells buffers apart.
    """
    size = shape.rows * shape.pitch_bytes
    element = shape.element_type.bytes
    word = np.dtype(f"u{element}")
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(seed.encode())))
    if isinstance(kind, list):
        words = np.array([int(item, 16) if isinstance(item, str) else item for item in kind], dtype=word)
        return np.resize(words, size // element).view(np.uint8)
    if kind == "bytes":
        return generator.integers(0, 256, size, np.uint8)
    if kind == "index":
        return np.arange(size // element, dtype=np.uint64).astype(word).view(np.uint8)
    if kind == "integers":
        columns = shape.pitch_bytes // element
        matrix = make_matrix("integers", shape.rows, columns, shape.element_type, zlib.crc32(seed.encode()))
        return np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)
    if kind in ("floats", "finite"):
        name = shape.element_type.name.removesuffix("_ftz").replace("tf32", "f32")
        special = np.array([int(item, 16) for item in _SPECIAL[name].split()], dtype=word)
        words = generator.integers(0, 1 << 8 * element, size // element, word, endpoint=False)
        chosen = np.where(generator.random(words.size) < 0.5, generator.choice(special, words.size), words)
        if kind == "finite":
            chosen = _without_exponent_of_ones(chosen, name)
        return chosen.astype(word).view(np.uint8)
    raise UnknownNameError("kind of input", kind, KINDS)


def _without_exponent_of_ones(words: NDArray[Any], name: str) -> NDArray[Any]:
    """Infinities and NaNs become finite by a bit less in their exponent."""
    lowest, highest = {"f16": (10, 15), "bf16": (7, 15), "f32": (23, 31), "f64": (52, 63)}[name]
    exponent = words.dtype.type((1 << highest) - (1 << lowest))
    return np.where(words & exponent == exponent, words ^ words.dtype.type(1 << lowest), words)


def initial(shape: BufferShape, kinds: Mapping[str, Any], seed: str) -> Bytes:
    """The bytes of a buffer: those that the probe asks for, else what its `fill` says."""
    if shape.name in kinds:
        return contents(shape, kinds[shape.name], f"{seed} {shape.name}")
    value = 0 if shape.fill == "zero" else 0xFF
    return np.full(shape.rows * shape.pitch_bytes, value, np.uint8)
