"""Render a Program through the templates: the only way to PTX text.

Templates see frozen values and never compute. A macro has the name of its op in snake case; the
renderer finds it by that name, strips empty trailing comments and aligns the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from ptxgen.errors import PtxgenError
from ptxgen.files import cache_folder
from ptxgen.ir.program import Program
from ptxgen.spec import GemmSpec
from ptxgen.steps import build

MACRO_FILES = (
    "scalar",
    "control",
    "mbarrier",
    "shared_memory",
    "global_memory",
    "partial",
    "cursor",
    "tma",
    "tcgen05",
    "wgmma",
    "scheduler",
    "cluster_launch",
)
COMMENT_COLUMN = 56

_TRAILING = re.compile(r"^(?P<code>\s*[^\s/].*?;|\.\w+ \d+)\s*//(?P<comment>.*)$")


def emit(spec: GemmSpec) -> str:
    """The PTX text of a spec. Raises SpecError or ProgramError."""
    return render(build(spec))


def render(program: Program) -> str:
    """The PTX text of a Program: ASCII, LF, the same bytes everywhere."""
    environment, macros = _environment()
    body = [macros[_snake(type(op).__name__)](op).rstrip("\n") for op in program.ops()]
    text = environment.get_template("kernel.ptx.j2").render(
        program=program,
        version="{}.{}".format(*program.ptx_version),
        launch_lines=tuple(f"launch: {program.launch}".splitlines()),
        body=body,
    )
    return "\n".join(_tidy(text.splitlines())) + "\n"


def template_folder() -> Path:
    """Templates lie inside an installed package, and beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "kernel.ptx.j2").is_file():
            return folder
    raise PtxgenError(f"no templates in {package} or beside it; reinstall ptxgen")


@lru_cache(maxsize=1)
def _environment() -> tuple[Environment, dict[str, Callable[[Any], str]]]:
    environment = Environment(
        loader=FileSystemLoader(template_folder()),
        bytecode_cache=_compiled_templates(),
        auto_reload=False,
        undefined=StrictUndefined,
        finalize=_finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    macros: dict[str, Callable[[Any], str]] = {}
    for name in MACRO_FILES:
        for macro, value in vars(environment.get_template(f"{name}.j2").module).items():
            if callable(value) and not macro.startswith("_"):
                if macro in macros:
                    raise PtxgenError(f"template macro {macro} is defined twice")
                macros[macro] = value
    return environment, macros


def _compiled_templates() -> FileSystemBytecodeCache | None:
    """Compiling the templates is a third of a cold start; the compiled form is kept where that is possible.

    Jinja checks it against the template's text and its own version.
    """
    folder = cache_folder()
    try:
        if folder is not None:
            (folder / "templates").mkdir(parents=True, exist_ok=True)
            if os.access(folder / "templates", os.W_OK):
                return FileSystemBytecodeCache(str(folder / "templates"))
    except OSError:
        pass
    return None


def _finalize(value: object) -> object:
    """Refuse what must never reach the text: a missing value, a truth value, a float."""
    if value is None or isinstance(value, (bool, float)):
        raise PtxgenError(f"a template printed {value!r}; only names and integers become text")
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _tidy(lines: list[str]) -> Iterator[str]:
    """White space only: align trailing comments, drop empty ones."""
    for line in lines:
        match = _TRAILING.match(line)
        if not match:
            yield line.rstrip()
            continue
        code, comment = match["code"], match["comment"].strip()
        yield f"{code:<{COMMENT_COLUMN}}  // {comment}" if comment else code
