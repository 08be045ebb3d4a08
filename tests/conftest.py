"""What holds for every test: one assembler release, and property tests that repeat."""

from __future__ import annotations

import os

from hypothesis import settings

from ptxgen.toolchain import wheel_tool

# Register counts and SASS are quoted for the release that the dev extra pins, whatever is on PATH.
for _tool in ("ptxas", "nvdisasm"):
    _found = wheel_tool(_tool)
    if _found is not None:
        os.environ.setdefault(f"PTXGEN_{_tool.upper()}", str(_found))

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
