"""`ptxgen bench`: turns and statistics, wrong results, reports; on no GPU, one sentence."""

from __future__ import annotations

import ctypes
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.bench.libraries import DriverLibrary
from ptxgen.bench.report import Case, Report
from ptxgen.bench.telemetry import Reading, Telemetry
from ptxgen.bench.timing import Arm, Timing, compare
from ptxgen.commands import run
from ptxgen.device.cuda_driver import CudaDriver, cuda_driver
from ptxgen.hardware.element_types import element_type

F16, BF16 = element_type("f16"), element_type("bf16")
NOTHING = Reading(sm_mhz=None, watts=None)


@dataclass
class Watch:
    """A stopwatch that says what it is asked."""

    asked: list[tuple[str, str, int]] = field(default_factory=list)

    def seconds(self, launch: Any, count: int) -> tuple[float, Reading]:
        self.asked.append(("time", launch(0), count))
        seconds = {"a": 1e-3, "b": 2e-3}[launch(0)] * (5 if len(self.asked) == 3 else 1)
        return seconds, Reading(sm_mhz=1000.0 + len(self.asked), watts=None)

    def load(self, launch: Any, count: int, seconds: float) -> None:
        self.asked.append(("load", launch(0), count))


ARMS = [Arm(name=name, launch=lambda turn, name=name: name) for name in "ab"]  # type: ignore[misc]


def test_arms_take_turns_and_burst_follows_a_pause() -> None:
    watch = Watch()
    pauses: list[float] = []
    timings = compare(watch, ARMS, flop=1e12, mode="burst", rounds=3, sleep=pauses.append)  # type: ignore[arg-type]
    order = [name for kind, name, _ in watch.asked if kind == "time"]
    assert order == [*"ab", *"ab", *"ba", *"ab", *"ba"]
    assert len(pauses) == 8
    assert timings["a"].launches == 30  # 30 TFLOP in launches of 1
    assert timings["a"].rounds == (5e-3, 1e-3, 1e-3, 1e-3)
    assert timings["a"].seconds == 1e-3
    assert timings["b"].seconds == 2e-3
    assert timings["a"].reading == Reading(sm_mhz=1006.5, watts=None)


def test_sustained_work_is_preceded_by_its_own_load() -> None:
    watch = Watch()
    timings = compare(watch, ARMS, flop=1e15, mode="sustained", rounds=2)  # type: ignore[arg-type]
    assert [(kind, name) for kind, name, _ in watch.asked[2:]] == [
        (kind, name) for name in "abba" for kind in ("load", "time")
    ]
    assert (timings["a"].launches, timings["b"].launches) == (500, 250)  # half a second


def report(**changes: Any) -> Report:
    timings = {
        "step 7": Timing(rounds=(2e-4, 1e-4, 4e-4), launches=9, reading=Reading(sm_mhz=1980.4, watts=650.0)),
        "cuBLAS": Timing(rounds=(1e-4,) * 3, launches=9, reading=NOTHING),
    }
    cases = [
        Case(m=s, n=s, k=s, inputs="normal", buffers="hot", mode=mode, timings=timings, mistakes={})
        for s in (2048, 4096)
        for mode in ("burst", "sustained")
    ]
    wrong = Case(
        m=64, n=32, k=16, inputs="normal", buffers="hot", mode="burst", timings={}, mistakes={"step 7": "9 are NaN"}
    )
    values: dict[str, Any] = {
        "environment": {"gpu": "H200"},
        "arms": ("step 7", "cuBLAS"),
        "baseline": "cuBLAS",
        "cases": (*cases, wrong),
    }
    return Report(**(values | changes))


def test_table() -> None:
    lines = report().table()
    assert "/ cuBLAS" in lines[0]
    # 2 * 2048^3 / 200 us = 85.9 TFLOP/s
    assert lines[1].split() == "2048 x 2048 x 2048 normal hot burst step 7 85.9 42.9 ... 171.8 1980 650 0.500".split()
    assert lines[2].split()[-6:] == ["171.8", "171.8", "...", "171.8", "-", "-"]
    assert lines[-1].split() == "64 x 32 x 16 normal hot burst step 7 wrong: 9 are NaN".split()


def test_json_keeps_every_round() -> None:
    data = json.loads(json.dumps(report().to_json()))
    arm = data["cases"][0]["arms"]["step 7"]
    assert arm["seconds"] == {"median": 2e-4, "min": 1e-4, "max": 4e-4, "rounds": [2e-4, 1e-4, 4e-4]}
    assert (arm["ratio"], arm["tflops"], arm["sm_mhz"]) == (0.5, 85.9, 1980.4)
    assert "ratio" not in data["cases"][0]["arms"]["cuBLAS"]
    assert data["cases"][-1] == {
        "m": 64, "n": 32, "k": 16, "inputs": "normal", "buffers": "hot", "mode": "burst", "arms": {},
        "mistakes": {"step 7": "9 are NaN"},
    }  # fmt: skip


