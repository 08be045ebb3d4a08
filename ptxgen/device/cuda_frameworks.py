"""Arrays of torch and cupy: where they lie, on which stream their owner works, and new ones like them.

Neither library is imported here: whoever passes an array has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ptxgen.device.arrays import numpy_type
from ptxgen.device.cuda_arrays import DeviceMatrix, padded
from ptxgen.errors import LaunchError
from ptxgen.hardware.element_types import ElementType

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice


class Arrays(Protocol):
    """The arrays of one library on one GPU.

    `opens`: arrays have to be opened, instead of being taken as they are. `waits`: the library cannot learn
    of work on a stream that it did not create, so that results must be complete when they are handed to it.
    """

    kind: str
    opens: bool
    waits: bool

    def open(self, array: Any, stream: int) -> Any:
        """What the other methods take for an array; work issued to `stream` from now on finds its content."""

    def signature(self, array: Any) -> tuple[Any, ...]:
        """The address, and all else that a launch depends on; it can be hashed."""

    def matrix(self, array: Any, name: str) -> DeviceMatrix:
        """The array as an operand called `name`."""

    def current_stream(self) -> int:
        """The stream on which the library works now."""

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        """Make the library work on a stream for the length of a block."""

    def empty(self, rows: int, columns: int, element_type: ElementType) -> Any:
        """A new matrix of any content, with a pitch and base that TMA takes."""

    def finished(self, array: Any) -> Any:
        """The caller's form of a matrix from `empty` that has been written."""

    def copied(self, array: Any, element_type: ElementType, stream: int) -> Any:
        """A copy of a matrix, in an array like those of `empty`."""

    def copy_into(self, array: Any, source: Any) -> None:
        """Replace the content of a matrix by that of one from `empty`."""

    def hold(self, arrays: Sequence[Any], stream: int) -> None:
        """Keep the memory of arrays from reuse until what has been issued to `stream` is done."""


class Frameworks:
    """Which library an array is of, remembered by the array's class."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._by_class: dict[type, Arrays] = {}

    def of(self, array: Any) -> Arrays | None:
        """The library of an array; None for what is no array on a device."""
        found = self._by_class.get(type(array))
        if found is None:
            found = self._recognise(array)
            if found is not None:
                self._by_class[type(array)] = found
        return found

    def _recognise(self, array: Any) -> Arrays | None:
        from ptxgen.device.cuda_interchange import DlpackArrays, InterfaceArrays, JaxArrays

        kind = type(array)
        if issubclass(kind, np.ndarray):
            return None  # speaks DLPack too, but lies in host memory
        libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
        if "torch" in libraries:
            return TorchArrays(self._device)
        if "cupy" in libraries:
            return CupyArrays(self._device)
        if "jax" in sys.modules and libraries & {"jax", "jaxlib"}:
            return JaxArrays(self._device)
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        if getattr(array, "__cuda_array_interface__", None) is not None:
            return InterfaceArrays(self._device, name)
        if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            return DlpackArrays(self._device, name)
        return None


class TorchArrays:
    """torch.Tensor. Ordered by torch's current stream; memory under its caching allocator."""

    kind = "torch tensor"
    opens = False
    waits = False

    def __init__(self, device: CudaDevice) -> None:
        self._torch: Any = sys.modules["torch"]
        self._ordinal = device.ordinal
        self._device = self._torch.device("cuda", device.ordinal)
        self._dtypes: dict[str, Any] = {}
        # The public call makes two objects around this number, which costs as much as a launch.
        self._raw_stream = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)

    def open(self, array: Any, stream: int) -> Any:
        return array

    def signature(self, array: Any) -> tuple[Any, ...]:
        return array.data_ptr(), array.shape, array.stride(), array.dtype, array.device

    def matrix(self, array: Any, name: str) -> DeviceMatrix:
        size = array.element_size()
        return DeviceMatrix(
            name=name,
            kind=self.kind,
            address=array.data_ptr(),
            shape=tuple(array.shape),
            strides_bytes=tuple(stride * size for stride in array.stride()),
            dtype=str(array.dtype).removeprefix("torch."),
            ordinal=array.device.index if array.is_cuda else None,
        )

    def current_stream(self) -> int:
        if self._raw_stream is not None:
            return int(self._raw_stream(self._ordinal))
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._external(stream))
        return context

    def empty(self, rows: int, columns: int, element_type: ElementType) -> Any:
        size = element_type.bits // 8
        width = padded(columns * size) // size
        dtype = self._dtypes.get(element_type.name)
        if dtype is None:  # NumPy takes longer to tell a type's name than torch to allocate
            dtype = self._dtypes[element_type.name] = getattr(self._torch, numpy_type(element_type).name)
        matrix = self._torch.empty((rows, width), dtype=dtype, device=self._device)
        return matrix if width == columns else matrix[:, :columns]

    def finished(self, array: Any) -> Any:
        return array

    def copied(self, array: Any, element_type: ElementType, stream: int) -> Any:
        copy = self.empty(array.shape[0], array.shape[1], element_type)
        copy.copy_(array)
        return copy

    def copy_into(self, array: Any, source: Any) -> None:
        array.copy_(source)

    def hold(self, arrays: Sequence[Any], stream: int) -> None:
        if stream != self.current_stream():
            external = self._external(stream)
            for array in arrays:
                array.record_stream(external)

    def _external(self, stream: int) -> Any:
        return self._torch.cuda.ExternalStream(stream, device=self._device)


class CupyArrays:
    """cupy.ndarray. Ordered by cupy's current stream, to which its memory pool belongs as well."""

    kind = "cupy array"
    opens = False
    waits = False

    def __init__(self, device: CudaDevice) -> None:
        self._cupy: Any = sys.modules["cupy"]
        self._device = self._cupy.cuda.Device(device.ordinal)
        self._ordinal = device.ordinal

    def open(self, array: Any, stream: int) -> Any:
        return array

    def signature(self, array: Any) -> tuple[Any, ...]:
        return array.data.ptr, array.shape, array.strides, array.dtype, array.data.device_id

    def matrix(self, array: Any, name: str) -> DeviceMatrix:
        return DeviceMatrix(
            name=name,
            kind=self.kind,
            address=array.data.ptr,
            shape=array.shape,
            strides_bytes=array.strides,
            dtype=array.dtype.name,
            ordinal=array.data.device_id,
        )

    def current_stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream(self._ordinal).ptr)

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cupy.cuda.ExternalStream(stream, self._ordinal)
        return context

    def empty(self, rows: int, columns: int, element_type: ElementType) -> Any:
        width = padded(columns * element_type.bytes) // element_type.bytes
        with self._device:
            try:
                matrix = self._cupy.empty((rows, width), dtype=numpy_type(element_type))
            except (TypeError, ValueError) as error:
                raise LaunchError(
                    f"this cupy has no arrays of {numpy_type(element_type).name}: pass out=, or use torch"
                ) from error
        return matrix[:, :columns]

    def finished(self, array: Any) -> Any:
        return array

    def copied(self, array: Any, element_type: ElementType, stream: int) -> Any:
        copy = self.empty(array.shape[0], array.shape[1], element_type)
        copy[...] = array
        return copy

    def copy_into(self, array: Any, source: Any) -> None:
        array[...] = source

    def hold(self, arrays: Sequence[Any], stream: int) -> None:
        """cupy's pool knows no other streams: the caller keeps the arrays until their stream is done."""
