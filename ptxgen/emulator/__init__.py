"""A machine without the hardware: parses PTX text and executes it, CTA by CTA.

module = load_module(text, name="kernel.ptx")
memory = GlobalMemory()
machine = Machine(chip=target("sm_100a"), memory=memory)
report = machine.launch(module, "kernel", grid=(4, 1, 1), block=(128, 1, 1), arguments=[...])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxgen.emulator.events import Event, Observer
    from ptxgen.emulator.machine import Entry, Machine, Module, Param, load_module
    from ptxgen.emulator.memory import Buffer, GlobalMemory
    from ptxgen.emulator.report import Finding, Report

__all__ = [
    "Buffer",
    "Entry",
    "Event",
    "Finding",
    "GlobalMemory",
    "Machine",
    "Module",
    "Observer",
    "Param",
    "Report",
    "load_module",
]

_HOMES = {
    "Buffer": "memory",
    "Entry": "machine",
    "Event": "events",
    "Finding": "report",
    "GlobalMemory": "memory",
    "Machine": "machine",
    "Module": "machine",
    "Observer": "events",
    "Param": "machine",
    "Report": "report",
    "load_module": "machine",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: parsing needs neither NumPy nor the machine."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
