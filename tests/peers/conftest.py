"""Compiles Triton kernels for sm_100a, with no GPU, and runs the unmodified text on the emulator."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.comparison.triton_compiler import compile_kernel
from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

Array = np.ndarray[Any, Any]

PINNED = "3.9.0"
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
SWITCHES = {"ROLES", "CHAINED", "FLATTEN"}
NAMES = {"f16": ("fp16", "float16"), "bf16": ("bf16", "bfloat16"), "f32": ("fp32", "float32")}
"""Triton's name of a type in a signature, and as a constant."""


@dataclass(frozen=True)
class TritonMatmul:
    """A compiled kernel. Its entry takes, for each of A, B and D, a tensor map, two sizes (u32) and two strides
    (u64), then M, N, K (u32) and two pointers to scratch memory that it does not use. A program is a cluster
    of `ctas` CTAs.
    """

    module: Any
    tile: tuple[int, int, int]
    operand: str
    output: str
    threads: int
    dynamic_smem_bytes: int
    boxes: tuple[tuple[tuple[int, ...], Swizzle], ...]
    """Box (outermost size first) and swizzle of A, B and D."""
    ctas: int = 1

    def __call__(self, a: Array, b: Array, d: Array, size: tuple[int, int, int], **options: Any) -> Array:
        """D after the launch. Arrays hold whole pitches; `size` says how much of them is the matrix."""
        m, n, k = size
        memory = GlobalMemory()
        arguments: list[Any] = []
        buffers = {}
        matrices = (("A", a, (m, k)), ("B", b, (n, k)), ("D", d, (m, n)))
        for (name, values, shape), (box, swizzle) in zip(matrices, self.boxes, strict=True):
            buffer = buffers[name] = memory.allocate(values.nbytes, name=name, align=256)
            buffer.data[:] = np.frombuffer(values.tobytes(), np.uint8)
            arguments.append(
                TensorMap(
                    element_type=element_type(self.output if name == "D" else self.operand),
                    address=buffer.address,
                    dims=shape[::-1],
                    strides_bytes=values.strides[:1],
                    box=box[::-1],
                    swizzle=swizzle,
                )
            )
            arguments += [size.to_bytes(4, "little") for size in shape]
            arguments += [stride.to_bytes(8, "little") for stride in (values.shape[1], 1)]
        arguments += [size.to_bytes(4, "little") for size in (m, n, k)] + [bytes(8)] * 2
        grid = options.pop("grid", (-(-m // self.tile[0]), -(-n // self.tile[1]), 1))
        report = Machine(chip=target("sm_100a"), memory=memory, workers=1, **options).launch(
            self.module,
            entry=next(iter(self.module.entries)),
            grid=(grid[0] * self.ctas, *grid[1:]),
            block=(self.threads, 1, 1),
            cluster=(self.ctas, 1, 1),
            dynamic_smem_bytes=self.dynamic_smem_bytes,
            arguments=arguments,
        )
        errors = [finding for finding in report.findings if finding.severity == "error"]
        assert not errors, errors
        result: Array = np.frombuffer(buffers["D"].data.tobytes(), d.dtype).reshape(d.shape)
        return result


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package, with a cache of its own; skips where it is missing."""
    package = pytest.importorskip("triton", reason=f"triton {PINNED} is not installed")
    if package.__version__ != PINNED:
        pytest.skip(f"triton is {package.__version__}, not {PINNED}: its PTX is another")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        yield package


def _kernels(name: str) -> Any:
    """A module of kernels that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = kernels
    spec.loader.exec_module(kernels)
    return kernels


def _boxes(metadata: Any) -> tuple[tuple[tuple[int, ...], Swizzle], ...]:
    return tuple((tuple(d["block_size"]), SWIZZLES[d["swizzle"]]) for d in metadata.tensordesc_meta)


@pytest.fixture(scope="session")
def triton_kernels(triton: Any) -> Any:
    return _kernels("triton_kernels")


@pytest.fixture(scope="session")
def triton_matmul(triton: Any, triton_kernels: Any) -> Callable[..., TritonMatmul]:
    """`triton_matmul("plain", (128, 128, 64))` compiles once a session."""
    kernels = triton_kernels
    compiled: dict[tuple[Any, ...], TritonMatmul] = {}

    def compile_matmul(
        kernel: str,
        tile: tuple[int, int, int],
        *,
        operand: str = "f16",
        output: str = "f16",
        num_stages: int = 3,
        num_warps: int = 4,
        clc: bool = False,
        **constants: Any,
    ) -> TritonMatmul:
        key = (kernel, tile, operand, output, num_stages, num_warps, clc, *sorted(constants.items()))
        if key not in compiled:
            language = importlib.import_module("triton.language")
            function = getattr(kernels, kernel)
            bm, bn, bk = tile
            known = {"BM": bm, "BN": bn, "BK": bk, "OUT": getattr(language, NAMES[output][1])}
            known |= dict.fromkeys(set(function.arg_names) & SWITCHES, False)
            constants = known | constants
            blocks = {"a": (operand, bm, bk), "b": (operand, bn, bk), "d": (output, bm, bn)}
            signature = {name: f"tensordesc<{NAMES[kind][0]}[{r},{c}]>" for name, (kind, r, c) in blocks.items()}
            signature |= dict.fromkeys(("m", "n", "k"), "i32")
            done = compile_kernel(
                function,
                signature,
                constants,
                num_warps=num_warps,
                num_stages=num_stages,
                launch_pdl=constants.get("CHAINED", False),
                clc=clc,
            )
            compiled[key] = TritonMatmul(
                module=load_module(done.asm["ptx"], name=f"triton {kernel}"),
                tile=tile,
                operand=operand,
                output=output,
                threads=32 * done.metadata.num_warps,
                dynamic_smem_bytes=done.metadata.shared,
                boxes=_boxes(done.metadata),
            )
        return compiled[key]

    return compile_matmul


PAIR, FOUR = ((1, 0),), ((1, 0), (2, 0))
CLUSTERS: dict[str, tuple[tuple[int, int, int], int, tuple[Any, ...], tuple[Any, ...]]] = {
    "m256": ((256, 128, 64), 64, PAIR, PAIR),
    "m128": ((128, 128, 64), 128, PAIR, PAIR),
    "multicast": ((512, 128, 64), 64, FOUR, ((1, 0), (0, 0))),
}
"""Tile, columns that are stored at a time, and how the CTAs of a cluster share the rows of A and D, and of B."""


@pytest.fixture(scope="session")
def gluon_matmul(triton: Any) -> Callable[..., TritonMatmul]:
    """`gluon_matmul("roles", "m256")` compiles once a session; m is that of the MMA, of which each pair makes one."""
    kernels = _kernels("gluon_kernels")
    compiled: dict[tuple[str, str], TritonMatmul] = {}

    def compile_matmul(kernel: str, cluster: str) -> TritonMatmul:
        if (kernel, cluster) not in compiled:
            runtime = importlib.import_module("triton.experimental.gluon._runtime")
            language = importlib.import_module("triton.experimental.gluon.language")
            function = getattr(kernels, kernel)
            (bm, bn, bk), columns, split, split_b = CLUSTERS[cluster]
            ctas = 1 << len(split)
            signature = dict.fromkeys(("M", "N", "K"), "i32")
            for name, shape, sharing in (("a", (bm, bk), split), ("b", (bn, bk), split_b), ("d", (bm, columns), split)):
                layout = language.NVMMASharedLayout.get_default_for(
                    list(shape), language.float16, cga_layout=[list(basis) for basis in sharing]
                )
                signature[f"{name}_map"] = f"tensordesc<fp16[{shape[0]},{shape[1]}],{layout!r}>"
            constants = {"STAGES": 3, "ROWS": bm // ctas, "CTAS": split}
            done = compile_kernel(
                function, signature, constants, make_source=runtime.GluonASTSource, num_warps=4, num_ctas=ctas
            )
            module = load_module(done.asm["ptx"], name=f"gluon {kernel}")
            block = next(iter(module.entries.values())).reqntid
            assert block is not None
            compiled[kernel, cluster] = TritonMatmul(
                module=module,
                tile=(bm, bn, bk),
                operand="f16",
                output="f16",
                threads=block[0],
                dynamic_smem_bytes=done.metadata.shared,
                boxes=_boxes(done.metadata),
                ctas=ctas,
            )
        return compiled[kernel, cluster]

    return compile_matmul
