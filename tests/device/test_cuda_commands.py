"""The commands on a GPU, on a stand-in for its driver; `cache` and `launch-template`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.device.cuda_cache import CubinCache
from ptxgen.device.cuda_driver import CudaDriver
from ptxgen.device.declarations import declarations
from ptxgen.device.description import parse_launch
from ptxgen.device.launch import Launch
from ptxgen.hardware.targets import target

SMALL = ["--step", "6", "-m", "130", "-n", "40", "-k", "72"]


@pytest.fixture
def fake(make_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line on a stand-in driver."""
    fake, _ = make_gpu()
    for module in ("cuda", "cuda_driver"):
        monkeypatch.setattr(f"ptxgen.device.{module}.cuda_driver", lambda: CudaDriver(fake))
    return fake


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_run_on_a_gpu(device: str, fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *SMALL, "--device", device]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    number = 1 if device == "cuda:1" else 0
    assert f"step 6 (sm_100a) on NVIDIA B200 (cuda:{number}): M=130 N=40 K=72, grid 148" in captured.out
    assert "2500.0 us" in captured.out
    assert "all 5200 elements match the bound" in captured.out


def test_auto_says_why_it_does_without(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.devices = [("NVIDIA H200", (9, 0), 132)]
    with pytest.raises(AssertionError, match="emulated"):
        run_on_emulator(["run", *SMALL])
    assert capsys.readouterr().err == (
        "ptxgen: running on the emulator: no CUDA device loads PTX with .target sm_100a\n"
    )


def run_on_emulator(arguments: list[str]) -> None:
    """Run, but stop where the emulator would begin."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("emulated")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ptxgen.device.emulated.Machine", refuse)
        run(arguments)


def test_wrong_numbers_of_a_gpu(fake: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(fake)._cuLaunchKernelEx

    def spoil(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self.matrix(self.launches[-1]["values"][2])[5, 3] = np.inf

    monkeypatch.setattr(type(fake), "_cuLaunchKernelEx", spoil)
    assert run(["run", *SMALL, "--device", "cuda"]) == 1
    assert "1 of 5200 elements differ" in capsys.readouterr().out


def test_verify_on_a_gpu(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--step", "6", "--device", "cuda", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["clean"]
    assert {item["policy"] for item in data["runs"]} == {"hardware"}
    assert [item["grid"][0] for item in data["runs"][:3]] == [1, 2, 148]
    assert run(["verify", "--step", "6", "--device", "cuda", "--policy", "late"]) == 2
    assert "--policy goes with the emulator" in capsys.readouterr().err


def test_a_hung_kernel_ends_the_process(
    fake: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.hangs = True
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    run(["run", *SMALL, "--device", "cuda", "--timeout", "0.05"])
    assert exits == [2]
    assert "did not end within 0.05 s" in capsys.readouterr().err


def test_devices_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *SMALL, "--device", "gpu"]) == 2
    assert "'gpu' is no device: give auto, emulator, cuda or cuda:N" in capsys.readouterr().err


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PTXGEN_CACHE", raising=False)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    cache = CubinCache.from_environment()
    assert cache is not None
    cache.store("key", bytes(299_968))
    assert run(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 cubins, 0.3 of 256 MB\n"
    assert run(["cache", "clear"]) == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("PTXGEN_CACHE", "0")
    assert run(["cache", "info"]) == run(["cache", "clear"]) == 0
    assert capsys.readouterr().out.endswith("off (PTXGEN_CACHE)\noff (PTXGEN_CACHE); nothing deleted\n")


FOREIGN = """\
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry matmul(
    .param .align 64 .b8 a_desc[128], .param .align 64 .b8 b_desc[128], .param .u64 .ptr .global .align 1 d,
    .param .u32 size_k, .param .s32 flags, .param .f32 alpha, .param .align 8 .b8 extra[24]
)
.maxntid 384
.reqnctapercluster 2, 1, 1
{
    ret;
}
.entry other { ret; }
"""


def test_launch_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "foreign.ptx", tmp_path / "launch.json"
    file.write_text(FOREIGN)
    assert run(["launch-template", str(file), "--entry", "matmul", "-o", str(out)]) == 0
    guessed = capsys.readouterr().err
    assert guessed == "ptxgen: guessed, so check: grid, block, dynamic_smem_bytes, buffers, arguments\n"
    description = parse_launch(out.read_text(), "launch.json")
    assert (description.block, description.cluster) == ((384, 1, 1), (2, 1, 1))
    assert [argument.name for argument in description.arguments] == [
        "a_desc", "b_desc", "d", "size_k", "flags", "alpha", "extra",
    ]  # fmt: skip
    data = json.loads(out.read_text())
    assert data["arguments"][3] == {"name": "size_k", "kind": "u32", "value": "K"}
    assert data["arguments"][6] == {"name": "extra", "kind": "bytes", "hex": "00" * 24}
    assert data["expect"] == {"kind": "gemm", "a": "A", "b": "B", "d": "D"}
    # It fits the entry as it stands, at any size.
    for m, n, k in ((512, 512, 512), (1, 1, 1)):
        launch = Launch.of(description, problem={"M": m, "N": n, "K": k}, chip=target("sm_90a"))
        launch.check_entry(declarations(FOREIGN, "foreign.ptx").entries["matmul"], "foreign.ptx")
        launch.pack({"A": 0, "B": 0, "D": 0}, lambda tensor_map: tensor_map)


def test_launch_template_of_our_own_text_is_nearly_its_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step6.ptx"
    file.write_text(ptxgen.emit(ptxgen.step(6)))
    assert run(["launch-template", str(file)]) == 0
    captured = capsys.readouterr()
    assert "block" not in captured.err  # .reqntid says it
    data = json.loads(captured.out)
    assert data["block"] == [128, 1, 1]
    assert [argument["kind"] for argument in data["arguments"]] == ["tensor_map"] * 3 + ["u32"] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "has several entries, choose one with --entry: matmul, other"),
        (["--entry", "matmull"], "did you mean 'matmul'"),
    ],
)
def test_launch_template_errors(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "foreign.ptx"
    file.write_text(FOREIGN)
    assert run(["launch-template", str(file), *options]) == 2
    assert words in capsys.readouterr().err
    file.write_text(FOREIGN.split(".visible")[0])
    assert run(["launch-template", str(file)]) == 2
    assert "has no entry to launch" in capsys.readouterr().err
