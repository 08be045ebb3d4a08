"""Machine code side by side: of two texts, or of one text by two releases of ptxas."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptxgen.review.sources import Source
from ptxgen.toolchain import assemble, disassemble

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s*(?P<code>[^;]+;)")
_LABEL = re.compile(r"\.L_x_\d+")
_CONTEXT = 2


def sass_lines(old: Source, new: Source, ptxas_paths: Sequence[Path]) -> Iterator[str]:
    """Registers, counts of opcodes that changed, and a diff of the instructions.

    One path is the assembler of both sides, two are one for each; none is the assembler that is found.
    Branch targets and addresses are left out, so that inserted code does not change all that follows.
    """
    paths: tuple[Path | None, Path | None] = (None, None)
    if ptxas_paths:
        paths = (ptxas_paths[0], ptxas_paths[-1])
    sides = [
        assemble(source.text, name=source.name, line_info=False, path=path)
        for source, path in zip((old, new), paths, strict=True)
    ]
    names = [f"{source.name} (ptxas {side.ptxas.version})" for source, side in zip((old, new), sides, strict=True)]
    code = [instructions(disassemble(side.cubin)) for side in sides]
    yield ""
    yield f"SASS: {names[0]} -> {names[1]}"
    yield f"  registers: {sides[0].registers} -> {sides[1].registers}"
    yield f"  instructions: {len(code[0])} -> {len(code[1])}"
    if code[0] == code[1]:
        yield "  the same instructions"
        return
    counts = [Counter(_opcode(line) for line in lines) for lines in code]
    for opcode in sorted(counts[0] | counts[1]):
        if counts[0][opcode] != counts[1][opcode]:
            yield f"  {opcode}: {counts[0][opcode]} -> {counts[1][opcode]}"
    yield from difflib.unified_diff(code[0], code[1], names[0], names[1], n=_CONTEXT, lineterm="")


def instructions(sass: str) -> list[str]:
    """The instructions of a disassembly, without addresses, numbers of labels, and padding."""
    found = []
    for line in sass.splitlines():
        if match := _INSTRUCTION.match(line):
            code = " ".join(_LABEL.sub(".L", match["code"]).split())
            if code != "NOP;":
                found.append(code)
    return found


def _opcode(code: str) -> str:
    words = code.split()
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0].rstrip(";")
