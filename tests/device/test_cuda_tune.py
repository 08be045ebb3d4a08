"""`ptxgen tune` on a stand-in for NVIDIA's driver; without a GPU, one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.device.cuda_driver import CudaDriver, cuda_driver
from ptxgen.tuning import campaign

SMALL = ["--shape", "72x40x24", "--candidates", "2", "--rounds", "1"]


@pytest.fixture
def fake(make_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line on a stand-in driver, in a hurry."""
    fake, _ = make_gpu()
    cuda_driver.cache_clear()
    campaign._device.cache_clear()
    for module in ("cuda", "cuda_driver"):
        monkeypatch.setattr(f"ptxgen.device.{module}.cuda_driver", lambda: CudaDriver(fake))
    monkeypatch.setattr("ptxgen.bench.timing._PAUSE_SECONDS", 0)
    monkeypatch.setattr("ptxgen.bench.timing._LOAD_SECONDS", 0)
    monkeypatch.setattr("ptxgen.bench.timing._MAX_LAUNCHES", 12)
    monkeypatch.setattr("ptxgen.tuning.arena._MAX_LAUNCHES", 12)
    monkeypatch.setattr("ptxgen.tuning.arena._WARM_UP_SECONDS", 0)
    return fake


def test_the_command(
    fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "b200.json"
    assert run(["tune", *SMALL, "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "[1/1] 72 x 40 x 24 f16: done" in printed
    assert printed.splitlines()[-1] == f"{out}: 1 of 1 problems"
    data = json.loads(out.read_text())
    assert (data["gpu"], data["target"], data["sm_count"]) == ("NVIDIA B200", "sm_100a", 148)
    assert data["environment"]["cuda"] == "13.0"
    assert set(data["entries"][0]["microseconds"]) == {"burst", "sustained"}
    state = json.loads((tmp_path / "b200.state.json").read_text())
    assert len(state["finished"]["72 x 40 x 24 f16"]["contestants"]) >= 2
    assert fake.gate != 0
    assert run(["tune", *SMALL, "-o", str(out)]) == 0
    assert "72 x 40 x 24 f16: done earlier" in capsys.readouterr().out
    monkeypatch.setenv("PTXGEN_TUNED", str(out))
    assert ptxgen.best(72, 40, 24).basis == "measured"


def test_a_table_of_another_gpu(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    assert run(["tune", *SMALL, "-o", str(out)]) == 0
    out.write_text(out.read_text().replace("B200", "B100"))
    assert run(["tune", *SMALL, "-o", str(out)]) == 2
    assert "is a table of NVIDIA B100 for sm_100a; this is NVIDIA B200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "64x64"], "a shape is three numbers joined by x"),
        (["--target", "sm_90a"], "tune measures kernels for sm_90a, and no GPU loads them"),
        (["--device", "7"], "tune measures kernels for"),
    ],
)
def test_refusals(fake: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_one_sentence(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.devices = []
    assert run(["tune"]) == 2
    assert capsys.readouterr().err == (
        "ptxgen: error: tune measures kernels on a GPU, and the CUDA driver shows no device\n"
    )
