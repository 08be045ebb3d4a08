"""Finds races, missing fences and broken protocols in running PTX, from the machine's events alone."""

from __future__ import annotations

from ptxgen.checker.checker import Checker
from ptxgen.checker.rules import RULES, Rule
from ptxgen.checker.usage import Usage

__all__ = ["RULES", "Checker", "Rule", "Usage"]
