"""A fault costs a worker its device, and the questions that follow nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.probe import Probe, load_probes
from conformance.run import main
from conformance.workers import Lane
from ptxgen.device.cuda_driver import CudaError
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.interface import Device
from ptxgen.errors import DeviceError


class FaultyDevice(EmulatedDevice):
    """Loses its context as a GPU does: the first finding is an error of the driver's, and the last."""

    def launch(self, *arguments: Any, **options: Any) -> Any:
        report = super().launch(*arguments, **options)
        if report.errors:
            self.launch = self.lost  # type: ignore[method-assign]
            self.lost()
        return report

    def lost(self, *arguments: Any, **options: Any) -> Any:
        raise CudaError("launching", "CUDA_ERROR_MISALIGNED_ADDRESS", 716, "misaligned address")


def faulty() -> Device:
    return FaultyDevice(chip="sm_90a", workers=1)


def absent() -> Device:
    raise DeviceError("no such device")


def dying() -> Device:
    os._exit(3)


@pytest.fixture
def probe() -> Probe:
    return next(probe for probe in load_probes() if probe.name == "bulk_store")


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane(faulty)
    yield lane
    lane.close()


def test_cases_behind_a_fault_get_a_new_device(lane: Lane, probe: Probe) -> None:
    alignment = next(question for question in probe.questions if question.name == "alignment")
    aligned, *others = alignment.cases
    faults = [outcome.fault for outcome in lane.ask(probe, replace(alignment, cases=(*others[:2], aligned)))]
    assert faults == ["CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS", ""]


@pytest.mark.parametrize(("opens", "complaint"), [(absent, "no such device"), (dying, "died with exit code 3")])
def test_without_a_device_nothing_is_asked(opens: Any, complaint: str, probe: Probe) -> None:
    with pytest.raises(DeviceError, match=complaint):
        Lane(opens).ask(probe, probe.questions[0])


def test_the_command(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    arguments = ["--no-steps", "-k", "parity", "--workers", "1", "--date", "2026-01-31"]
    result = CliRunner().invoke(main, [*arguments, "--only", "emulator", "--output", str(first)])
    assert result.exit_code == 0, result.output
    assert "parity.idioms" in result.output
    report = json.loads(first.read_text())
    assert report["date"] == "2026-01-31"
    (case,) = report["questions"]["parity.idioms"]["cases"].values()
    assert case["emulator_words"] == ["0", "1", "1", "0", "0", "1"]
    assert case["cuda"] is None

    case["cuda"] = "0123456789abcdef"
    first.write_text(json.dumps(report))
    result = CliRunner().invoke(main, [*arguments, "--against", str(first), "--output", str(second)])
    assert result.exit_code == 1
    (case,) = json.loads(second.read_text())["questions"]["parity.idioms"]["cases"].values()
    assert (case["cuda"], case["verdict"]) == ("0123456789abcdef", "differs")
