"""The strongest sense in which two PTX texts are the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.emulator.module import (
    Address,
    Function,
    Group,
    Guard,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    ParsedModule,
    Register,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.review.facts import Facts

LEVELS = ("text", "names", "cubin", "behaviour", "results", "none")
_WORDS = {
    "text": "the texts are identical",
    "names": "the same up to names of registers, labels and variables, and comments",
    "cubin": ".text of the cubins is identical",
    "behaviour": "the same results and the same synchronisation on the emulator",
    "results": "the same results on the emulator, with other synchronisation",
    "none": "no equality found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """`level` is the strongest that holds; `notes` say what was asked on the way, and what not."""

    level: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return _WORDS[self.level]


class _Renaming:
    """A one-to-one map that grows as two functions are walked side by side."""

    def __init__(self) -> None:
        self._there: dict[object, object] = {}
        self._back: dict[object, object] = {}

    def same(self, one: object, other: object) -> bool:
        """Whether the two may stand for each other, given all that was said before."""
        return self._there.setdefault(one, other) == other and self._back.setdefault(other, one) == one


def same_up_to_names(one: ParsedModule, other: ParsedModule) -> bool:
    """Whether two modules differ in names of registers, labels and variables, in comments, and in white space at
    most. Entries keep their names."""
    if (one.version, one.target) != (other.version, other.target) or list(one.functions) != list(other.functions):
        return False
    variables = _Renaming()
    return all(
        _same_function(mine, theirs, variables) and list(_pragmas(one, mine)) == list(_pragmas(other, theirs))
        for mine, theirs in zip(one.functions.values(), other.functions.values(), strict=True)
    )


def _same_function(one: Function, other: Function, variables: _Renaming) -> bool:
    facts = [
        (f.is_entry, f.reqntid, f.maxntid, f.cluster, f.maxnreg, f.minnctapersm, f.directives, len(f.instructions))
        for f in (one, other)
    ]
    if facts[0] != facts[1] or len(one.formals) != len(other.formals) or len(one.results) != len(other.results):
        return False
    pairs = zip((*one.results, *one.formals), (*other.results, *other.formals), strict=True)
    if not all(_same_variable(a, b, variables) for a, b in pairs):
        return False
    walk = _Walk(one, other, variables)
    return all(walk.same(a, b) for a, b in zip(one.instructions, other.instructions, strict=True))


def _same_variable(one: Variable, other: Variable, variables: _Renaming) -> bool:
    facts = [(v.space, v.type, v.size_bytes, v.align, v.initial) for v in (one, other)]
    return facts[0] == facts[1] and variables.same(id(one), id(other))


class _Walk:
    """Instructions of two functions, side by side."""

    def __init__(self, one: Function, other: Function, variables: _Renaming) -> None:
        self._one, self._other, self._variables = one, other, variables
        self._registers = _Renaming()

    def same(self, one: Instruction, other: Instruction) -> bool:
        """Whether two instructions agree, and with everything before."""
        return (
            one.name == other.name and self._guards(one.guard, other.guard) and self._each(one.operands, other.operands)
        )

    def _guards(self, one: Guard | None, other: Guard | None) -> bool:
        if one is None or other is None:
            return one is other
        return one.negated == other.negated and self._operand(one.register, other.register)

    def _each(self, one: tuple[Operand, ...], other: tuple[Operand, ...]) -> bool:
        return len(one) == len(other) and all(self._operand(a, b) for a, b in zip(one, other, strict=True))

    def _operand(self, one: Operand, other: Operand) -> bool:
        if type(one) is not type(other):
            return False
        if isinstance(one, Register) and isinstance(other, Register):
            return one.type == other.type and self._registers.same(one.index, other.index)
        if isinstance(one, Label) and isinstance(other, Label):
            return self._one.labels[one.index] == self._other.labels[other.index]
        if isinstance(one, Symbol) and isinstance(other, Symbol):
            return one.offset == other.offset and _same_variable(one.variable, other.variable, self._variables)
        if isinstance(one, Negated) and isinstance(other, Negated):
            return self._operand(one.register, other.register)
        if isinstance(one, Vector | Group) and isinstance(other, Vector | Group):
            return self._each(one.elements, other.elements)
        if isinstance(one, Pair) and isinstance(other, Pair):
            return self._operand(one.first, other.first) and self._operand(one.second, other.second)
        if isinstance(one, Address) and isinstance(other, Address):
            mine, theirs = one.coordinates or (), other.coordinates or ()
            return (
                one.offset == other.offset
                and self._operand(one.base, other.base)
                and (one.coordinates is None) == (other.coordinates is None)
                and self._each(mine, theirs)
            )
        return one == other


def _pragmas(module: ParsedModule, function: Function) -> Iterator[tuple[int, str]]:
    """Pragmas of a function's body with the number of instructions before them, which a parse passes over."""
    lines = [item.line for item in function.instructions]
    last = lines[-1] if lines else function.line
    passed = 0
    for number in range(function.line, last):
        while passed < len(lines) and lines[passed] <= number:
            passed += 1
        text = module.lines[number].partition("//")[0].strip()
        if text.startswith(".pragma"):
            yield passed, " ".join(text.split())


# -- cubins ---------------------------------------------------------------------------------------


def cubin_code(cubin: bytes) -> dict[str, bytes]:
    """The sections of a cubin (ELF64) that hold machine code, by name."""
    if cubin[:4] != b"\x7fELF":
        return {}
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    names = headers[names_at]
    found = {}
    for name, _, _, _, offset, length in headers:
        start = names[4] + name
        text = cubin[start : cubin.index(b"\0", start)].decode()
        if text.startswith(".text"):
            found[text] = cubin[offset : offset + length]
    return found


def static_equality(old: Facts, new: Facts) -> Equality:
    """The strongest of the equalities that need no run."""
    notes = []
    level = "none"
    if old.source.text == new.source.text:
        return Equality(level="text", notes=())
    if same_up_to_names(old.structure.module, new.structure.module):
        level = "names"
    for side in (old, new):
        if side.assembly_error:
            notes.append(f"{side.source.name} was not assembled: {side.assembly_error.splitlines()[0]}")
    if old.assembly is not None and new.assembly is not None:
        same = cubin_code(old.assembly.cubin) == cubin_code(new.assembly.cubin)
        said = "identical" if same else "different"
        notes.append(f".text of the cubins is {said} (ptxas {old.assembly.ptxas.version}, {old.assembly.target})")
        if same and level == "none":
            level = "cubin"
    elif not notes:
        notes.append("the cubins were not compared")
    return Equality(level=level, notes=tuple(notes))
