"""Operands of an instruction (PTX ISA 9.1 §6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ptxgen.emulator.module import (
    Address,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from ptxgen.emulator.parser.lexer import Token
from ptxgen.emulator.parser.literals import number


class Operands:
    """Parses the tokens of one operand; `lookup` finds declared names, `fail` raises PtxError."""

    def __init__(
        self, tokens: list[Token], lookup: Callable[[str], Operand | None], fail: Callable[[str], NoReturn]
    ) -> None:
        self._tokens, self._lookup, self._fail = tokens, lookup, fail
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at].kind if self._at < len(self._tokens) else ""

    def _accept(self, kind: str) -> bool:
        if self._peek() == kind:
            self._at += 1
            return True
        return False

    def _expect(self, kind: str) -> Token:
        if self._peek() != kind:
            found = self._tokens[self._at].text if self._at < len(self._tokens) else "nothing"
            self._fail(f"expected {kind} in an operand, found {found!r}")
        self._at += 1
        return self._tokens[self._at - 1]

    def operand(self) -> Operand:
        result = self._one()
        if self._accept("|"):
            result = Pair(result, self._one())
        if self._at != len(self._tokens):
            self._fail(f"unexpected {self._tokens[self._at].text!r} in an operand: is a comma or a semicolon missing?")
        return result

    def _list(self, close: str) -> tuple[Operand, ...]:
        items: list[Operand] = []
        while not self._accept(close):
            items.append(self._one())
            if self._peek() != close:
                self._expect(",")
        return tuple(items)

    def _one(self) -> Operand:
        if self._accept("{"):
            return Vector(self._list("}"))
        if self._accept("("):
            return Group(self._list(")"))
        if self._accept("["):
            return self._address()
        if self._accept("!"):
            name = self._expect("word").text
            register = self._lookup(name)
            if not isinstance(register, Register) or register.type != "pred":
                self._fail(f"{name} is not a declared predicate register")
            return Negated(register)
        if self._peek() in ("number", "-", "+"):
            return self._literal()
        base = self._name(self._expect("word").text)
        offset = self._offset()
        if offset:
            if not isinstance(base, Symbol):
                self._fail("only a variable's address takes an offset outside brackets")
            return Symbol(base.variable, base.offset + offset)
        return base

    def _literal(self) -> Immediate:
        negative = self._accept("-")
        if not negative:
            self._accept("+")
        literal = number(self._expect("number").text)
        if not negative:
            return literal
        if literal.kind in ("f32", "f64"):
            self._fail("a hexadecimal float literal takes no sign")
        return Immediate(literal.kind, -literal.value)

    def _offset(self) -> int:
        total = 0
        while self._peek() in ("+", "-"):
            sign = -1 if self._expect(self._peek()).kind == "-" else 1
            if self._accept("-"):
                sign = -sign
            literal = number(self._expect("number").text)
            if literal.kind != "int":
                self._fail("an address offset must be an integer")
            total += sign * int(literal.value)
        return total

    def _address(self) -> Address:
        if self._peek() in ("number", "-"):
            base: Operand = self._literal()
        else:
            base = self._name(self._expect("word").text)
        if not isinstance(base, (Register, Symbol, Immediate)):
            self._fail("an address must be a register, a variable or a number")
        offset = self._offset()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.variable, base.offset + offset), 0
        coordinates = None
        if self._accept(","):
            coordinates = self._list("}") if self._accept("{") else (self._one(),)
            if self._accept(","):  # gather/scatter or im2col offsets are not modelled
                self._fail("a tensor address with a third part is not supported")
        self._expect("]")
        return Address(base, offset, coordinates)

    def _name(self, name: str) -> Operand:
        if name == "_":
            return Sink()
        found = self._lookup(name)
        if found is not None:
            return found
        if name == "WARP_SZ":
            return Immediate("int", 32)
        if name.startswith("%"):
            return SpecialRegister(name)
        self._fail(f"{name} is not declared")
