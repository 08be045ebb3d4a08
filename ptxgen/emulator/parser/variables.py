"""Declarations of variables and formal parameters (PTX ISA 9.1 §5.4)."""

from __future__ import annotations

from ptxgen.emulator.module import TYPE_BITS, Symbol, Variable
from ptxgen.emulator.parser.literals import constant_bytes, number
from ptxgen.emulator.parser.scopes import Scope
from ptxgen.emulator.parser.tokens import Tokens

SPACES = {"shared", "global", "const", "local", "param"}


def declare_variables(tokens: Tokens, space: str, scope: Scope, *, extern: bool = False) -> None:
    """The declarators after a state space, up to and with the semicolon."""
    kind = _type(tokens)
    while True:
        variable = _declarator(tokens, space, kind, extern=extern)
        scope.declare(variable.name, Symbol(variable), tokens.fail)
        if not tokens.accept(","):
            break
    tokens.take(";")


def read_formal(tokens: Tokens) -> Variable:
    """One formal after `.param`."""
    return _declarator(tokens, "param", _type(tokens))


def _type(tokens: Tokens) -> tuple[str, int, int]:
    """Type, elements of a vector, alignment or 0: what all declarators of a declaration have in common."""
    align, kind, vector, pointer = 0, "", 1, False
    while tokens.next.kind == "directive":
        word = tokens.take().text[1:]
        if word == "align":
            given = tokens.integer()
            align = align if pointer else given  # after .ptr it is that of what is pointed to
        elif word == "ptr":
            pointer = True
        elif word in ("v2", "v4"):
            vector = int(word[1:])
        elif word in TYPE_BITS and word != "pred":
            kind = word
        elif word == "attribute":
            tokens.skip_past(")")
        elif word not in SPACES:
            tokens.fail(f"unknown attribute .{word} of a variable")
    if not kind:
        tokens.fail("a variable declaration needs a type")
    return kind, vector, align


def _declarator(tokens: Tokens, space: str, of: tuple[str, int, int], *, extern: bool = False) -> Variable:
    """Name, dimensions, initialiser."""
    (kind, vector, align), name = of, tokens.take("word").text
    size = TYPE_BITS[kind] // 8
    count, unsized = vector, False
    while tokens.accept("["):
        if tokens.accept("]"):
            unsized = True
            continue
        count *= tokens.integer()
        tokens.take("]")
    initial = _initialiser(tokens, kind) if tokens.accept("=") else None
    if unsized and initial is not None:
        count = len(initial) // size
    elif unsized and not extern and space != "param":
        tokens.fail(f"array {name} needs a size")
    total = 0 if unsized and initial is None else size * count
    return Variable(name, space, kind, total, align or size * vector, initial)


def _initialiser(tokens: Tokens, kind: str) -> bytes:
    out = bytearray()
    depth = 0
    while True:
        if tokens.accept("{"):
            depth += 1
        elif tokens.accept("}"):
            depth -= 1
        elif not tokens.accept(","):
            negative = tokens.accept("-")
            if tokens.next.kind != "number":
                tokens.fail("only numbers are supported in an initialiser")
            out += constant_bytes(number(tokens.take().text), negative, kind)
        if depth == 0:
            return bytes(out)
