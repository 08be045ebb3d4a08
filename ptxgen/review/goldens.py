"""generated/: the committed PTX, written from a manifest and checked for freshness.

The manifest, generated/manifest.json, lists what is generated: for each file its path, its step,
and the settings that differ from the step's own.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import PtxgenError
from ptxgen.files import write_file
from ptxgen.render import emit
from ptxgen.spec import parse_settings
from ptxgen.steps import step

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One generated file: its path under generated/ and its state.

    status: "fresh", "written", "stale" (differs), "missing", or "orphaned" (not in the manifest).
    """

    path: str
    status: str
    diff: str = ""


def generate(folder: Path, *, check: bool = False) -> list[Golden]:
    """Write every file of the manifest that is not fresh; with `check`, write nothing.

    An orphaned file is reported, never deleted. Raises PtxgenError for a manifest that cannot be
    read, SpecError for an entry that is not possible.
    """
    wanted = {path: _text(path, entry) for path, entry in _entries(folder).items()}
    found = []
    for path, text in sorted(wanted.items()):
        file = folder / path
        old = file.read_bytes() if file.is_file() else None
        if old == text.encode("ascii"):
            found.append(Golden(path=path, status="fresh"))
        elif check:
            status = "missing" if old is None else "stale"
            found.append(Golden(path=path, status=status, diff=_diff(path, old or b"", text)))
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, text)
            found.append(Golden(path=path, status="written"))
    for file in sorted(folder.rglob("*.ptx")):
        path = file.relative_to(folder).as_posix()
        if path not in wanted:
            found.append(Golden(path=path, status="orphaned"))
    return found


def _entries(folder: Path) -> dict[str, dict[str, object]]:
    manifest = folder / MANIFEST
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PtxgenError(f"cannot read the manifest {manifest}: {error}") from error
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, dict):
        raise PtxgenError(f'{manifest}: an object with "files": {{path: entry}} is wanted')
    return files


def _text(path: str, entry: object) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        raise PtxgenError(f'{MANIFEST}: {path}: an entry is {{"step": N, "set": ["key=value"]}}')
    target = path.split("/", 1)[0]
    settings = tuple(str(item) for item in entry.get("set", ()))
    return emit(parse_settings(step(entry["step"], target=target), settings))


def _diff(path: str, old: bytes, new: str) -> str:
    """Line ends count: a carriage return is shown as \\r, a missing last newline is named."""
    was = old.decode("ascii", errors="replace").replace("\r", "\\r").splitlines()
    if old and not old.endswith(b"\n"):
        was.append("\\ No newline at end of file")
    lines = difflib.unified_diff(was, new.splitlines(), f"committed/{path}", f"generated/{path}", lineterm="")
    return "\n".join(lines)
