"""Scratch memory of kernels: the launcher's own, a set for each stream.

Launches of one stream follow each other, and each leaves zeros where it found zeros, so all kernels share what a
stream has. Launches of two streams may run at once and share nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ptxgen.device.cuda_memory import CudaBuffer
from ptxgen.device.launch import BufferShape

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle, a stream for each thread
_ALIGN_BYTES = 256
_NAN_BYTE = 0xFF


def stream_key(stream: int) -> tuple[int, int]:
    """What tells streams apart."""
    return stream, threading.get_ident() if stream == _PER_THREAD_STREAM else 0


class Scratch:
    """Scratch memory of one device. What was handed out stays, since captured graphs may hold its addresses."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._areas: dict[tuple[tuple[int, int], str], list[CudaBuffer]] = {}
        self._lock = threading.Lock()

    def addresses(self, shapes: Sequence[BufferShape], stream: int) -> Mapping[str, int]:
        """Where scratch buffers of these shapes lie for launches on a stream, allocated where they are the largest
        so far. DeviceError where there is not enough memory."""
        found: dict[str, int] = {}
        for fill in dict.fromkeys(shape.fill for shape in shapes):
            mine = [shape for shape in shapes if shape.fill == fill]
            offsets, size = [], 0
            for shape in mine:
                offsets.append(size)
                size += -(-shape.rows * shape.pitch_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
            with self._lock:
                base = self._area(fill, size, stream)
            found |= {shape.name: base + offset for shape, offset in zip(mine, offsets, strict=True)}
        return found

    def _area(self, fill: str, size: int, stream: int) -> int:
        areas = self._areas.setdefault((stream_key(stream), fill), [])
        if not areas or areas[-1].size_bytes < size:
            grown = max(size, 2 * areas[-1].size_bytes) if areas else size
            area = self._device.allocate(grown, name=f"of scratch memory ({fill})")
            self._device.fill(area, 0 if fill == "zero" else _NAN_BYTE)
            areas.append(area)
        return areas[-1].address
