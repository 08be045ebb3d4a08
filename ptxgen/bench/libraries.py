"""Matrices on the GPU and cuBLAS, through torch or cupy where they are installed.

Without either there is still the kernel itself to time, on memory from the driver.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from ptxgen.device.arrays import Matrix, make_matrix, numpy_type
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.cuda_arrays import padded
from ptxgen.device.reference import compare
from ptxgen.errors import UnknownNameError
from ptxgen.hardware.element_types import ElementType

INPUTS = ("normal", "uniform", "zeros")

_BLOCK_ROWS = 1024
_SAMPLED_ROWS = 64
_KEPT_ELEMENTS = 2**28
"""Of a product that is kept in float64, with as many of bounds: 4 GiB together."""


class Library(Protocol):
    """Where matrices come from. `blas` names the library behind `multiply`; None where there is none."""

    name: str
    blas: str | None

    def matrix(self, rows: int, columns: int, element_type: ElementType, kind: str, seed: int) -> Any:
        """A matrix with a legal pitch; `kind` is one of INPUTS, or "nan"."""

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """D = A @ B.T by cuBLAS, on the default stream."""

    def mistake(self, a: Any, b: Any, d: Any) -> str | None:
        """What is wrong with D, or None; waits for the default stream."""

    def checker(self, a: Any, b: Any) -> Callable[[Any], str | None]:
        """`mistake` for many D of the same A and B, whose product is made once where there is room for it."""


class TorchLibrary:
    """torch; results are compared in float64 on the GPU, every element."""

    def __init__(self, device: CudaDevice) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._device = self._torch.device("cuda", device.ordinal)
        self.name = f"torch {self._torch.__version__}"
        self.blas: str | None = f"cuBLAS (torch {self._torch.__version__})"

    def matrix(self, rows: int, columns: int, element_type: ElementType, kind: str, seed: int) -> Any:
        torch = self._torch
        width = padded(columns * element_type.bytes) // element_type.bytes
        dtype = getattr(torch, numpy_type(element_type).name)
        if kind == "nan":
            return torch.full((rows, width), float("nan"), dtype=dtype, device=self._device)[:, :columns]
        generator = torch.Generator(device=self._device).manual_seed(seed)
        matrix = torch.zeros((rows, width), dtype=dtype, device=self._device)
        if kind == "normal":
            matrix.normal_(generator=generator)
        elif kind == "uniform":
            matrix.uniform_(-1, 1, generator=generator)
        return matrix[:, :columns]

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._torch.mm(a, b.T, out=out)

    def mistake(self, a: Any, b: Any, d: Any) -> str | None:
        return self._wrong(self._products(a, b), d)

    def checker(self, a: Any, b: Any) -> Callable[[Any], str | None]:
        if a.shape[0] * b.shape[0] > _KEPT_ELEMENTS:
            return lambda d: self.mistake(a, b, d)
        products = list(self._products(a, b))
        return lambda d: self._wrong(products, d)

    def _products(self, a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
        """Blocks of rows of A . B^T in float64, and how far a sum in float32 may be from it."""
        transposed, magnitudes = b.double().T, b.double().abs().T
        for start in range(0, a.shape[0], _BLOCK_ROWS):
            rows = a[start : start + _BLOCK_ROWS].double()
            yield rows @ transposed, (a.shape[1] + 1) * 2.0**-23 * (rows.abs() @ magnitudes)

    def _wrong(self, products: Iterable[tuple[Any, Any]], d: Any) -> str | None:
        torch = self._torch
        fraction_bits, lowest = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126)}[
            str(d.dtype).removeprefix("torch.")
        ]
        wrong, start = 0, 0
        for reference, slack in products:
            value = d[start : start + reference.shape[0]].double()
            start += reference.shape[0]
            exponent = torch.frexp(reference)[1] - 1
            half_ulp = torch.pow(2.0, exponent.clamp(min=lowest).double() - (fraction_bits + 1))
            wrong += int((~((value - reference).abs() <= half_ulp + slack)).sum())  # a NaN is not <= anything
        return f"{wrong} of {d.numel()} elements are wrong or NaN" if wrong else None


class NumpyChecked:
    """What the libraries without float64 products of their own have in common: NumPy checks sampled rows."""

    def to_numpy(self, array: Any) -> Matrix:
        raise NotImplementedError

    def mistake(self, a: Any, b: Any, d: Any) -> str | None:
        """Every element must be finite, and rows spread over D must be right."""
        result = self.to_numpy(d)
        rows = np.unique(np.linspace(0, result.shape[0] - 1, _SAMPLED_ROWS).astype(int))
        if not np.isfinite(result.astype(np.float32)).all():
            return "it holds NaN or infinities"
        comparison = compare(np.ascontiguousarray(self.to_numpy(a)[rows]), self.to_numpy(b), result[rows])
        return None if comparison.matches else comparison.summary().split("\n")[0]

    def checker(self, a: Any, b: Any) -> Callable[[Any], str | None]:
        return lambda d: self.mistake(a, b, d)


class CupyLibrary(NumpyChecked):
    """cupy, in f16 and f32."""

    def __init__(self, device: CudaDevice) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._cupy.cuda.Device(device.ordinal).use()
        self.name = f"cupy {self._cupy.__version__}"
        self.blas: str | None = f"cuBLAS (cupy {self._cupy.__version__})"

    def matrix(self, rows: int, columns: int, element_type: ElementType, kind: str, seed: int) -> Any:
        width = padded(columns * element_type.bytes) // element_type.bytes
        host = _host_matrix(rows, width, element_type, kind, seed)
        return self._cupy.asarray(host)[:, :columns]

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b.T, out=out)

    def to_numpy(self, array: Any) -> Matrix:
        host: Matrix = self._cupy.asnumpy(array)
        return host


class DriverLibrary(NumpyChecked):
    """Memory from the driver; no cuBLAS."""

    blas: str | None = None

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.name = "no array library"

    def matrix(self, rows: int, columns: int, element_type: ElementType, kind: str, seed: int) -> Any:
        return _DriverMatrix(self._device, _host_matrix(rows, columns, element_type, kind, seed))

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        raise AssertionError("there is no cuBLAS here")

    def to_numpy(self, array: Any) -> Matrix:
        host: Matrix = array.read()
        return host


class _DriverMatrix:
    """A pitched copy of a host matrix in the GPU's memory."""

    def __init__(self, device: CudaDevice, host: Matrix) -> None:
        self._device = device
        self._like = host
        self._pitch_bytes = padded(host.shape[1] * host.itemsize)
        self._buffer = device.allocate(host.shape[0] * self._pitch_bytes, name="matrix")
        device.write_rows(self._buffer, host, pitch_bytes=self._pitch_bytes)
        self.shape = host.shape
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": "|V2" if host.dtype.kind == "V" else host.dtype.str,
            "data": (self._buffer.address, False),
            "strides": (self._pitch_bytes, host.itemsize),
            "version": 3,
        }

    def read(self) -> Matrix:
        """The matrix as it is now."""
        host = np.empty_like(self._like)
        self._device.read_rows(self._buffer, host, pitch_bytes=self._pitch_bytes)
        return host

    def __del__(self) -> None:
        self._buffer.free()


def open_library(device: CudaDevice, element_types: tuple[ElementType, ...]) -> Library:
    """torch if it is installed and sees the GPU, else cupy if it has the types, else neither."""
    try:
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return TorchLibrary(device)
    except ImportError:
        pass
    try:
        if all(kind.name in ("f16", "f32") for kind in element_types):
            return CupyLibrary(device)
    except ImportError:
        pass
    return DriverLibrary(device)


def _host_matrix(rows: int, columns: int, element_type: ElementType, kind: str, seed: int) -> Matrix:
    dtype = numpy_type(element_type)
    if kind == "normal":
        return make_matrix("normal", rows, columns, element_type, seed)
    if kind == "uniform":
        return np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32).astype(dtype)
    if kind in ("zeros", "nan"):
        return np.full((rows, columns), 0 if kind == "zeros" else np.nan, dtype)
    raise UnknownNameError("kind of input", kind, INPUTS)
