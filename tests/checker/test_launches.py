"""What a launch may find of the one ahead of it: only a dependent launch has to wait."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ptxgen.device.description import launch_in_header
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel

TEXT = (Path(__file__).resolve().parents[2] / "generated" / "sm_90a" / "step10.ptx").read_text()
DEPENDENT = '//   "dependent": true,\n'
WAIT = re.compile(r"    griddepcontrol\.wait;[^\n]*\n")


def rules_of(text: str) -> set[str]:
    description = launch_in_header(text, "text")
    assert description is not None
    device = EmulatedDevice("sm_90a", policy="eager", seed=1, workers=1, check=True)
    kernel = Kernel(text, description, device, name="text")
    a, b = np.ones((130, 70), np.float16), np.ones((200, 70), np.float16)
    d, report = kernel.execute(a, b)
    assert (d == 70).all()
    return {finding.rule for finding in report.findings}


def test_a_dependent_launch_waits_for_the_one_ahead() -> None:
    assert DEPENDENT in TEXT
    assert rules_of(TEXT) == set()
    assert rules_of(WAIT.sub("", TEXT)) == {"missing-grid-wait"}


@pytest.mark.parametrize("wait", [True, False])
def test_an_ordinary_launch_has_nothing_to_wait_for(wait: bool) -> None:
    """It may still let its own successor begin."""
    text = TEXT.replace(DEPENDENT, '//   "dependent": false,\n')
    assert "griddepcontrol.launch_dependents" in text
    assert rules_of(text if wait else WAIT.sub("", text)) == set()


def test_of_a_launch_that_does_not_say_the_text_decides() -> None:
    """Who waits at all has to do it before any access to global memory."""
    silent = TEXT.replace(DEPENDENT, "")
    (wait, *_) = WAIT.findall(silent)
    assert rules_of(silent) == set()
    assert rules_of(WAIT.sub("", silent)) == set()
    late = WAIT.sub("", silent).replace(
        "    griddepcontrol.launch_dependents", f"{wait}    griddepcontrol.launch_dependents", 1
    )
    assert rules_of(late) == {"missing-grid-wait"}
