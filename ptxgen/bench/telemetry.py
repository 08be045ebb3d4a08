"""Clock, power and temperature of a GPU, through NVML, the library that nvidia-smi uses."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from statistics import mean

_SM_CLOCK = 1  # nvmlClockType_t
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t
_VERSION_BYTES = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """SM clock in MHz, power in watts; None where the GPU does not tell."""

    sm_mhz: float | None
    watts: float | None


class Telemetry:
    """Readings of one GPU, by its PCI address (as CUDA prints it); all None where there is no NVML."""

    def __init__(self, pci_address: str, library: ctypes.CDLL | None = None) -> None:
        self._device: ctypes.c_void_p | None = None
        try:
            self._nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device = ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() == 0 and (
            self._nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_address.encode(), ctypes.byref(device)) == 0
        ):
            self._device = device

    def read(self) -> Reading:
        """What the GPU does now."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return Reading(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            watts=None if milliwatts is None else milliwatts / 1e3,
        )

    def limits(self) -> dict[str, object]:
        """What bounds the GPU: power limit in watts, top SM clock in MHz, temperature in degrees Celsius."""
        milliwatts = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "power_limit_watts": None if milliwatts is None else milliwatts / 1e3,
            "max_sm_mhz": self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
            "temperature_celsius": self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "driver": self._driver_version(),
        }

    def _number(self, function: str, *arguments: int) -> float | None:
        if self._device is None:
            return None
        value = ctypes.c_uint()
        status = getattr(self._nvml, function)(self._device, *arguments, ctypes.byref(value))
        return float(value.value) if status == 0 else None

    def _driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        if self._device is None or self._nvml.nvmlSystemGetDriverVersion(text, _VERSION_BYTES) != 0:
            return None
        return text.value.decode()


def average(readings: list[Reading]) -> Reading:
    """The mean of what was read."""
    clocks = [reading.sm_mhz for reading in readings if reading.sm_mhz is not None]
    powers = [reading.watts for reading in readings if reading.watts is not None]
    return Reading(sm_mhz=mean(clocks) if clocks else None, watts=mean(powers) if powers else None)
