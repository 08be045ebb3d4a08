"""Kernels that JAX compiles by Mosaic GPU, written here in Pallas, run unmodified: a pair of CTAs multiplies together.

What is true of them is a warning each: see FOUND.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import Finding, GlobalMemory, Machine, load_module
from ptxgen.emulator.tensor_maps import encode
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]
Size = tuple[int, int, int]

PINNED = "0.10.2"
PLUGIN = "jax_plugins.xla_cuda13"
SIZES = [(512, 256, 512), (256, 128, 128)]


FOUND = {
    "descriptor-constant",  # bits 46-48 are 0
    "missing-wait-ld",  # registers are packed before wait::ld
    "missing-tcgen05-fence",  # none after the allocation, none before the other warps' loads and the dealloc
    "commit-after-exit",  # only the last of the commits to the other CTA is waited for
}
LAST = {"once": set[str](), "cancelling": {"relaxed-barrier-before-exit"}}
"""The last arrive in the other CTA comes before a relaxed barrier."""


@dataclass(frozen=True)
class Mosaic:
    """A compiled kernel for one size. Its parameter holds the tensor maps of A, B and D, in the order of first use."""

    module: Any
    size: Size
    library: bool
    threads: int
    dynamic_smem_bytes: int

    @property
    def grid(self) -> tuple[int, int, int]:
        m, n, _ = self.size
        across, down = m // 256, n // 128
        return (2 * across * down, 1, 1) if self.library else (2 * across, down, 1)

    def checker(self) -> Checker:
        smem_bytes = target("sm_100a").smem_per_sm_bytes
        return Checker(
            self.module.lines, grid=self.grid, cluster=(2, 1, 1), threads=self.threads, smem_bytes=smem_bytes
        )

    def __call__(self, **options: Any) -> tuple[bool, tuple[Finding, ...]]:
        """Whether D is right, and what the machine found."""
        m, n, k = self.size
        random = np.random.default_rng(sum(self.size))
        a, b = (random.integers(-8, 9, (rows, k)).astype(np.float16) for rows in (m, n))
        memory = GlobalMemory()
        maps = b""
        width = 32 if self.library else 64
        matrices = (
            ("A", a, 128, 64),
            ("B", np.ascontiguousarray(b.T) if self.library else b, 64, 64),
            ("D", np.full((m, n), np.nan, np.float16), 128, width),
        )
        for name, values, rows, columns in matrices:
            buffer = memory.allocate(values.nbytes, name=name)
            buffer.data[:] = np.frombuffer(values.tobytes(), np.uint8)
            maps += encode(tiles(buffer.address, values.shape[0], values.shape[1], rows, columns))
        report = Machine(chip=target("sm_100a"), memory=memory, workers=1, **options).launch(
            self.module,
            entry=next(iter(self.module.entries)),
            grid=self.grid,
            block=(self.threads, 1, 1),
            cluster=(2, 1, 1),
            dynamic_smem_bytes=self.dynamic_smem_bytes,
            arguments=[maps],
        )
        got = np.frombuffer(buffer.data.tobytes(), np.float16).reshape(m, n)
        wanted = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
        return bool(np.array_equal(got, wanted)), report.findings


def tiles(address: int, rows: int, columns: int, box_rows: int, width: int) -> TensorMap:
    """A matrix as 8 x `width` tiles: columns, rows, column tiles, row tiles; a box is `box_rows` of a column tile."""
    return TensorMap(
        element_type=element_type("f16"),
        address=address,
        dims=(width, 8, columns // width, rows // 8),
        strides_bytes=(2 * columns, 2 * width, 16 * columns),
        box=(width, 8, 1, box_rows // 8),
        swizzle=Swizzle.B128 if width == 64 else Swizzle.B64,
    )


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`mosaic(kernel, size)` compiles once a module, in a process of its own."""
    for name, package in (("jax", "jax"), (PLUGIN, "jax-cuda13-plugin")):
        if importlib.util.find_spec(name.partition(".")[0]) is None or importlib.util.find_spec(name) is None:
            pytest.skip(f"{package} {PINNED} is not installed")
    if importlib.metadata.version("jax") != PINNED:
        pytest.skip(f"jax is {importlib.metadata.version('jax')}, not {PINNED}: its PTX is another")
    compiled: dict[tuple[str, Size], Mosaic] = {}

    def compile_kernel(kernel: str, size: Size) -> Mosaic:
        if (kernel, size) not in compiled:
            folder = tmp_path_factory.mktemp(kernel)
            script = Path(__file__).with_name("mosaic_kernels.py")
            command = [sys.executable, str(script), kernel, *map(str, size), str(folder)]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            text = (folder / "kernel.ptx").read_text()
            launch = json.loads((folder / "launch.json").read_text())
            compiled[kernel, size] = Mosaic(
                load_module(text, name=f"mosaic {kernel}"), size, kernel == "library", **launch
            )
        return compiled[kernel, size]

    return compile_kernel


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0), ("random", 1)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", ["once", "cancelling"])
def test_the_product_is_exact(mosaic: Any, kernel: str, size: Size, policy: str, seed: int) -> None:
    right, findings = mosaic(kernel, size)(policy=policy, seed=seed)
    assert right
    assert [str(finding) for finding in findings if finding.severity == "error"] == []


@pytest.mark.parametrize("policy", ["eager", "late"])
@pytest.mark.parametrize("kernel", ["once", "cancelling"])
def test_what_is_found(mosaic: Any, kernel: str, policy: str) -> None:
    compiled = mosaic(kernel, SIZES[0])
    checker = compiled.checker()
    right, findings = compiled(policy=policy, observers=(checker,))
    assert right
    found = checker.conclude(findings)
    assert [str(finding) for finding in found if finding.severity == "error"] == []
    assert {finding.rule for finding in found} == FOUND | LAST[kernel]


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0)])
def test_the_product_of_jax_itself(mosaic: Any, policy: str, seed: int) -> None:
    """It is right, but leaves its last store behind."""
    right, findings = mosaic("library", (512, 256, 256))(policy=policy, seed=seed)
    assert right
    assert {finding.rule for finding in findings if finding.severity == "error"} <= {"exit-with-pending-async"}


def test_jax_asks_for_the_next_cluster_before_its_other_cta_has_read_the_answer(mosaic: Any) -> None:
    """CTA 1's threads say only to their own CTA that they have read it; CTA 0 asks for both."""
    library = mosaic("library", (512, 256, 256))
    checker = library.checker()
    right, findings = library(policy="late", observers=(checker,))
    assert right
    races = [finding for finding in checker.conclude(findings) if finding.rule == "smem-race"]
    assert races
    assert all("try_cancel" in finding.text for finding in races)
