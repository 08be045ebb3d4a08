"""Launching on a GPU: parameters, attributes, tensor maps.

What a launch needs is laid out once, for a shape (LaunchPlan) and then for the buffers' addresses
(PreparedLaunch). Launching again costs one driver call, allocates nothing and waits for nothing, so it may
be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ptxgen.device.cuda_module import CudaModule
from ptxgen.device.cuda_scratch import StreamKey
from ptxgen.device.declarations import DeclaredEntry
from ptxgen.device.description import BufferArgument, TensorMapArgument
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
        self._rank = tensor_map.rank
        self._align = 32 if tensor_map.interleave == "32B" else tensor_map.element_type.align_bytes
        self._kind = bindings.CUtensorMapDataType(tensor_map.data_type_code)
        # The driver refuses a null pointer, which an empty list becomes: rank 1 passes a stride it does not use.
        strides = tensor_map.strides_bytes or (16,)
        self._layout = (
            [bindings.cuuint64_t(size) for size in tensor_map.dims],
            [bindings.cuuint64_t(stride) for stride in strides],
            [bindings.cuuint32_t(size) for size in tensor_map.box],
            [bindings.cuuint32_t(stride) for stride in tensor_map.element_strides],
            bindings.CUtensorMapInterleave(tensor_map.interleave_code),
            bindings.CUtensorMapSwizzle(tensor_map.swizzle_code),
            bindings.CUtensorMapL2promotion(tensor_map.l2_promotion_code),
            bindings.CUtensorMapFloatOOBfill(tensor_map.oob_fill_code),
        )

    def encode(self, address: int) -> bytes:
        """The 128 bytes for the tensor at `address`; LaunchError where it is misaligned."""
        if address % self._align:
            raise LaunchError(f"a tensor map at address {address:#x}: it must be a multiple of {self._align} bytes")
        encoded = self._driver.call(
            "cuTensorMapEncodeTiled", self._kind, self._rank, address, *self._layout, what="encoding a tensor map"
        )
        return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)


class Prepared(Protocol):
    """A launch of which nothing is left to be laid out."""

    def launch(self, stream: int = 0) -> None: ...


class LaunchPlan:
    """A launch whose buffers may be anywhere, but for the scratch buffers, which are the device's own.

    `programmatic` lets the kernel begin before its predecessor in the stream has ended (programmatic
    stream serialization); only a kernel that waits by itself (griddepcontrol) may be launched so.
    DeviceError where not even one CTA, or cluster, fits the device.
    """

    def __init__(self, device: CudaDevice, module: CudaModule, launch: Launch, *, programmatic: bool = False) -> None:
        self.device = device
        self.launch = launch
        self._context = int(device.context)
        self._entry = module.entries[launch.entry]
        self._function = module.functions[launch.entry]
        self._programmatic = programmatic
        self._configurations: dict[int, Any] = {}
        self._what = f"launching {launch.entry} of {module.name}"
        self.offsets, self.size_bytes = _parameter_offsets(self._entry)
        at_zero = launch.pack({buffer.name: 0 for buffer in launch.buffers}, lambda tensor_map: tensor_map)
        self._fixed = [argument if isinstance(argument, bytes) else b"" for argument in at_zero]
        self._open = [
            (index, argument.buffer, TensorMapEncoder(device, value) if isinstance(value, TensorMap) else None)
            for index, (argument, value) in enumerate(zip(launch.arguments, at_zero, strict=True))
            if isinstance(argument, BufferArgument | TensorMapArgument)
        ]
        self._scratch = [buffer for buffer in launch.buffers if buffer.scratch]
        self._check_occupancy()

    def at(self, addresses: Mapping[str, int]) -> Prepared:
        """The launch for buffers at these addresses."""
        return ScratchLaunch(self, addresses) if self._scratch else self._prepared(addresses)

    def on_stream(self, addresses: Mapping[str, int], key: StreamKey) -> PreparedLaunch:
        """The same with the scratch buffers of a stream; allocates those that the stream does not have yet."""
        return self._prepared({**addresses, **self.device.scratch.addresses(self._scratch, key)})

    def _prepared(self, addresses: Mapping[str, int]) -> PreparedLaunch:
        arguments = self._fixed.copy()
        with self.device.current():
            for index, buffer, encoder in self._open:
                address = addresses[buffer]
                arguments[index] = address.to_bytes(8, "little") if encoder is None else encoder.encode(address)
        return PreparedLaunch(self, arguments)

    def with_arguments(self, arguments: Sequence[EncodedArgument]) -> PreparedLaunch:
        """The launch with encoded arguments, in the order of the entry's parameters."""
        encoded = [argument for argument in arguments if isinstance(argument, bytes)]
        if len(encoded) < len(arguments):
            raise DeviceError("a tensor map was not encoded for this device")
        return PreparedLaunch(self, encoded)

    def enqueue(self, stream: int, parameters: int) -> None:
        """Launch with an array of parameter pointers at address `parameters`."""
        configuration = self._configurations.get(stream)
        if configuration is None:
            configuration = self._configure(stream)
        bindings = self.device.driver.bindings
        if int(bindings.cuCtxGetCurrent()[1]) == self._context:
            result = bindings.cuLaunchKernelEx(configuration, self._function.handle, parameters, 0)[0]
        else:
            with self.device.current():
                result = bindings.cuLaunchKernelEx(configuration, self._function.handle, parameters, 0)[0]
        if result:
            raise self.device.driver.error(result, self._what)

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
        asked = launch.grid[0] * launch.grid[1] * launch.grid[2]
        at_once = fitting * (chip.sm_count if ctas == 1 else ctas)
        if launch.resident and asked > at_once:
            raise DeviceError(
                f"the CTAs of {launch.entry} wait for each other, so all {asked} must run at once; "
                f"{device.properties.name} has room for {at_once}: choose a smaller grid"
            )


