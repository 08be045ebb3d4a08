"""generated/: written from its manifest, compared with it, and never half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptxgen.errors import PtxgenError, SpecError
from ptxgen.render import emit
from ptxgen.review.goldens import MANIFEST, Golden, generate
from ptxgen.spec import parse_settings
from ptxgen.steps import step

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {
    "sm_100a/step4.ptx": {"step": 4},
    "sm_100a/deep.ptx": {"step": 5, "set": ["pipe_depth=4", "tile=128x64x64"]},
    "sm_90a/step6.ptx": {"step": 6},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest and nothing generated."""
    write_manifest(tmp_path, {"files": ENTRIES})
    return tmp_path


def write_manifest(folder: Path, data: object) -> None:
    (folder / MANIFEST).write_text(json.dumps(data))


def statuses(found: list[Golden]) -> dict[str, str]:
    return {golden.path: golden.status for golden in found}


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and time of change."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_missing_files_are_written_as_emit_prints_them(folder: Path) -> None:
    assert statuses(generate(folder, check=True)) == dict.fromkeys(ENTRIES, "missing")
    assert set(contents(folder)) == {MANIFEST}
    assert statuses(generate(folder)) == dict.fromkeys(ENTRIES, "written")
    assert set(contents(folder)) == {MANIFEST, *ENTRIES}
    deep = parse_settings(step(5), ("pipe_depth=4", "tile=128x64x64"))
    assert (folder / "sm_100a/deep.ptx").read_bytes() == emit(deep).encode("ascii")
    assert (folder / "sm_90a/step6.ptx").read_bytes() == emit(step(6, target="sm_90a")).encode("ascii")


def test_fresh_files_are_left_alone(folder: Path) -> None:
    generate(folder)
    before = contents(folder)
    assert statuses(generate(folder)) == statuses(generate(folder, check=True)) == dict.fromkeys(ENTRIES, "fresh")
    assert contents(folder) == before


def test_a_stale_file_is_shown_as_a_diff_and_only_written_without_check(folder: Path) -> None:
    generate(folder)
    file = folder / "sm_100a/step4.ptx"
    good = file.read_text()
    file.write_text(good.replace("bar.sync 0;", "bar.sync 7;"))
    before = contents(folder)
    found = {golden.path: golden for golden in generate(folder, check=True)}
    assert contents(folder) == before
    assert found["sm_100a/step4.ptx"].status == "stale"
    lines = found["sm_100a/step4.ptx"].diff.splitlines()
    assert lines[:2] == ["--- committed/sm_100a/step4.ptx", "+++ generated/sm_100a/step4.ptx"]
    changed = [line.split("//")[0].strip() for line in lines[2:] if line[0] in "+-"]
    assert changed == ["-    bar.sync 7;", "+    bar.sync 0;"]
    assert found["sm_100a/deep.ptx"].status == "fresh"
    assert statuses(generate(folder))["sm_100a/step4.ptx"] == "written"
    assert file.read_text() == good


def test_a_missing_file_is_shown_whole(folder: Path) -> None:
    generate(folder)
    (folder / "sm_90a/step6.ptx").unlink()
    (missing,) = (golden for golden in generate(folder, check=True) if golden.status != "fresh")
    assert (missing.path, missing.status) == ("sm_90a/step6.ptx", "missing")
    added = [line[1:] for line in missing.diff.splitlines()[2:] if line.startswith("+")]
    assert "\n".join(added) + "\n" == emit(step(6, target="sm_90a"))


@pytest.mark.parametrize("check", [True, False])
def test_an_orphaned_file_is_reported_and_kept(folder: Path, check: bool) -> None:
    generate(folder)
    orphan = folder / "sm_100a" / "step3_old.ptx"
    orphan.write_text("kept")
    (folder / "notes.txt").write_text("not a kernel")
    assert statuses(generate(folder, check=check)) == {
        **dict.fromkeys(ENTRIES, "fresh"),
        "sm_100a/step3_old.ptx": "orphaned",
    }
    assert orphan.read_text() == "kept"


@pytest.mark.parametrize("content", [b"\xff\xfe", b""], ids=["not ASCII", "empty"])
def test_files_that_are_not_even_text_are_stale(folder: Path, content: bytes) -> None:
    generate(folder)
    (folder / "sm_100a/step4.ptx").write_bytes(content)
    assert statuses(generate(folder, check=True))["sm_100a/step4.ptx"] == "stale"


def test_a_file_with_other_line_ends_is_stale(folder: Path) -> None:
    generate(folder)
    file = folder / "sm_100a/step4.ptx"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert statuses(generate(folder, check=True))["sm_100a/step4.ptx"] == "stale"


def test_nothing_is_written_when_one_entry_is_impossible(folder: Path) -> None:
    write_manifest(folder, {"files": {**ENTRIES, "sm_100a/zz.ptx": {"step": 5, "set": ["pipe_depth=99"]}}})
    with pytest.raises(SpecError, match="pipe_depth=99"):
        generate(folder)
    assert set(contents(folder)) == {MANIFEST}


def test_a_write_that_fails_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(folder)
    file = folder / "sm_100a/step4.ptx"
    file.write_text("old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PtxgenError, match=r"cannot write .*step4\.ptx.*: No space left on device"):
        generate(folder)
    assert file.read_text() == "old"
    assert sorted(path.name for path in file.parent.iterdir()) == ["deep.ptx", "step4.ptx"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the manifest"),
        ("{", "cannot read the manifest"),
        ("[]", 'an object with "files"'),
        ('{"files": []}', 'an object with "files"'),
        ('{"files": {"sm_100a/a.ptx": 4}}', "sm_100a/a.ptx: an entry is"),
        ('{"files": {"sm_100a/a.ptx": {"set": []}}}', "sm_100a/a.ptx: an entry is"),
        ('{"files": {"sm_99/a.ptx": {"step": 4}}}', "unknown target 'sm_99'"),
        ('{"files": {"sm_100a/a.ptx": {"step": 4, "set": ["depth=2"]}}}', "unknown setting 'depth'"),
    ],
)
def test_a_manifest_that_cannot_be_followed_is_explained(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(PtxgenError, match=message):
        generate(tmp_path)


def test_what_is_committed_is_fresh() -> None:
    assert set(statuses(generate(ROOT / "generated", check=True)).values()) == {"fresh"}
