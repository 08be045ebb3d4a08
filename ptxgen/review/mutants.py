"""Mutants of PTX text: one synchronising instruction is deleted or weakened, all else stays.

Lines keep their numbers: what is deleted leaves an empty line, what is added shares a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^(?P<indent>\s*)(?P<guard>@!?%\w+\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>[^;]*);")
_ADDRESS = re.compile(r"\[([^\]\[{]+)\]")
_LABEL = re.compile(r"^\s*([\w$]+):\s*$")
_REGISTER = "%mutant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`line` (1-based) and `instruction` say what was mutated, `mutation` how; `text` is the result."""

    line: int
    instruction: str
    mutation: str
    text: str


@dataclass(frozen=True, slots=True)
class _Place:
    """An instruction of the text: its line index, parts and comment."""

    index: int
    opcode: str
    operands: str
    guard: str
    comment: str

    @property
    def written(self) -> str:
        return f"{self.guard}{self.opcode} {self.operands}".strip()


_Edit = tuple[str, Callable[[list[str], _Place], None]]


def mutants(text: str) -> Iterator[Mutant]:
    """All mutants of a text, in the order of its lines."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        place = _Place(
            index, found["opcode"], found["operands"].strip(), found["guard"] or "", line.partition("//")[2].strip()
        )
        for mutation, edit in _edits(place):
            changed = list(lines)
            edit(changed, place)
            yield Mutant(
                line=index + 1,
                instruction=place.written + (f"  // {place.comment}" if place.comment else ""),
                mutation=mutation,
                text="\n".join(changed),
            )


def _edits(place: _Place) -> Iterator[_Edit]:
    for pattern, edits in _EDITS:
        if re.match(pattern, place.opcode):
            yield from edits(place)
            return


# -- edits --------------------------------------------------------------------------------------


def _delete(lines: list[str], place: _Place) -> None:
    lines[place.index] = ""


def _delete_wait(lines: list[str], place: _Place) -> None:
    """The test and the branch back to it."""
    lines[place.index] = ""
    lines[place.index + 1] = ""


def _delete_look(lines: list[str], place: _Place) -> None:
    """A load of a flag, the comparison and the branch back to it."""
    lines[place.index : place.index + 3] = ["", "", ""]


def _delete_barrier(lines: list[str], place: _Place) -> None:
    """An arrive, and the wait if that comes next."""
    lines[place.index] = ""
    if "barrier.cluster.wait" in lines[place.index + 1]:
        lines[place.index + 1] = ""


def _replace(old: str, new: str) -> Callable[[list[str], _Place], None]:
    def edit(lines: list[str], place: _Place) -> None:
        changed = lines[place.index].replace(old, new, 1)
        assert changed != lines[place.index], f"{old!r} is not in {lines[place.index]!r}"
        lines[place.index] = changed

    return edit


def _write(instruction: str) -> Callable[[list[str], _Place], None]:
    def edit(lines: list[str], place: _Place) -> None:
        lines[place.index] = f"    {place.guard}{instruction}"

    return edit


def _compute(operand: str, opcode: str, amount: int) -> Callable[[list[str], _Place], None]:
    """The last operand, changed by an instruction before."""

    def edit(lines: list[str], place: _Place) -> None:
        head, _, tail = lines[place.index].rpartition(operand)
        lines[place.index] = f"    {opcode} {_REGISTER}, {operand}, {amount}; {head.strip()}{_REGISTER}{tail}"
        body = next(i for i, line in enumerate(lines) if line.startswith("{"))
        lines[body] += f" .reg .b32 {_REGISTER};"

    return edit


def _shift(place: _Place) -> _Edit:
    """The mbarrier of the next stage."""
    address = _ADDRESS.findall(place.operands)[-1]
    base, _, offset = address.partition("+")
    moved = f"[{base}+{int(offset or 0) + 8}]"
    return "barrier of the next stage", _replace(f"[{address}]", moved)


# -- what each kind of instruction suffers ------------------------------------------------------


def _waits(place: _Place) -> Iterator[_Edit]:
    parity = place.operands.rpartition(",")[2].strip()
    yield "deleted", _delete_wait
    yield "parity flipped", _compute(parity, "xor.b32", 1)
    yield _shift(place)


def _expects(place: _Place) -> Iterator[_Edit]:
    count = place.operands.rpartition(",")[2].strip()
    address = _ADDRESS.findall(place.operands)[-1]
    yield "deleted", _delete
    yield "16 bytes more", _compute(count, "add.s32", 16)
    yield "16 bytes fewer", _compute(count, "add.s32", -16)
    yield "arrives without the bytes", _write(f"mbarrier.arrive.shared::cta.b64 _, [{address}];")
    yield _shift(place)


def _arrives(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete
    yield _shift(place)


def _commits(place: _Place) -> Iterator[_Edit]:
    address = _ADDRESS.findall(place.operands)[-1]
    yield "deleted", _delete
    if "multicast" not in place.opcode:
        yield "plain arrive instead", _write(f"mbarrier.arrive.shared::cta.b64 _, [{address}];")
    yield _shift(place)


def _barriers(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete
    yield "of the warp only", _write("bar.warp.sync 0xffffffff;")


def _cluster_barriers(place: _Place) -> Iterator[_Edit]:
    if ".arrive" in place.opcode:
        yield "deleted, with its wait", _delete_barrier
    else:
        yield "deleted", _delete
    if ".release" in place.opcode:
        yield "relaxed", _replace(".release", ".relaxed")


def _bulk_waits(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete
    if not place.opcode.endswith(".read"):
        yield ".read added", _replace("wait_group", "wait_group.read")
    yield from _one_more(place)


def _one_more(place: _Place) -> Iterator[_Edit]:
    pending = int(place.operands)
    yield "one group more pending", _replace(f" {pending};", f" {pending + 1};")


def _group_waits(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete
    yield from _one_more(place)


def _deletion(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete


def _releases(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete
    yield "relaxed", _replace(".release", ".relaxed")
    yield "of the CTA only", _replace(".gpu", ".cta")


def _acquires(place: _Place) -> Iterator[_Edit]:
    yield "deleted", _delete_look
    yield "relaxed", _replace(".acquire", ".relaxed")
    yield "of the CTA only", _replace(".gpu", ".cta")


def _inits(place: _Place) -> Iterator[_Edit]:
    count = place.operands.rpartition(",")[2].strip()
    yield "deleted", _delete
    yield "one arrival more", _replace(f", {count};", f", {int(count) + 1};")
    if int(count) > 1:  # no mbarrier counts 0
        yield "one arrival fewer", _replace(f", {count};", f", {int(count) - 1};")


_EDITS: tuple[tuple[str, Callable[[_Place], Iterator[_Edit]]], ...] = (
    (r"mbarrier\.(try|test)_wait", _waits),
    (r"mbarrier\.arrive\.expect_tx", _expects),
    (r"mbarrier\.arrive", _arrives),
    (r"mbarrier\.init", _inits),
    (r"tcgen05\.commit", _commits),
    (r"barrier\.cluster", _cluster_barriers),
    (r"st\.release\.gpu", _releases),
    (r"ld\.acquire\.gpu", _acquires),
    (r"st\.relaxed|bar\.warp\.sync", _deletion),
    (r"bar\.sync|barrier\.sync", _barriers),
    (r"cp\.async\.bulk\.wait_group", _bulk_waits),
    (r"wgmma\.wait_group|cp\.async\.wait_group", _group_waits),
    (r"tcgen05\.(alloc|dealloc|relinquish_alloc_permit|fence|wait)", _deletion),
    (r"griddepcontrol\.", _deletion),
    (r"(fence|wgmma\.(fence|commit_group)|cp\.async(\.bulk)?\.commit_group)\b", _deletion),
)
