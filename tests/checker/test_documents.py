"""docs/checker.md describes the rules that there are, with the examples that the tests run."""

from __future__ import annotations

import re
from pathlib import Path

from ptxgen.checker import RULES
from ptxgen.review import rule_pages

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_rules_is_fresh() -> None:
    page = (ROOT / "docs" / "checker.md").read_text(encoding="utf-8")
    assert rule_pages.document(page) == page


def test_every_rule_has_its_section_and_an_example() -> None:
    page = (ROOT / "docs" / "checker.md").read_text(encoding="utf-8")
    for name in RULES:
        _, _, section = page.partition(f"\n### {name}\n")
        section = section.partition("\n### ")[0]
        assert "\nSource: " in section, name
        assert "```diff\n" in section, name


def test_rules_of_the_machine_are_rules() -> None:
    raised = set()
    for path in (ROOT / "ptxgen" / "emulator").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        raised |= set(re.findall(r'(?:MachineError|\.note|\.finding)\(\s*"([a-z0-9-]+)"', text))
    assert "deadlock" in raised
    assert raised - set(RULES) == set()
