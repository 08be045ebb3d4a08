"""Every sm_90a step on a GPU gives the right numbers: through NumPy and in place, any size, type and grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.arrays import make_matrix
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.reference import compare
from ptxgen.hardware.element_types import element_type

STEPS = (4, 5, 6, 7, 10)
KernelOf = Callable[..., ptxgen.Kernel]

# One tile and several, every kind of tail, fewer and more K tiles than a ring holds, no tile for most CTAs.
SHAPES = [
    (128, 128, 64), (256, 256, 256), (1, 1, 1), (7, 33, 8), (33, 7, 15), (130, 40, 72), (257, 251, 320), (1, 300, 24),
    (300, 1, 63), (129, 257, 65), (512, 384, 100), (100, 136, 16), (64, 8, 1), (640, 512, 1024),
]  # fmt: skip
TYPES = [("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "bf16"), ("bf16", "f16")]
TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy(step: int, shape: tuple[int, int, int], kernel: KernelOf) -> None:
    m, n, k = shape
    f16 = element_type("f16")
    for kind in ("integers", "normal"):
        a, b = make_matrix(kind, m, k, f16, 1), make_matrix(kind, n, k, f16, 2)
        comparison = compare(a, b, kernel(step)(a, b))
        assert comparison.matches, comparison.summary()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_types_in_place(step: int, types: tuple[str, str], kernel: KernelOf, torch: Any, operands: Any) -> None:
    call = kernel(step, operand_type=types[0], output_type=types[1])
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, getattr(torch, TORCH[types[0]]))
        d = call(a, b)
        assert d.dtype == getattr(torch, TORCH[types[1]])
        assert d.shape == (m, n)
        assert torch.equal(d, (a.float() @ b.float().T).to(d.dtype)), (m, n, k)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_large_squares(step: int, size: int, type_: str, kernel: KernelOf, torch: Any, operands: Any) -> None:
    call = kernel(step, operand_type=type_, output_type=type_)
    a, b = operands(size, size, size, getattr(torch, TORCH[type_]), kind="normal")
    d = call(a, b)
    reference = a.float() @ b.float().T
    spacing = 2.0 ** (-8 if type_ == "bf16" else -11)
    bound = reference.abs() * spacing + (size + 1) * 2.0**-23 * (a.float().abs() @ b.float().abs().T)
    assert bool(((d.float() - reference).abs() <= bound).all())


@pytest.mark.parametrize("step", [6, 7, 10])
@pytest.mark.parametrize("ctas", [1, 2, 78, 114, 132, 264])
def test_grids(step: int, ctas: int, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(1300, 1100, 200)
    d = kernel(step)(a, b, grid=(ctas, 1, 1))
    assert torch.equal(d, reference(a, b).half())


@pytest.mark.parametrize("step", STEPS)
def test_more_than_2_31_elements_of_d(step: int, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    m = n = 46400
    a, b = operands(m, n, 72)
    d = kernel(step)(a, b)
    assert d.numel() > 2**31
    for first in range(0, m, 5800):
        rows = slice(first, first + 5800)
        assert torch.equal(d[rows], reference(a[rows], b).half())


@pytest.mark.parametrize("step", STEPS)
def test_more_than_2_31_elements_of_a(step: int, kernel: KernelOf, torch: Any, operands: Any) -> None:
    m, n, k = 33000, 136, 65600
    generator = torch.Generator(device="cuda").manual_seed(3)
    a = torch.randint(-1, 2, (m, k), generator=generator, device="cuda", dtype=torch.int8).half()
    b = torch.randint(-1, 2, (n, k), generator=generator, device="cuda", dtype=torch.int8).half()
    assert a.numel() > 2**31
    d = kernel(step, output_type="f32")(a, b)
    for first in range(0, m, 3300):
        rows = slice(first, first + 3300)
        assert torch.equal(d[rows], a[rows].float() @ b.float().T)


CHOICES: dict[str, dict[str, Any]] = {
    "along m": {"cluster": (2, 1, 1)},
    "along n": {"cluster": (1, 2, 1)},
    "256 rows, slices": {
        "cluster": (1, 2, 1),
        "tile": {"m": 256, "n": 128},
        "pipe_depth": 4,
        "epilogue": {"staging": "slices"},
    },
    "turns": {"cluster": (2, 1, 1), "consumer_tiles": "own", "tile": {"n": 128}, "pipe_depth": 5},
    "turns alone": {"consumer_tiles": "own", "tile": {"m": 64}, "pipe_depth": 4},
    "Hilbert, hints": {
        "cluster": (2, 1, 1),
        "scheduler": {"order": "hilbert", "group": 4},
        "a_cache": "evict_first",
        "b_cache": "evict_last",
        "suspend_ns": 1000,
    },
    "swapped": {"swap_ab": True, "tile": {"m": 16, "n": 64, "k": 128}, "consumers": 1, "pipe_depth": 8},
    "swapped along n": {"swap_ab": True, "cluster": (1, 2, 1), "tile": {"m": 48, "n": 256}, "pipe_depth": 5},
    "swapped, f32": {
        "swap_ab": True,
        "output_type": "f32",
        "tile": {"m": 24, "n": 128},
        "pipe_depth": 6,
        "epilogue": {"staging": "tile"},
    },
    "swapped, turns": {"swap_ab": True, "consumer_tiles": "own", "tile": {"m": 40, "n": 128}, "pipe_depth": 6},
    "small tiles": {"cluster": (2, 1, 1), "consumers": 1, "tile": {"m": 64, "n": 128}, "pipe_depth": 8},
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_of_step_10(name: str, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    """One tile and none for the cluster's other CTA, several tiles a CTA, and a thousand launches that agree."""
    call = kernel(10, **CHOICES[name])
    for m, n, k in (*SHAPES, (2600, 2300, 200)):
        a, b = operands(m, n, k)
        for ctas in (2, 132):
            d = call(a, b, grid=(ctas, 1, 1))
            assert torch.equal(d, reference(a, b).to(d.dtype)), (m, n, k, ctas)
    a, b = operands(1100, 1032, 1000, kind="normal")
    first = call(a, b)
    out = torch.empty_like(first)
    prepared = call.prepare(a, b, out=out)
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        out.fill_(float("nan"))
        prepared.launch()
        different += (out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(different) == 0


@pytest.mark.parametrize("step", STEPS)
def test_runs_are_bit_identical(step: int, kernel: KernelOf, torch: Any, operands: Any) -> None:
    a, b = operands(1024, 1024, 512, kind="normal")
    first = kernel(step)(a, b)
    out = torch.empty_like(first)
    prepared = kernel(step).prepare(a, b, out=out)
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10_000):
        out.fill_(float("nan"))
        prepared.launch()
        different += (out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(different) == 0


@pytest.mark.parametrize("step", STEPS)
def test_nothing_outside_d_is_written(step: int, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(130, 72, 40)
    around = torch.full((140, 96), 7.0, dtype=torch.float16, device="cuda")
    kernel(step).launch(a, b, out=around[5:135, 8:80])
    expected = torch.full_like(around, 7.0)
    expected[5:135, 8:80] = reference(a, b).half()
    assert torch.equal(around, expected)


@pytest.mark.parametrize("step", STEPS)
def test_empty_products(step: int, kernel: KernelOf, torch: Any) -> None:
    a, b = (torch.empty((rows, 0), dtype=torch.float16, device="cuda") for rows in (5, 24))
    out = torch.full((5, 24), 3.0, dtype=torch.float16, device="cuda")
    kernel(step).launch(a, b, out=out)
    assert int(out.count_nonzero()) == 0
    assert kernel(step)(a[:0], b).shape == (0, 24)


@pytest.mark.parametrize("step", STEPS)
def test_the_compiler_honours_setmaxnreg(step: int, kernel: KernelOf, device: CudaDevice) -> None:
    """ptxas keeps setmaxnreg only in whole programs; then a CTA starts with an even share of the registers."""
    (function,) = kernel(step)._module.functions.values()  # type: ignore[attr-defined]
    assert function.local_bytes == 0  # no spills
    if step >= 7:
        assert function.registers == 168  # 65536 registers over 384 threads, in units of 8


def test_special_values(kernel: KernelOf) -> None:
    a, b = (make_matrix("normal", 64, 64, element_type("f16"), seed) for seed in (0, 1))
    a[3, 5], a[9, 0], b[7, 7] = np.nan, np.inf, np.float16(6e-8)
    for step in STEPS:
        d = kernel(step)(a, b)
        assert compare(a, b, d).matches, step
        assert np.isnan(d[3]).all() and not np.isfinite(d[9]).any()
