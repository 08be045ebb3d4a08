"""D = A @ B.T on arrays that lie on a GPU: nothing is copied, and launching again costs a look-up.

A launch is remembered by all that it depends on: addresses, shapes, strides and types of the three arrays.
Tensor maps are passed by value, so they are as old as the launch and never older than the addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ptxgen.device.cuda_arrays import DeviceMatrix, misfits, refuse
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
_MAX_PLANS = 64


class _Work(Protocol):
    """What there is to do for one set of arrays."""

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
        if expect is None or {buffer.name for buffer in description.buffers} != {expect.a, expect.b, expect.d}:
            buffers = ", ".join(buffer.name for buffer in description.buffers)
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
        self._plans: dict[Hashable, LaunchPlan] = {}
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any, *, copy: bool = False, cast: bool = False, grid: Extent | None = None) -> Any:
        """A new D of A's library, in the order of its current stream."""
        library = self._library(a, b)
        shapes = tuple(a.shape), tuple(b.shape)
        if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
            raise LaunchError(_shape_refusal(self._names, *shapes))
        d = library.empty(shapes[0][0], shapes[1][0], self._types[2])
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
        opened = self._open(library, (a, b, out), library.current_stream())
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
        opened = self._open(library, arrays, handle)
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
            *inputs, d = opened
            for index, kind in enumerate(self._types[:2]):
                if self._misfits(library, opened, index):
                    inputs[index] = library.open(library.copied(inputs[index], kind, stream), stream)
            out = d
            if self._misfits(library, opened, 2):
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
        a, b, d = opened
        key = library.signature(a), library.signature(b), library.signature(d), grid, programmatic
        work = self._works.get(key)
        if work is None:
            if any(self._misfits(library, opened, index) for index in range(3)):
                return None
            work = self._new_work(*self._matrices(library, opened), grid, programmatic)
            with self._lock:
                while len(self._works) >= _MAX_LAUNCHES:
                    del self._works[next(iter(self._works))]
                self._works[key] = work
        return work

    def _new_work(
        self, a: DeviceMatrix, b: DeviceMatrix, d: DeviceMatrix, grid: Extent | None, programmatic: bool
    ) -> _Work:
        (m, k), (n, k_of_b) = a.shape, b.shape
        if k != k_of_b or d.shape != (m, n):
            raise LaunchError(_shape_refusal(self._names, a.shape, b.shape, d.shape))
        if m == 0 or n == 0:
            return _Nothing()
        size = self._types[2].bytes
        if k == 0:
            return _Zeros(self._device, d.address, d.pitch_bytes(size), n * size, m)
        for operand in (a, b):
            if _overlap(operand, self._types[0].bytes, d, size):
                raise LaunchError(f"{d} overlaps {operand}; the kernel reads its operands while it writes")
        pitches = tuple(matrix.pitch_bytes(kind.bytes) for matrix, kind in zip((a, b, d), self._types, strict=True))
        plan_key = m, n, k, pitches, grid, programmatic
        plan = self._plans.get(plan_key)
        if plan is None:
            plan = self._plan({"M": m, "N": n, "K": k}, pitches, grid, programmatic)
            with self._lock:
                while len(self._plans) >= _MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[plan_key] = plan
        return plan.at(dict(zip(self._names, (a.address, b.address, d.address), strict=True)))

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

    def _open(self, library: Arrays, arrays: tuple[Any, Any, Any], stream: int) -> tuple[Any, Any, Any]:
        a, b, d = arrays
        return library.open(a, stream), library.open(b, stream), library.open(d, stream)

    def _matrices(
        self, library: Arrays, opened: tuple[Any, Any, Any]
    ) -> tuple[DeviceMatrix, DeviceMatrix, DeviceMatrix]:
        a, b, d = (library.matrix(array, name) for array, name in zip(opened, self._names, strict=True))
        return a, b, d

    def _misfits(self, library: Arrays, opened: tuple[Any, Any, Any], index: int) -> list[Any]:
        matrix = library.matrix(opened[index], self._names[index])
        return misfits(matrix, self._types[index], self._device.ordinal, output=index == 2)

    def _refuse(self, library: Arrays, opened: tuple[Any, Any, Any], *, copy: bool, cast: bool) -> None:
        found = [misfit for index in range(3) for misfit in self._misfits(library, opened, index)]
        refuse(found, self._name, copy=copy, cast=cast)


class _Nothing:
    """A product without elements."""

    def launch(self, stream: int = 0) -> None:
        """Do nothing."""


class _Zeros:
    """A product of no terms."""

    def __init__(self, device: CudaDevice, address: int, pitch_bytes: int, row_bytes: int, rows: int) -> None:
        self._device = device
        self._rows = address, pitch_bytes, row_bytes, rows

    def launch(self, stream: int = 0) -> None:
        """Clear D."""
        zero_rows(self._device, *self._rows, stream)


def _shape_refusal(names: tuple[str, ...], *shapes: tuple[int, ...]) -> str:
    given = ", ".join(f"{name} is {' x '.join(map(str, shape))}" for name, shape in zip(names, shapes, strict=False))
    a, b = shapes[:2]
    hint = f"; transpose {names[1]}" if len(a) == len(b) == 2 and a[1] == b[0] != b[1] else ""
    return f"{given}: D = A @ B.T takes M x K and N x K with the same K, and gives M x N{hint}"


def _overlap(operand: DeviceMatrix, operand_bytes: int, d: DeviceMatrix, d_bytes: int) -> bool:
    """Whether two matrices share memory; columns of one wider buffer do not."""
    (rows, columns), (d_rows, d_columns) = operand.shape, d.shape
    pitch, d_pitch = operand.pitch_bytes(operand_bytes), d.pitch_bytes(d_bytes)
    row_bytes, d_row_bytes = columns * operand_bytes, d_columns * d_bytes
    if operand.address >= d.address + (d_rows - 1) * d_pitch + d_row_bytes:
        return False
    if d.address >= operand.address + (rows - 1) * pitch + row_bytes:
        return False
    offset = (d.address - operand.address) % pitch
    return pitch != d_pitch or offset < row_bytes or offset + d_row_bytes > pitch


def _described(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return "a NumPy array and others are not"
    return f"a {type(array).__module__.partition('.')[0]}.{type(array).__name__}"
