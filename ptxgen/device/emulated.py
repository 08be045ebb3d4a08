"""The emulator as a device: a B200-like or H200-like chip that needs no GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ptxgen.checker import Checker, Usage
from ptxgen.device.arrays import Matrix
from ptxgen.device.description import LaunchDescription
from ptxgen.device.interface import (
    Buffer,
    DeviceProperties,
    EncodedArgument,
    Event,
    LaunchReport,
    Module,
    Stream,
)
from ptxgen.device.launch import Launch
from ptxgen.emulator import GlobalMemory, Machine, Observer, load_module
from ptxgen.emulator import Module as EmulatedModule
from ptxgen.emulator import memory as emulator_memory
from ptxgen.errors import DeviceError, UnknownNameError
from ptxgen.hardware.targets import Target, target, target_loads_on
from ptxgen.hardware.tensor_map import TensorMap

POLICIES = ("eager", "late", "random")


@dataclass(frozen=True, slots=True)
class EmulatedBuffer:
    """Global memory of the emulator."""

    memory: GlobalMemory
    buffer: emulator_memory.Buffer

    @property
    def address(self) -> int:
        return self.buffer.address

    @property
    def size_bytes(self) -> int:
        return self.buffer.size_bytes

    def free(self) -> None:
        """Give the memory back; later accesses to it are out of bounds."""
        self.memory.release(self.buffer)


class EmulatedStream:
    """A stream of a device on which every call returns when its work is done."""

    def synchronize(self) -> None:
        """Return at once: nothing is pending."""


class EmulatedEvent:
    """A point in host time, which is device time here."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Return at once; DeviceError if the event was never recorded."""
        self._recorded()

    def seconds_since(self, earlier: Event) -> float:
        """Time between two recorded events of this device."""
        if not isinstance(earlier, EmulatedEvent):
            raise DeviceError("the earlier event belongs to another device")
        return self._recorded() - earlier._recorded()

    def _recorded(self) -> float:
        if self._seconds is None:
            raise DeviceError("the event was not recorded")
        return self._seconds


