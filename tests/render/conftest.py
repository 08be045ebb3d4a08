"""What the tests of texts share."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def _merged(texts: list[str]) -> str:
    found = [re.search(r"^\.version (\S+)(.*?)(?=^\.visible)", text, re.MULTILINE | re.DOTALL) for text in texts]
    heads = {(float(head[1]), head[2]) for head in found if head is not None}
    (rest,) = {rest for _, rest in heads}
    head = f".version {max(heads)[0]}{rest}"
    entries = [text[text.index(".visible .entry") :] for text in texts]
    return head + "\n".join(re.sub(r"\.entry \w+", f".entry k{i}", text) for i, text in enumerate(entries))


@pytest.fixture(scope="session")
def merged() -> Callable[[list[str]], str]:
    """Makes one module of several kernels of a target, as k0, k1, ...: a program start for all of them."""
    return _merged
