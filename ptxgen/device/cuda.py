"""A GPU as a device, through NVIDIA's driver API.

It works in the primary context, the one that torch, cupy and the CUDA runtime use, and makes it current for
the length of each call only: any number of devices and threads may be mixed, and other libraries are not
disturbed. The context is kept as long as the process lives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ptxgen.device import cuda_memory
from ptxgen.device.arrays import Matrix
from ptxgen.device.cuda_driver import USE_EMULATOR, CudaDriver, CudaError, cuda_driver
from ptxgen.device.cuda_frameworks import Frameworks
from ptxgen.device.cuda_gemm import CudaGemm
from ptxgen.device.cuda_launch import LaunchPlan, TensorMapEncoder
from ptxgen.device.cuda_memory import CudaBuffer
from ptxgen.device.cuda_module import COMPILERS, Compiler, CudaModule, load_module
from ptxgen.device.cuda_scratch import Scratch
from ptxgen.device.cuda_stream import CudaEvent, CudaStream, stream_handle
from ptxgen.device.description import LaunchDescription
from ptxgen.device.interface import Buffer, DeviceProperties, EncodedArgument, LaunchReport, Module, Stream
from ptxgen.device.launch import Launch
from ptxgen.errors import DeviceError, HungKernelError, UnknownNameError
from ptxgen.hardware.targets import TARGETS, Target, target_loads_on
from ptxgen.hardware.tensor_map import TensorMap


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDeviceInfo:
    """A GPU that the driver shows to this process."""

    ordinal: int
    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.capability
        return f"cuda:{self.ordinal} {self.name} (compute capability {major}.{minor})"


class CudaDevice:
    """A Device on GPU number `ordinal`, as CUDA_VISIBLE_DEVICES counts them.

    `compiler` makes machine code from PTX: "driver" or "ptxas". A launch that reports (`launch`) gives up
    with HungKernelError after `timeout_seconds`; None waits for ever.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        compiler: Compiler = "driver",
        timeout_seconds: float | None = None,
        driver: CudaDriver | None = None,
    ) -> None:
        if compiler not in COMPILERS:
            raise UnknownNameError("compiler", compiler, COMPILERS)
        self.driver = driver or cuda_driver()
        self.ordinal = ordinal
        self.compiler: Compiler = compiler
        self.timeout_seconds = timeout_seconds
        self.hung = False
        """Whether a kernel of this process never ended; nothing can be waited for or freed any more."""
        infos = cuda_devices(self.driver)
        if not 0 <= ordinal < len(infos):
            there = "\n".join(f"  {info}" for info in infos)
            raise DeviceError(f"there is no device cuda:{ordinal}; there are\n{there}")
        self.info = infos[ordinal]
        handle = self.driver.call("cuDeviceGet", ordinal)
        self.properties = DeviceProperties(
            name=f"{self.info.name} (cuda:{ordinal})", chip=_chip(self.driver, handle, self.info)
        )
        self.context = self.driver.call(
            "cuDevicePrimaryCtxRetain", handle, what=f"opening {self.properties.name}"
        )  # kept: modules and captured graphs live in it

    def __repr__(self) -> str:
        return f"<ptxgen.CudaDevice {self.properties.name}>"

    def current(self) -> AbstractContextManager[None]:
        """Make this device's context the thread's current one for the length of a block."""
        return self.driver.current(self.context)

    @cached_property
    def pci_address(self) -> str:
        """As CUDA prints it, which is how NVML and nvidia-smi know the GPU."""
        address = self.driver.call("cuDeviceGetPCIBusId", 32, self.ordinal)
        return str(address.split(b"\0", 1)[0].decode())

    @cached_property
    def stream(self) -> CudaStream:
        """The device's own stream, for copies and for launches that are given none."""
        return CudaStream(self)

    @cached_property
    def scratch(self) -> Scratch:
        """Memory that kernels need beside their matrices."""
        return Scratch(self)

    @cached_property
    def frameworks(self) -> Frameworks:
        """Libraries whose arrays were met."""
        return Frameworks(self)

    def allocate(self, size_bytes: int, *, name: str) -> CudaBuffer:
        """Global memory with any content."""
        return CudaBuffer(self, size_bytes, name)

    def fill(self, buffer: Buffer, value: int) -> None:
        """Set every byte of a buffer."""
        cuda_memory.fill(self, buffer, value)

    def write_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy a host matrix in."""
        cuda_memory.write_rows(self, buffer, matrix, pitch_bytes=pitch_bytes, offset_bytes=offset_bytes)

    def read_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy a matrix out."""
        cuda_memory.read_rows(self, buffer, matrix, pitch_bytes=pitch_bytes, offset_bytes=offset_bytes)

    def encode_tensor_map(self, tensor_map: TensorMap) -> EncodedArgument:
        """The 128 bytes that TMA reads."""
        with self.current():
            return TensorMapEncoder(self, tensor_map).encode(tensor_map.address)

    def create_stream(self) -> CudaStream:
        """A stream that does not wait for the default stream."""
        return CudaStream(self)

    def create_event(self) -> CudaEvent:
        """An event that takes the time."""
        return CudaEvent(self)

    def load(self, text: str, *, name: str) -> CudaModule:
        """Compile and load PTX. The module stays loaded as long as the process, unless `unload` is called."""
        with self.current():
            return load_module(
                self.driver,
                text,
                name=name,
                chip=self.properties.chip,
                device_name=self.properties.name,
                compiler=self.compiler,
            )

    def unload(self, module: Module) -> None:
        """Drop a module; no launch of it, captured ones included, may follow."""
        with self.current():
            self.driver.call("cuModuleUnload", _own(module).handle)

    def occupancy(self, module: Module, entry: str, *, threads: int, dynamic_smem_bytes: int) -> int:
        """CTAs that fit on one SM at a time, by registers, threads and shared memory."""
        function = _own(module).functions[entry]
        if function.static_smem_bytes + dynamic_smem_bytes > self.properties.chip.smem_optin_bytes:
            return 0
        with self.current():
            return int(
                self.driver.call(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor", function.handle, threads, dynamic_smem_bytes
                )
            )

    def gemm(self, module: Module, description: LaunchDescription, name: str) -> CudaGemm:
        """Calls of a kernel on arrays that lie on this device."""
        return CudaGemm(self, _own(module), description, name)

    def plan(self, module: Module, launch: Launch, *, programmatic: bool = False) -> LaunchPlan:
        """A launch to be repeated without waiting; see LaunchPlan."""
        return LaunchPlan(self, _own(module), launch, programmatic=programmatic)

    def order(self, before: int, after: int) -> None:
        """Make stream `after` wait for what has been issued to stream `before`, both given by handle."""
        event = self.create_event()
        try:
            event.record(before)
            event.hold_back(after)
        finally:
            event.close()

    def ordinal_of(self, address: int) -> int | None:
        """The GPU whose memory an address lies in; None for host memory."""
        kinds = self.driver.bindings.CUpointer_attribute

        def value(name: str) -> int:
            kind = getattr(kinds, f"CU_POINTER_ATTRIBUTE_{name}")
            return int(self.driver.call("cuPointerGetAttribute", kind, address))

        with self.current():
            try:
                on_device = value("MEMORY_TYPE") == int(self.driver.bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE)
                return value("DEVICE_ORDINAL") if on_device or value("IS_MANAGED") else None
            except CudaError as error:
                if error.code != "CUDA_ERROR_INVALID_VALUE":
                    raise
                return None  # the driver has never heard of it

    def launch(
        self,
        module: Module,
        launch: Launch,
        arguments: Sequence[EncodedArgument],
        *,
        stream: Stream | None = None,
    ) -> LaunchReport:
        """Run an entry and wait for its end; `seconds` is the time between two events around it."""
        own = _own(module)
        prepared = self.plan(own, launch).with_arguments(arguments)
        queue = self.stream if stream is None else stream
        start, end = self.create_event(), self.create_event()
        try:
            start.record(queue)
            prepared.launch(stream_handle(queue))
            end.record(queue)
            end.synchronize(self.timeout_seconds, f"{launch.entry} of {own.name}")
            seconds = end.seconds_since(start)
        except HungKernelError:
            self.hung = True
            raise
        finally:
            start.close()
            end.close()
        return LaunchReport(device=self.properties.name, grid=launch.grid, seconds=seconds)


