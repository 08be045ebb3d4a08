"""Run a launch on NumPy matrices: copy in, launch, copy out, and look at what must not have changed.

Every buffer that a kernel writes lies in a larger allocation of NaN bytes. Rows before and after it, and
where the kernel learns the pitch from a tensor map also columns behind it, must come back untouched. TMA
stores clip in 16-byte chunks, so a row's guard begins at the next multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ptxgen.device.arrays import Matrix, numpy_type
from ptxgen.device.interface import Buffer, Device, LaunchReport, Module, Stream
from ptxgen.device.launch import BufferShape, Launch
from ptxgen.hardware.tensor_map import COORDINATE_ALIGN_BYTES

_NAN_BYTE = 0xFF  # repeated, a NaN in every floating-point type
_GUARD_ROWS = 2
_GUARD_COLUMN_BYTES = 2 * COORDINATE_ALIGN_BYTES
_ALIGN_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a launch left behind: every buffer that was not an input, by name."""

    outputs: Mapping[str, Matrix]
    report: LaunchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A buffer's matrix inside its allocation."""

    shape: BufferShape
    buffer: Buffer
    offset_bytes: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset_bytes


def run_on_matrices(
    device: Device,
    module: Module,
    launch: Launch,
    inputs: Mapping[str, Matrix],
    *,
    stream: Stream | None = None,
) -> Execution:
    """Launch on copies of `inputs`, one dense matrix for each buffer whose fill is "input"."""
    for shape in launch.buffers:
        if shape.fill != "input" and launch.pitch_is_free(shape.name):
            row = _round_up(shape.row_bytes, COORDINATE_ALIGN_BYTES)
            launch = launch.with_pitch(shape.name, row + _GUARD_COLUMN_BYTES)
    placed: list[_Placed] = []
    try:
        for shape in launch.buffers:
            placed.append(_place(device, shape, inputs.get(shape.name)))
        addresses = {item.shape.name: item.address for item in placed}
        arguments = launch.pack(addresses, device.encode_tensor_map)
        report = device.launch(module, launch, arguments, stream=stream)
        outputs = {}
        for item in placed:
            if item.shape.fill != "input":
                matrix, damage = _collect(device, item)
                outputs[item.shape.name] = matrix
                if damage is None and item.shape.scratch and item.shape.fill == "zero" and matrix.any():
                    damage = (
                        f"{np.count_nonzero(matrix)} elements of {item.shape.name} are not zero again, "
                        "as the next launch needs them"
                    )
                if damage is not None:
                    report = replace(report, guard_damage=(*report.guard_damage, damage))
        return Execution(outputs=outputs, report=report)
    finally:
        for item in placed:
            item.buffer.free()


def _place(device: Device, shape: BufferShape, matrix: Matrix | None) -> _Placed:
    guard = 0 if shape.fill == "input" else _round_up(_GUARD_ROWS * shape.pitch_bytes, _ALIGN_BYTES)
    buffer = device.allocate(shape.rows * shape.pitch_bytes + 2 * guard, name=shape.name)
    device.fill(buffer, _NAN_BYTE)
    if shape.fill == "input":
        assert matrix is not None
        device.write_rows(buffer, matrix, pitch_bytes=shape.pitch_bytes)
    elif shape.fill == "zero":
        zeros = np.zeros((shape.rows, shape.columns), numpy_type(shape.element_type))
        device.write_rows(buffer, zeros, pitch_bytes=shape.pitch_bytes, offset_bytes=guard)
    return _Placed(shape=shape, buffer=buffer, offset_bytes=guard)


def _collect(device: Device, item: _Placed) -> tuple[Matrix, str | None]:
    """The matrix, and what is wrong with its guards."""
    shape, size = item.shape, item.buffer.size_bytes
    memory = np.empty((1, size), np.uint8)
    device.read_rows(item.buffer, memory, pitch_bytes=size)
    body = memory[0, item.offset_bytes : size - item.offset_bytes].reshape(shape.rows, shape.pitch_bytes)
    matrix = body[:, : shape.row_bytes].copy().view(numpy_type(shape.element_type))
    body[:, : _round_up(shape.row_bytes, COORDINATE_ALIGN_BYTES)] = _NAN_BYTE
    damaged = np.flatnonzero(memory[0] != _NAN_BYTE)
    if damaged.size == 0:
        return matrix, None
    row, column = divmod(int(damaged[0]) - item.offset_bytes, shape.pitch_bytes)
    return matrix, (
        f"{damaged.size} bytes outside {shape.name} ({shape.rows} rows of {shape.row_bytes} bytes, "
        f"pitch {shape.pitch_bytes}) were written, first in row {row} at byte {column}"
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
