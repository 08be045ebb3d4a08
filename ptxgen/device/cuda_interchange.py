"""Arrays of any library that speaks `__cuda_array_interface__` or DLPack, and those of JAX.

Interface: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html (version 3).
DLPack: https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.device.arrays import numpy_type
from ptxgen.device.cuda_arrays import DeviceMatrix, padded
from ptxgen.device.cuda_memory import copy_rows
from ptxgen.device.cuda_stream import LEGACY_STREAM
from ptxgen.errors import LaunchError
from ptxgen.hardware.element_types import ElementType

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

_CUDA, _CUDA_MANAGED = 2, 13  # DLDeviceType
_CAPSULE = b"dltensor"


@dataclass(frozen=True, slots=True, eq=False)
class ForeignArray:
    """Where an array lies. `owner` keeps its memory."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: str
    ordinal: int | None
    read_only: bool
    owner: Any


class ForeignArrays:
    """What both protocols have in common: no way to make arrays, and none to order streams afterwards."""

    kind = "array"
    opens = True
    waits = True

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def open(self, array: Any, stream: int) -> ForeignArray:
        raise NotImplementedError

    def signature(self, array: ForeignArray) -> tuple[Any, ...]:
        return array.address, array.shape, array.strides_bytes, array.dtype, array.ordinal, array.read_only

    def matrix(self, array: ForeignArray, name: str) -> DeviceMatrix:
        return DeviceMatrix(
            name=name,
            kind=self.kind,
            address=array.address,
            shape=array.shape,
            strides_bytes=array.strides_bytes,
            dtype=array.dtype,
            ordinal=array.ordinal,
            read_only=array.read_only,
        )

    def current_stream(self) -> int:
        return LEGACY_STREAM

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        yield

    def empty(self, rows: int, columns: int, element_type: ElementType) -> Any:
        raise LaunchError(
            f"ptxgen cannot make a new {self.kind} to return; pass out=, an array of {rows} x {columns} "
            f"{numpy_type(element_type).name} in rows of a multiple of 16 bytes, to launch()"
        )

    def finished(self, array: Any) -> Any:
        return array

    def copied(self, array: ForeignArray, element_type: ElementType, stream: int) -> ForeignArray:
        (rows, columns), size = array.shape, element_type.bytes
        if array.dtype not in (numpy_type(element_type).name, "void16") or (
            columns > 1 and array.strides_bytes[1] != size
        ):
            raise LaunchError(f"only rows of neighbouring elements of the kernel's type are copied of a {self.kind}")
        pitch = padded(columns * size)
        memory = _StreamMemory(self._device, rows * pitch, stream)
        copy_rows(
            self._device,
            source=array.address,
            source_pitch_bytes=array.strides_bytes[0] if rows > 1 else columns * size,
            destination=memory.address,
            destination_pitch_bytes=pitch,
            row_bytes=columns * size,
            rows=rows,
            stream=stream,
        )
        strides = pitch, size
        return ForeignArray(memory.address, array.shape, strides, array.dtype, self._device.ordinal, False, memory)

    def copy_into(self, array: Any, source: Any) -> None:
        raise LaunchError(f"the result is not copied into a {self.kind}: make its rows a multiple of 16 bytes")

    def hold(self, arrays: Sequence[Any], stream: int) -> None:
        """The caller keeps the arrays until the stream that it named is done."""


class InterfaceArrays(ForeignArrays):
    """Anything with `__cuda_array_interface__`; its `stream` entry is waited for, as version 3 asks."""

    def __init__(self, device: CudaDevice, kind: str) -> None:
        super().__init__(device)
        self.kind = kind

    def open(self, array: Any, stream: int) -> ForeignArray:
        if isinstance(array, ForeignArray):
            return array
        interface = array.__cuda_array_interface__
        dtype = np.dtype(interface["typestr"])
        shape = tuple(interface["shape"])
        strides = interface.get("strides") or _dense_strides(shape, dtype.itemsize)
        address, read_only = interface["data"]
        producer = interface.get("stream")
        if producer is not None and producer != stream:
            self._device.order(producer, stream)
        ordinal = self._device.ordinal_of(address) if address else self._device.ordinal
        name = dtype.name if dtype.isnative else f"{dtype.name} of the other byte order"
        return ForeignArray(address or 0, shape, tuple(strides), name, ordinal, read_only, array)


