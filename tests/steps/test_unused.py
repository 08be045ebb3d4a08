"""No text computes what nothing uses, or declares what stands nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ptxgen.render import render
from ptxgen.spec import GemmSpec
from ptxgen.steps import unchecked

ROOT = Path(__file__).resolve().parents[2]
GENERATED = sorted((ROOT / "generated").rglob("*.ptx"))
STEP7 = ROOT / "generated" / "sm_100a" / "step7.ptx"

COMPUTING = re.compile(
    r"(?:mov|add|sub|mul|mad|div|rem|min|max|and|or|xor|shl|shr|setp|selp|cvt|cvta|mapa|ld|createpolicy"
    r"|clusterlaunchcontrol\.query_cancel)\b"
)
"""Opcodes that only write their first operand. `ld` too: what another thread may see is no read."""
_REGISTER = re.compile(r"%[a-z]\w*")
_INSTRUCTION = re.compile(r"(?:@!?(%\w+) +)?([a-z][\w.:]*) ?(.*);")


def unused(text: str) -> list[str]:
    """Lines whose result is not read on any way from them, and declarations of what stands nowhere."""
    body = re.sub(r" *//.*", "", text.split("\n{\n", 1)[1].rsplit("\n}", 1)[0])
    declared = {name for line in re.findall(r"\.reg \.\w+ (.*);", body) for name in line.split(", ")}
    lines = [line.strip() for line in body.splitlines()]
    lines = [line for line in lines if line and not line.startswith(".")]
    places = {line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")}
    code = [_Line(line, number, places) for number, line in enumerate(lines)]
    live: list[frozenset[str]] = [frozenset()] * (len(code) + 1)
    changed = True
    while changed:
        changed = False
        for number in range(len(code) - 1, -1, -1):
            after = frozenset[str]().union(*(live[place] for place in code[number].next))
            before = code[number].before(after)
            changed |= before != live[number]
            live[number] = before
    found = []
    for line in code:
        after = frozenset[str]().union(*(live[place] for place in line.next))
        if line.computes and not line.writes & after:
            found.append(line.text)
    named = set(_REGISTER.findall("\n".join(lines)))
    for name in sorted(declared):
        family = name.partition("<")
        names = re.compile(re.escape(family[0]) + (r"\d+" if family[1] else ""))
        if not any(names.fullmatch(one) for one in named):
            found.append(f".reg {name}")
    return found


class _Line:
    def __init__(self, text: str, number: int, places: dict[str, int]) -> None:
        self.text = text
        self.computes = False
        self.writes: frozenset[str] = frozenset()
        self._reads: frozenset[str] = frozenset()
        self._always = True
        self.next = [number + 1]
        if text.endswith(":"):
            return
        match = _INSTRUCTION.fullmatch(text)
        assert match, text
        guard, opcode, operands = match.groups()
        self._always = guard is None
        guards = {guard} if guard else set()
        if opcode.startswith("bra"):
            self.next = [places[operands], *([number + 1] if guard else [])]
            self._reads = frozenset(guards)
            return
        if opcode == "ret":
            self.next = []
        first, _, rest = _split(operands)
        self.computes = COMPUTING.match(opcode) is not None
        if self.computes:
            self.writes = frozenset(_REGISTER.findall(first))
            first = ""
        elif opcode.startswith(("mbarrier.try_wait", "elect", "tcgen05.ld")):
            first = ""
        self._reads = frozenset({*guards, *_REGISTER.findall(first), *_REGISTER.findall(rest)})

    def before(self, after: frozenset[str]) -> frozenset[str]:
        """What is live before the line where `after` is live behind it."""
        if not self.computes:
            return after | self._reads
        if not self.writes & after:
            return after
        return (after - self.writes if self._always else after) | self._reads


def _split(operands: str) -> tuple[str, str, str]:
    """The first operand, which may be a vector, and the others."""
    if operands.startswith("{"):
        head, _, rest = operands.partition("}")
        return head, "}", rest
    return operands.partition(",")


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_generated_texts_have_nothing_unused(path: Path) -> None:
    assert unused(path.read_text(encoding="ascii")) == []


@given(data=st.data())
def test_texts_of_drawn_specs_have_nothing_unused(specs: SearchStrategy[GemmSpec], data: DataObject) -> None:
    spec = data.draw(specs)
    assert unused(render(unchecked(spec))) == [], spec


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("xor.b32 %spare, %k_tile, 1;", "xor.b32 %spare, %k_tile, 1;"),  # never read
        ("add.u32 %spare, %spare, 1;", "add.u32 %spare, %spare, 1;"),  # only by itself
        ("mov.b32 %mma_stage, 3;", "mov.b32 %mma_stage, 3;"),  # read on other ways only
        ("@%elected mov.b32 %mma_stage, 3;", "@%elected mov.b32 %mma_stage, 3;"),
        ("", ".reg %spare"),
    ],
)
def test_what_is_unused_is_found(line: str, report: str) -> None:
    text = STEP7.read_text(encoding="ascii")
    text = re.sub(r"(?m)^( +\.reg \.b32 %thread)", r"\1, %spare", text)
    loop = text.index("storer_tile_loop:\n")
    assert report in unused(f"{text[:loop]}storer_tile_loop:\n    {line}\n{text[loop:].split(chr(10), 1)[1]}")
