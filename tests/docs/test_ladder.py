"""docs/ladder.md: its PTX lines stand in the generated files, its exercises give what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
QUOTES = re.findall(r"```ptx (\S+)\n(.*?)```", TEXT, re.DOTALL)
EXERCISES = re.findall(r"```sh\n(.*?)```\n```output\n(.*?)```", TEXT, re.DOTALL)


def squeezed(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize(("where", "lines"), QUOTES, ids=[f"{i}-{q[0]}" for i, q in enumerate(QUOTES)])
def test_quoted_lines_are_generated(where: str, lines: str) -> None:
    path = where if "/" in where else f"sm_100a/{where}"
    generated = {squeezed(line) for line in (ROOT / "generated" / f"{path}.ptx").read_text().splitlines()}
    missing = [line for line in lines.splitlines() if squeezed(line) not in generated]
    assert not missing


ROWS = [
    (choice, target)
    for choices, targets in re.findall(r"(?m)^\| (`--set .*?) \| (.*?) \|", TEXT)
    for choice in re.findall(r"`(.*?)`", choices)
    for target in targets.split(", ")
]


@pytest.mark.parametrize(("choice", "target"), ROWS)
def test_choices_of_step_10_are_possible_as_they_are_written(choice: str, target: str) -> None:
    from ptxgen.commands.emit import emit

    arguments = ["--step", "10", "--target", target, *choice.split()]
    result = CliRunner().invoke(emit, arguments)
    assert result.exit_code == 0, result.exception
    usual = CliRunner().invoke(emit, arguments[:4])
    assert result.stdout != usual.stdout or (choice, target) == ("--set dependent_launch=true", "sm_90a")


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(("commands", "output"), EXERCISES, ids=range(len(EXERCISES)))
def test_exercises(commands: str, output: str, tmp_path: Path) -> None:
    shell = f'ptxgen() {{ "{sys.executable}" "{ROOT / "cli.py"}" "$@"; }}\n{commands}'
    run = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stderr
    for line in output.splitlines():
        assert line in run.stdout
