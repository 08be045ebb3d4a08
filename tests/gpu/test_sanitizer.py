"""compute-sanitizer finds nothing in the sm_90a steps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgen.device.cuda import CudaDevice

SCRIPT = Path(__file__).with_name("sanitized_steps.py")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_nothing_is_found(tool: str, device: CudaDevice) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(SCRIPT)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if "not supported" in run.stdout + run.stderr:
        pytest.skip(f"compute-sanitizer does not run here: {run.stdout.splitlines()[-1]}")
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "all steps are right" in run.stdout
    assert "0 errors" in run.stdout or "0 hazards" in run.stdout
