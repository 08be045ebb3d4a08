"""Output files are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ptxgen.errors import PtxgenError
from ptxgen.files import check_writable, read_text, replacing, write_file


def test_text_is_utf8_with_line_feeds(tmp_path: Path) -> None:
    write_file(tmp_path / "a.ptx", "ä\nb\n")
    assert (tmp_path / "a.ptx").read_bytes() == b"\xc3\xa4\nb\n"
    assert read_text(tmp_path / "a.ptx") == "ä\nb\n"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.ptx"
    write_file(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as stream:  # noqa: PT012
        stream.write(b"new, but not all of i")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["none/a.ptx", "folder"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(PtxgenError, match=f"cannot write '.*{name}': "):
        write_file(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ok\xff")
    with pytest.raises(PtxgenError, match=r"cannot read '.*binary': not UTF-8 text \(byte 2\)"):
        read_text(tmp_path / "binary")
    with pytest.raises(PtxgenError, match=r"cannot read '.*none': No such file"):
        read_text(tmp_path / "none")


def test_a_path_is_asked_about_before_long_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "d.npy")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PtxgenError, match=r"cannot write '.*none/d.npy': its folder is missing or read-only"):
        check_writable(tmp_path / "none" / "d.npy")
    with pytest.raises(PtxgenError, match="Is a directory"):
        check_writable(tmp_path)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """Renaming a file over /dev/null would take it from every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