def test_plot() -> None:
    root = ElementTree.fromstring(report(arms=("step 7", "cuBLAS <&>")).svg())
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"2048", "4096", "step 7, burst", "step 7, sustained"} <= set(texts)
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(circles) == 4
    heights = {float(circle.attrib["cy"]) for circle in circles}
    assert all(40 <= height <= 370 for height in heights)


class Nvml:
    """Enough of NVML for a GPU that does not tell its power limit."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, handle: Any) -> int:  # noqa: N802
        return 0 if address == b"0000:0f:00.0" else 6

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:  # noqa: N802
        text.value = b"580.65.06"
        return 0

    def __getattr__(self, name: str) -> Any:
        values = {"nvmlDeviceGetPowerUsage": 650500, "nvmlDeviceGetClockInfo": 1395, "nvmlDeviceGetTemperature": 60}

        def call(device: Any, *arguments: Any) -> int:
            if name not in values:
                return 3  # NVML_ERROR_NOT_SUPPORTED
            ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_uint))[0] = values[name]
            return 0

        return call


def test_telemetry() -> None:
    nvml: Any = Nvml()
    telemetry = Telemetry("0000:0f:00.0", nvml)
    assert telemetry.read() == Reading(sm_mhz=1395.0, watts=650.5)
    assert telemetry.limits() == {
        "power_limit_watts": None,
        "max_sm_mhz": None,
        "temperature_celsius": 60.0,
        "driver": "580.65.06",
    }
    assert Telemetry("0000:ff:00.0", nvml).read() == NOTHING


@pytest.fixture
def fake(make_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line on a stand-in driver, in a hurry."""
    fake, _ = make_gpu()
    cuda_driver.cache_clear()
    for module in ("cuda", "cuda_driver"):
        monkeypatch.setattr(f"ptxgen.device.{module}.cuda_driver", lambda: CudaDriver(fake))
    monkeypatch.setattr("ptxgen.bench.timing._PAUSE_SECONDS", 0)
    monkeypatch.setattr("ptxgen.bench.timing._LOAD_SECONDS", 0)
    monkeypatch.setattr("ptxgen.bench.timing._MAX_LAUNCHES", 12)
    return fake


def test_the_command(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    options = ["--size", "64", "-m", "40", "-n", "24", "-k", "16", "--rounds", "1", "--cold"]
    assert run(["bench", "--step", "6", *options, "--json", str(out), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA B200 (cuda:0)" in printed
    data = json.loads(out.read_text())
    assert [(c["m"], c["n"], c["k"], c["mode"]) for c in data["cases"]] == [
        (64, 64, 64, "burst"), (64, 64, 64, "sustained"), (40, 24, 16, "burst"), (40, 24, 16, "sustained"),
    ]  # fmt: skip
    timing = data["cases"][0]["arms"]["step 6 (sm_100a)"]
    assert timing["seconds"]["median"] == pytest.approx(2.5e-3 / 12)
    assert len(timing["seconds"]["rounds"]) == 2
    assert data["environment"]["cuda"] == "13.0"
    assert plot.read_text().startswith("<svg")
    assert fake.gate != 0


def test_a_wrong_kernel_is_not_timed(
    fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(fake)._cuLaunchKernelEx

    def spoil(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self.matrix(self.launches[-1]["values"][2])[5, 3] = np.nan

    monkeypatch.setattr(type(fake), "_cuLaunchKernelEx", spoil)
    assert run(["bench", "--step", "6", "--size", "64", "--mode", "burst"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "step 6 (sm_100a)" in last and "wrong: it holds NaN" in last


def test_without_a_gpu_one_sentence(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.devices = [("NVIDIA H200", (9, 0), 132)]
    assert run(["bench", "--step", "6"]) == 2
    assert capsys.readouterr().err == (
        "ptxgen: error: bench times kernels on a GPU with .target sm_100a, "
        "and no CUDA device loads PTX with .target sm_100a\n"
    )


def test_sampled_rows_find_a_wrong_row(make_gpu: Any) -> None:
    _, device = make_gpu()
    library = DriverLibrary(device)
    a, b = (library.matrix(70, 16, BF16, kind, seed) for seed, kind in enumerate(("normal", "uniform")))
    d = library.matrix(70, 70, BF16, "zeros", 0)
    host = (library.to_numpy(a).astype(np.float32) @ library.to_numpy(b).astype(np.float32).T).astype(d._like.dtype)
    device.write_rows(d._buffer, host, pitch_bytes=d._pitch_bytes)
    assert library.mistake(a, b, d) is None
    host[69, 5] = 77
    device.write_rows(d._buffer, host, pitch_bytes=d._pitch_bytes)
    assert "1 of 4480 elements differ" in str(library.mistake(a, b, d))