def cuda_devices(driver: CudaDriver | None = None) -> tuple[CudaDeviceInfo, ...]:
    """The GPUs that the driver shows; DeviceError where there is no driver, or none."""
    driver = driver or cuda_driver()
    infos = []
    for ordinal in range(driver.call("cuDeviceGetCount")):
        handle = driver.call("cuDeviceGet", ordinal)
        name = driver.call("cuDeviceGetName", 128, handle)
        capability = (
            _attribute(driver, handle, "COMPUTE_CAPABILITY_MAJOR"),
            _attribute(driver, handle, "COMPUTE_CAPABILITY_MINOR"),
        )
        infos.append(CudaDeviceInfo(ordinal=ordinal, name=name.split(b"\0", 1)[0].decode(), capability=capability))
    if not infos:
        raise DeviceError(f"the CUDA driver shows no device (see CUDA_VISIBLE_DEVICES): {USE_EMULATOR}")
    return tuple(infos)


def fitting_ordinal(target_name: str, driver: CudaDriver | None = None) -> int:
    """The GPU for PTX of a target: the one in use by this thread if it fits, else the first that does.

    DeviceError names the GPUs that there are.
    """
    driver = driver or cuda_driver()
    infos = cuda_devices(driver)
    fitting = [info.ordinal for info in infos if target_loads_on(target_name, info.capability)]
    if not fitting:
        there = "\n".join(f"  {info}" for info in infos)
        raise DeviceError(
            f"no CUDA device loads PTX with .target {target_name}; there are\n{there}\ntake a kernel for one of "
            f"them (--target), or {USE_EMULATOR}"
        )
    if int(driver.call("cuCtxGetCurrent")) != 0:
        with contextlib.suppress(DeviceError):
            in_use = int(driver.call("cuCtxGetDevice"))
            if in_use in fitting:
                return in_use
    return fitting[0]


