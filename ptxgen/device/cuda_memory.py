"""Global memory of a GPU: allocate, fill, and copy matrices row by row.

Copies and fills run on a stream of the device's own and return when they are done, so that work on any
other stream that is issued later finds the data in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxgen.device.arrays import Matrix
from ptxgen.device.cuda_driver import CudaError
from ptxgen.device.interface import Buffer
from ptxgen.errors import DeviceError

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice


class CudaBuffer:
    """Global memory from cuMemAlloc, aligned to 256 bytes."""

    __slots__ = ("_device", "address", "size_bytes")

    def __init__(self, device: CudaDevice, size_bytes: int, name: str) -> None:
        self._device = device
        self.size_bytes = size_bytes
        driver = device.driver
        with device.current():
            try:
                self.address = int(driver.call("cuMemAlloc", max(size_bytes, 1), what=f"allocating buffer {name}"))
            except CudaError as error:
                if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                free, total = driver.call("cuMemGetInfo")
                raise DeviceError(
                    f"buffer {name} needs {_gib(size_bytes)} GiB; {device.properties.name} has {_gib(free)} of its "
                    f"{_gib(total)} GiB free: take a smaller problem, or end what else uses the device"
                ) from error

    def free(self) -> None:
        """Give the memory back, waiting for what still uses it.

        Says nothing where a broken kernel took the context, and its memory, with it; does nothing
        while a hung one still runs, since it would wait for ever.
        """
        if not self._device.hung:
            with self._device.current():
                self._device.driver.bindings.cuMemFree(self.address)


def fill(device: CudaDevice, buffer: Buffer, value: int) -> None:
    """Set every byte of a buffer."""
    with device.current():
        device.driver.call("cuMemsetD8Async", buffer.address, value, buffer.size_bytes, device.stream.handle)
        device.stream.synchronize()


def zero_rows(device: CudaDevice, address: int, pitch_bytes: int, row_bytes: int, rows: int, stream: int) -> None:
    """Clear the rows of a matrix, in the order of a stream; the bytes between rows stay."""
    with device.current():
        device.driver.call("cuMemsetD2D8Async", address, pitch_bytes, 0, row_bytes, rows, stream)


def copy_rows(
    device: CudaDevice,
    *,
    source: int,
    source_pitch_bytes: int,
    destination: int,
    destination_pitch_bytes: int,
    row_bytes: int,
    rows: int,
    stream: int,
) -> None:
    """Copy rows in the order of a stream. Addresses are those of host or device memory."""
    dense = source_pitch_bytes == destination_pitch_bytes == row_bytes
    with device.current():
        if dense or rows == 1:  # a pitch is limited to 2^31 - 1 bytes, a length is not
            device.driver.call("cuMemcpyAsync", destination, source, rows * row_bytes, stream, what="copying")
            return
        bindings = device.driver.bindings
        copy = bindings.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = bindings.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch = source, source_pitch_bytes
        copy.dstDevice, copy.dstPitch = destination, destination_pitch_bytes
        copy.WidthInBytes, copy.Height = row_bytes, rows
        device.driver.call("cuMemcpy2DAsync", copy, stream, what="copying")


def write_rows(device: CudaDevice, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
    """Copy a host matrix into a buffer, rows `pitch_bytes` apart."""
    dense = np.ascontiguousarray(matrix)
    row_bytes = dense.shape[1] * dense.dtype.itemsize
    copy_rows(
        device,
        source=dense.ctypes.data,
        source_pitch_bytes=row_bytes,
        destination=buffer.address + offset_bytes,
        destination_pitch_bytes=pitch_bytes,
        row_bytes=row_bytes,
        rows=dense.shape[0],
        stream=device.stream.handle,
    )
    device.stream.synchronize()


def read_rows(device: CudaDevice, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
    """Copy rows of a buffer into a dense host matrix."""
    assert matrix.flags.c_contiguous
    row_bytes = matrix.shape[1] * matrix.dtype.itemsize
    copy_rows(
        device,
        source=buffer.address + offset_bytes,
        source_pitch_bytes=pitch_bytes,
        destination=matrix.ctypes.data,
        destination_pitch_bytes=row_bytes,
        row_bytes=row_bytes,
        rows=matrix.shape[0],
        stream=device.stream.handle,
    )
    device.stream.synchronize()


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}"
