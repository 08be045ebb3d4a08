"""The tokens of a PTX text, taken one after the other."""

from __future__ import annotations

from typing import NoReturn

from ptxgen.emulator.parser.lexer import Token, tokenize
from ptxgen.emulator.parser.literals import number
from ptxgen.errors import PtxError


class Tokens:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = tuple(text.split("\n"))
        self._tokens = tokenize(text, file)
        self._at = 0

    def fail(self, reason: str, line: int | None = None) -> NoReturn:
        """Raises PtxError; without `line`, at the next token."""
        line = self._tokens[min(self._at, len(self._tokens) - 1)].line if line is None else line
        raise PtxError(self.file, line, self.lines[line - 1], reason)

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def take(self, kind: str | None = None) -> Token:
        token = self._tokens[self._at]
        if kind is not None and token.kind != kind:
            shown = token.text or "the end of the file"
            self.fail(f"expected {kind}, found {shown!r}", token.line)
        self._at += 1
        return token

    def accept(self, kind: str) -> bool:
        if self._tokens[self._at].kind == kind:
            self._at += 1
            return True
        return False

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.take("number")
        value = number(token.text)
        if value.kind != "int":
            self.fail(f"expected an integer, found {token.text!r}", token.line)
        return -int(value.value) if negative else int(value.value)

    def skip_past(self, kind: str) -> None:
        while self.next.kind not in (kind, "end"):
            self._at += 1
        self.take(kind)

    def skip_section(self) -> None:
        self.skip_past("{")
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                self.fail("unterminated .section", token.line)
            depth += {"{": 1, "}": -1}.get(token.kind, 0)
