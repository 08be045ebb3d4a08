"""`ptxgen verify`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.commands.verify import CHECKED_NOTE

Write = Callable[..., Path]


def test_a_step_at_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--step", "6", "-m", "200", "-n", "136", "-k", "72", "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:6] for line in lines if line.startswith("ok")] == [
        ["ok", "200", "136", "72", grid, policy] for grid in ("1", "2", "148") for policy in ("eager", "late", "random")
    ]
    assert CHECKED_NOTE in lines
    assert lines[-1].startswith("step 6 (sm_100a): 9 runs (eager, late, random; seed 0), 453 CTAs, ")
    assert lines[-1].endswith(" warp instructions: nothing found")


def test_a_file_at_its_own_sizes_as_json(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file()
    assert run(["verify", str(path), "--json", "--policy", "late", "--policy", "eager", "--seed", "7"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kernel"], data["clean"], data["numbers_checked"], data["races_checked"]) == (
        str(path),
        True,
        True,
        True,
    )
    assert [(r["M"], r["N"], r["K"], r["policy"], r["grid"], r["seed"]) for r in data["runs"]] == [
        (3, 33, 8, "late", [2, 3, 1], 7),
        (3, 33, 8, "eager", [2, 3, 1], 7),
        (1, 1, 1, "late", [1, 1, 1], 7),
        (1, 1, 1, "eager", [1, 1, 1], 7),
    ]
    assert all(r["findings"] == [] and r["wrong_elements"] == 0 for r in data["runs"])


def test_wrong_numbers_are_findings(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file(("mov.u32 %left, %k;", "min.u32 %left, %k, 7;"))
    assert run(["verify", str(path), "--policy", "eager"]) == 1
    out = capsys.readouterr().out
    assert [line.split()[:6] for line in out.splitlines() if line.startswith(("ok", "FAIL"))] == [
        ["FAIL", "3", "33", "8", "2,3", "eager"],
        ["ok", "1", "1", "1", "1", "eager"],
    ]
    assert "elements differ from the reference by more than the exact result allows\n    first at D[" in out
    assert out.endswith("warp instructions: 1 with findings\n")


def test_broken_rules_are_findings(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = naive_file(("ld.param.u64 %a, [a];", "mov.u64 %a, 64;"))
    assert run(["verify", str(path), "--policy", "eager", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert not data["clean"]
    finding = data["runs"][0]["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("out-of-bounds", "error")
    assert path.read_text().splitlines()[finding["line"] - 1].strip() == "ld.global.b16 %half, [%a];"


def test_warnings_are_counted_once_a_line_and_fail_where_they_are_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its tcgen05.wait::ld, four warps of each of nine CTAs use what has not been waited for."""
    lines = ptxgen.emit(ptxgen.step(4)).split("\n")
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("tcgen05.wait::ld"))
    lines[at] = ""
    path = tmp_path / "edited.ptx"
    path.write_text("\n".join(lines))
    command = ["verify", str(path), "-m", "300", "-n", "300", "-k", "8", "--workers", "1", "--policy", "eager"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].startswith("warnings ")
    assert out.count("warning missing-wait-ld") == 1
    assert "seen 9 times" in out
    assert out.endswith(": 1 warning\n")
    assert run([*command, "--strict"]) == 1
    capsys.readouterr()
    assert run([*command, "--strict", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["clean"] and data["warnings"] == 1 and len(data["runs"][0]["findings"]) == 1


def test_findings_of_one_kind_are_folded_and_have_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its proxy fence each store to staging is read too early by the copy of its panel."""
    lines = ptxgen.emit(ptxgen.step(4)).split("\n")
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("fence.proxy.async"))
    lines[at] = ""
    path = tmp_path / "edited.ptx"
    path.write_text("\n".join(lines))
    command = ["verify", str(path), "-m", "128", "-n", "128", "-k", "8", "--workers", "1", "--policy", "late"]
    assert run([*command, "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["runs"][0]["findings"]
    assert len(findings) > 1 and {one["rule"] for one in findings} == {"missing-proxy-fence"}
    for one in findings:
        assert one["text"].startswith("cp.async.bulk.tensor") and lines[one["line"] - 1].strip().startswith("cp.async")
        assert one["other_text"].startswith("st.shared")
        assert one["missing"] == (
            f"fence.proxy.async by the threads of line {one['other_line']}, after it and before they synchronise"
        )
        assert one["nearest_synchronisation"].startswith("after the first, warp ")
        assert one["times"] >= 1
    assert run(command) == 1
    out = capsys.readouterr().out
    assert out.count("error missing-proxy-fence: ") == 1
    assert out.count("      likewise line ") == len({one["line"] for one in findings})


def test_one_wait_for_the_kernel_before_mends_every_access(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ptxgen.emit(ptxgen.step(10, target="sm_90a"))
    path = tmp_path / "edited.ptx"
    path.write_text(text.replace("griddepcontrol.wait;", "", 1))
    sizes = ["-m", "300", "-n", "300", "-k", "100", "--grid", "1"]
    assert run(["verify", str(path), *sizes, "--policy", "eager", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert out.count("error missing-grid-wait: ") == 1
    assert out.count("      likewise line ") > 1


def test_an_error_leaves_no_empty_table(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(naive_file(('"kind": "u32", "value": "K"', '"kind": "u64", "value": "K"')))
    assert run(["verify", path]) == 2
    assert capsys.readouterr().out == ""
    assert run(["verify", path, "--json"]) == 2
    assert "argument k has 8" in json.loads(capsys.readouterr().out)["error"]


def test_an_edited_kernel_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the bytes in expect_tx: the barrier's phase never completes, and the bytes say why."""
    text = ptxgen.emit(ptxgen.step(4))
    path = tmp_path / "edited.ptx"
    bytes_line = next(
        line for line in text.splitlines() if "mov.b32 %load_bytes" in line or "%load_bytes, 32768" in line
    )
    path.write_text(text.replace(bytes_line, bytes_line.replace("32768", "65536")))
    assert path.read_text() != text
    assert run(["verify", str(path), "-m", "8", "-n", "8", "-k", "64", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert out.count("error tx-count-mismatch") == 3
    assert "32768 bytes are outstanding\n      expected: 1 x 65536 by `mbarrier.arrive.expect_tx" in out
    assert "arrived: 1 x 16384 by `cp.async.bulk.tensor" in out


def test_numbers_that_nobody_can_check(naive_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    expect = ',\n//   "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"}}'
    assert run(["verify", str(naive_file((expect, "}"))), "--policy", "eager"]) == 0
    out = capsys.readouterr().out
    assert 'numbers not checked: the launch description has no "expect"' in out
    assert "2 runs (eager; seed 0)" in out and out.endswith("nothing found\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"verify": [[3, 33, 8], [1, 1, 1]],', "", "has no sizes to verify; give -m, -n and -k"),
        ("fma.rn.f32", "fmaa.rn.f32", "fmaa.rn.f32"),
        (
            '{"name": "k", "kind": "u32", "value": "K"}',
            '{"name": "k", "kind": "u64", "value": "K"}',
            "argument k has 8",
        ),
    ],
)
def test_failures_are_not_findings(
    naive_file: Write, old: str, new: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(naive_file((old, new)))]) == 2
    assert words in capsys.readouterr().err


def test_synchronisation_that_ordered_nothing_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A barrier directly after another one: of the two, the first suffices."""
    lines = ptxgen.emit(ptxgen.step(6)).split("\n")
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("bar.sync 1, 128;"))
    lines.insert(at + 1, "    bar.sync 1, 128;  // twice")
    path = tmp_path / "edited.ptx"
    path.write_text("\n".join(lines))
    assert run(["verify", str(path), "-m", "200", "-n", "136", "-k", "72", "--grid", "2", "--workers", "1"]) == 0
    listed = capsys.readouterr().out.partition("maybe not needed: ")[2]
    assert f"line {at + 2}: bar.sync 1, 128;" in listed
    assert f"line {at + 1}: " not in listed

    lines.insert(at, "    trap;")
    path.write_text("\n".join(lines))
    assert run(["verify", str(path), "-m", "200", "-n", "136", "-k", "72", "--grid", "2", "--workers", "1"]) == 1
    assert "maybe not needed" not in capsys.readouterr().out, "what runs did that broke off proves nothing"
