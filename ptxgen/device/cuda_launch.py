"""Launching on a GPU: parameters, attributes, tensor maps.

What a launch needs is laid out once, for a shape (LaunchPlan) and then for the buffers' addresses
(PreparedLaunch). Launching again costs one driver call, allocates nothing and waits for nothing, so it may
be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxgen.device.cuda_module import CudaModule
from ptxgen.device.description import BufferArgument
from ptxgen.device.interface import EncodedArgument
from ptxgen.device.launch import Launch
from ptxgen.errors import DeviceError, LaunchError
from ptxgen.hardware.tensor_map import TENSOR_MAP_ALIGN_BYTES, TENSOR_MAP_BYTES, TensorMap

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

_MAX_STREAMS = 32  # whose launch configurations are kept


class TensorMapEncoder:
    """cuTensorMapEncodeTiled for one tensor shape at any address.

    The TensorMap has been validated; of its address only the alignment can still be wrong.
    """

    def __init__(self, device: CudaDevice, tensor_map: TensorMap) -> None:
        bindings = device.driver.bindings
        self._driver = device.driver
        self._tensor_map = tensor_map
        self._kind = bindings.CUtensorMapDataType(tensor_map.data_type_code)
        self._layout = (
            [bindings.cuuint64_t(size) for size in tensor_map.dims],
            [bindings.cuuint64_t(stride) for stride in tensor_map.strides_bytes],
            [bindings.cuuint32_t(size) for size in tensor_map.box],
            [bindings.cuuint32_t(stride) for stride in tensor_map.element_strides],
            bindings.CUtensorMapInterleave(tensor_map.interleave_code),
            bindings.CUtensorMapSwizzle(tensor_map.swizzle_code),
            bindings.CUtensorMapL2promotion(tensor_map.l2_promotion_code),
            bindings.CUtensorMapFloatOOBfill(tensor_map.oob_fill_code),
        )

    def encode(self, address: int) -> bytes:
        """The 128 bytes for the tensor at `address`; LaunchError where it is misaligned."""
        align = 32 if self._tensor_map.interleave == "32B" else self._tensor_map.element_type.align_bytes
        if address % align:
            raise LaunchError(f"a tensor map at address {address:#x}: it must be a multiple of {align} bytes")
        encoded = self._driver.call(
            "cuTensorMapEncodeTiled", self._kind, self._tensor_map.rank, address, *self._layout,
            what="encoding a tensor map",
        )  # fmt: skip
        return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)


class LaunchPlan:
    """A launch whose buffers may be anywhere.

    `programmatic` lets the kernel begin before its predecessor in the stream has ended (programmatic
    stream serialization); only a kernel that waits by itself (griddepcontrol) may be launched so.
    DeviceError where not even one CTA, or cluster, fits the device.
    """

    def __init__(self, device: CudaDevice, module: CudaModule, launch: Launch, *, programmatic: bool = False) -> None:
        self.device = device
        self.launch = launch
        self._entry = module.entries[launch.entry]
        self._function = module.functions[launch.entry]
        self._programmatic = programmatic
        self._configurations: dict[int, Any] = {}
        self._what = f"launching {launch.entry} of {module.name}"
        self._templates: list[bytes | TensorMapEncoder | str] = []
        at_zero = launch.pack({buffer.name: 0 for buffer in launch.buffers}, lambda tensor_map: tensor_map)
        for argument, value in zip(launch.arguments, at_zero, strict=True):
            if isinstance(value, TensorMap):
                self._templates.append(TensorMapEncoder(device, value))
            else:
                self._templates.append(argument.buffer if isinstance(argument, BufferArgument) else value)
        self._buffers = tuple(getattr(argument, "buffer", "") for argument in launch.arguments)
        self._check_occupancy()

    def at(self, addresses: Mapping[str, int]) -> PreparedLaunch:
        """The launch for buffers at these addresses."""
        arguments = []
        for template, buffer in zip(self._templates, self._buffers, strict=True):
            if isinstance(template, TensorMapEncoder):
                arguments.append(template.encode(addresses[buffer]))
            elif isinstance(template, str):
                arguments.append(addresses[buffer].to_bytes(8, "little"))
            else:
                arguments.append(template)
        return self.with_arguments(arguments)

    def with_arguments(self, arguments: Sequence[EncodedArgument]) -> PreparedLaunch:
        """The launch with encoded arguments, in the order of the entry's parameters."""
        if not all(isinstance(argument, bytes) for argument in arguments):
            raise DeviceError("a tensor map was not encoded for this device")
        return PreparedLaunch(self, [bytes(argument) for argument in arguments])  # type: ignore[arg-type]

    def alignments(self) -> list[int]:
        """The parameters' alignments in bytes; a tensor map's is 128 whatever the text declares."""
        return [
            TENSOR_MAP_ALIGN_BYTES if parameter.size_bytes == TENSOR_MAP_BYTES else parameter.align
            for parameter in self._entry.parameters
        ]

    def enqueue(self, stream: int, parameters: int) -> None:
        """Launch with an array of parameter pointers at address `parameters`."""
        configuration = self._configurations.get(stream)
        if configuration is None:
            configuration = self._configure(stream)
        driver = self.device.driver
        if driver.is_current(self.device.context):
            result = driver.bindings.cuLaunchKernelEx(configuration, self._function.handle, parameters, 0)[0]
        else:
            with driver.current(self.device.context):
                result = driver.bindings.cuLaunchKernelEx(configuration, self._function.handle, parameters, 0)[0]
        if result:
            raise driver.error(result, self._what)

    def _configure(self, stream: int) -> Any:
        """The launch configuration for a stream; never changed once made, since threads share it."""
        launch, bindings = self.launch, self.device.driver.bindings
        grid, attributes = launch.grid, []
        if self._entry.blocks_are_clusters:
            x, y, z = (extent // size for extent, size in zip(grid, launch.cluster, strict=True))
            grid = x, y, z
        elif launch.cluster != (1, 1, 1):
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape = attribute.value.clusterDim
            shape.x, shape.y, shape.z = launch.cluster
            attributes.append(attribute)
        if self._programmatic:
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        configuration = bindings.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
        configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = launch.block
        configuration.sharedMemBytes = launch.dynamic_smem_bytes
        configuration.hStream = bindings.CUstream(stream)
        configuration.attrs = attributes
        configuration.numAttrs = len(attributes)
        if len(self._configurations) >= _MAX_STREAMS:
            self._configurations.clear()
        self._configurations[stream] = configuration
        return configuration

    def _check_occupancy(self) -> None:
        launch, function, device = self.launch, self._function, self.device
        chip, driver = device.properties.chip, device.driver
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        smem = function.static_smem_bytes + launch.dynamic_smem_bytes
        needs = (
            f"{launch.entry} needs {threads} threads, {function.registers} registers a thread and {smem} bytes of "
            f"shared memory ({function.static_smem_bytes} static, {launch.dynamic_smem_bytes} dynamic)"
        )
        if smem > chip.smem_optin_bytes or threads > function.max_threads:
            raise DeviceError(
                f"{needs}; a CTA on {device.properties.name} may have {chip.smem_optin_bytes} bytes, "
                f"and of this entry {function.max_threads} threads"
            )
        with device.current():
            if ctas == 1:
                fitting = driver.call(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor", function.handle, threads, launch.dynamic_smem_bytes
                )
            else:
                if ctas > chip.max_cluster_ctas:
                    attribute = driver.bindings.CUfunction_attribute
                    driver.call(
                        "cuFuncSetAttribute",
                        function.handle,
                        attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                        1,
                        what=f"asking for clusters of {ctas} CTAs",
                    )
                fitting = driver.call(
                    "cuOccupancyMaxActiveClusters", function.handle, self._configure(0), what=f"{needs}: its clusters"
                )
        if fitting < 1:
            what = "CTA" if ctas == 1 else f"cluster of {' x '.join(map(str, launch.cluster))} CTAs"
            raise DeviceError(f"{needs}; not one {what} of it fits {device.properties.name}: take smaller tiles")


class PreparedLaunch:
    """A launch with its parameters in place; keeps no buffer alive."""

    __slots__ = ("_enqueue", "_memory", "_parameters", "_pointers")

    def __init__(self, plan: LaunchPlan, arguments: Sequence[bytes]) -> None:
        offsets, size = [], 0
        for align, argument in zip(plan.alignments(), arguments, strict=True):
            size += -size % align
            offsets.append(size)
            size += len(argument)
        # ctypes aligns to 16 bytes at most; the driver copies from wherever the pointers lead.
        self._memory = ctypes.create_string_buffer(size + TENSOR_MAP_ALIGN_BYTES)
        base = ctypes.addressof(self._memory)
        base += -base % TENSOR_MAP_ALIGN_BYTES
        pointers = [base + offset for offset in offsets]
        for pointer, argument in zip(pointers, arguments, strict=True):
            ctypes.memmove(pointer, argument, len(argument))
        self._pointers = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        self._parameters = ctypes.addressof(self._pointers)
        self._enqueue = plan.enqueue

    def launch(self, stream: int = 0) -> None:
        """Launch on a stream, by its handle; returns at once. CudaError where the driver refuses."""
        self._enqueue(stream, self._parameters)
