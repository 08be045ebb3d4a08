"""`ptxgen run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ptxgen
from ptxgen.commands import run

Write = Callable[..., Path]

NOTE = "ptxgen: running on the emulator: "
NO_EXPECT = (',\n//   "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"}}', "}")
SMALL = ["run", "--step", "6", "-m", "130", "-n", "40", "-k", "72", "--workers", "1", "--device", "emulator"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A (3 x 10) and B (33 x 10) in float16."""
    generator = np.random.default_rng(5)
    for name, rows in (("a", 3), ("b", 33)):
        np.save(tmp_path / f"{name}.npy", generator.standard_normal((rows, 10)).astype(np.float16))
    return tmp_path / "a.npy", tmp_path / "b.npy"


def test_a_step_on_made_up_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "step 6 (sm_100a) on emulated B200: M=130 N=40 K=72, grid 148"
    assert "warp instructions" in lines[1]
    assert lines[2].startswith("all 5200 elements match the bound: max |d - ref| = ")
    assert captured.err == ""


@pytest.mark.parametrize("kind", ["integers", "ramp"])
def test_made_up_integers_are_checked_exactly(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--input", kind, "--grid", "2", "--policy", "late"]) == 0
    out = capsys.readouterr().out
    assert "grid 2\n" in out
    assert "all 5200 elements match the exact result" in out


def test_auto_says_where_it_runs(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(naive_file())]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(NOTE)
    assert captured.err.count("\n") == 1
    assert "M=5 N=40 K=16, grid 2 x 5" in captured.out


def test_files_in_and_out(naive_file: Write, files: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = files
    out = tmp_path / "d.npy"
    assert run(["run", str(naive_file()), "--a", str(a), "--b", str(b), "--out", str(out)]) == 0
    d = np.load(out)
    assert (d.shape, d.dtype) == ((3, 33), np.float16)
    np.testing.assert_allclose(d, np.load(a).astype(float) @ np.load(b).astype(float).T, rtol=2e-3, atol=1e-3)


def test_one_file_gives_the_sizes_that_it_has(
    naive_file: Write, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", str(naive_file()), "--b", str(files[1]), "-m", "2"]) == 0
    assert "M=2 N=33 K=10," in capsys.readouterr().out


def test_bf16_results_are_saved_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.npy"
    types = ["--set", "operand_type=bf16", "--set", "output_type=bf16"]
    assert run([*SMALL, *types, "--out", str(out)]) == 0
    assert capsys.readouterr().err == f"ptxgen: NumPy reloads {out} as raw bytes; view them as bfloat16\n"
    assert np.load(out).view(ml_dtypes.bfloat16).shape == (130, 40)


def test_cast(naive_file: Write, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = files
    np.save(a, np.load(a).astype(np.float64))
    command = ["run", str(naive_file()), "--a", str(a), "--b", str(b)]
    assert run(command) == 2
    assert f"A ({a}) has dtype float64, the kernel takes f16 (float16)" in capsys.readouterr().err
    assert run([*command, "--cast"]) == 0


def test_a_wrong_kernel(naive_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It drops the last element of K; the result is kept all the same."""
    path = naive_file(("mov.u32 %left, %k;", "sub.u32 %left, %k, 1;"))
    assert run(["run", str(path), "--out", str(tmp_path / "d.npy")]) == 1
    out = capsys.readouterr().out
    assert "elements differ from the reference by more than the bound allows\nfirst at D[" in out
    assert (tmp_path / "d.npy").exists()


def test_a_kernel_that_breaks_a_rule(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(naive_file(("ld.param.u64 %a, [a];", "mov.u64 %a, 64;")))]) == 1
    out = capsys.readouterr().out
    assert "error out-of-bounds: " in out
    assert "line " in out
    assert "are NaN or infinite" in out


def test_numbers_that_nobody_can_check(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file(NO_EXPECT)
    assert run(["run", str(path)]) == 0
    assert capsys.readouterr().out.endswith('numbers not checked: the launch description has no "expect"\n')
    assert run(["run", str(path), "--out", "d.npy"]) == 2
    assert "does not say which buffers are A, B and D" in capsys.readouterr().err


def test_launch_file(naive_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file()
    header = "".join(line.removeprefix("//") for line in path.read_text().splitlines()[1:12])
    other = tmp_path / "launch.json"
    other.write_text(header.replace(" launch:", "").replace('"M": 5', '"M": 2'))
    path.write_text(path.read_text().replace("// launch:", "// "))
    assert run(["run", str(path)]) == 2
    assert "give one with --launch" in capsys.readouterr().err
    assert run(["run", str(path), "--launch", str(other)]) == 0
    assert "M=2 N=40 K=16" in capsys.readouterr().out


def test_empty_operands(naive_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = tmp_path / "a.npy"
    np.save(a, np.zeros((3, 0), np.float16))
    assert run(["run", str(naive_file()), "--a", str(a), "--b", str(a), "--out", str(tmp_path / "d.npy")]) == 0
    assert "all 9 elements match" in capsys.readouterr().out
    assert not np.load(tmp_path / "d.npy").any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which kernel? give a PTX file or --step N"),
        (["none.ptx"], "cannot read 'none.ptx': No such file"),
        (["--step", "6", "--device", "cuda"], "--device emulator"),
        (["--step", "6", "--device", "tpu"], "'tpu' is no device"),
        (["--step", "6", "-m", "0"], "0 is not in the range x>=1"),
        (["--step", "6", "--grid", "1,2,3,4"], "'1,2,3,4' is no grid"),
        (["--step", "6", "--grid", "0"], "'0' is no grid"),
        (["--step", "5", "--grid", "7", "-m", "8", "-n", "8", "-k", "8"], "only the grid of a persistent kernel"),
        (["--step", "6", "--launch", "l.json"], "--launch goes with a PTX file"),
        (["--step", "6", "--a", "none.npy"], "cannot read 'none.npy': No such file"),
        (["--step", "6", "--policy", "lazy"], "'lazy' is not one of"),
    ],
)
def test_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *arguments]) == 2
    *_, error = (line for line in capsys.readouterr().err.split("\n") if line.startswith("ptxgen: error: "))
    assert words in error


def test_operands_of_the_wrong_kind(
    naive_file: Write, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = files
    bad = tmp_path / "bad.npy"
    command = ["run", str(naive_file()), "--device", "emulator"]

    def error(*arguments: str) -> str:
        assert run([*command, *arguments]) == 2
        return capsys.readouterr().err

    bad.write_bytes(a.read_bytes()[:-4])
    assert f"cannot read '{bad}' as a .npy file" in error("--a", str(bad))
    bad.write_text("not an array")
    assert f"cannot read '{bad}' as a .npy file" in error("--a", str(bad))
    np.save(bad, np.zeros(7, np.float16))
    assert f"A ({bad}) must be a matrix (2 dimensions), got shape (7,)" in error("--a", str(bad))
    np.save(bad, np.zeros((33, 11), np.float16))
    assert "A is 3 x 10 and B 33 x 11" in error("--a", str(a), "--b", str(bad))
    assert "has shape (3, 10), which does not go with K = 72" in error("--a", str(a), "-k", "72")
    assert "has shape (33, 10), which does not go with N = 32" in error("--b", str(b), "-n", "32")
    assert "cannot write '/no/such/d.npy'" in error("--out", "/no/such/d.npy")


def test_check_finds_what_the_numbers_hide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the proxy fence the emulator's numbers stay right; --check says what is wrong all the same."""
    text = ptxgen.emit(ptxgen.step(6))
    path = tmp_path / "edited.ptx"
    path.write_text("\n".join(line for line in text.split("\n") if "fence.proxy.async" not in line))
    assert path.read_text() != text
    command = ["run", str(path), *SMALL[3:]]
    assert run(command) == 0
    capsys.readouterr()
    assert run([*command, "--check"]) == 1
    out = capsys.readouterr().out
    assert "error missing-proxy-fence: " in out
    assert "all 5200 elements match" in out


def test_check_of_a_clean_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--check"]) == 0
    assert "error" not in capsys.readouterr().out
