"""Kernels of other compilers in which pairs of CTAs multiply together (cta_group::2) run unmodified: Gluon's (Triton),
written here, and pyptx's.

Neither waits, before it ends, for the commits that hand the last stages back: `commit-after-exit`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.emulator.tensor_maps import encode
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]

PYPTX = "0.1.1"
POLICIES = [("eager", 0), ("late", 0), ("random", 0)]
SIZES = [(520, 264, 200), (1, 8, 8)]


def integers(seed: int, size: tuple[int, int, int]) -> tuple[Array, Array]:
    m, n, k = size
    random = np.random.default_rng(seed)
    return random.integers(-8, 9, (m, k)).astype(np.float16), random.integers(-8, 9, (n, k)).astype(np.float16)


def grid_of(matmul: Any, kernel: str, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """A cluster a tile where clusters can be cancelled, else two."""
    tiles = -(-size[0] // matmul.tile[0]) * -(-size[1] // matmul.tile[1])
    return (tiles if kernel == "cancelling" else 2, 1, 1)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("cluster", ["m256", "m128", "multicast"])
@pytest.mark.parametrize("kernel", ["roles", "cancelling"])
def test_gluon(gluon_matmul: Any, kernel: str, cluster: str, policy: str, seed: int) -> None:
    matmul = gluon_matmul(kernel, cluster)
    for size in SIZES:
        a, b = integers(seed, size)
        d = np.full((size[0], size[1]), np.nan, np.float16)
        got = matmul(a, b, d, size, policy=policy, seed=seed, grid=grid_of(matmul, kernel, size))
        np.testing.assert_array_equal(got, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))


@pytest.mark.parametrize("cluster", ["m256", "multicast"])
@pytest.mark.parametrize("kernel", ["roles", "cancelling"])
def test_gluon_has_no_errors(gluon_matmul: Any, kernel: str, cluster: str) -> None:
    matmul = gluon_matmul(kernel, cluster)
    size = (520, 136, 136)
    a, b = integers(0, size)
    x, y, z = grid = grid_of(matmul, kernel, size)
    checker = Checker(
        matmul.module.lines,
        grid=(x * matmul.ctas, y, z),
        cluster=(matmul.ctas, 1, 1),
        threads=matmul.threads,
        smem_bytes=target("sm_100a").smem_per_sm_bytes,
    )
    matmul(a, b, np.zeros(size[:2], np.float16), size, grid=grid, observers=(checker,))
    findings = checker.conclude(())
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert "commit-after-exit" in {finding.rule for finding in findings}


@pytest.fixture(scope="module")
def pyptx_text() -> Any:
    """`pyptx_text(m, n, k)`. Its module imports jax for its own runners only; an empty stand-in will do."""
    package = pytest.importorskip("pyptx", reason=f"pyptx {PYPTX} is not installed")
    if package.__version__ != PYPTX:
        pytest.skip(f"pyptx is {package.__version__}, not {PYPTX}")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("jax") is None:
            jax = types.ModuleType("jax")
            jax.numpy = types.ModuleType("jax.numpy")  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "jax", jax)
            patch.setitem(sys.modules, "jax.numpy", jax.numpy)
        examples = importlib.import_module("pyptx.examples.blackwell.gemm_highperf_blackwell")
        yield lambda *size: examples.build_gemm_2sm(*size).ptx()


def run_pyptx(text: str, size: tuple[int, int, int], policy: str, seed: int = 0) -> tuple[Report, bool]:
    """The report, and whether D is right."""
    m, n, k = size
    a, b = (matrix.astype(np.float32) for matrix in integers(1, size))
    memory = GlobalMemory()
    buffers = {}
    for name, values in (("A", a.astype(ml_dtypes.bfloat16)), ("B", b.astype(ml_dtypes.bfloat16)), ("D", a @ b.T)):
        buffers[name] = memory.allocate(values.nbytes, name=name)
        buffers[name].data[:] = 0xFF if name == "D" else np.frombuffer(values.tobytes(), np.uint8)
    addresses = [buffers[name].address for name in ("A", "B", "D")]
    for name, rows in (("A", m), ("B", n)):
        tensor_map = TensorMap(
            element_type=element_type("bf16"),
            address=buffers[name].address,
            dims=(k, rows),
            strides_bytes=(2 * k,),
            box=(64, 128),
            swizzle=Swizzle.B128,
        )
        place = memory.allocate(128, name=f"map of {name}")
        place.data[:] = np.frombuffer(encode(tensor_map), np.uint8)
        addresses.append(place.address)
    report = Machine(chip=target("sm_100a"), memory=memory, policy=policy, seed=seed, workers=1).launch(
        load_module(text, name="pyptx"),
        "blackwell_gemm_2sm",
        grid=(m // 128, n // 256, 1),
        block=(128, 1, 1),
        cluster=(2, 1, 1),
        dynamic_smem_bytes=target("sm_100a").smem_optin_bytes,
        arguments=[address.to_bytes(8, "little") for address in addresses],
    )
    got = np.frombuffer(buffers["D"].data.tobytes(), np.float32).reshape(m, n)
    return report, bool(np.array_equal(got, a @ b.T))


def test_pyptx_frees_tensor_memory_under_its_other_warps(pyptx_text: Any) -> None:
    report, _ = run_pyptx(pyptx_text(256, 256, 64), (256, 256, 64), "late")
    assert [finding.rule for finding in report.errors] == ["tmem-use-after-dealloc"]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("size", [(256, 256, 64), (512, 512, 512)])
def test_pyptx_with_a_barrier_before_the_dealloc(
    pyptx_text: Any, size: tuple[int, int, int], policy: str, seed: int
) -> None:
    lines = pyptx_text(*size).splitlines()
    last_store = max(number for number, line in enumerate(lines) if "st.global" in line)
    lines.insert(last_store + 1, "\tbar.sync 0;")
    report, right = run_pyptx("\n".join(lines), size, policy, seed)
    assert right
    assert {finding.rule for finding in report.findings} <= {"commit-after-exit"}
    assert report.errors == ()
