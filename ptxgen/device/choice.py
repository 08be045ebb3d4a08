"""Which device runs a kernel."""

from __future__ import annotations

import re

from ptxgen.device.interface import Device
from ptxgen.errors import DeviceError, UnknownNameError
from ptxgen.hardware.targets import TARGETS, Target, target_loads_on

_CUDA_NAME = re.compile(r"cuda(:\d+)?")


def choose_device(device: Device | str | None, target_name: str, *, check: bool = False) -> Device:
    """The device for a kernel with `.target target_name`.

    A Device is taken if the target loads on it; "emulator" is a chip of the target on the emulator; None
    and "cuda" ask for a GPU that loads the target, "cuda:1" for that one. DeviceError where there is none.
    With `check` launches are also checked for races and missing fences, which "emulator" does; DeviceError
    where the device does not.
    """
    if check and device != "emulator" and not getattr(device, "check", False):
        raise DeviceError(
            'check=True looks for races on the emulator: give device="emulator", or an EmulatedDevice with check=True'
        )
    if device is None or (isinstance(device, str) and _CUDA_NAME.fullmatch(device)):
        from ptxgen.device.cuda import CudaDevice, fitting_ordinal

        ordinal = fitting_ordinal(target_name) if device in (None, "cuda") else int(str(device)[5:])
        device = CudaDevice(ordinal)
    elif isinstance(device, str):
        if device != "emulator":
            raise UnknownNameError("device", device, ("cuda", "cuda:0", "emulator"))
        from ptxgen.device.emulated import EmulatedDevice

        return EmulatedDevice(chip=chip_for(target_name), check=check)
    chip = device.properties.chip
    if not target_loads_on(target_name, chip.capability):
        raise DeviceError(
            f"PTX with .target {target_name} does not load on {device.properties.name}, "
            f"a device of compute capability {'.'.join(map(str, chip.capability))}"
        )
    return device


def chip_for(target_name: str) -> Target:
    """A known chip that loads PTX of a target, newest architecture last; DeviceError where there is none."""
    for chip in TARGETS.values():
        if target_loads_on(target_name, chip.capability):
            return chip
    known = ", ".join(f"{chip.chip} ({chip.name})" for chip in TARGETS.values())
    raise DeviceError(f"no emulated chip loads PTX with .target {target_name}; there are {known}")
