"""Kernels called on arrays that lie on a GPU, through stand-ins for the libraries that have such arrays."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxgen
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.cuda_stream import stream_handle
from ptxgen.errors import DeviceError, LaunchError

MakeGpu = Callable[..., tuple[Any, CudaDevice]]
FORBIDDEN_IN_LAUNCH = ("Synchronize", "MemAlloc", "MemFree", "Query", "Memcpy", "Attribute", "Encode", "Occupancy")


class Memory:
    """NumPy arrays over the stand-in driver's device memory."""

    def __init__(self, fake: Any, ordinal: int = 0) -> None:
        self.fake, self.ordinal = fake, ordinal

    def array(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize + offset
        self.fake.stack.append(0xC0 + self.ordinal)
        address = int(self.fake._cuMemAlloc(size))
        self.fake.stack.pop()
        memory = (ctypes.c_char * size).from_address(address)
        array = np.ndarray(shape, dtype, buffer=memory, offset=offset)
        generator = np.random.default_rng(size)
        array[...] = generator.integers(-4, 5, shape).astype(dtype)
        return array


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32).T


# -- torch


@dataclass
class Torch:
    """What the launcher uses of torch, over NumPy arrays in the stand-in's memory."""

    memory: Memory
    stream: int = 0
    recorded: list[tuple[int, int]] = field(default_factory=list)
    allocations: int = 0

    def __post_init__(self) -> None:
        torch = self

        @dataclass(frozen=True)
        class Device:
            type: str
            index: int | None = None

        @dataclass(frozen=True)
        class Dtype:
            name: str

            def __str__(self) -> str:
                return f"torch.{self.name}"

        @dataclass(frozen=True)
        class Stream:
            cuda_stream: int

        class Tensor:
            def __init__(self, array: Any, device: Any) -> None:
                self.array, self.device = array, device
                self.shape, self.dtype = array.shape, torch.dtypes[array.dtype.name]
                self.is_cuda = device.type == "cuda"

            def data_ptr(self) -> int:
                return int(self.array.ctypes.data)

            def stride(self) -> tuple[int, ...]:
                return tuple(stride // self.array.itemsize for stride in self.array.strides)

            def element_size(self) -> int:
                return int(self.array.itemsize)

            def copy_(self, other: Any) -> None:
                self.array[...] = other.array

            def record_stream(self, stream: Any) -> None:
                torch.recorded.append((self.data_ptr(), stream.cuda_stream))

            def __getitem__(self, index: Any) -> Any:
                return Tensor(self.array[index], self.device)

        Tensor.__module__ = "torch"
        self.dtypes = {name: Dtype(name) for name in ("float16", "bfloat16", "float32", "int8")}

        def empty(shape: tuple[int, int], dtype: Any, device: Any) -> Any:
            torch.allocations += 1
            return Tensor(torch.memory.array(shape, np.dtype(dtype.name)), device)

        @contextlib.contextmanager
        def on(stream: Any) -> Iterator[None]:
            before, torch.stream = torch.stream, stream.cuda_stream
            yield
            torch.stream = before

        self.module = types.ModuleType("torch")
        self.module.__dict__.update(
            **self.dtypes,
            device=Device,
            empty=empty,
            _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: torch.stream),
            cuda=types.SimpleNamespace(stream=on, ExternalStream=lambda handle, device: Stream(handle)),
        )
        self.tensor: Callable[..., Any] = Tensor
        self.device: Callable[..., Any] = Device

    def __call__(self, *shape: int, dtype: Any = np.float16, width: int | None = None, on: str = "cuda") -> Any:
        """A tensor of integers; `width` makes it the left part of a wider one."""
        rows, columns = shape
        array = self.memory.array((rows, width or columns), dtype)[:, :columns]
        return self.tensor(array, self.device(on, self.memory.ordinal if on == "cuda" else None))


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> tuple[Any, CudaDevice]:
    return make_gpu()