class EmulatedDevice:
    """A Device that executes PTX text and reports the rules that it breaks.

    `chip` is a target's name or a Target. `policy` decides when asynchronous work takes effect and which
    lane is elected: "eager", "late" or "random" (drawn from `seed`). `workers` processes share the CTAs
    (None: as many as there are CPUs). `progress(done, total)` counts them. `observers` see every access
    and every synchronisation. With `check` every launch is also checked for races and missing fences
    (its findings join the report's; `usage` collects which synchronisation was of use), which is slower
    and runs in this process alone. A cluster that executes more than `instruction_budget` warp
    instructions is stopped with a finding. Results do not depend on `workers`.
    """

    def __init__(
        self,
        chip: str | Target = "sm_100a",
        *,
        policy: str = "eager",
        seed: int = 0,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        observers: Sequence[Observer] = (),
        check: bool = False,
        instruction_budget: int | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise UnknownNameError("policy", policy, POLICIES)
        chip = target(chip) if isinstance(chip, str) else chip
        self.properties = DeviceProperties(name=f"emulated {chip.chip}", chip=chip)
        self.policy = policy
        self.seed = seed
        self.workers = workers
        self.progress = progress
        self.observers = tuple(observers)
        self.check = check
        self.usage = Usage()
        self.instruction_budget = instruction_budget
        self._memory = GlobalMemory()

    def allocate(self, size_bytes: int, *, name: str) -> EmulatedBuffer:
        """Poisoned memory; DeviceError where the host has not enough."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            if size_bytes > free:
                raise MemoryError
            buffer = self._memory.allocate(size_bytes, name)
        except (MemoryError, OSError, OverflowError):
            raise DeviceError(
                f"buffer {name} needs {size_bytes / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free"
            ) from None
        return EmulatedBuffer(self._memory, buffer)

    def fill(self, buffer: Buffer, value: int) -> None:
        """Set every byte."""
        self._bytes(buffer)[:] = value

    def write_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy a matrix in."""
        self._rows(buffer, matrix, pitch_bytes, offset_bytes)[:] = matrix

    def read_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy a matrix out."""
        matrix[:] = self._rows(buffer, matrix, pitch_bytes, offset_bytes)

    def encode_tensor_map(self, tensor_map: TensorMap) -> EncodedArgument:
        """The emulator takes tensor maps as they are."""
        return tensor_map

    def create_stream(self) -> EmulatedStream:
        """A stream whose work is always done."""
        return EmulatedStream()

    def create_event(self) -> EmulatedEvent:
        """An event of host time."""
        return EmulatedEvent()

    def load(self, text: str, *, name: str) -> EmulatedModule:
        """Parse PTX. PtxError names the line that is not understood; DeviceError refuses other targets."""
        module = load_module(text, name)
        chip = self.properties.chip
        if not target_loads_on(module.target, chip.capability):
            raise DeviceError(
                f"{name} has .target {module.target}, which does not load on {self.properties.name} "
                f"(compute capability {'.'.join(map(str, chip.capability))})"
            )
        return module

    def gemm(self, module: Module, description: LaunchDescription, name: str) -> None:
        """Nothing: no library has arrays in the emulator's memory."""

    def occupancy(self, module: Module, entry: str, *, threads: int, dynamic_smem_bytes: int) -> int:
        """CTAs per SM by threads and shared memory; registers, which only ptxas knows, are not counted."""
        chip = self.properties.chip
        if not isinstance(module, EmulatedModule):
            raise DeviceError("the module was loaded by another device")
        smem = dynamic_smem_bytes + module.entries[entry].static_smem_bytes
        if smem > chip.smem_optin_bytes or threads > chip.max_threads_per_cta:
            return 0
        return min(
            chip.max_ctas_per_sm,
            chip.max_threads_per_sm // threads,
            chip.smem_per_sm_bytes // (smem + chip.smem_reserved_bytes),
        )

    def launch(
        self, module: Module, launch: Launch, arguments: Sequence[EncodedArgument], *, stream: Stream | None = None
    ) -> LaunchReport:
        """Execute every CTA; broken rules become findings of the report."""
        if not isinstance(module, EmulatedModule):
            raise DeviceError("the module was loaded by another device")
        checker = self._checker(module, launch) if self.check else None
        machine = Machine(
            chip=self.properties.chip,
            memory=self._memory,
            policy=self.policy,
            seed=self.seed,
            observers=self.observers if checker is None else (*self.observers, checker),
            workers=self.workers,
            progress=self.progress,
            instruction_budget=self.instruction_budget,
        )
        report = machine.launch(
            module,
            entry=launch.entry,
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_smem_bytes=launch.dynamic_smem_bytes,
            arguments=arguments,
        )
        return LaunchReport(
            device=self.properties.name,
            grid=launch.grid,
            seconds=report.seconds,
            findings=report.findings if checker is None else checker.conclude(report.findings),
            instructions=report.instructions,
        )

    def _checker(self, module: EmulatedModule, launch: Launch) -> Checker:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        return Checker(
            module.lines,
            grid=launch.grid,
            cluster=launch.cluster,
            threads=threads,
            smem_bytes=self.properties.chip.smem_per_sm_bytes,
            usage=self.usage,
            shares_global=module.entries[launch.entry].code(hooks=True).shares_global,
            dependent=launch.dependent,
        )

    def _bytes(self, buffer: Buffer) -> Matrix:
        if not isinstance(buffer, EmulatedBuffer):
            raise DeviceError("the buffer belongs to another device")
        return buffer.buffer.data

    def _rows(self, buffer: Buffer, matrix: Matrix, pitch_bytes: int, offset_bytes: int) -> Matrix:
        """The buffer's bytes seen as a matrix of the same shape and type."""
        view: Matrix = np.ndarray(
            matrix.shape,
            matrix.dtype,
            buffer=self._bytes(buffer),
            offset=offset_bytes,
            strides=(pitch_bytes, matrix.dtype.itemsize),
        )
        return view
