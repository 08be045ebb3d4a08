"""`ptxgen asm` and `ptxgen generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ptxgen.commands import run
from ptxgen.toolchain import find_tool

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")


@needs_ptxas
def test_asm_of_a_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["asm", "--step", "6", "-o", str(tmp_path / "k.cubin")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ptxas 13.0.88 for sm_100a: ")
    assert "  shared memory   0 bytes static, 99328 dynamic" in lines
    assert "  spills          0 bytes stored, 0 bytes loaded" in lines
    assert not any(line.startswith(("setmaxnreg", "warning", "advice")) for line in lines)
    assert (tmp_path / "k.cubin").read_bytes()[:4] == b"\x7fELF"


@needs_ptxas
def test_asm_shows_the_refused_line(naive_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file(("mov.u32 %row, %ctaid.y;", "mov.u32 %row, %ctaidy;"))
    line = path.read_text().splitlines().index("    mov.u32 %row, %ctaidy;") + 1
    assert run(["asm", str(path), "-o", str(path.with_suffix(".cubin"))]) == 2
    error = capsys.readouterr().err
    assert f"{path}:{line}: Unknown symbol '%ctaidy'\n      mov.u32 %row, %ctaidy;" in error
    assert not path.with_suffix(".cubin").exists()


@needs_ptxas
@pytest.mark.parametrize(
    ("directive", "code", "words"),
    [(".minnctapersm 1", 0, "setmaxnreg: honoured"), ("", 1, "setmaxnreg: ignored; give the entry .reqntid and")],
)
def test_asm_says_whether_setmaxnreg_counts(
    directive: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(
        ".version 8.6\n.target sm_100a\n.address_size 64\n"
        f".entry k() .reqntid 128 {directive} {{ setmaxnreg.dec.sync.aligned.u32 40; ret; }}\n"
    )
    assert run(["asm", str(path)]) == code
    out = capsys.readouterr().out
    assert words in out
    assert ("C7508" in out) == (code == 1)


def test_asm_without_ptxas(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_PTXAS", "/no/such/ptxas")
    assert run(["asm", "--step", "6"]) == 2
    assert "PTXGEN_PTXAS names '/no/such/ptxas', which is not a program" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["asm"], "which kernel? give a PTX file or --step N"),
        (["asm", "/no/such.ptx"], "cannot read '/no/such.ptx': No such file"),
        (["asm", "x.ptx", "--step", "6"], "--step and --set do not go with it"),
        (["asm", "x.ptx", "--set", "pipe_depth=4"], "--step and --set do not go with it"),
    ],
)
def test_asm_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = {"sm_100a/six.ptx": {"step": 6}, "sm_100a/deep.ptx": {"step": 5, "set": ["pipe_depth=4"]}}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": entries}))
    here = ["generate", "--folder", str(tmp_path)]
    assert run([*here, "--check"]) == 1
    assert "missing: sm_100a/six.ptx" in capsys.readouterr().out
    assert not (tmp_path / "sm_100a").exists()

    assert run(here) == 0
    assert "written: sm_100a/six.ptx" in capsys.readouterr().out
    assert run([*here, "--check"]) == 0
    assert run(["emit", "--step", "6", "-o", str(tmp_path / "six.ptx")]) == 0
    assert (tmp_path / "six.ptx").read_bytes() == (tmp_path / "sm_100a" / "six.ptx").read_bytes()
    (tmp_path / "six.ptx").unlink()

    edited = tmp_path / "sm_100a" / "deep.ptx"
    text = edited.read_text()
    edited.write_text(text.replace("ret;", "exit;"))
    capsys.readouterr()
    assert run([*here, "--check"]) == 1
    out = capsys.readouterr().out
    assert "stale: sm_100a/deep.ptx" in out
    assert "-    exit;" in out
    assert "exit;" in edited.read_text()
    assert run(here) == 0
    assert edited.read_text() == text

    (tmp_path / "sm_100a" / "old.ptx").write_text("")
    capsys.readouterr()
    assert run([*here, "--check"]) == 1
    assert "orphaned: sm_100a/old.ptx" in capsys.readouterr().out


def test_generate_without_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--check", "--folder", str(tmp_path)]) == 2
    assert "cannot read the manifest" in capsys.readouterr().err
