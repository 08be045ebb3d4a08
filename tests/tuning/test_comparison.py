"""What benchmarks/compare.py makes of its cases: ratios, bars, and files that are added to."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.compare")


def case(n: int, speeds: dict[str, float], mode: str = "burst", **changes: Any) -> dict[str, Any]:
    def arm(tflops: float) -> dict[str, Any]:
        seconds = 2.0 * n**3 / tflops / 1e12
        return {
            "tflops": tflops,
            "seconds": {"median": seconds, "min": seconds, "max": seconds, "rounds": [seconds] * 2},
            "launches_per_round": 10,
            "sm_mhz": 1500.0,
            "watts": 690.0,
        }

    arms = {name: arm(value) for name, value in speeds.items()}
    values = {"type": "bf16", "m": n, "n": n, "k": n, "inputs": "normal", "buffers": "hot", "mode": mode}
    return {**values, "arms": arms, "mistakes": {}, "notes": {}, **changes}


def test_bars(compare: Any) -> None:
    summary = importlib.import_module("benchmarks.comparison.summary")
    cases = [case(n, {"ptxgen": 816.0, "cuBLAS": 800.0, "Triton": 816.0}) for n in (2048, 4096)]
    cases.append(case(8192, {"ptxgen": 780.0, "cuBLAS": 800.0, "cuBLASLt best": 820.0}))
    cases.append(case(512, {"ptxgen": 11.0, "cuBLAS": 10.0, "cuBLAS, dense D": 50.0}))
    cases.append(case(4096, {"ptxgen": 1.0, "cuBLAS": 9.0}, inputs="uniform"))
    assert summary.bars(cases) == [
        "missed  1.005 (bar 1.01)  bf16, burst: geometric mean to cuBLAS's default, 3 of 5 sizes",
        "missed  0.975 (bar 0.99)  bf16, burst: least ratio to cuBLAS's default, 3 of 5 sizes",
        "missed  0.951 (bar 0.995)  bf16, burst: least ratio to the best other arm",
        "missed  0.983 (bar 1.03)  bf16, burst: geometric mean to the best other arm (a target)",
        "met     1.100 (bar 1)  bf16, burst: geometric mean to cuBLAS's default, 1 small and skewed shapes",
    ]


def test_table_and_fraction(compare: Any) -> None:
    summary = importlib.import_module("benchmarks.comparison.summary")
    cases = [case(4096, {"ptxgen": 811.0, "cuBLAS": 405.5}), case(512, {"cuBLAS": 12.5})]
    # 132 SMs x 4096 x 1.5 GHz = 811 TFLOP/s
    assert summary.peak_fraction(cases[0], "ptxgen", 132) == pytest.approx(1, abs=1e-4)
    lines = summary.table(cases, ("ptxgen", "cuBLAS", "Triton"), 132)
    assert lines[0].split(" | ")[2:4] == ["ptxgen", "cuBLAS"]
    assert lines[2] == "| 4096³ | burst | 811 | 406 | 2.000 | 2.000 | 1.000 | 1500 | 690 |"
    assert lines[3] == "| 512³ | burst | - | 12.5 | - | - | - | - | - |"


def test_a_file_is_added_to(compare: Any) -> None:
    summary = importlib.import_module("benchmarks.comparison.summary")
    old = [case(4096, {"cuBLAS": 1.0}), case(2048, {"cuBLAS": 2.0})]
    merged = summary.merge(old, [case(4096, {"cuBLAS": 3.0}), case(4096, {"cuBLAS": 4.0}, mode="sustained")])
    assert [(one["m"], one["mode"], one["arms"]["cuBLAS"]["tflops"]) for one in merged] == [
        (2048, "burst", 2.0),
        (4096, "burst", 3.0),
        (4096, "sustained", 4.0),
    ]


def test_show(
    compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compare.json"
    cases = [case(n, {"ptxgen": 800.0, "cuBLAS": 790.0}, mode) for n in (2048, 4096) for mode in ("burst", "sustained")]
    path.write_text(json.dumps({"runs": [{"sm_count": 132}], "cases": cases}))
    plot, markdown = tmp_path / "compare.svg", tmp_path / "compare.md"
    monkeypatch.setattr(sys, "argv", ["compare", "--show", str(path), "--plot", str(plot), "--markdown", str(markdown)])
    compare.main()
    assert "met     1.013 (bar 1.01)  bf16, burst" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "compare_bf16.svg").read_text()
    assert markdown.read_text().startswith("### bf16\n")
