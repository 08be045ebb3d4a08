"""D = A @ B.T on arrays that lie on a GPU: nothing is copied, and launching again costs a look-up.

A launch is remembered by all that it depends on: addresses, shapes, strides and types of the three arrays.
Tensor maps are passed by value, so they are as old as the launch and never older than the addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ptxgen.device.cuda_arrays import PITCH_ALIGN_BYTES, DeviceMatrix, Misfit, misfits, refuse
from ptxgen.device.cuda_frameworks import Arrays
from ptxgen.device.cuda_launch import LaunchPlan
from ptxgen.device.cuda_memory import zero_rows
from ptxgen.device.cuda_module import CudaModule
from ptxgen.device.cuda_stream import stream_handle
from ptxgen.device.description import LaunchDescription
from ptxgen.device.launch import Extent, Launch
from ptxgen.errors import LaunchError

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

_MAX_LAUNCHES = 512
_MAX_SHAPES = 64

_Matrices: TypeAlias = tuple[DeviceMatrix, DeviceMatrix, DeviceMatrix]


class _Work(Protocol):
    """What there is to do for three arrays."""

    def launch(self, stream: int = 0) -> None: ...


class PreparedGemm:
    """A GEMM on three arrays, whose content may change from launch to launch. Keeps the arrays alive."""

    __slots__ = ("_arrays", "_held", "_library", "_work", "device")

    def __init__(
        self, device: CudaDevice, library: Arrays, arrays: tuple[Any, Any, Any], held: Any, work: _Work
    ) -> None:
        self.device = device
        self._library = library
        self._arrays = arrays
        self._held = held  # what keeps the memory of arrays that came through a protocol
        self._work = work

    def launch(self, stream: Any = None) -> None:
        """Launch on a stream (the library's current one if None) and return at once."""
        if stream is None:
            self._work.launch(self._library.current_stream())
        else:
            handle = stream_handle(stream)
            self._work.launch(handle)
            self._library.hold(self._arrays, handle)


class CudaGemm:
    """The calls of a kernel whose description says which buffers are A, B and D."""

    def __init__(self, device: CudaDevice, module: CudaModule, description: LaunchDescription, name: str) -> None:
        expect = description.expect
        named = [buffer.name for buffer in description.buffers if not buffer.scratch]
        if expect is None or set(named) != {expect.a, expect.b, expect.d}:
            buffers = ", ".join(named)
            raise LaunchError(
                f"{name} cannot be called with arrays on a device: its launch description has to name its buffers "
                f'({buffers}) A, B and D ("expect") and no others; `run` on matrices takes any'
            )
        self._device = device
        self._module = module
        self._description = description
        self._name = name
        self._names = expect.a, expect.b, expect.d
        self._types = tuple(description.buffer(buffer).element_type for buffer in self._names)
        self._works: dict[Hashable, _Work] = {}
        self._shapes: dict[Hashable, _Shape] = {}
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any, *, copy: bool = False, cast: bool = False, grid: Extent | None = None) -> Any:
        """A new D of A's library, in the order of its current stream."""
        library = self._library(a, b)
        (m, *k), (n, *k_of_b) = a.shape or (0,), b.shape or (0,)
        if len(k) != 1 or k != k_of_b:
            raise LaunchError(_shape_refusal(self._names, tuple(a.shape), tuple(b.shape)))
        d = library.empty(m, n, self._types[2])
        self._run(library, (a, b, d), None, copy, cast, grid, False)
        return library.finished(d)

    def launch(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        stream: Any = None,
        copy: bool = False,
        cast: bool = False,
        grid: Extent | None = None,
        programmatic: bool = False,
    ) -> None:
        """D into `out`, on `stream` or on the library's current one."""
        self._run(self._library(a, b, out), (a, b, out), stream, copy, cast, grid, programmatic)

    def prepare(
        self, a: Any, b: Any, out: Any, *, grid: Extent | None = None, programmatic: bool = False
    ) -> PreparedGemm:
        """All of a launch but the launch."""
        library = self._library(a, b, out)
        opened = _open(library, (a, b, out), library.current_stream())
        work = self._work(library, opened, grid, programmatic)
        if work is None:
            self._refuse(library, opened, copy=False, cast=False)
        assert work is not None
        return PreparedGemm(self._device, library, (a, b, out), opened, work)

    def _run(
        self,
        library: Arrays,
        arrays: tuple[Any, Any, Any],
        stream: Any,
        copy: bool,
        cast: bool,
        grid: Extent | None,
        programmatic: bool,
    ) -> None:
        handle = library.current_stream() if stream is None else stream_handle(stream)
        opened = _open(library, arrays, handle) if library.opens else arrays
        work = self._work(library, opened, grid, programmatic)
        if work is not None:
            work.launch(handle)
        else:
            self._refuse(library, opened, copy=copy, cast=cast)
            self._run_copied(library, opened, handle, grid, programmatic)
        if stream is not None:
            library.hold(arrays, handle)
        elif library.waits:
            with self._device.current():
                self._device.driver.call("cuStreamSynchronize", handle, what=f"waiting for {self._name}")

    def _run_copied(
        self,
        library: Arrays,
        opened: tuple[Any, Any, Any],
        stream: int,
        grid: Extent | None,
        programmatic: bool,
    ) -> None:
        """Run on copies of the arrays that the kernel cannot take."""
        with library.on_stream(stream):
            found = self._misfits(self._matrices(library, opened))
            *inputs, d = opened
            for index, kind in enumerate(self._types[:2]):
                if found[index]:
                    inputs[index] = library.open(library.copied(inputs[index], kind, stream), stream)
            out = d
            if found[2]:
                out = library.open(library.empty(d.shape[0], d.shape[1], self._types[2]), stream)
            work = self._work(library, (inputs[0], inputs[1], out), grid, programmatic)
            assert work is not None
            work.launch(stream)
            if out is not d:
                library.copy_into(d, out)

    def _work(
        self, library: Arrays, opened: tuple[Any, Any, Any], grid: Extent | None, programmatic: bool
    ) -> _Work | None:
        """What to do for these arrays; None where the kernel cannot take them as they are."""
        signature = library.signature
        a, b, d = signature(opened[0]), signature(opened[1]), signature(opened[2])
        key = a, b, d, grid, programmatic
        work = self._works.get(key)
        if work is not None:
            return work
        shape_key = a[1:], b[1:], d[1:], grid, programmatic
        shape = self._shapes.get(shape_key)
        if shape is None:
            shape = self._new_shape(library, opened, grid, programmatic)
            if shape is None:
                return None
            self._remember(self._shapes, shape_key, shape, _MAX_SHAPES)
        work = shape.at(a[0], b[0], d[0])
        if work is not None:
            self._remember(self._works, key, work, _MAX_LAUNCHES)
        return work

    def _new_shape(
        self, library: Arrays, opened: tuple[Any, Any, Any], grid: Extent | None, programmatic: bool
    ) -> _Shape | None:
        """What holds for such arrays wherever they lie; None where the kernel cannot take them."""
        matrices = self._matrices(library, opened)
        if any(self._misfits(matrices)):
            return None
        a, b, d = matrices
        (m, k), (n, k_of_b) = a.shape, b.shape
        if k != k_of_b or d.shape != (m, n):
            raise LaunchError(_shape_refusal(self._names, a.shape, b.shape, d.shape))
        areas = [_Area.of(matrix, kind.bytes) for matrix, kind in zip(matrices, self._types, strict=True)]
        plan = None
        if m * n * k:
            pitches = tuple(area.pitch for area in areas)
            plan = self._plan({"M": m, "N": n, "K": k}, pitches, grid, programmatic)
        return _Shape(device=self._device, names=self._names, areas=areas, plan=plan)

    def _remember(self, memory: dict[Hashable, Any], key: Hashable, value: Any, limit: int) -> None:
        with self._lock:
            while len(memory) >= limit:
                del memory[next(iter(memory))]
            memory[key] = value

    def _plan(
        self, problem: dict[str, int], pitches: tuple[int, ...], grid: Extent | None, programmatic: bool
    ) -> LaunchPlan:
        launch = Launch.of(self._description, problem=problem, chip=self._device.properties.chip, grid=grid)
        launch.check_entry(self._module.entries[launch.entry], self._name)
        for buffer, pitch in zip(self._names, pitches, strict=True):
            if pitch == launch.buffer(buffer).pitch_bytes:
                continue
            if not launch.pitch_is_free(buffer):
                raise LaunchError(
                    f"{buffer} has rows {pitch} bytes apart; {self._name} takes this matrix with "
                    f"{launch.buffer(buffer).pitch_bytes} bytes only, since it computes addresses itself"
                )
            launch = launch.with_pitch(buffer, pitch)
        return self._device.plan(self._module, launch, programmatic=programmatic)

    def _library(self, *arrays: Any) -> Arrays:
        """The one library that all arrays are of."""
        of = self._device.frameworks.of
        library = of(arrays[0])
        for array, name in zip(arrays, self._names, strict=False):
            other = of(array)
            if other is None:
                raise LaunchError(
                    f"{name} is {_described(array)}: pass all matrices as NumPy arrays (which are copied), or all as "
                    "arrays of torch, cupy or JAX, or others with __cuda_array_interface__ or __dlpack__"
                )
            if other is not library:
                assert library is not None
                raise LaunchError(
                    f"{self._names[0]} is a {library.kind} and {name} a {other.kind}, which work on streams of their "
                    "own: pass all from one library (from_dlpack converts without a copy)"
                )
        assert library is not None
        return library

    def _matrices(self, library: Arrays, opened: tuple[Any, Any, Any]) -> _Matrices:
        a, b, d = (library.matrix(array, name) for array, name in zip(opened, self._names, strict=True))
        return a, b, d

    def _misfits(self, matrices: _Matrices) -> list[list[Misfit]]:
        """The broken rules of each matrix."""
        return [
            misfits(matrix, kind, self._device.ordinal, output=index == 2)
            for index, (matrix, kind) in enumerate(zip(matrices, self._types, strict=True))
        ]

    def _refuse(self, library: Arrays, opened: tuple[Any, Any, Any], *, copy: bool, cast: bool) -> None:
        found = self._misfits(self._matrices(library, opened))
        refuse([misfit for each in found for misfit in each], self._name, copy=copy, cast=cast)


