"""What holds for every test: one assembler release, property tests that repeat, and a small kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from ptxgen.toolchain import wheel_tool

# Register counts and SASS are quoted for the release that the dev extra pins, whatever is on PATH.
for _tool in ("ptxas", "nvdisasm"):
    _found = wheel_tool(_tool)
    if _found is not None:
        os.environ.setdefault(f"PTXGEN_{_tool.upper()}", str(_found))

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def naive_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a copy of a small hand-written kernel with some texts replaced, each of which must be there."""
    original = (Path(__file__).parent / "data" / "naive.ptx").read_text()

    def write(*replacements: tuple[str, str]) -> Path:
        text = original
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "naive.ptx"
        path.write_text(text)
        return path

    return write
