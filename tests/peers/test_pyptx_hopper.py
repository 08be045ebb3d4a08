"""pyptx's fastest GEMM for sm_90a, a hand-tuned text: clusters of two, multicast, a schedule in memory, accumulators
whose registers are numbered backwards. It never waits for its last TMA stores, and says nothing when its CTAs may end.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]

SIZE = (512, 512, 256)
SMEM_BYTES = 221_744
"""What its layout adds up to."""


class Absent(ModuleType):
    """Stands for jax, which the example imports for its own driver only."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    pytest.importorskip("pyptx", reason="pyptx is not installed")
    patch = pytest.MonkeyPatch()
    for name in ("jax", "jax.numpy"):
        patch.setitem(sys.modules, name, Absent(name))
    yield importlib.import_module("pyptx.examples.hopper.gemm_highperf_hopper")
    patch.undo()


def launch(example: Any, a: Array, b: Array, **options: Any) -> tuple[Array, Report]:
    """B · Aᵀ, which is how it lays out D, in bf16."""
    (m, k), n = a.shape, b.shape[0]
    memory = GlobalMemory()
    schedule = example.create_hilbert_schedule(m // 256, n // 256)
    buffers = []
    for name, values in (("A", a), ("B", b), ("schedule", schedule), ("D", np.zeros((n, m), a.dtype))):
        buffers.append(memory.allocate(values.nbytes, name=name))
        buffers[-1].data[:] = np.frombuffer(values.tobytes(), np.uint8)

    def panels(index: int, rows: int, columns: int, box: tuple[int, int, int], swizzle: Swizzle) -> TensorMap:
        return TensorMap(
            element_type=element_type("bf16"), address=buffers[index].address, dims=(64, rows, columns // 64),
            strides_bytes=(2 * columns, 128), box=box, swizzle=swizzle,
        )  # fmt: skip

    arguments: list[Any] = [buffer.address.to_bytes(8, "little") for buffer in buffers]
    arguments += [size.to_bytes(4, "little") for size in (m, n, k)]
    arguments += [
        panels(0, m, k, (64, 128, 1), Swizzle.B128),
        panels(1, n, k, (64, 256, 1), Swizzle.B128),
        panels(3, n, m, (72, 256, 1), Swizzle.NONE),
    ]
    module = load_module(example.gemm_warp_specialized.ptx(), name="pyptx.ptx")
    report = Machine(chip=target("sm_90a"), memory=memory, workers=1, **options).launch(
        module,
        entry="gemm_warp_specialized",
        grid=(128, 1, 1),
        block=(384, 1, 1),
        cluster=(2, 1, 1),
        dynamic_smem_bytes=SMEM_BYTES,
        arguments=arguments,
    )
    return np.frombuffer(buffers[3].data.tobytes(), a.dtype).reshape(n, m).astype(np.float64), report


def test_product_is_exact_and_the_missing_wait_is_found(example: Any) -> None:
    m, n, k = SIZE
    random = np.random.default_rng(1)
    a, b = (random.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    got, report = launch(example, a, b, policy="eager")
    assert {finding.rule for finding in report.findings} == {"exit-with-pending-async"}
    assert any(finding.text.startswith("cp.async.bulk.tensor") for finding in report.findings)
    exact = b.astype(np.float64) @ a.astype(np.float64).T
    np.testing.assert_array_equal(got, exact.astype(ml_dtypes.bfloat16).astype(np.float64))


def test_a_cta_that_ends_before_its_peer_is_found(example: Any) -> None:
    m, n, k = SIZE
    zeros = np.zeros((m, k), ml_dtypes.bfloat16)
    _, report = launch(example, zeros, zeros[:n], policy="late")
    assert any("of the cluster has ended" in finding.message for finding in report.findings)


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
def test_what_the_checker_finds(example: Any, policy: str) -> None:
    """Its warpgroups hand a stage back by an arrival of one warp; that is no fault."""
    m, n, k = SIZE
    zeros = np.zeros((m, k), ml_dtypes.bfloat16)
    lines = example.gemm_warp_specialized.ptx().split("\n")
    smem_bytes = target("sm_90a").smem_per_sm_bytes
    checker = Checker(lines, grid=(128, 1, 1), cluster=(2, 1, 1), threads=384, smem_bytes=smem_bytes)
    _, report = launch(example, zeros, zeros[:n], policy=policy, observers=(checker,))
    found = checker.conclude(report.findings)
    assert {finding.rule for finding in found if finding.severity == "error"} == (
        {"exit-with-pending-async"} if policy == "late" else {"exit-with-pending-async", "missing-proxy-fence"}
    )
    assert {finding.rule for finding in found if finding.severity == "warning"} == {"missing-mbarrier-init-fence"}
