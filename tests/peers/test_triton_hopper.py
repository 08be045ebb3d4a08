"""Triton's kernels for sm_90a run unmodified: wgmma from another compiler, with operands of every kind and order."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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
from ptxgen.toolchain import assemble, find_tool

pytestmark = pytest.mark.peers

Array = np.ndarray[Any, Any]

PINNED = "3.9.0"
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
TYPES: dict[str, tuple[str, str, Any, str]] = {
    "f16": ("fp16", "float16", np.float16, "f16"),
    "bf16": ("bf16", "bfloat16", ml_dtypes.bfloat16, "bf16"),
    "f32": ("fp32", "float32", np.float32, "f32"),
    "e4m3": ("fp8e4nv", "float8e4nv", ml_dtypes.float8_e4m3fn, "e4m3"),
    "e5m2": ("fp8e5", "float8e5", ml_dtypes.float8_e5m2, "e5m2"),
    "s8": ("i8", "int8", np.int8, "u8"),
    "s32": ("i32", "int32", np.int32, "s32"),
}
"""Triton's name in a signature and as a constant, NumPy's type, the tensor map's."""


@dataclass(frozen=True)
class Kernel:
    text: str
    tile: tuple[int, int, int]
    operand: str
    output: str
    a_by_k: bool
    b_by_k: bool
    threads: int
    dynamic_smem_bytes: int
    boxes: tuple[tuple[tuple[int, ...], Swizzle], ...]

    def __call__(self, a: Array, b: Array, grid: Any = None, **options: Any) -> tuple[Array, Report]:
        """D of A [m, k] and B [n, k], given as integers, as float64."""
        (m, k), n = a.shape, b.shape[0]
        memory = GlobalMemory()
        arguments: list[Any] = []
        matrices = (
            ("A", a.T if self.a_by_k else a, self.operand),
            ("B", b.T if self.b_by_k else b, self.operand),
            ("D", np.zeros((m, n)), self.output),
        )
        for (name, values, kind), (box, swizzle) in zip(matrices, self.boxes, strict=True):
            _, _, dtype, mapped = TYPES[kind]
            per_16_bytes = 16 // np.dtype(dtype).itemsize
            whole = np.zeros((values.shape[0], -(-values.shape[1] // per_16_bytes) * per_16_bytes), dtype)
            whole[:, : values.shape[1]] = values.astype(np.float32).astype(dtype)
            buffer = memory.allocate(whole.nbytes, name=name)
            buffer.data[:] = np.frombuffer(whole.tobytes(), np.uint8)
            tensor_map = TensorMap(
                element_type=element_type(mapped), address=buffer.address, dims=values.shape[::-1],
                strides_bytes=whole.strides[:1], box=box[::-1], swizzle=swizzle,
            )  # fmt: skip
            arguments += [tensor_map, *(size.to_bytes(4, "little") for size in values.shape)]
            arguments += [stride.to_bytes(8, "little") for stride in (whole.shape[1], 1)]
        arguments += [size.to_bytes(4, "little") for size in (m, n, k)] + [bytes(8)] * 2
        module = load_module(self.text, name="triton.ptx")
        report = Machine(chip=target("sm_90a"), memory=memory, workers=1, **options).launch(
            module,
            entry=next(iter(module.entries)),
            grid=grid or (-(-m // self.tile[0]), -(-n // self.tile[1]), 1),
            block=(self.threads, 1, 1),
            dynamic_smem_bytes=self.dynamic_smem_bytes,
            arguments=arguments,
        )
        result = np.frombuffer(buffer.data.tobytes(), whole.dtype).reshape(whole.shape)
        return result[:, :n].astype(np.float64), report


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Kernel]]:
    """`compiled((128, 128, 64), operand="f16", …)` compiles for sm_90a; skips where Triton is missing."""
    triton = pytest.importorskip("triton", reason=f"triton {PINNED} is not installed")
    if triton.__version__ != PINNED:
        pytest.skip(f"triton is {triton.__version__}, not {PINNED}: its PTX is another")
    patch = pytest.MonkeyPatch()
    patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    known: dict[tuple[Any, ...], Kernel] = {}

    def compile_kernel(
        tile: tuple[int, int, int],
        *,
        kernel: str = "product",
        operand: str = "f16",
        output: str = "f16",
        total: str = "f32",
        num_warps: int = 4,
        **switches: bool,
    ) -> Kernel:
        key = (tile, kernel, operand, output, total, num_warps, *sorted(switches.items()))
        if key not in known:
            known[key] = _compile(tile, kernel, operand, output, total, num_warps, switches)
        return known[key]

    yield compile_kernel
    patch.undo()


def _kernels(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _compile(
    tile: tuple[int, int, int],
    kernel: str,
    operand: str,
    output: str,
    total: str,
    num_warps: int,
    switches: dict[str, bool],
) -> Kernel:
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    backend = importlib.import_module("triton.backends.compiler")
    language = importlib.import_module("triton.language")
    function = getattr(_kernels("triton_hopper_kernels" if kernel == "product" else "triton_kernels"), kernel)
    bm, bn, bk = tile
    a_by_k, b_by_k = switches.get("A_BY_K", False), switches.get("B_BY_K", False)
    values = {"BM": bm, "BN": bn, "BK": bk}
    values |= {"OUT": getattr(language, TYPES[output][1]), "SUM": getattr(language, TYPES[total][1])}
    names = function.arg_names
    constants = {name: values[name] if name in values else switches.get(name, False) for name in names[6:]}
    blocks = {
        "a": (operand, (bk, bm) if a_by_k else (bm, bk)),
        "b": (operand, (bk, bn) if b_by_k else (bn, bk)),
        "d": (output, (bm, bn)),
    }
    signature = {name: f"tensordesc<{TYPES[kind][0]}[{r},{c}]>" for name, (kind, (r, c)) in blocks.items()}
    signature |= dict.fromkeys(("m", "n", "k"), "i32") | dict.fromkeys(constants, "constexpr")
    done = triton.compile(
        compiler.ASTSource(
            function, signature, {(names.index(name),): value for name, value in constants.items()}, attrs={}
        ),
        target=backend.GPUTarget("cuda", 90, 32),
        options={"num_warps": num_warps, "num_stages": 3, "ptx_version": 90},
    )
    return Kernel(
        text=done.asm["ptx"],
        tile=tile,
        operand=operand,
        output=output,
        a_by_k=a_by_k,
        b_by_k=b_by_k,
        threads=32 * done.metadata.num_warps,
        dynamic_smem_bytes=done.metadata.shared,
        boxes=tuple((tuple(d["block_size"]), SWIZZLES[d["swizzle"]]) for d in done.metadata.tensordesc_meta),
    )


def integers(m: int, n: int, k: int) -> tuple[Array, Array]:
    random = np.random.default_rng(m + n + k)
    return random.integers(-4, 5, (m, k)), random.integers(-4, 5, (n, k))


CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any], str]] = {
    "f16": ((128, 128, 64), {}, "m64n128k16.f32.f16.f16"),
    "two warpgroups": ((128, 256, 64), {"num_warps": 8}, "m64n256k16.f32.f16.f16"),
    "64-byte swizzle": ((128, 64, 32), {}, "m64n64k16.f32.f16.f16"),
    "32-byte swizzle": ((128, 64, 16), {}, "m64n64k16.f32.f16.f16"),
    "A transposed": ((128, 128, 64), {"A_BY_K": True}, "m64n128k16.f32.f16.f16"),
    "B transposed": ((128, 128, 64), {"B_BY_K": True, "operand": "bf16", "output": "f32"}, "m64n128k16.f32.bf16.bf16"),
    "both transposed": ((128, 256, 64), {"A_BY_K": True, "B_BY_K": True, "num_warps": 8}, "m64n256k16.f32.f16.f16"),
    "A in registers": ((128, 128, 64), {"DOUBLED": True}, "m64n128k16.f32.f16.f16"),
    "A in registers, B transposed": (
        (64, 128, 64),
        {"DOUBLED": True, "B_BY_K": True, "operand": "bf16", "output": "f32"},
        "m64n128k16.f32.bf16.bf16",
    ),
    "tf32": ((128, 128, 32), {"operand": "f32", "output": "f32"}, "m64n128k8.f32.tf32.tf32"),
    "tf32, A in registers": (
        (128, 128, 32),
        {"DOUBLED": True, "operand": "f32", "output": "f32"},
        "m64n128k8.f32.tf32.tf32",
    ),
    "e4m3": ((128, 128, 64), {"operand": "e4m3", "output": "f32"}, "m64n128k32.f32.e4m3.e4m3"),
    "e5m2": ((128, 128, 64), {"operand": "e5m2", "output": "f32"}, "m64n128k32.f32.e5m2.e5m2"),
    "s8": ((128, 128, 64), {"operand": "s8", "output": "s32", "total": "s32"}, "m64n128k32.s32.s8.s8"),
    "s8, A in registers": (
        (128, 128, 64),
        {"DOUBLED": True, "operand": "s8", "output": "s32", "total": "s32"},
        "m64n128k32.s32.s8.s8",
    ),
    "persistent": ((128, 128, 64), {"kernel": "persistent"}, "m64n128k16.f32.f16.f16"),
    "persistent, flattened": ((128, 128, 64), {"kernel": "persistent", "FLATTEN": True}, "m64n128k16.f32.f16.f16"),
}


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0), ("random", 1)])
@pytest.mark.parametrize("name", CASES)
def test_integer_products_are_exact(compiled: Any, name: str, policy: str, seed: int) -> None:
    tile, options, shape = CASES[name]
    kernel = compiled(tile, **options)
    assert f"wgmma.mma_async.sync.aligned.{shape}" in kernel.text
    a, b = integers(200, 136, 200)
    got, report = kernel(a, b, policy=policy, seed=seed, grid=(2, 1, 1) if "kernel" in options else None)
    assert report.findings == ()
    np.testing.assert_array_equal(got, (2 if options.get("DOUBLED") else 1) * (a @ b.T))


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("late", 0), ("random", 0)])
@pytest.mark.parametrize("name", CASES)
def test_the_checker_finds_no_errors(compiled: Any, name: str, policy: str, seed: int) -> None:
    tile, options, _ = CASES[name]
    kernel = compiled(tile, **options)
    a, b = integers(200, 136, 200)
    grid = (2, 1, 1) if "kernel" in options else (-(-200 // tile[0]), -(-136 // tile[1]), 1)
    smem_bytes = target("sm_90a").smem_per_sm_bytes
    lines = kernel.text.split("\n")
    checker = Checker(lines, grid=grid, cluster=(1, 1, 1), threads=kernel.threads, smem_bytes=smem_bytes)
    kernel(a, b, policy=policy, seed=seed, grid=grid, observers=(checker,))
    assert [finding for finding in checker.conclude(()) if finding.severity == "error"] == []


@pytest.mark.parametrize("size", [(1, 8, 8), (128, 256, 64), (129, 257, 63), (256, 384, 320)])
def test_edges(compiled: Any, size: tuple[int, int, int]) -> None:
    a, b = integers(*size)
    got, report = compiled((128, 128, 64))(a, b, policy="late")
    assert report.findings == ()
    np.testing.assert_array_equal(got, a @ b.T)


def test_half_accumulators_are_read_in_flight(compiled: Any) -> None:
    """With f16 sums the text unpacks D before the wait. ptxas finds that too, and mends it with a wait of its own."""
    kernel = compiled((128, 128, 64), total="f16")
    _, report = kernel(*integers(128, 128, 256), policy="eager")
    (finding,) = report.findings
    assert finding.rule == "wgmma-register-hazard"
    assert re.fullmatch(r"mov\.b32\s+\{%rs\d+, %rs\d+\}, %r\d+;", finding.text)
    if find_tool("ptxas") is None:
        pytest.skip("ptxas is not installed")
    assert any("C7517" in info for info in assemble(kernel.text, name="triton.ptx").infos)
