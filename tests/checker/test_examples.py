"""Every rule has an example at fault, found by exactly that rule on its line, and clean when mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxgen.checker import RULES

NAMES = sorted(path.stem for path in (Path(__file__).parent / "examples").glob("*.ptx"))
Run = Callable[..., tuple[Any, Any]]


def test_every_rule_has_an_example() -> None:
    assert {name.partition(".")[0] for name in NAMES} == set(RULES)


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize("name", NAMES)
def test_the_fault_is_found_by_its_rule_on_its_line(name: str, policy: str, run_example: Run) -> None:
    example, findings = run_example(name, mended=False, policy=policy)
    assert [finding.rule for finding in findings] == [example.rule]
    if policy != "random":  # of a race, which access comes second is drawn as well
        assert findings[0].line == example.line
    assert findings[0].severity == RULES[example.rule].severity


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize("name", NAMES)
def test_the_mended_example_is_clean(name: str, policy: str, run_example: Run) -> None:
    _, findings = run_example(name, mended=True, policy=policy)
    assert findings == ()
