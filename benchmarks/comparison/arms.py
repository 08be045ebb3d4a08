"""The arms: ways to compute D = A @ B.T on the same torch tensors, each as a launch on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import ptxgen
from ptxgen.bench.timing import Stopwatch
from ptxgen.device.cuda import CudaDevice

PTXGEN, CUBLAS, CUBLASLT, TRITON, PYPTX = "ptxgen", "cuBLAS", "cuBLASLt best", "Triton", "pyptx"
DENSE = "cuBLAS, dense D"
"""Beside cuBLAS where D's rows must be padded for TMA: what it does with rows that follow each other."""
NAMES = (PTXGEN, CUBLAS, CUBLASLT, TRITON, PYPTX)

Launch = Callable[[], None]
_HEURISTICS = 8
_TRIALS, _TRIAL_SECONDS = 4, 0.02


@dataclass(slots=True, kw_only=True)
class Arms:
    """Launches by arm's name, one for each set of buffers; the first buffers' D of each; what there is to say."""

    launches: dict[str, list[Launch]] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What arms are made with."""

    torch: Any
    device: CudaDevice
    stopwatch: Stopwatch
    graph_stopwatch: Stopwatch
    names: Sequence[str]

    def arms(self, operands: Sequence[tuple[Any, Any]], new_output: Callable[[], Any]) -> Arms:
        """The arms for sets of A (M x K) and B (N x K). An arm that cannot run has a note instead of launches."""
        made = Arms()
        (m, k), n = operands[0][0].shape, operands[0][1].shape[0]
        for name in self.names:
            outputs = [new_output() for _ in operands]
            try:
                launches, note = _MAKERS[name](self, operands, outputs, (m, n, k))
            except Exception as error:  # an arm that fails must not take the others' figures along
                made.notes[name] = f"did not run: {type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            if launches:
                made.launches[name], made.outputs[name] = launches, outputs[0]
            if note:
                made.notes[name] = note
        if CUBLAS in made.launches and new_output().stride(0) != n:
            dense = [self.torch.full((m, n), float("nan"), dtype=a.dtype, device=a.device) for a, _ in operands]
            made.launches[DENSE] = [_cublas(self, a, b, d) for (a, b), d in zip(operands, dense, strict=True)]
            made.outputs[DENSE] = dense[0]
        return made

    def fastest(self, groups: Sequence[list[Launch]]) -> int:
        """The index of the launches that take the least time: there and back, the median."""
        if len(groups) == 1:
            return 0
        for group in groups:
            group[0]()  # what loads code at its first launch would wait behind the stopwatch's gate
        self.torch.cuda.synchronize()
        times: list[list[float]] = [[] for _ in groups]
        once, _ = self.stopwatch.seconds(lambda turn: groups[0][0](), 10)
        count = int(min(max(_TRIAL_SECONDS / once, 5), 200))
        for trial in range(_TRIALS):
            numbers = range(len(groups))
            for number in numbers if trial % 2 == 0 else reversed(numbers):
                seconds, _ = self.stopwatch.seconds(lambda turn, number=number: groups[number][0](), count)
                times[number].append(seconds)
        medians = [median(each) for each in times]
        return medians.index(min(medians))


Made = tuple[list[Launch], str]


def _ptxgen(bench: Bench, operands: Any, outputs: Any, size: tuple[int, int, int]) -> Made:
    kind = {"torch.float16": "f16", "torch.bfloat16": "bf16"}[str(operands[0][0].dtype)]
    target = f"sm_{bench.device.properties.chip.capability[0]}0a"
    choice = ptxgen.best(*size, target=target, operand_type=kind, device=bench.device)
    kernel = ptxgen.compile(choice.spec, bench.device)
    calls = [kernel.prepare(a, b, out=d, grid=choice.grid).launch for (a, b), d in zip(operands, outputs, strict=True)]
    from ptxgen.tuning.search import Contestant

    grid = None if choice.grid is None else choice.grid[0]
    return calls, f"{Contestant(spec=choice.spec, grid=grid)} ({choice.basis})"


def _cublas(bench: Bench, a: Any, b: Any, d: Any) -> Launch:
    mm, transposed = bench.torch.mm, b.T
    return lambda: mm(a, transposed, out=d)


def _cublas_arm(bench: Bench, operands: Any, outputs: Any, size: tuple[int, int, int]) -> Made:
    return [_cublas(bench, a, b, d) for (a, b), d in zip(operands, outputs, strict=True)], ""


def _cublaslt_arm(bench: Bench, operands: Any, outputs: Any, size: tuple[int, int, int]) -> Made:
    from benchmarks.comparison.cublaslt import CublasLt

    library = CublasLt(bench.torch)
    each = [library.proposals(a, b, d, _HEURISTICS) for (a, b), d in zip(operands, outputs, strict=True)]
    groups = [list(launches) for launches in zip(*each, strict=True)]
    best = bench.fastest(groups)
    return groups[best], f"heuristic {best + 1} of {len(groups)}, cuBLASLt {library.version}"


def _triton_arm(bench: Bench, operands: Any, outputs: Any, size: tuple[int, int, int]) -> Made:
    from benchmarks.comparison.triton_matmul import CONFIGURATIONS, launches

    programs = bench.device.properties.chip.sm_count
    each = [launches(a, b, d, programs) for (a, b), d in zip(operands, outputs, strict=True)]
    failed = each[0][1]
    groups = [list(group) for group in zip(*(found for found, _ in each), strict=True)]
    if not groups:
        raise RuntimeError(f"no configuration runs: {failed[0]}")
    best = bench.fastest(groups)
    return groups[best], f"configuration {best + 1} of {len(CONFIGURATIONS)}" + "".join(f"; {text}" for text in failed)


def _pyptx_arm(bench: Bench, operands: Any, outputs: Any, size: tuple[int, int, int]) -> Made:
    from benchmarks.comparison.pyptx_matmul import PyptxMatmul

    m, n, k = size
    if m % 256 or n % 256 or k % 64 or str(operands[0][0].dtype) != "torch.bfloat16":
        return [], "takes bf16, and multiples of 256 x 256 x 64"
    matmul = PyptxMatmul(bench.torch, bench.device)
    return [matmul.prepare(a, b, d) for (a, b), d in zip(operands, outputs, strict=True)], ""


_MAKERS: dict[str, Callable[[Bench, Any, Any, tuple[int, int, int]], Made]] = {
    PTXGEN: _ptxgen,
    CUBLAS: _cublas_arm,
    CUBLASLT: _cublaslt_arm,
    TRITON: _triton_arm,
    PYPTX: _pyptx_arm,
}
