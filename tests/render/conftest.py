"""What the tests of texts share."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def _merged(texts: list[str]) -> str:
    head = re.search(r"^\.version.*?(?=^\.visible)", texts[0], re.MULTILINE | re.DOTALL)
    assert head is not None
    assert all(head[0] in text for text in texts)
    entries = [text[text.index(".visible .entry") :] for text in texts]
    return head[0] + "\n".join(re.sub(r"\.entry \w+", f".entry k{i}", text) for i, text in enumerate(entries))


@pytest.fixture(scope="session")
def merged() -> Callable[[list[str]], str]:
    """Makes one module of several kernels of a target, as k0, k1, ...: a program start for all of them."""
    return _merged
