"""A stand-in for NVIDIA's driver: device memory is host memory, and every GEMM is done by NumPy.

It is the module cuda.bindings.driver with all functions replaced: types, enums and structures are the real
ones, so that what the launcher builds is what the driver would get. A launch reads its parameters from
memory, through the pointers that it was given, and its matrices through the tensor maps among them.
"""

# ruff: noqa: N802 -- methods are called after the functions that they stand for
from __future__ import annotations

import ctypes
import importlib
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.device.cuda import CudaDevice
from ptxgen.device.cuda_driver import CudaDriver
from ptxgen.device.declarations import declarations

bindings: Any = importlib.import_module("cuda.bindings.driver")
R = bindings.CUresult
OK = R.CUDA_SUCCESS
MAP_MAGIC = 0x70747867656E
LEGACY = 1
DTYPES = {6: np.dtype(np.float16), 7: np.dtype(np.float32), 9: np.dtype(ml_dtypes.bfloat16)}


class FakeDriver:
    """`devices` are (name, capability, SMs). `fail` maps a function's name to the result that it returns next."""

    def __init__(self, devices: list[tuple[str, tuple[int, int], int]], version: int = 13000) -> None:
        self.devices = devices
        self.version = version
        self.calls: Counter[str] = Counter()
        self.fail: dict[str, Any] = {}
        self.launches: list[dict[str, Any]] = []
        self.waits: list[tuple[int, int]] = []
        self.jit_log = ""
        self.jit_options: dict[Any, Any] = {}
        self.images: list[bytes] = []
        self.hangs = False
        self.clusters = 66
        self.gate = 0
        self.free_bytes = 1 << 40
        self.memory: dict[int, tuple[Any, int, int]] = {}  # address -> buffer, size, device
        self._local = threading.local()
        self._handles = iter(range(0x1000, 0x7FFFFFFF, 0x10))
        self._functions: dict[int, tuple[Any, int]] = {}  # handle -> entry, context
        self._modules: dict[int, tuple[str, int]] = {}
        self.events: dict[int, int] = {}
        self.captures: dict[int, int] = {}  # stream -> id of its capture
        self.capture_mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

    def __getattr__(self, name: str) -> Any:
        if re.match(r"cu[A-Z]", name) is None:
            return getattr(bindings, name)
        real = type(self).__dict__.get(f"_{name}")
        assert real is not None, f"the launcher calls {name}, which the stand-in does not know"

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            failure = self.fail.pop(name, None)
            if failure is not None:
                return (failure, None)
            outcome = real(self, *arguments)
            return outcome if isinstance(outcome, tuple) else (OK, outcome) if outcome is not None else (OK,)

        return call

    # -- devices and contexts

    def _cuInit(self, flags: int) -> None:
        pass

    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuGetErrorString(self, result: Any) -> tuple[Any, bytes]:
        return OK, b"words for " + str(int(result)).encode()

    def _cuDeviceGetCount(self) -> int:
        return len(self.devices)

    def _cuDeviceGet(self, ordinal: int) -> Any:
        return bindings.CUdevice(ordinal)

    def _cuDeviceGetName(self, length: int, device: Any) -> bytes:
        return self.devices[int(device)][0].encode() + b"\0" * 8

    def _cuDeviceGetPCIBusId(self, length: int, device: Any) -> bytes:
        return b"0000:0f:00.0\0\0"

    def _cuDeviceGetAttribute(self, attribute: Any, device: Any) -> int:
        _, (major, minor), sms = self.devices[int(device)]
        known = {
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
            "MULTIPROCESSOR_COUNT": sms,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
            "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_GRID_DIM_Y": 65535,
            "MAX_GRID_DIM_Z": 65535,
        }
        return known.get(attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1024)

    def _cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return bindings.CUcontext(0xC0 + int(device))

    @property
    def stack(self) -> list[int]:
        """The calling thread's contexts, the current one last."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[int] = self._local.stack
        return stack

    @property
    def here(self) -> int:
        """The current device; every call that needs a context comes by here."""
        assert self.stack, "no context is current"
        return self.stack[-1] - 0xC0

    def _cuCtxGetCurrent(self) -> Any:
        return bindings.CUcontext(self.stack[-1] if self.stack else 0)

    def _cuCtxGetDevice(self) -> Any:
        return bindings.CUdevice(self.here)

    def _cuCtxPushCurrent(self, context: Any) -> None:
        self.stack.append(int(context))

    def _cuCtxPopCurrent(self) -> Any:
        return bindings.CUcontext(self.stack.pop())

    # -- memory

    def _cuMemAlloc(self, size: int) -> Any:
        relaxed = self.capture_mode == bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        if self.captures and not relaxed:
            return R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, None
        if size > self.free_bytes:
            return R.CUDA_ERROR_OUT_OF_MEMORY, None
        buffer = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(buffer) // 256) * 256
        self.memory[address] = (buffer, size, self.here)
        return bindings.CUdeviceptr(address)

    def _cuMemAllocAsync(self, size: int, stream: Any) -> Any:
        return self._cuMemAlloc(size)

    def _cuMemFree(self, address: Any) -> None:
        del self.memory[int(address)]

    def _cuMemFreeAsync(self, address: Any, stream: Any) -> None:
        del self.memory[int(address)]

    def _cuMemGetInfo(self) -> tuple[Any, int, int]:
        return OK, self.free_bytes, 2 * self.free_bytes

    def _cuMemsetD8Async(self, address: Any, value: int, size: int, stream: Any) -> None:
        ctypes.memset(int(address), value, size)

    def _cuMemsetD2D8Async(self, address: Any, pitch: int, value: int, width: int, height: int, stream: Any) -> None:
        for row in range(height):
            ctypes.memset(int(address) + row * pitch, value, width)

    def _cuMemcpyAsync(self, destination: Any, source: Any, size: int, stream: Any) -> None:
        ctypes.memmove(int(destination), int(source), size)

    def _cuMemcpy2DAsync(self, copy: Any, stream: Any) -> None:
        assert copy.srcMemoryType == copy.dstMemoryType == bindings.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        for row in range(copy.Height):
            to, source = int(copy.dstDevice) + row * copy.dstPitch, int(copy.srcDevice) + row * copy.srcPitch
            ctypes.memmove(to, source, copy.WidthInBytes)

    def _cuPointerGetAttribute(self, attribute: Any, address: Any) -> Any:
        kinds = bindings.CUpointer_attribute
        for start, (_, size, device) in self.memory.items():
            if start <= int(address) < start + size:
                return {
                    kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: 2,
                    kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: device,
                    kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED: 0,
                }[attribute]
        return R.CUDA_ERROR_INVALID_VALUE, None

    # -- streams and events

    def _cuStreamCreate(self, flags: int) -> Any:
        return bindings.CUstream(next(self._handles))

    def _cuStreamSynchronize(self, stream: Any) -> None:
        pass

    def _cuStreamWaitValue32(self, stream: Any, address: Any, value: int, flags: int) -> None:
        self.gate = int(address)

    def _cuMemsetD32Async(self, address: Any, value: int, count: int, stream: Any) -> None:
        ctypes.c_uint32.from_address(int(address)).value = value

    def _cuStreamIsCapturing(self, stream: Any) -> Any:
        kinds = bindings.CUstreamCaptureStatus
        active = int(stream) in self.captures
        return kinds.CU_STREAM_CAPTURE_STATUS_ACTIVE if active else kinds.CU_STREAM_CAPTURE_STATUS_NONE

    def _cuStreamGetCaptureInfo(self, stream: Any) -> tuple[Any, ...]:
        return OK, self._cuStreamIsCapturing(stream), self.captures.get(int(stream), 0), None

    def _cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before, self.capture_mode = self.capture_mode, mode
        return before

    def _cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        self.waits.append((self.events[int(event)], int(stream)))

    def _cuEventCreate(self, flags: int) -> Any:
        return bindings.CUevent(next(self._handles))

    def _cuEventRecord(self, event: Any, stream: Any) -> None:
        self.events[int(event)] = int(stream)

    def _cuEventQuery(self, event: Any) -> Any:
        return (R.CUDA_ERROR_NOT_READY,) if self.hangs else (OK,)

    def _cuEventSynchronize(self, event: Any) -> None:
        pass

    def _cuEventElapsedTime(self, start: Any, end: Any) -> float:
        return 2.5

    def _cuEventDestroy(self, event: Any) -> None:
        pass

    # -- modules

    def _cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Any], values: list[Any]) -> Any:
        self.jit_options = dict(zip(options, values, strict=True))
        assert count == len(options)
        self.images.append(image)
        if self.jit_log:
            log = self.jit_options[bindings.CUjit_option.CU_JIT_ERROR_LOG_BUFFER]
            log[: len(self.jit_log)] = self.jit_log.encode()
            return R.CUDA_ERROR_INVALID_PTX, None
        handle = next(self._handles)
        self._modules[handle] = (image.decode(errors="replace"), self.here)
        return bindings.CUmodule(handle)

    def _cuModuleUnload(self, module: Any) -> None:
        del self._modules[int(module)]

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        text, device = self._modules[int(module)]
        handle = next(self._handles)
        entry = declarations(text, "loaded").entries[name.decode()] if not text.startswith("\x7fELF") else None
        self._functions[handle] = (entry, device)
        return bindings.CUfunction(handle)

    def _cuFuncGetAttribute(self, attribute: Any, function: Any) -> int:
        kinds = bindings.CUfunction_attribute
        return {
            kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: 0,
            kinds.CU_FUNC_ATTRIBUTE_NUM_REGS: 90,
            kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: 0,
            kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 512,
        }[attribute]

    def _cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> None:
        self.calls[f"{attribute.name}={value}"] += 1

    # -- launches

    def _cuTensorMapEncodeTiled(
        self, kind: Any, rank: int, address: Any, dims: Any, strides: Any, box: Any, steps: Any, *codes: Any
    ) -> Any:
        assert self.here is not None  # without a context the driver answers CUDA_ERROR_INVALID_CONTEXT
        assert rank == len(dims) == len(box) == len(steps)
        assert 1 <= rank <= 5
        if not strides:  # a null pointer
            return R.CUDA_ERROR_INVALID_VALUE, None
        assert len(strides) == max(rank - 1, 1)
        assert all(0 < int(stride) < 1 << 40 and int(stride) % 16 == 0 for stride in strides)
        encoded = bindings.CUtensorMap()
        words = [MAP_MAGIC, int(kind), int(address), *dims, *strides, *box, *steps, *codes]
        words += [0] * (16 - len(words))
        encoded.opaque = [bindings.cuuint64_t(int(word)) for word in words[:16]]
        return encoded

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, smem: int) -> int:
        return min(2048 // threads, 233472 // (smem + 1024))

    def _cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> int:
        return self.clusters

    def _cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> None:
        entry, device = self._functions[int(function)]
        assert device == self.here, "the context of the function is not current"
        pointers = (ctypes.c_void_p * max(len(entry.parameters), 1)).from_address(parameters)
        values = []
        for pointer, parameter in zip(pointers, entry.parameters, strict=False):
            assert pointer % parameter.align == 0, f"{parameter.name} at {pointer:#x}"
            values.append(ctypes.string_at(pointer, parameter.size_bytes))
        attributes = config.attrs[: config.numAttrs] if config.numAttrs else []
        self.launches.append(
            {
                "entry": entry.name,
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
                "smem": config.sharedMemBytes,
                "stream": int(config.hStream),
                "attributes": {attribute.id.name: attribute.value for attribute in attributes},
                "values": values,
            }
        )
        maps = [value for value in values if len(value) == 128]
        if len(maps) == 3:
            a, b, d = (self.matrix(value) for value in maps)
            d[...] = (a.astype(np.float32) @ b.astype(np.float32).T).astype(d.dtype)

    def matrix(self, encoded: bytes) -> Any:
        """The matrix that a tensor map describes, as a NumPy array over its memory."""
        magic, kind, address, columns, rows, pitch, *_ = np.frombuffer(encoded, np.uint64).tolist()
        assert magic == MAP_MAGIC, "no tensor map"
        dtype = DTYPES[kind]
        size = (rows - 1) * pitch + columns * dtype.itemsize
        owner = next((s for s, (_, n, _) in self.memory.items() if s <= address and address + size <= s + n), None)
        assert owner is not None, f"{rows} x {columns} at {address:#x} is outside device memory"
        memory = (ctypes.c_char * size).from_address(address)
        return np.ndarray((rows, columns), dtype, buffer=memory, strides=(pitch, dtype.itemsize))


@pytest.fixture
def make_gpu() -> Callable[..., tuple[FakeDriver, CudaDevice]]:
    """A CUDA device on a stand-in driver: arguments of CudaDevice, and of FakeDriver as `driver_*`."""

    def make(**options: Any) -> tuple[FakeDriver, CudaDevice]:
        devices = options.pop("driver_devices", [("NVIDIA B200", (10, 0), 148), ("NVIDIA B200", (10, 0), 148)])
        fake = FakeDriver(devices, options.pop("driver_version", 13000))
        return fake, CudaDevice(options.pop("ordinal", 0), driver=CudaDriver(fake), **options)

    return make