def _own(module: Module) -> CudaModule:
    if not isinstance(module, CudaModule):
        raise DeviceError("the module was loaded by another device")
    return module


def _attribute(driver: CudaDriver, device: Any, name: str) -> int:
    kind = getattr(driver.bindings.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(driver.call("cuDeviceGetAttribute", kind, device))


def _chip(driver: CudaDriver, handle: Any, info: CudaDeviceInfo) -> Target:
    """The limits of a GPU as it is: parts of a chip, such as MIG instances, have fewer SMs than the whole."""
    major, minor = info.capability
    known = next((chip for chip in TARGETS.values() if chip.capability == info.capability), None)
    base = known or Target(
        name=f"sm_{major}{minor}",
        ptx_version=(0, 0),
        capability=info.capability,
        chip=info.name,
        sm_count=0,
        l2_bytes=0,
        tmem_columns=0,
    )

    def value(name: str) -> int:
        return _attribute(driver, handle, name)

    return replace(
        base,
        chip=info.name,
        sm_count=value("MULTIPROCESSOR_COUNT"),
        l2_bytes=value("L2_CACHE_SIZE"),
        smem_optin_bytes=value("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_per_sm_bytes=value("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_reserved_bytes=value("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        smem_default_bytes=value("MAX_SHARED_MEMORY_PER_BLOCK"),
        registers_per_sm=value("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        max_threads_per_cta=value("MAX_THREADS_PER_BLOCK"),
        max_threads_per_sm=value("MAX_THREADS_PER_MULTIPROCESSOR"),
        max_ctas_per_sm=value("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        max_grid=(value("MAX_GRID_DIM_X"), value("MAX_GRID_DIM_Y"), value("MAX_GRID_DIM_Z")),
    )
