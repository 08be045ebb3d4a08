"""Scratch memory of kernels: the launcher's own, a set for each stream, and for each stream of a captured graph.

Launches of one stream follow each other, and each leaves zeros where it found zeros, so all kernels share what a
stream has. Launches of two streams may run at once and share nothing; nor do a graph and the stream on which it was
captured, since it may be replayed on any.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ptxgen.device.cuda_memory import CudaBuffer
from ptxgen.device.launch import BufferShape

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle, a stream for each thread
_ALIGN_BYTES = 256
_NAN_BYTE = 0xFF


StreamKey: TypeAlias = tuple[int, int, int]
"""What tells streams apart: the handle, the thread where it is each thread's own, and the capture that is going on."""


class Scratch:
    """Scratch memory of one device. What was handed out stays, since captured graphs may hold its addresses."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._areas: dict[tuple[StreamKey, str], list[CudaBuffer]] = {}
        self._lock = threading.Lock()

    def key(self, stream: int) -> StreamKey:
        """Launches with the same key follow each other."""
        thread = threading.get_ident() if stream == _PER_THREAD_STREAM else 0
        driver = self._device.driver
        with self._device.current():
            result, status = driver.bindings.cuStreamIsCapturing(stream)[:2]
            if result or status == driver.bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
                return stream, thread, 0
            _, _, capture = driver.bindings.cuStreamGetCaptureInfo(stream)[:3]
        return stream, thread, int(capture)

    def addresses(self, shapes: Sequence[BufferShape], key: StreamKey) -> Mapping[str, int]:
        """Where scratch buffers of these shapes lie for launches with a key, allocated where they are the largest
        so far. DeviceError where there is not enough memory."""
        found: dict[str, int] = {}
        for fill in dict.fromkeys(shape.fill for shape in shapes):
            mine = [shape for shape in shapes if shape.fill == fill]
            offsets, size = [], 0
            for shape in mine:
                offsets.append(size)
                size += -(-shape.rows * shape.pitch_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
            with self._lock:
                base = self._area(fill, size, key)
            found |= {shape.name: base + offset for shape, offset in zip(mine, offsets, strict=True)}
        return found

    def _area(self, fill: str, size: int, key: StreamKey) -> int:
        areas = self._areas.setdefault((key, fill), [])
        if not areas or areas[-1].size_bytes < size:
            grown = max(size, 2 * areas[-1].size_bytes) if areas else size
            with self._outside_of_captures():
                area = self._device.allocate(grown, name=f"of scratch memory ({fill})")
                self._device.fill(area, 0 if fill == "zero" else _NAN_BYTE)
            areas.append(area)
        return areas[-1].address

    @contextlib.contextmanager
    def _outside_of_captures(self) -> Iterator[None]:
        """What this thread does is no part of a graph that it captures, and does not end the capture."""
        driver = self._device.driver
        relaxed = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = driver.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            driver.call("cuThreadExchangeStreamCaptureMode", before)