class PreparedLaunch:
    """A launch with its parameters in place; keeps no buffer alive."""

    __slots__ = ("_enqueue", "_memory", "_parameters", "_pointers")

    def __init__(self, plan: LaunchPlan, arguments: Sequence[bytes]) -> None:
        # ctypes aligns to 16 bytes at most.
        self._memory = ctypes.create_string_buffer(plan.size_bytes + TENSOR_MAP_ALIGN_BYTES)
        base = ctypes.addressof(self._memory)
        base += -base % TENSOR_MAP_ALIGN_BYTES
        places = [base + offset for offset in plan.offsets]
        for place, argument in zip(places, arguments, strict=True):
            ctypes.memmove(place, argument, len(argument))
        self._pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._parameters = ctypes.addressof(self._pointers)
        self._enqueue = plan.enqueue

    def launch(self, stream: int = 0) -> None:
        """Launch on a stream, by its handle; returns at once. CudaError where the driver refuses."""
        self._enqueue(stream, self._parameters)


class ScratchLaunch:
    """A launch with parameters for each stream, and for each capture, whose scratch buffers are its own."""

    def __init__(self, plan: LaunchPlan, addresses: Mapping[str, int]) -> None:
        self._plan = plan
        self._addresses = dict(addresses)
        self._launches: dict[StreamKey, PreparedLaunch] = {}

    def launch(self, stream: int = 0) -> None:
        """As PreparedLaunch.launch."""
        key = self._plan.device.scratch.key(stream)
        prepared = self._launches.get(key)
        if prepared is None:
            prepared = self._plan.on_stream(self._addresses, key)
            if len(self._launches) >= _MAX_STREAMS:
                self._launches.clear()
            self._launches[key] = prepared
        prepared.launch(stream)


def _parameter_offsets(entry: DeclaredEntry) -> tuple[list[int], int]:
    """Where the parameters lie in one block of memory, and its size; tensor maps are aligned to 128 bytes."""
    offsets, size = [], 0
    for parameter in entry.parameters:
        align = TENSOR_MAP_ALIGN_BYTES if parameter.size_bytes == TENSOR_MAP_BYTES else parameter.align
        size += -size % align
        offsets.append(size)
        size += parameter.size_bytes
    return offsets, size
