"""A Triton kernel that makes its tensor maps itself (tl.make_tensor_descriptor) runs unmodified."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from benchmarks.comparison.triton_compiler import compile_kernel
from ptxgen.checker import Checker
from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.hardware.targets import target

pytestmark = pytest.mark.peers

TILE = (128, 128, 64)


@pytest.fixture(scope="module")
def described(triton: Any, triton_kernels: Any) -> Any:
    """The text, and what its launch needs."""
    language = importlib.import_module("triton.language")
    function = triton_kernels.described
    signature = dict.fromkeys(("a_pointer", "b_pointer", "d_pointer"), "*fp16") | dict.fromkeys(("m", "n", "k"), "i32")
    signature |= dict.fromkeys(("a_pitch", "b_pitch", "d_pitch"), "i64")
    constants = dict(zip(("BM", "BN", "BK"), TILE, strict=True)) | {"OUT": language.float16, "FLATTEN": True}
    return compile_kernel(function, signature, constants, num_warps=4, num_stages=3)


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0)])
@pytest.mark.parametrize("size", [(128, 128, 64), (264, 136, 200)])
def test_the_product_is_exact_and_nothing_is_found(
    described: Any, size: tuple[int, int, int], policy: str, seed: int
) -> None:
    m, n, k = size
    random = np.random.default_rng(7)
    a, b = (random.integers(-8, 9, (rows, k)).astype(np.float16) for rows in (m, n))
    memory = GlobalMemory()
    buffers = {}
    for name, values in (("A", a), ("B", b), ("D", np.full((m, n), np.nan, np.float16))):
        buffers[name] = memory.allocate(values.nbytes, name=name)
        buffers[name].data[:] = np.frombuffer(values.tobytes(), np.uint8)
    programs = 2
    scratch = memory.allocate(programs * described.metadata.global_scratch_size, name="scratch", align=128)
    arguments = [buffers[name].address.to_bytes(8, "little") for name in ("A", "B", "D")]
    arguments += [value.to_bytes(4, "little") for value in size]
    arguments += [value.to_bytes(8, "little") for value in (k, k, n, scratch.address, 0)]
    module = load_module(described.asm["ptx"], name="triton described")
    threads = 32 * described.metadata.num_warps
    checker = Checker(
        module.lines, grid=(programs, 1, 1), cluster=(1, 1, 1), threads=threads,
        smem_bytes=target("sm_100a").smem_per_sm_bytes,
    )  # fmt: skip
    report = Machine(
        chip=target("sm_100a"), memory=memory, workers=1, policy=policy, seed=seed, observers=(checker,)
    ).launch(
        module,
        entry="described",
        grid=(programs, 1, 1),
        block=(threads, 1, 1),
        dynamic_smem_bytes=described.metadata.shared,
        arguments=arguments,
    )
    findings = checker.conclude(report.findings)
    assert [str(finding) for finding in findings if finding.severity == "error"] == []
    got = np.frombuffer(buffers["D"].data.tobytes(), np.float16).reshape(m, n)
    np.testing.assert_array_equal(got, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))