@pytest.fixture
def torch(gpu: tuple[Any, CudaDevice], monkeypatch: pytest.MonkeyPatch) -> Torch:
    torch = Torch(Memory(gpu[0]))
    monkeypatch.setitem(sys.modules, "torch", torch.module)
    return torch


@pytest.fixture
def kernel(gpu: tuple[Any, CudaDevice]) -> ptxgen.Kernel:
    return ptxgen.compile(ptxgen.step(6), gpu[1])


def test_torch_tensors_are_used_where_they_are(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    torch.stream = 0x51
    a, b = torch(130, 72), torch(50, 72, width=80)
    d = kernel(a, b)
    assert type(d) is type(a)
    assert d.shape == (130, 50)
    assert d.stride() == (56, 1)  # 100 bytes rounded up to 112
    assert np.array_equal(d.array, product(a.array, b.array))
    (launch,) = fake.launches
    assert launch["stream"] == 0x51
    addresses = [int(np.frombuffer(value, np.uint64)[2]) for value in launch["values"][:3]]
    assert addresses == [a.data_ptr(), b.data_ptr(), d.data_ptr()]
    assert fake.calls["cuMemAlloc"] == 0
    assert torch.recorded == []
    assert fake.stack == []


def test_launching_again_only_launches(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    a, b, d = torch(40, 64), torch(32, 64), torch(40, 32)
    kernel.launch(a, b, out=d)
    before = fake.calls.copy()
    allocated = torch.allocations
    a.array[...] = 3
    kernel.launch(a, b, out=d, stream=0x77)
    assert np.array_equal(d.array, product(a.array, b.array))
    made = fake.calls - before
    assert made["cuLaunchKernelEx"] == 1
    assert not [name for name in made if any(word in name for word in FORBIDDEN_IN_LAUNCH)]
    assert torch.allocations == allocated
    assert fake.launches[-1]["stream"] == 0x77
    # The memory may be reused on the current stream while stream 0x77 still works on it.
    assert torch.recorded == [(array.data_ptr(), 0x77) for array in (a, b, d)]
    kernel.launch(a, b, out=d, stream=torch.stream)
    assert len(torch.recorded) == 3


def test_maps_follow_the_addresses(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    a, b, d = torch(40, 64), torch(32, 64), torch(40, 32)
    kernel.launch(a, b, out=d)
    occupancy = fake.calls["cuOccupancyMaxActiveBlocksPerMultiprocessor"]
    other = torch(40, 64)
    other.array[...] = 2
    kernel.launch(other, b, out=d)
    assert np.array_equal(d.array, product(other.array, b.array))
    assert fake.calls["cuTensorMapEncodeTiled"] == 6
    assert fake.calls["cuOccupancyMaxActiveBlocksPerMultiprocessor"] == occupancy  # the plan is that of the shape


def test_prepared_launches(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    a, b, d = torch(40, 64), torch(32, 64), torch(40, 32)
    prepared = kernel.prepare(a, b, out=d, programmatic=True)
    assert fake.launches == []
    for value, stream in ((1, None), (2, 0x99), (3, types.SimpleNamespace(cuda_stream=0x99))):
        a.array[...] = value
        prepared.launch(stream)
        assert np.array_equal(d.array, product(a.array, b.array))
    assert [launch["stream"] for launch in fake.launches] == [0, 0x99, 0x99]
    assert "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION" in fake.launches[0]["attributes"]
    with pytest.raises(LaunchError, match="rows start 90 bytes apart"):
        kernel.prepare(torch(40, 45), torch(32, 45), out=d)


def test_every_broken_rule_is_listed(torch: Torch, kernel: ptxgen.Kernel) -> None:
    a, b = torch(40, 45), torch(32, 45, width=56)
    b = torch.tensor(b.array[:, 3:], b.device)
    a = torch.tensor(a.array[:, :42], a.device)
    out = torch(40, 30, width=64)
    with pytest.raises(LaunchError) as caught:
        kernel.launch(a, b, out=out)
    message = str(caught.value)
    assert "step 6 (sm_100a) cannot take these arrays:" in message
    assert "A (torch tensor, float16, 40 x 42): rows start 90 bytes apart; TMA takes multiples of 16 bytes" in message
    assert "B (torch tensor, float16, 32 x 42): it begins at 0x" in message
    assert (
        "D (torch tensor, float16, 40 x 30): its rows of 60 bytes end inside a 16-byte chunk of wider rows" in message
    )
    assert message.endswith("copy=True copies such arrays to where TMA takes them")


def test_copies_are_made_when_asked_for(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    a, b = torch(40, 45), torch(32, 48)
    b = torch.tensor(b.array[:, 3:], b.device)
    around = torch(40, 64)
    kept = around.array.copy()
    out = torch.tensor(around.array[:, :32], around.device)
    kernel.launch(a, b, out=out, copy=True)
    assert np.array_equal(out.array, product(a.array, b.array))
    assert np.array_equal(around.array[:, 32:], kept[:, 32:])
    narrow = torch.tensor(around.array[:, 32:62], around.device)
    with pytest.raises(LaunchError, match="end inside a 16-byte chunk"):
        kernel.launch(torch(40, 48), torch(30, 48), out=narrow)
    kernel.launch(a, torch.tensor(b.array[:30], b.device), out=narrow, copy=True, stream=0x44)
    assert np.array_equal(narrow.array, product(a.array, b.array[:30]))
    assert np.array_equal(around.array[:, 62:], kept[:, 62:])
    assert fake.launches[-1]["stream"] == 0x44
    transposed = torch.tensor(torch(45, 40).array.T, a.device)
    with pytest.raises(
        LaunchError, match=r"neighbours in a row are 80 bytes apart, not 2: it is not row-major .transposed"
    ):
        kernel(transposed, b)
    assert np.array_equal(kernel(transposed, b, copy=True).array, product(transposed.array, b.array))


def test_types_places_and_shapes(torch: Torch, kernel: ptxgen.Kernel, gpu: Any) -> None:
    a, b = torch(40, 64), torch(32, 64)
    with pytest.raises(
        LaunchError, match=r"A \(torch tensor, bfloat16, 40 x 64\) has type bfloat16.*float16\ncast=True"
    ):
        kernel(torch(40, 64, dtype=ml_dtypes.bfloat16), b)
    cast = kernel(torch(40, 64, dtype=np.float32), b, cast=True)
    assert cast.dtype.name == "float16"
    with pytest.raises(LaunchError, match="D .* has type float32; the kernel takes float16$"):
        kernel.launch(a, b, out=torch(40, 32, dtype=np.float32), cast=True, copy=True)
    with pytest.raises(LaunchError, match=r"A .* lies in host memory; move it to cuda:0, or pass NumPy arrays$"):
        kernel(torch(40, 64, on="cpu"), b)
    torch.memory.ordinal = 1
    with pytest.raises(LaunchError, match="B .* lies on cuda:1; the kernel runs on cuda:0$"):
        kernel(a, torch(32, 64), copy=True)
    torch.memory.ordinal = 0
    with pytest.raises(LaunchError, match="A is 40 x 64, B is 64 x 32: .*same K.*; transpose B"):
        kernel(a, torch(64, 32))
    with pytest.raises(LaunchError, match="A is 40 x 64, B is 32 x 64, D is 32 x 40"):
        kernel.launch(a, b, out=torch(32, 40))
    with pytest.raises(LaunchError, match="A is 4 x 5 x 8"):
        kernel(torch.tensor(torch.memory.array((4, 5, 8), np.float16), a.device), b)
    with pytest.raises(LaunchError, match="rows of 128 bytes start 0 bytes apart, so they overlap"):
        kernel(torch.tensor(np.broadcast_to(a.array[:1], (40, 64)), a.device), b)
    with pytest.raises(LaunchError, match="D .* overlaps A"):
        kernel.launch(a, b, out=torch.tensor(a.array[:, :32], a.device))
    with pytest.raises(LaunchError, match="^B is a NumPy array and others are not: pass all matrices as NumPy arrays"):
        kernel(a, b.array)
    with pytest.raises(LaunchError, match=r"A is a builtins.list: pass all matrices as NumPy arrays"):
        kernel([[1.0]], b)
    side_by_side = torch(40, 96)
    left = torch.tensor(side_by_side.array[:, :64], a.device)
    right = torch.tensor(side_by_side.array[:, 64:], a.device)
    kernel.launch(left, b, out=right)
    assert np.array_equal(right.array, product(left.array, b.array))


def test_empty_and_thin_products(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    d = torch(5, 24)
    kernel.launch(torch(5, 0), torch(24, 0), out=d)
    assert np.array_equal(d.array, np.zeros((5, 24)))
    assert kernel(torch(0, 16), torch(8, 16)).shape == (0, 8)
    assert fake.launches == []
    # A single row has no pitch that matters, unless it is written.
    a, b = torch(1, 13), torch(24, 13, width=16)
    assert np.array_equal(kernel(a, b).array, product(a.array, b.array))
    with pytest.raises(LaunchError, match="D .*1 x 13.*: rows start 26 bytes apart"):
        kernel.launch(torch(1, 16), torch(13, 16), out=torch(1, 13))


def test_the_grid_of_a_persistent_kernel(gpu: Any, torch: Torch, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    a, b = torch(40, 64), torch(32, 64)
    for grid in (None, (3, 1, 1), None):
        kernel(a, b, grid=grid)
    assert [launch["grid"][0] for launch in fake.launches] == [148, 3, 148]


# -- the two protocols


class Interface:
    """`__cuda_array_interface__` over an array of the stand-in's memory, or of the host's."""

    def __init__(self, array: Any, stream: int | None = None, read_only: bool = False) -> None:
        typestr = "|V2" if array.dtype == ml_dtypes.bfloat16 else array.dtype.str
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": typestr,
            "data": (array.ctypes.data, read_only),
            "strides": None if array.flags.c_contiguous else array.strides,
            "version": 3,
            "stream": stream,
        }


class Dlpack:
    """`__dlpack__` of an array, said to be on a GPU."""

    def __init__(self, array: Any, device: tuple[int, int] = (2, 0)) -> None:
        self.array, self.device = array, device
        self.shape = array.shape
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_cuda_array_interface(gpu: Any, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    memory = Memory(fake)
    a = Interface(memory.array((40, 64), np.float16), stream=0x20)
    b = Interface(memory.array((32, 80), np.float16)[:, :64])
    d = Interface(memory.array((40, 32), np.float16))
    kernel.launch(a, b, out=d)
    assert np.array_equal(d.array, product(a.array, b.array))
    assert fake.launches[0]["stream"] == 1  # the default stream ...
    assert fake.waits == [(0x20, 1)]  # ... which waits for the producer's
    assert fake.calls["cuStreamSynchronize"] == 1
    kernel.launch(a, b, out=d, stream=0x20)
    assert fake.waits == [(0x20, 1)]
    assert fake.calls["cuStreamSynchronize"] == 1  # whoever names a stream waits for it
    with pytest.raises(LaunchError, match="D .* is read-only"):
        kernel.launch(a, b, out=Interface(d.array, read_only=True))
    with pytest.raises(LaunchError, match="A .*Interface.* lies in host memory"):
        kernel.launch(Interface(np.zeros((40, 64), np.float16)), b, out=d)
    with pytest.raises(LaunchError, match="has type float16 of the other byte order"):
        kernel.launch(Interface(a.array.view(">f2")), b, out=d)
    other = Interface(Memory(fake, 1).array((40, 64), np.float16))
    with pytest.raises(LaunchError, match="lies on cuda:1"):
        kernel.launch(other, b, out=d)
    fake.fail["cuPointerGetAttribute"] = fake.CUresult.CUDA_ERROR_UNKNOWN
    with pytest.raises(DeviceError, match="words for 999"):
        kernel.launch(Interface(memory.array((40, 64), np.float16)), b, out=d)


def test_copies_of_foreign_arrays_live_in_stream_order(gpu: Any, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    memory = Memory(fake)
    a, b = Interface(memory.array((40, 45), np.float16)), Interface(memory.array((32, 45), np.float16))
    d = Interface(memory.array((40, 32), np.float16))
    held = len(fake.memory)
    kernel.launch(a, b, out=d, copy=True)
    assert np.array_equal(d.array, product(a.array, b.array))
    assert fake.calls["cuMemAllocAsync"] == fake.calls["cuMemFreeAsync"] == 2
    assert len(fake.memory) == held
    with pytest.raises(LaunchError, match="only rows of neighbouring elements"):
        kernel.launch(Interface(memory.array((45, 40), np.float16).T), b, out=d, copy=True)


def test_bf16_has_no_name_in_the_interface(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    kernel = ptxgen.compile(ptxgen.step(6).replace(operand_type="bf16", output_type="bf16"), device)
    memory = Memory(fake)
    bf16 = ml_dtypes.bfloat16
    a, b, d = (Interface(memory.array(shape, bf16)) for shape in ((40, 64), (32, 64), (40, 32)))
    kernel.launch(a, b, out=d)
    assert np.array_equal(d.array, product(a.array, b.array).astype(bf16))


def test_dlpack(gpu: Any, kernel: ptxgen.Kernel) -> None:
    fake, _ = gpu
    memory = Memory(fake)
    a, b, d = (Dlpack(memory.array(shape, np.float16)) for shape in ((40, 64), (32, 64), (40, 32)))
    kernel.launch(a, b, out=d, stream=0x30)
    assert np.array_equal(d.array, product(a.array, b.array))
    assert a.streams == b.streams == d.streams == [0x30]
    kernel.launch(a, b, out=d, stream=0)
    assert a.streams[-1] == 1  # the default stream by the name that DLPack takes
    with pytest.raises(LaunchError, match="lies in host memory"):
        kernel.launch(Dlpack(a.array, device=(1, 0)), b, out=d)
    with pytest.raises(
        LaunchError, match="cannot make a new .*Dlpack to return; pass out=, an array of 40 x 32 float16"
    ):
        kernel(a, b)


def test_jax_arrays_are_never_written_to(gpu: Any, kernel: ptxgen.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, device = gpu
    memory = Memory(fake)

    class ArrayImpl(Dlpack):
        def __getitem__(self, index: Any) -> Any:
            return ArrayImpl(self.array[index])

    ArrayImpl.__module__ = "jaxlib._jax"
    jax = types.ModuleType("jax")
    jax.__dict__.update(
        devices=lambda kind: [types.SimpleNamespace(local_hardware_id=n) for n in (1, 0)],
        default_device=lambda gpu: contextlib.nullcontext(),
        numpy=types.SimpleNamespace(empty=lambda shape, dtype: ArrayImpl(memory.array(shape, dtype)), dtype=np.dtype),
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    a, b = ArrayImpl(memory.array((40, 64), np.float16)), ArrayImpl(memory.array((30, 64), np.float16))
    d = kernel(a, b)
    assert d.shape == (40, 30)
    assert np.array_equal(d.array, product(a.array, b.array))
    assert fake.launches[0]["stream"] == device.stream.handle
    assert fake.calls["cuStreamSynchronize"] == 1
    thin = ArrayImpl(memory.array((40, 45), np.float16)), ArrayImpl(memory.array((30, 45), np.float16))
    assert np.array_equal(kernel(*thin, copy=True).array, product(thin[0].array, thin[1].array))
    jax.__dict__.update(devices=lambda kind: [])
    with pytest.raises(LaunchError, match=r"this JAX does not use NVIDIA B200 .cuda:0."):
        kernel(a, b)
    with pytest.raises(LaunchError, match="D .JAX array, float16, 40 x 32. is read-only"):
        kernel.launch(
            a, ArrayImpl(memory.array((32, 64), np.float16)), out=ArrayImpl(memory.array((40, 32), np.float16))
        )


def test_cupy_arrays(gpu: Any, kernel: ptxgen.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = gpu
    memory = Memory(fake)

    class ndarray:  # noqa: N801
        def __init__(self, array: Any) -> None:
            self.array, self.shape, self.strides, self.dtype = array, array.shape, array.strides, array.dtype
            self.data = types.SimpleNamespace(ptr=array.ctypes.data, device_id=0)

        def __getitem__(self, index: Any) -> Any:
            return ndarray(self.array[index])

        def __setitem__(self, index: Any, value: Any) -> None:
            self.array[index] = value.array

    ndarray.__module__ = "cupy"
    cupy = types.ModuleType("cupy")

    def empty(shape: Any, dtype: Any) -> Any:
        if dtype == ml_dtypes.bfloat16:
            raise TypeError("no such type")
        return ndarray(memory.array(shape, dtype))

    cupy.__dict__.update(
        empty=empty,
        cuda=types.SimpleNamespace(
            Device=lambda ordinal: contextlib.nullcontext(),
            get_current_stream=lambda ordinal: types.SimpleNamespace(ptr=0x60),
            ExternalStream=lambda handle, ordinal: contextlib.nullcontext(),
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    a, b = ndarray(memory.array((40, 64), np.float16)), ndarray(memory.array((30, 64), np.float16))
    d = kernel(a, b)
    assert np.array_equal(d.array, product(a.array, b.array))
    assert d.array.strides == (64, 2)
    assert fake.launches[0]["stream"] == 0x60
    thin = ndarray(memory.array((40, 45), np.float16))
    assert np.array_equal(kernel(thin, b[:, :45], copy=True).array, product(thin.array, b.array[:, :45]))
    bf16 = ptxgen.compile(ptxgen.step(6).replace(operand_type="f16", output_type="bf16"), gpu[1])
    with pytest.raises(LaunchError, match="this cupy has no arrays of bfloat16: pass out="):
        bf16(a, b)
    with pytest.raises(LaunchError, match="A is a cupy array and B a .*Interface, which work on streams of their own"):
        kernel(a, Interface(b.array))


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (7, 7),
        (types.SimpleNamespace(cuda_stream=9), 9),
        (types.SimpleNamespace(ptr=11), 11),
        (types.SimpleNamespace(__cuda_stream__=lambda: (0, 13)), 13),
        (np.int64(15), 15),
    ],
)
def test_streams_of_others(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["default", 1.5, True, object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(LaunchError, match="stream is .*; give a stream of torch, cupy or cuda-python"):
        stream_handle(stream)


def test_kernels_without_an_expectation(gpu: Any, torch: Torch) -> None:
    _, device = gpu
    kernel = ptxgen.compile(ptxgen.step(6), device)
    object.__setattr__(kernel.description, "expect", None)
    with pytest.raises(LaunchError, match="cannot be called with arrays on a device.*A, B, D"):
        kernel(torch(8, 8), torch(8, 8))


def test_the_emulator_takes_numpy_only() -> None:
    kernel = ptxgen.compile(ptxgen.step(6), "emulator")
    with pytest.raises(LaunchError, match="A must be a NumPy array, got Dlpack"):
        kernel(Dlpack(np.zeros((8, 8), np.float16)), np.zeros((8, 8), np.float16))
    with pytest.raises(LaunchError, match="emulated B200 launches on NumPy arrays only"):
        kernel.prepare(*[np.zeros((8, 8), np.float16)] * 2, out=np.zeros((8, 8), np.float16))
