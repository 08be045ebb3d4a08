"""Cubins on disk, by a hash of everything that decides their content.

One file a cubin, named by its key, holding the cubin and then its SHA-256: a file that was cut short or
damaged is as good as absent. Files appear whole or not at all, so any number of processes may share the
folder. When the folder outgrows its limit the files that were not used for longest go. A folder that cannot
be written costs time and nothing else.

    PTXGEN_CACHE=0            switches it off
    PTXGEN_CACHE_DIR=FOLDER   instead of ~/.cache/ptxgen (or $XDG_CACHE_HOME/ptxgen)
    PTXGEN_CACHE_MAX_MB=N     instead of 256
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import PtxgenError
from ptxgen.files import write_file

_SUFFIX = ".cubin"
_DIGEST_BYTES = 32
_DEFAULT_LIMIT_MB = 256
_ABANDONED_AFTER_SECONDS = 3600  # a temporary file this old belongs to a process that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinCache:
    """A folder of cubins that together take at most `limit_bytes`."""

    folder: Path
    limit_bytes: int

    @classmethod
    def from_environment(cls) -> CubinCache | None:
        """The cache that the environment asks for; None where it is switched off."""
        if os.environ.get("PTXGEN_CACHE", "1").strip().lower() in ("0", "off", "false", "no"):
            return None
        limit = os.environ.get("PTXGEN_CACHE_MAX_MB", str(_DEFAULT_LIMIT_MB))
        if not limit.isdecimal() or int(limit) == 0:
            raise PtxgenError(f"PTXGEN_CACHE_MAX_MB is {limit!r}; give megabytes, at least 1 (PTXGEN_CACHE=0 is off)")
        named = os.environ.get("PTXGEN_CACHE_DIR")
        folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ptxgen")
        with contextlib.suppress(RuntimeError):  # no home: "~" stays, as a folder of that name would
            folder = folder.expanduser()
        return cls(folder=folder, limit_bytes=int(limit) * 10**6)

    def load(self, key: str) -> bytes | None:
        """The cubin stored under `key`, or None."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)  # used now
        except OSError:
            return None
        cubin, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        return cubin if hashlib.sha256(cubin).digest() == digest else None

    def store(self, key: str, cubin: bytes) -> None:
        """Keep a cubin, and drop others where there are too many."""
        with contextlib.suppress(OSError, PtxgenError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self._path(key), cubin + hashlib.sha256(cubin).digest())
            self._shrink(keep=self._path(key))

    def entries(self) -> list[tuple[Path, int, float]]:
        """Path, bytes and time of last use of every cubin, the longest unused first."""
        found = []
        for path in self._files(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process dropped it
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: entry[2])

    def clear(self) -> int:
        """Delete every cubin; returns how many there were. Other files in the folder stay."""
        removed = 0
        for path in [*self._files(f"*{_SUFFIX}"), *self._files(f".*{_SUFFIX}.*.tmp")]:
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise PtxgenError(f"cannot delete {str(path)!r}: {error.strerror or error}") from error
            removed += path.suffix == _SUFFIX
        return removed

    def _shrink(self, keep: Path) -> None:
        entries = self.entries()
        total = sum(size for _, size, _ in entries)
        for path, size, _ in entries:
            if total <= self.limit_bytes:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size
        for path in self._files(f".*{_SUFFIX}.*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                    path.unlink()

    def _files(self, pattern: str) -> Iterator[Path]:
        return self.folder.glob(pattern)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def cubin_key(text: str, target: str, compiler: str) -> str:
    """The key of a cubin: PTX, target, and the compiler with its version and options."""
    return hashlib.sha256("\0".join((compiler, target, text)).encode()).hexdigest()[:40]
