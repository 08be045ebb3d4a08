"""docs/emulator.md names every instruction that the emulator knows, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ptxgen.emulator.decode import _TABLE
from ptxgen.emulator.instructions import load_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"


def test_the_instruction_list_is_the_instruction_table() -> None:
    load_all()
    match = re.search(r"```instructions\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    assert match[1].split() == sorted(_TABLE)
