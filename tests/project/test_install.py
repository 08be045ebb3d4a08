"""A wheel and an editable install both find their templates, wherever they are called from."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import ptxgen

ROOT = Path(__file__).resolve().parents[2]


def new_environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """A virtual environment that also sees the packages of this one, behind its own."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(own, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return python, environment


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_installed_package_emits_from_any_folder(tmp_path: Path, editable: bool) -> None:
    python, environment = new_environment(tmp_path / "venv")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, *(["--editable"] if editable else []), str(ROOT)], env=environment, check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = subprocess.run(
        [python, "-c", "import ptxgen, ptxgen.render; print(ptxgen.__file__); print(ptxgen.render.template_folder())"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    inside = str(ROOT if editable else tmp_path / "venv")
    assert all(path.startswith(inside) for path in where), where
    command = python.with_name("ptxgen")
    run = subprocess.run(
        [command, "emit", "--step", "6"], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == ptxgen.emit(ptxgen.step(6))
    assert list(elsewhere.iterdir()) == []