class DlpackArrays(ForeignArrays):
    """Anything with `__dlpack__`; the producer makes our stream wait for its own work."""

    def __init__(self, device: CudaDevice, kind: str) -> None:
        super().__init__(device)
        self.kind = kind

    def open(self, array: Any, stream: int) -> ForeignArray:
        if isinstance(array, ForeignArray):
            return array
        device_type, ordinal = (int(part) for part in array.__dlpack_device__())
        on_gpu = device_type in (_CUDA, _CUDA_MANAGED)
        # 0 is ambiguous in DLPack; the default stream's other name says the same.
        capsule = array.__dlpack__(stream=stream or LEGACY_STREAM) if on_gpu else array.__dlpack__()
        tensor = _tensor(capsule)
        code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
        dtype = _DLPACK_TYPES.get((code, bits), f"dlpack({code}, {bits})") + (f"x{lanes}" if lanes != 1 else "")
        shape = tuple(tensor.shape[: tensor.ndim])
        size = bits * lanes // 8
        strides = tuple(s * size for s in tensor.strides[: tensor.ndim]) if tensor.strides else ()
        return ForeignArray(
            (tensor.data or 0) + tensor.byte_offset,
            shape,
            strides or _dense_strides(shape, size),
            dtype,
            ordinal if on_gpu else None,
            False,
            capsule,
        )


class JaxArrays(DlpackArrays):
    """jax.Array, through DLPack. Results are new arrays: JAX's are never written to."""

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device, "JAX array")
        self._jax: Any = sys.modules["jax"]

    def current_stream(self) -> int:
        return self._device.stream.handle

    def open(self, array: Any, stream: int) -> ForeignArray:
        if isinstance(array, ForeignArray):
            return array
        if not isinstance(array, _Unfinished):
            return replace(super().open(array, stream), read_only=True)
        whole = super().open(array.array, stream)
        return replace(whole, shape=(whole.shape[0], array.columns))

    def empty(self, rows: int, columns: int, element_type: ElementType) -> Any:
        numpy = self._jax.numpy
        width = padded(columns * element_type.bytes) // element_type.bytes
        try:
            gpus = self._jax.devices("cuda")
        except RuntimeError:
            gpus = []
        gpu = next((gpu for gpu in gpus if gpu.local_hardware_id == self._device.ordinal), None)
        if gpu is None:
            raise LaunchError(f"this JAX does not use {self._device.properties.name}, on which the kernel runs")
        with self._jax.default_device(gpu):
            array = numpy.empty((rows, width), dtype=numpy.dtype(numpy_type(element_type)))
        return _Unfinished(array, columns)

    def finished(self, array: Any) -> Any:
        return array.array[:, : array.columns] if isinstance(array, _Unfinished) else array


@dataclass(frozen=True, slots=True, eq=False)
class _Unfinished:
    """A JAX array that nobody else has seen yet, and how many of its columns are the result."""

    array: Any
    columns: int


class _StreamMemory:
    """Memory allocated and given back in the order of a stream."""

    def __init__(self, device: CudaDevice, size_bytes: int, stream: int) -> None:
        self._device, self._stream = device, stream
        with device.current():
            self.address = int(device.driver.call("cuMemAllocAsync", size_bytes, stream, what="copying an operand"))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with self._device.current():
                self._device.driver.bindings.cuMemFreeAsync(self.address, self._stream)


def _dense_strides(shape: tuple[int, ...], element_bytes: int) -> tuple[int, ...]:
    strides, size = [], element_bytes
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """The head of DLManagedTensor: its first member."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# (DLDataTypeCode, bits) -> NumPy's name
_DLPACK_TYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
    (14, 8): "float8_e8m0fnu",
}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _tensor(capsule: Any) -> Any:
    """The DLTensor in a capsule. It stays the capsule's, whose destructor frees it: nothing is consumed."""
    return _DLTensor.from_address(_capsule_pointer(capsule, _CAPSULE))
