"""Instructions: taken from the text as tokens, and made into operands when all names of the function are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ptxgen.emulator.module import Guard, Instruction, Operand, Register
from ptxgen.emulator.parser.lexer import Token
from ptxgen.emulator.parser.operands import Operands
from ptxgen.emulator.parser.scopes import Scope
from ptxgen.emulator.parser.tokens import Tokens


@dataclass(slots=True)
class Unresolved:
    """An instruction whose names are not resolved yet: labels may come after it."""

    name: str
    operands: list[list[Token]]
    guard: tuple[str, bool] | None
    line: int
    scope: Scope


def read_instruction(tokens: Tokens, first: Token, scope: Scope) -> Unresolved:
    """The instruction that begins with the token `first`, up to and with its semicolon."""
    guard, opcode = None, first
    if first.kind == "@":
        negated = tokens.accept("!")
        guard = (tokens.take("word").text, negated)
        opcode = tokens.take("word")
    operands: list[list[Token]] = []
    current: list[Token] = []
    depth = 0
    while True:
        token = tokens.take()
        if token.kind in (";", "end"):
            break
        if token.kind in ("[", "{", "("):
            depth += 1
        elif token.kind in ("]", "}", ")"):
            depth -= 1
            if depth < 0:
                tokens.fail(f"unexpected {token.text!r}: a semicolon is missing", opcode.line)
        elif token.kind == "," and depth == 0:
            operands.append(current)
            current = []
            continue
        current.append(token)
    if token.kind == "end":
        tokens.fail("an instruction without its semicolon", opcode.line)
    if depth:
        tokens.fail("a bracket that is not closed", opcode.line)
    if current or operands:
        operands.append(current)
    if any(not operand for operand in operands):
        tokens.fail("an empty operand", opcode.line)
    return Unresolved(opcode.text, operands, guard, opcode.line, scope)


def resolve(tokens: Tokens, raw: Unresolved) -> Instruction:
    lookup, fail = raw.scope.lookup, partial(tokens.fail, line=raw.line)
    guard = None
    if raw.guard is not None:
        name, negated = raw.guard
        register = lookup(name)
        if not isinstance(register, Register) or register.type != "pred":
            fail(f"guard {name} is not a declared predicate register")
        guard = Guard(register, negated)

    def operand(given: list[Token]) -> Operand:
        if len(given) == 1 and given[0].kind == "word":  # as most are; the general way comes to the same
            found = lookup(given[0].text)
            if found is not None:
                return found
        return Operands(given, lookup, fail).operand()

    return Instruction(raw.name, tuple(map(operand, raw.operands)), guard, raw.line)
