"""cuBLASLt through ctypes: the algorithms that its heuristics propose for D = A @ B.T.

Enumerations and structures are those of cublasLt.h (CUDA 11.0 to 13.0).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

WORKSPACE_BYTES = 32 * 2**20
"""What NVIDIA recommends for Hopper and later (cublasSetWorkspace)."""

_COMPUTE_32F = 68
_R_32F = 0
_TYPES = {"torch.float16": 2, "torch.bfloat16": 14, "torch.float32": _R_32F}
_DESC_TRANSA = 3
_TRANSPOSED = 1
_PREFERENCE_WORKSPACE_BYTES = 1
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """A handle and a workspace on torch's current device. OSError where the library is not there."""

    def __init__(self, torch: Any) -> None:
        self._library = _load()
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._torch = torch
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cublasLtGetVersion())

    def proposals(self, a: Any, b: Any, d: Any, count: int) -> list[Callable[[], None]]:
        """Launches on the current stream, one for each algorithm proposed, the first choice first.

        a is M x K, b is N x K, d is M x N: row-major torch tensors, whose rows may be apart.
        """
        library = self._library
        # Row-major D is column-major D^T = B . A^T: its left operand is B, transposed from K x N.
        operation = self._create("cublasLtMatmulDescCreate", _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int(_TRANSPOSED)
        self._check(
            library.cublasLtMatmulDescSetAttribute(
                operation, _DESC_TRANSA, ctypes.byref(transposed), ctypes.c_size_t(4)
            ),
            "cublasLtMatmulDescSetAttribute",
        )
        left, right, out = self._layout(b), self._layout(a), self._layout(d)
        preference = self._create("cublasLtMatmulPreferenceCreate")
        workspace = ctypes.c_uint64(WORKSPACE_BYTES)
        self._check(
            library.cublasLtMatmulPreferenceSetAttribute(
                preference, _PREFERENCE_WORKSPACE_BYTES, ctypes.byref(workspace), ctypes.c_size_t(8)
            ),
            "cublasLtMatmulPreferenceSetAttribute",
        )
        found, results = ctypes.c_int(), (_Heuristic * count)()
        self._check(
            library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, operation, left, right, out, out, preference, count, results, ctypes.byref(found)
            ),
            "cublasLtMatmulAlgoGetHeuristic",
        )
        return [
            self._launch(operation, (left, right, out), (b, a, d), result)
            for result in results[: found.value]
            if result.state == 0
        ]

    def _launch(
        self, operation: ctypes.c_void_p, layouts: tuple[Any, Any, Any], tensors: tuple[Any, Any, Any], result: Any
    ) -> Callable[[], None]:
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        left, right, out = (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
        matmul, stream = self._library.cublasLtMatmul, self._torch.cuda.current_stream
        workspace = ctypes.c_void_p(self._workspace.data_ptr())
        algorithm = ctypes.byref(result.algorithm)

        def launch() -> None:
            status = matmul(
                self._handle,
                operation,
                ctypes.byref(one),
                left,
                layouts[0],
                right,
                layouts[1],
                ctypes.byref(zero),
                out,
                layouts[2],
                out,
                layouts[2],
                algorithm,
                workspace,
                ctypes.c_size_t(WORKSPACE_BYTES),
                ctypes.c_void_p(stream().cuda_stream),
            )
            self._check(status, "cublasLtMatmul")

        return launch

    def _layout(self, tensor: Any) -> ctypes.c_void_p:
        """A row-major tensor as the column-major matrix that cuBLAS sees."""
        rows, columns = tensor.shape
        return self._create(
            "cublasLtMatrixLayoutCreate",
            _TYPES[str(tensor.dtype)],
            ctypes.c_uint64(columns),
            ctypes.c_uint64(rows),
            ctypes.c_int64(tensor.stride(0)),
        )

    def _create(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._check(getattr(self._library, function)(ctypes.byref(made), *arguments), function)
        return made

    @staticmethod
    def _check(status: int, function: str) -> None:
        if status:
            raise RuntimeError(f"{function} returned cublasStatus_t {status}")


def _load() -> ctypes.CDLL:
    """The library; torch has loaded it already, so its name is enough."""
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"none of {', '.join(_NAMES)} can be loaded")
