"""What benchmarks/compare.py makes of its cases: ratios, bars, and files that are added to."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ptxgen.bench.telemetry import Reading

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


class Tensor:
    """As much of a torch tensor as the script looks at."""

    def __init__(self, rows: int, width: int, columns: int) -> None:
        self.shape, self._width = (rows, columns), width
        self.dtype, self.device, self.filled = "torch.bfloat16", "cuda:0", 0
        self.T = self

    def stride(self, dimension: int) -> int:
        return self._width if dimension == 0 else 1

    def fill_(self, value: float) -> None:
        self.filled += 1


class Library:
    def matrix(self, rows: int, columns: int, element: Any, kind: str, seed: int) -> Tensor:
        return Tensor(rows, -(-columns // 8) * 8, columns)

    def checker(self, a: Tensor, b: Tensor) -> Any:
        def check(d: Tensor) -> str | None:
            assert d.filled == 1
            return "3 are NaN" if getattr(d, "wrong", False) else None

        return check


class Watch:
    """Takes 1 us for every kernel that was launched."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def seconds(self, launch: Any, count: int) -> tuple[float, Reading]:
        before = len(self.calls)
        for turn in range(count):
            launch(turn)
        return (len(self.calls) - before) / count * 1e-6, Reading(sm_mhz=1980.0, watts=None)

    def load(self, launch: Any, count: int, seconds: float) -> None:
        launch(0)


class Graph:
    """Runs again what was launched while it was open."""

    current: Graph | None = None

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def __enter__(self) -> None:
        Graph.current = self

    def __exit__(self, *error: object) -> None:
        Graph.current = None

    def replay(self) -> None:
        for launch in self.launches:
            launch()


@pytest.mark.parametrize("in_graphs", [False, True])
def test_cases(compare: Any, in_graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks come first, short launches go into graphs, arms that fail or are wrong are named and not timed."""
    arms = importlib.import_module("benchmarks.comparison.arms")
    calls: list[str] = []

    def maker(name: str) -> Any:
        def make(bench: Any, operands: Any, outputs: Any, size: Any) -> Any:
            if name == arms.PYPTX:
                raise ImportError("No module named 'pyptx'\nmore")
            if name == arms.TRITON:
                outputs[0].wrong = True

            def launch() -> None:
                if Graph.current is not None:
                    Graph.current.launches.append(launch)
                calls.append(name)

            return [launch for _ in operands], "a note" if name == arms.PTXGEN else ""

        return make

    class Torch:
        class cuda:  # noqa: N801
            CUDAGraph = Graph

            @staticmethod
            def graph(graph: Graph) -> Graph:
                return graph

        @staticmethod
        def full(shape: tuple[int, int], value: float, dtype: Any, device: Any) -> Tensor:
            return Tensor(shape[0], shape[1], shape[1])

        @staticmethod
        def mm(a: Any, b: Any, out: Any) -> None:
            if Graph.current is not None:
                Graph.current.launches.append(lambda: calls.append(arms.DENSE))
            calls.append(arms.DENSE)

    for name in arms.NAMES:
        monkeypatch.setitem(arms._MAKERS, name, maker(name))
    monkeypatch.setattr(compare, "GRAPH_SECONDS", 1.0 if in_graphs else 0.0)
    watch = Watch(calls)
    bench = arms.Bench(torch=Torch, device=None, stopwatch=watch, graph_stopwatch=watch, names=arms.NAMES)
    options = argparse.Namespace(cold=False, modes=None, rounds=2, pause=0.0, load=0.0)
    cases = compare._cases(bench, Library(), "bf16", "normal", (64, 67, 64), options)
    assert [one["mode"] for one in cases] == ["burst", "sustained"]
    for one in cases:
        assert set(one["arms"]) == {arms.PTXGEN, arms.CUBLAS, arms.CUBLASLT, arms.DENSE}
        assert one["mistakes"] == {arms.TRITON: "3 are NaN"}
        assert one["notes"] == {
            arms.PTXGEN: "a note",
            arms.PYPTX: "did not run: ImportError: No module named 'pyptx'",
        }
        assert one["launches_per_graph"] == (compare.GRAPH_LAUNCHES if in_graphs else None)
        assert one["arms"][arms.CUBLAS]["seconds"]["median"] == pytest.approx(1e-6)
        assert one["arms"][arms.CUBLAS]["tflops"] == pytest.approx(2 * 64 * 67 * 64 / 1e-6 / 1e12, abs=0.01)
    json.dumps(cases)
    assert compare._line(cases[0]).startswith("bf16 64x67x64 burst: ptxgen 0.6")
