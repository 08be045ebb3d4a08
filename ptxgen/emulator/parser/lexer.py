"""Splits PTX text into tokens; comments, `.loc`, `.file` and `@@DWARF` lines are passed over."""

from __future__ import annotations

import re
from typing import NamedTuple

from ptxgen.errors import PtxError


class Token(NamedTuple):
    """kind is word (names, opcodes with their modifiers, registers), directive, number, string or
    the punctuation character itself."""

    kind: str
    text: str
    line: int


_PATTERN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<skip>[ \t\r\f\v]+ | //[^\n]* | \.(?:loc|file)\b[^\n]* | @@[^\n]*)
    | (?P<comment>/\*.*?\*/)
    | (?P<directive>\.[A-Za-z_][\w$]*(?:::[\w]+)*)
    | (?P<number>0[fF][0-9a-fA-F]{8}(?![0-9a-zA-Z_])|0[dD][0-9a-fA-F]{16}(?![0-9a-zA-Z_])
        |0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    | (?P<word>[%$_A-Za-z][\w$%]*(?:(?:\.|::)[\w$]+)*)
    | (?P<string>"[^"\n]*")
    | (?P<punctuation>[{}()\[\];:,<>|!@+\-=*/&~^?%])
    | (?P<unknown>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str, name: str) -> list[Token]:
    """All tokens of a file, ending with one of kind "end"; PtxError on a character PTX lacks."""
    tokens: list[Token] = []
    line = 1
    for found in _PATTERN.finditer(text):
        kind = found.lastgroup
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += found[0].count("\n")
        elif kind == "unknown":
            source = text.splitlines()[line - 1]
            raise PtxError(name, line, source, f"unexpected character {found[0]!r}")
        elif kind is not None and kind != "skip":
            word = found[0]
            tokens.append(Token(word if kind == "punctuation" else kind, word, line))
    tokens.append(Token("end", "", line))
    return tokens
