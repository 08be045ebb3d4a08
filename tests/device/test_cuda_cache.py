"""The cubin cache: many processes, a limit, damage, and no cache at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptxgen.device.cuda_cache import CubinCache, cubin_key
from ptxgen.errors import PtxgenError


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    cache = CubinCache(folder=tmp_path / "deep" / "folder", limit_bytes=10**6)
    assert cache.load("key") is None
    cache.store("key", b"cubin")
    assert cache.load("key") == b"cubin"
    assert [path.name for path, _, _ in cache.entries()] == ["key.cubin"]


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 37])
def test_damaged_files_are_as_good_as_absent(damage: bytes, tmp_path: Path) -> None:
    cache = CubinCache(folder=tmp_path, limit_bytes=10**6)
    cache.store("key", b"cubin")
    (tmp_path / "key.cubin").write_bytes(damage)
    assert cache.load("key") is None


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    cache = CubinCache(folder=tmp_path, limit_bytes=350)
    for age, key in enumerate(("used", "old", "young")):
        cache.store(key, bytes(68))
        os.utime(tmp_path / f"{key}.cubin", (1000 + age, 1000 + age))
    assert cache.load("used") is not None
    cache.store("new", bytes(68))
    assert sorted(path.stem for path, _, _ in cache.entries()) == ["new", "used", "young"]
    cache.store("huge", bytes(1000))
    assert [path.stem for path, _, _ in cache.entries()] == ["huge"]


def test_abandoned_temporary_files_go_and_young_ones_stay(tmp_path: Path) -> None:
    cache = CubinCache(folder=tmp_path, limit_bytes=10**6)
    old, young, other = (tmp_path / name for name in (".a.cubin.01.tmp", ".b.cubin.02.tmp", "notes.txt"))
    for path in (old, young, other):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.store("key", b"cubin")
    assert not old.exists() and young.exists()
    assert cache.clear() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = CubinCache(folder=tmp_path / "file", limit_bytes=10**6)
    cache.store("key", b"cubin")
    assert cache.load("key") is None
    assert cache.entries() == []


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PTXGEN_CACHE", "PTXGEN_CACHE_DIR", "PTXGEN_CACHE_MAX_MB", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CubinCache.from_environment() == CubinCache(folder=tmp_path / ".cache/ptxgen", limit_bytes=256_000_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert CubinCache.from_environment() == CubinCache(folder=tmp_path / "xdg/ptxgen", limit_bytes=256_000_000)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("PTXGEN_CACHE_MAX_MB", "3")
    assert CubinCache.from_environment() == CubinCache(folder=tmp_path / "own", limit_bytes=3_000_000)
    monkeypatch.setenv("PTXGEN_CACHE_MAX_MB", "-1")
    with pytest.raises(PtxgenError, match="PTXGEN_CACHE_MAX_MB is '-1'; give megabytes"):
        CubinCache.from_environment()
    monkeypatch.setenv("PTXGEN_CACHE", "0")
    assert CubinCache.from_environment() is None


def test_keys_depend_on_all_that_decides_a_cubin() -> None:
    keys = {cubin_key(*parts) for parts in (("t", "a", "c"), ("u", "a", "c"), ("t", "b", "c"), ("t", "a", "d"))}
    keys.add(cubin_key("", "at", "c"))
    assert len(keys) == 5


WORKER = """
import sys
from pathlib import Path
from ptxgen.device.cuda_cache import CubinCache
cache = CubinCache(folder=Path(sys.argv[1]), limit_bytes=20_000)
for turn in range(60):
    key = f"key{(turn * 7 + int(sys.argv[2])) % 10}"
    content = key.encode() * 700
    found = cache.load(key)
    assert found is None or found == content, key
    cache.store(key, content)
"""


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE) for number in range(4)]
    for process in processes:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error.decode()
    cache = CubinCache(folder=tmp_path, limit_bytes=20_000)
    assert 0 < sum(size for _, size, _ in cache.entries()) <= 20_000
    assert all(path.suffix == ".cubin" for path in tmp_path.iterdir())