@dataclass(frozen=True, slots=True)
class _Area:
    """The bytes that a matrix takes, from its address on."""

    rows: int
    row_bytes: int
    pitch: int

    @classmethod
    def of(cls, matrix: DeviceMatrix, element_bytes: int) -> _Area:
        rows, columns = matrix.shape
        return cls(rows, columns * element_bytes, matrix.pitch_bytes(element_bytes))

    @property
    def span(self) -> int:
        """From the first byte to behind the last."""
        return (self.rows - 1) * self.pitch + self.row_bytes

    def meets(self, address: int, other: _Area, other_address: int) -> bool:
        """Whether two matrices share memory; columns of one wider buffer do not."""
        if address >= other_address + other.span or other_address >= address + self.span:
            return False
        offset = (other_address - address) % self.pitch
        return self.pitch != other.pitch or offset < self.row_bytes or offset + other.row_bytes > self.pitch


class _Shape:
    """Three matrices that a kernel can take, without their addresses; `plan` is None for a product of no terms."""

    def __init__(
        self, *, device: CudaDevice, names: tuple[str, str, str], areas: list[_Area], plan: LaunchPlan | None
    ) -> None:
        self._device = device
        self._names = names
        self._areas = areas
        self._plan = plan

    def at(self, a: int, b: int, d: int) -> _Work | None:
        """The work for matrices at these addresses; None where one is misaligned."""
        area = self._areas[2]
        if self._plan is None:
            return _Zeros(self._device, d, area)
        if (a | b | d) % PITCH_ALIGN_BYTES:
            return None
        for operand, address, name in zip(self._areas, (a, b), self._names, strict=False):
            if operand.meets(address, area, d):
                raise LaunchError(
                    f"{self._names[2]} at {d:#x} overlaps {name} at {address:#x}; the kernel reads its operands "
                    "while it writes"
                )
        return self._plan.at({self._names[0]: a, self._names[1]: b, self._names[2]: d})


class _Zeros:
    """A product of no terms, or without elements."""

    def __init__(self, device: CudaDevice, address: int, area: _Area) -> None:
        self._device = device
        self._address = address
        self._area = area

    def launch(self, stream: int = 0) -> None:
        """Clear D."""
        area = self._area
        if area.rows and area.row_bytes:
            zero_rows(self._device, self._address, area.pitch, area.row_bytes, area.rows, stream)


def _open(library: Arrays, arrays: tuple[Any, Any, Any], stream: int) -> tuple[Any, Any, Any]:
    a, b, d = arrays
    return library.open(a, stream), library.open(b, stream), library.open(d, stream)


def _shape_refusal(names: tuple[str, ...], *shapes: tuple[int, ...]) -> str:
    given = ", ".join(f"{name} is {' x '.join(map(str, shape))}" for name, shape in zip(names, shapes, strict=False))
    a, b = shapes[:2]
    hint = f"; transpose {names[1]}" if len(a) == len(b) == 2 and a[1] == b[0] != b[1] else ""
    return f"{given}: D = A @ B.T takes M x K and N x K with the same K, and gives M x N{hint}"


def _described(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return "a NumPy array and others are not"
    return f"a {type(array).__module__.partition('.')[0]}.{type(array).__name__}"
