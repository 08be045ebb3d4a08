"""HTML pages: Jinja templates of their own, with everything that they show escaped."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ptxgen.render import template_folder


def page(template: str, **values: Any) -> str:
    """A self-contained page: styles and scripts are in it, and it asks for nothing."""
    return _environment().get_template(f"review/{template}").render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
