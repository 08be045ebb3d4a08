"""Kernels and sources that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen.review.explain import Explanation, explain
from ptxgen.review.sources import Source, read_source

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def numbered() -> Source:
    """A kernel as a compiler writes it."""
    return read_source(str(DATA / "numbered.ptx"))


@pytest.fixture(scope="session")
def step7() -> Explanation:
    """Step 7, run at a small size."""
    return explain(read_source("step:7"))
