"""A kernel that CuTe DSL compiles, written here, runs unmodified: a pair of CTAs multiplies together, by CUTLASS's
own pipelines."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import Finding, GlobalMemory, Machine, load_module
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

pytestmark = pytest.mark.peers

Size = tuple[int, int, int]

PACKAGE, PINNED = "nvidia-cutlass-dsl", "4.8.1"
THREADS = 192
FOUND = {"missing-tcgen05-fence", "missing-wait-ld"}
"""There is no tcgen05.fence, and registers are converted before tcgen05.wait::ld."""
SIZES = [(512, 256, 320), (256, 128, 64)]


@dataclass(frozen=True)
class Cute:
    """A compiled kernel for one size. It takes the state of the tiled MMA (64 bytes: no accumulation at first, no
    negation, no lanes off), the tensor maps of A and B, and a pointer to D."""

    module: Any
    size: Size

    @property
    def grid(self) -> tuple[int, int, int]:
        m, n, _ = self.size
        return (2 * (m // 256), n // 128, 1)

    def checker(self) -> Checker:
        smem_bytes = target("sm_100a").smem_per_sm_bytes
        return Checker(self.module.lines, grid=self.grid, cluster=(2, 1, 1), threads=THREADS, smem_bytes=smem_bytes)

    def __call__(self, **options: Any) -> tuple[bool, tuple[Finding, ...]]:
        """Whether D is right, and what the machine found."""
        m, n, k = self.size
        random = np.random.default_rng(sum(self.size))
        a, b = (random.integers(-8, 9, (rows, k)).astype(np.float16) for rows in (m, n))
        memory = GlobalMemory()
        arguments: list[Any] = [bytes(64)]
        for name, values, rows in (("A", a, 128), ("B", b, 64), ("D", np.full((m, n), np.nan, np.float16), 0)):
            buffer = memory.allocate(values.nbytes, name=name)
            buffer.data[:] = np.frombuffer(values.tobytes(), np.uint8)
            if rows:
                arguments.append(
                    TensorMap(
                        element_type=element_type("f16"),
                        address=buffer.address,
                        dims=values.shape[::-1],
                        strides_bytes=(values.strides[0],),
                        box=(64, rows),
                        swizzle=Swizzle.B128,
                    )
                )
            else:
                arguments.append(buffer.address.to_bytes(8, "little"))
        report = Machine(chip=target("sm_100a"), memory=memory, workers=1, **options).launch(
            self.module,
            entry=next(iter(self.module.entries)),
            grid=self.grid,
            block=(THREADS, 1, 1),
            cluster=(2, 1, 1),
            dynamic_smem_bytes=target("sm_100a").smem_optin_bytes,
            arguments=arguments,
        )
        got = np.frombuffer(buffer.data.tobytes(), np.float16).reshape(m, n)
        wanted = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
        return bool(np.array_equal(got, wanted)), report.findings


@pytest.fixture(scope="module")
def cute(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`cute(size)` compiles once a module, in a process of its own."""
    if importlib.util.find_spec("cutlass") is None:
        pytest.skip(f"{PACKAGE} {PINNED} is not installed")
    if importlib.metadata.version(PACKAGE) != PINNED:
        pytest.skip(f"{PACKAGE} is {importlib.metadata.version(PACKAGE)}, not {PINNED}: its PTX is another")
    compiled: dict[Size, Cute] = {}

    def compile_kernel(size: Size) -> Cute:
        if size not in compiled:
            folder = tmp_path_factory.mktemp("cute")
            script = Path(__file__).with_name("cute_kernels.py")
            command = [sys.executable, str(script), *map(str, size), str(folder)]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            compiled[size] = Cute(load_module((folder / "kernel.ptx").read_text(), name="cute"), size)
        return compiled[size]

    return compile_kernel


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0), ("random", 1)])
@pytest.mark.parametrize("size", SIZES)
def test_the_product_is_exact(cute: Any, size: Size, policy: str, seed: int) -> None:
    right, findings = cute(size)(policy=policy, seed=seed)
    assert right
    assert [str(finding) for finding in findings if finding.severity == "error"] == []


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_what_is_found(cute: Any, policy: str) -> None:
    compiled = cute(SIZES[0])
    checker = compiled.checker()
    right, findings = compiled(policy=policy, observers=(checker,))
    assert right
    found = checker.conclude(findings)
    assert [str(finding) for finding in found if finding.severity == "error"] == []
    assert {finding.rule for finding in found} == FOUND
