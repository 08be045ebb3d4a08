"""CUDA streams and events, ours and those of other libraries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ptxgen.device.interface import Event, Stream
from ptxgen.errors import DeviceError, HungKernelError, LaunchError

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

LEGACY_STREAM = 1  # CU_STREAM_LEGACY: the default stream, by a name that DLPack accepts too

_FIRST_PAUSE_SECONDS = 50e-6
_LONGEST_PAUSE_SECONDS = 5e-3


class CudaStream:
    """A stream of its own, which does not wait for the default stream."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        with device.current():
            flags = device.driver.bindings.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.handle = int(device.driver.call("cuStreamCreate", int(flags)))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle, the protocol of cuda-python's core and its users."""
        return 0, self.handle

    def synchronize(self) -> None:
        """Return when everything issued to this stream is done."""
        with self._device.current():
            self._device.driver.call("cuStreamSynchronize", self.handle, what="waiting for a stream")


class CudaEvent:
    """A point in a stream, with its time."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        with device.current():
            self._handle = device.driver.call("cuEventCreate", 0)

    def record(self, stream: Stream | int | None = None) -> None:
        """Mark the point behind everything issued to `stream` (or the default stream) so far."""
        with self._device.current():
            self._device.driver.call("cuEventRecord", self._handle, stream_handle(stream))

    def hold_back(self, stream: int) -> None:
        """Make what is issued to a stream from now on wait for the recorded point."""
        with self._device.current():
            self._device.driver.call("cuStreamWaitEvent", stream, self._handle, 0)

    def synchronize(self, timeout_seconds: float | None = None, what: str = "a kernel") -> None:
        """Return when the recorded point is reached.

        HungKernelError if it is not within `timeout_seconds`; `what` is being waited for.
        """
        driver = self._device.driver
        with self._device.current():
            if timeout_seconds is None:
                driver.call("cuEventSynchronize", self._handle, what=f"waiting for {what}")
                return
            end, pause = time.monotonic() + timeout_seconds, _FIRST_PAUSE_SECONDS
            while not self.reached(what):
                if time.monotonic() > end:
                    raise HungKernelError(
                        f"{what} did not end within {timeout_seconds:g} s; it may wait for a barrier that nobody "
                        "completes. `ptxgen verify` runs the same text on the emulator and names the warps, lines "
                        "and barriers that hang; --timeout gives a long kernel more time"
                    )
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def reached(self, what: str = "a kernel") -> bool:
        """Whether the recorded point is reached; `what` is being waited for."""
        driver = self._device.driver
        with self._device.current():
            status = driver.bindings.cuEventQuery(self._handle)[0]
        if status and status != driver.bindings.CUresult.CUDA_ERROR_NOT_READY:
            raise driver.error(status, f"waiting for {what}")
        return not status

    def seconds_since(self, earlier: Event) -> float:
        """Device time between two recorded events of this device."""
        if not isinstance(earlier, CudaEvent) or earlier._device is not self._device:
            raise DeviceError("the earlier event belongs to another device")
        with self._device.current():
            milliseconds: float = self._device.driver.call("cuEventElapsedTime", earlier._handle, self._handle)
        return milliseconds / 1e3

    def close(self) -> None:
        """Give the event back; what it was recorded for goes on."""
        with self._device.current():
            self._device.driver.bindings.cuEventDestroy(self._handle)


def stream_handle(stream: Any) -> int:
    """The CUstream value of a stream: None (the default stream), a handle, or another library's stream.

    Taken are torch's (`cuda_stream`), cupy's (`ptr`), and what has `__cuda_stream__` or converts to int, as
    the handles of cuda-python do. LaunchError for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    if hasattr(type(stream), "__int__") and not isinstance(stream, float | bool):
        return int(stream)
    raise LaunchError(
        f"stream is {stream!r}; give a stream of torch, cupy or cuda-python, or the handle of one as a number"
    )
