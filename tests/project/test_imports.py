"""Emitting is light: what it may import, and what the package gives by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ptxgen

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "cuda", "ml_dtypes", "ptxgen.device", "ptxgen.emulator")


def modules_after(code: str) -> set[str]:
    """The modules that a new interpreter holds after running some code with stdout closed."""
    program = f"import os, sys\nsys.stdout = open(os.devnull, 'w')\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "from ptxgen.commands import run; assert run(['emit', '--step', '6']) == 0",
        "from ptxgen.commands import run; assert run(['emit', '--step', '5', '--format', 'ir']) == 0",
        "from ptxgen.commands import run; assert run(['emit', '--step', '4', '--format', 'launch']) == 0",
        "from ptxgen.commands import run; assert run(['steps']) == 0",
        "import ptxgen; ptxgen.emit(ptxgen.step(6).replace(pipe_depth=4))",
    ],
)
def test_emitting_imports_neither_numpy_nor_cuda(code: str) -> None:
    loaded = modules_after(code)
    assert "ptxgen.spec" in loaded or "steps" in code
    assert not [name for name in loaded if name.split(".")[0] in HEAVY or name in HEAVY]


def test_importing_the_package_imports_nothing_of_it() -> None:
    assert {name for name in modules_after("import ptxgen") if name.startswith("ptxgen.")} == set()


def test_the_guard_sees_numpy_when_it_is_there() -> None:
    assert "numpy" in modules_after("import ptxgen.device.arrays")


def test_every_public_name_is_there() -> None:
    for name in ptxgen.__all__:
        assert getattr(ptxgen, name) is not None
    assert set(ptxgen.__all__) <= set(dir(ptxgen))
    with pytest.raises(AttributeError, match="module 'ptxgen' has no attribute 'emti'"):
        ptxgen.emti  # noqa: B018
