"""One launch of a probe on a device, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.inputs import Bytes, initial
from conformance.probe import Case
from ptxgen.device.arrays import numpy_type
from ptxgen.device.interface import Buffer, Device, Module
from ptxgen.device.launch import Launch
from ptxgen.device.reference import compare
from ptxgen.errors import DeviceError, HungKernelError, NotSupportedError, PtxError

GUARD_BYTES = 4096
"""Compared too, before and behind every buffer. Filled with ones."""

NOT_MODELLED = "not-modelled"
HUNG = "hung"
CRASHED = "crashed"
NOT_LOADED = "not-loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Either every buffer's bytes, guards included, or a fault.

    A fault is the name of the rule that the emulator found broken, or the driver's name of the error.
    `message` explains it. `wrong` counts elements of D that are not those of the exact product, where the
    launch says that it computes one. `fatal` says that the process cannot use its device any more.
    """

    buffers: Mapping[str, bytes] = field(default_factory=dict)
    fault: str = ""
    message: str = ""
    wrong: int = 0
    fatal: bool = False

    @property
    def signature(self) -> str:
        """What tells one outcome from another, in 16 characters or as the fault's name."""
        if self.fault:
            return self.fault
        digest = hashlib.sha256()
        for name, data in sorted(self.buffers.items()):
            digest.update(f"{name} {len(data)} ".encode() + data)
        return digest.hexdigest()[:16]


def run_case(
    device: Device, module: Module, case: Case, inputs: Mapping[str, Any], *, seed: str, tolerates: tuple[str, ...] = ()
) -> Outcome:
    """Launch a case and read back every buffer."""
    launch = Launch.of(case.description, problem=case.description.defaults, chip=device.properties.chip)
    launch.check_entry(module.entries[launch.entry], case.name)
    buffers: dict[str, Buffer] = {}
    held: dict[str, Bytes] = {}
    for shape in launch.buffers:
        held[shape.name] = initial(shape, inputs, seed)
        buffers[shape.name] = device.allocate(held[shape.name].size + 2 * GUARD_BYTES, name=shape.name)
        device.fill(buffers[shape.name], 0xFF)
        _copy_in(device, buffers[shape.name], held[shape.name])
    addresses = {name: buffer.address + GUARD_BYTES for name, buffer in buffers.items()}
    try:
        report = device.launch(module, launch, launch.pack(addresses, device.encode_tensor_map))
        found = {name: _copy_out(device, buffer) for name, buffer in buffers.items()}
    except NotSupportedError as error:
        return Outcome(fault=NOT_MODELLED, message=str(error))
    except HungKernelError as error:
        return Outcome(fault=HUNG, message=str(error), fatal=True)
    except DeviceError as error:
        code = getattr(error, "code", "")
        if not code:
            raise
        return Outcome(fault=code, message=str(error), fatal=True)
    for buffer in buffers.values():
        buffer.free()
    broken = [finding for finding in report.findings if finding.severity == "error" and finding.rule not in tolerates]
    if broken:
        return Outcome(fault=broken[0].rule, message=str(broken[0]))
    return Outcome(buffers={name: data.tobytes() for name, data in found.items()}, wrong=_wrong(launch, case, found))


def load(device: Device, text: str, name: str) -> Module | Outcome:
    """A module, or why there is none."""
    try:
        return device.load(text, name=name)
    except (PtxError, NotSupportedError) as error:
        return Outcome(fault=NOT_MODELLED, message=str(error))
    except DeviceError as error:
        return Outcome(fault=NOT_LOADED, message=str(error))


def _copy_in(device: Device, buffer: Buffer, data: Bytes) -> None:
    device.write_rows(buffer, data.reshape(1, -1), pitch_bytes=data.size, offset_bytes=GUARD_BYTES)


def _copy_out(device: Device, buffer: Buffer) -> Bytes:
    data = np.empty(buffer.size_bytes, np.uint8)
    device.read_rows(buffer, data.reshape(1, -1), pitch_bytes=buffer.size_bytes)
    return data


def _wrong(launch: Launch, case: Case, found: Mapping[str, Bytes]) -> int:
    expect = case.description.expect
    if expect is None:
        return 0

    def matrix(name: str) -> Any:
        shape = launch.buffer(name)
        body = found[name][GUARD_BYTES:-GUARD_BYTES].reshape(shape.rows, shape.pitch_bytes)
        return body[:, : shape.row_bytes].copy().view(numpy_type(shape.element_type))

    return compare(matrix(expect.a), matrix(expect.b), matrix(expect.d)).wrong
