"""The report that is committed: what a GPU did, or before the first such run, what the emulator did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptxgen.errors import PtxgenError
from ptxgen.files import read_text

RECORD = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "conformance.json"


def recorded_report() -> dict[str, Any] | None:
    """The recorded report; None where nothing was recorded yet."""
    return read_report(RECORD) if RECORD.exists() else None


def read_report(path: Path) -> dict[str, Any]:
    """A report that the runner wrote; PtxgenError where it is none."""
    try:
        report = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise PtxgenError(f"{path} is not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("version") != 1:
        raise PtxgenError(f"{path} is not a conformance report of version 1")
    return report
