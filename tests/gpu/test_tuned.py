"""What the tables of the package choose, on the GPU that it was measured on: right, and the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.device.cuda import CudaDevice
from ptxgen.spec import GemmSpec
from ptxgen.tuning.table import _FOLDER, load_table

TARGET = "sm_90a"
SHAPES = [
    (128, 256, 64), (1, 8, 8), (257, 507, 448), (130, 264, 200), (700, 1000, 328), (1300, 1100, 200),
    (33, 4096, 1024), (2049, 2056, 72),
]  # fmt: skip
CHOICES = {
    f"{entry.spec.hash}@{entry.grid}": (entry.spec, entry.grid)
    for path in sorted(_FOLDER.glob("*.json"))
    for entry in load_table(path).entries
    if entry.spec.target == TARGET
}
TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def launch(kernel: ptxgen.Kernel, a: Any, b: Any, out: Any, grid: int | None) -> Any:
    return kernel.prepare(a, b, out=out, grid=None if grid is None else (grid, 1, 1))


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_integers_are_exact(choice: tuple[GemmSpec, int | None], device: CudaDevice, torch: Any, operands: Any) -> None:
    spec, grid = choice
    kernel = ptxgen.compile(spec, device)
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, getattr(torch, TORCH[spec.operand_type]))
        width = -(-n // 8) * 8
        out = torch.full((m, width), float("nan"), dtype=getattr(torch, TORCH[spec.output_type]), device="cuda")[:, :n]
        launch(kernel, a, b, out, grid).launch()
        assert torch.equal(out, (a.float() @ b.float().T).to(out.dtype)), (m, n, k)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_runs_are_bit_identical(
    choice: tuple[GemmSpec, int | None], device: CudaDevice, torch: Any, operands: Any
) -> None:
    spec, grid = choice
    a, b = operands(1024, 1024, 512, getattr(torch, TORCH[spec.operand_type]), kind="normal")
    out = torch.empty((1024, 1024), dtype=getattr(torch, TORCH[spec.output_type]), device="cuda")
    prepared = launch(ptxgen.compile(spec, device), a, b, out, grid)
    prepared.launch()
    first = out.clone()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10_000):
        out.fill_(float("nan"))
        prepared.launch()
        different += (out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(different) == 0


def test_tune(tmp_path: Path, device: CudaDevice, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.bench.timing._PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("ptxgen.bench.timing._LOAD_SECONDS", 0.01)
    table = tmp_path / "table.json"
    arguments = ["tune", "--shape", "300x200x100", "--candidates", "2", "--rounds", "1", "-o", str(table)]
    assert run(arguments) == 0
    monkeypatch.setenv("PTXGEN_TUNED", str(table))
    choice = ptxgen.best(300, 200, 100, target=TARGET, device=device)
    assert choice.basis == "measured"
    a, b = (torch.ones((rows, 104), dtype=torch.float16, device="cuda")[:, :100] for rows in (300, 200))
    d = ptxgen.compile(choice.spec, device)(a, b, grid=choice.grid)
    assert bool((d == 100).all())
