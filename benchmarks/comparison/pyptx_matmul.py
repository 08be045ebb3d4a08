"""pyptx's fastest GEMM for sm_90a, from its wheel, launched through the driver on torch tensors."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ptxgen.device.cuda import CudaDevice
from ptxgen.device.cuda_launch import TensorMapEncoder
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.tensor_map import TensorMap

ENTRY = "gemm_warp_specialized"
SMEM_BYTES = 221_744
CTAS, THREADS = 128, 384


class _Absent(ModuleType):
    """Stands for jax, which the example imports for its own driver only."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


class PyptxMatmul:
    """bf16, M and N multiples of 256, K of 64. ImportError where pyptx is not installed."""

    def __init__(self, torch: Any, device: CudaDevice) -> None:
        hidden = {name: sys.modules.get(name) for name in ("jax", "jax.numpy")}
        sys.modules.update({name: _Absent(name) for name in hidden})
        try:
            self._example = importlib.import_module("pyptx.examples.hopper.gemm_highperf_hopper")
        finally:
            for name, module in hidden.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module
        self._torch, self._device = torch, device
        self._function = device.load(self._example.gemm_warp_specialized.ptx(), name="pyptx").functions[ENTRY]
        attribute = device.driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with device.current():
            device.driver.call("cuFuncSetAttribute", self._function.handle, attribute, SMEM_BYTES)

    def prepare(self, a: Any, b: Any, d: Any) -> Callable[[], None]:
        """A launch on the current stream. The kernel computes D^T = A . B^T: its A is our B."""
        (m, k), n = a.shape, b.shape[0]
        order = self._example.create_hilbert_schedule(n // 256, m // 256)
        schedule = self._torch.as_tensor(order, device=a.device)
        # It takes pointers to its tensor maps, in global memory.
        maps = [
            self._map(b, n, k, (64, 128, 1), Swizzle.B128),
            self._map(a, m, k, (64, 256, 1), Swizzle.B128),
            self._map(d, m, n, (72, 256, 1), Swizzle.NONE),
        ]
        pointers = [ctypes.c_uint64(tensor.data_ptr()) for tensor in (b, a, schedule, d)]
        arguments = [
            *pointers,
            *(ctypes.c_uint32(size) for size in (n, m, k)),
            *(ctypes.c_uint64(tensor.data_ptr()) for tensor in maps),
        ]
        parameters = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        bindings, stream = self._device.driver.bindings, self._torch.cuda.current_stream
        configuration = bindings.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = CTAS, 1, 1
        configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = THREADS, 1, 1
        configuration.sharedMemBytes = SMEM_BYTES
        cluster = bindings.CUlaunchAttribute()
        cluster.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = cluster.value.clusterDim
        shape.x, shape.y, shape.z = 2, 1, 1
        configuration.attrs, configuration.numAttrs = [cluster], 1
        kept = arguments, maps, schedule, a, b, d

        def launch() -> None:
            assert kept
            configuration.hStream = bindings.CUstream(stream().cuda_stream)
            (status,) = bindings.cuLaunchKernelEx(configuration, self._function.handle, ctypes.addressof(parameters), 0)
            if status:
                raise RuntimeError(f"cuLaunchKernelEx returned {status}")

        return launch

    def _map(self, tensor: Any, rows: int, columns: int, box: tuple[int, int, int], swizzle: Swizzle) -> Any:
        """The encoded tensor map, as bytes on the GPU."""
        pitch = tensor.stride(0) * tensor.element_size()
        tensor_map = TensorMap(
            element_type=element_type("bf16"),
            address=tensor.data_ptr(),
            dims=(64, rows, columns // 64),
            strides_bytes=(pitch, 128),
            box=box,
            swizzle=swizzle,
        )
        with self._device.current():
            encoded = TensorMapEncoder(self._device, tensor_map).encode(tensor.data_ptr())
        return self._torch.frombuffer(bytearray(encoded), dtype=self._torch.uint8).to(tensor.device)
