"""What tests on a GPU share: the device, array libraries, and kernels that are compiled once a session."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import ptxgen
from ptxgen.device.cuda import CudaDevice, fitting_ordinal
from ptxgen.errors import PtxgenError

TARGET = "sm_90a"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a GPU; the libraries that they use may warn."""
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def device() -> CudaDevice:
    """A Hopper GPU; without one the test is skipped and says why."""
    try:
        return CudaDevice(fitting_ordinal(TARGET), timeout_seconds=60)
    except PtxgenError as error:
        pytest.skip(f"needs a GPU that loads {TARGET}: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def library() -> Callable[[str], Any]:
    """`library(name)`: an array library, or a skipped test."""

    def get(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ImportError:
            pytest.skip(f"{name} is not installed")

    return get


@pytest.fixture(scope="session")
def torch(device: CudaDevice, library: Callable[[str], Any]) -> Any:
    """torch, with a GPU."""
    torch = library("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


@pytest.fixture(scope="session")
def kernel(device: CudaDevice) -> Callable[..., ptxgen.Kernel]:
    """`kernel(step, **choices)` on the GPU, compiled once for each choice."""
    kernels: dict[Any, ptxgen.Kernel] = {}

    def get(step: int, **choices: Any) -> ptxgen.Kernel:
        if step >= 7 and choices.get("output_type") == "f32":
            choices.setdefault("epilogue", {"staging": "slices"})  # a whole f32 tile does not fit beside the ring
        key = step, *((name, str(value)) for name, value in choices.items())
        if key not in kernels:
            kernels[key] = ptxgen.compile(ptxgen.step(step, target=TARGET).replace(**choices), device)
        return kernels[key]

    return get


@pytest.fixture(scope="session")
def operands(torch: Any) -> Callable[..., tuple[Any, Any]]:
    """`operands(m, n, k)`: A and B on the GPU, of rows whose pitch is legal, and exact in any order of summation."""

    def make(m: int, n: int, k: int, dtype: Any = None, seed: int = 0, kind: str = "integers") -> tuple[Any, Any]:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        width = -(-k // 8) * 8
        matrices = []
        for rows in (m, n):
            if kind == "integers":
                matrix = torch.randint(-4, 5, (rows, width), generator=generator, device="cuda")
            else:
                matrix = torch.randn((rows, width), generator=generator, device="cuda")
            matrices.append(matrix.to(dtype or torch.float16)[:, :k])
        return matrices[0], matrices[1]

    return make


@pytest.fixture(scope="session")
def reference(torch: Any) -> Callable[[Any, Any], Any]:
    """The float32 product of matrices whose products and sums are exact."""

    def product(a: Any, b: Any) -> Any:
        return a.float() @ b.float().T

    return product
