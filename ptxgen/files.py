"""Output files that are either complete or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ptxgen.errors import PtxgenError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file `path` when the block ends without an error.

    They are written to a new file in the same folder, which is then renamed over `path`: a reader
    sees the old file or the new one, and a failure leaves the old one and nothing else. What is no file but a
    device, such as /dev/null, or a pipe is written to as it is.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        try:
            with target.open("wb") as stream:
                yield stream
        except OSError as error:
            raise PtxgenError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
        return
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
        temporary.replace(target)
    except OSError as error:
        raise PtxgenError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """PtxgenError if `path` cannot be written: asked before long work, not after it."""
    target = Path(path)
    if target.is_dir():
        raise PtxgenError(f"cannot write {str(target)!r}: Is a directory")
    if target.exists() and not target.is_file():
        return  # a device or a pipe: opening it tells
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise PtxgenError(f"cannot write {str(target)!r}: its folder is missing or read-only")


def cache_folder() -> Path | None:
    """Where ptxgen may keep what it can make again; None where the environment switches that off.

    PTXGEN_CACHE=0 switches it off, PTXGEN_CACHE_DIR names another folder than ~/.cache/ptxgen (or
    $XDG_CACHE_HOME/ptxgen).
    """
    if os.environ.get("PTXGEN_CACHE", "1").strip().lower() in ("0", "off", "false", "no"):
        return None
    named = os.environ.get("PTXGEN_CACHE_DIR")
    folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ptxgen")
    return folder.expanduser()


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write text (as UTF-8 with LF line ends, whatever the platform) or bytes to `path`."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of `path`; an error that names the file if it is missing or not text."""
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise PtxgenError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PtxgenError(f"cannot read {str(path)!r}: not UTF-8 text (byte {error.start})") from error
