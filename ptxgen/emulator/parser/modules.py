"""Modules: directives, variables and functions at the top of a PTX text."""

from __future__ import annotations

from ptxgen.emulator.module import Function, ParsedModule
from ptxgen.emulator.parser.functions import FunctionParser
from ptxgen.emulator.parser.lexer import Token
from ptxgen.emulator.parser.scopes import Scope
from ptxgen.emulator.parser.tokens import Tokens
from ptxgen.emulator.parser.variables import SPACES, declare_variables
from ptxgen.hardware.targets import MINIMUM_PTX_VERSION

_LINKAGE = {".visible", ".extern", ".weak", ".common"}


def parse(text: str, name: str) -> ParsedModule:
    """The module of a PTX text. `name` is used in error messages only."""
    tokens = Tokens(text, name)
    scope = Scope()
    functions: dict[str, Function] = {}
    version, target, version_line = (0, 0), "", 1
    while tokens.next.kind != "end":
        token = tokens.take()
        if token.text == ".version":
            number = tokens.take("number").text
            major, _, minor = number.partition(".")
            version, version_line = (int(major), int(minor or 0)), token.line
        elif token.text == ".target":
            target = tokens.take("word").text
            while tokens.accept(","):
                tokens.take("word")
        elif token.text == ".address_size":
            if tokens.integer() != 64:
                tokens.fail("only .address_size 64 is supported", token.line)
        elif token.text == ".section":
            tokens.skip_section()
        elif token.text in (".pragma", ".alias"):
            tokens.skip_past(";")
        elif token.kind == "directive":
            _declaration(tokens, token, scope, functions)
        else:
            tokens.fail(f"expected a directive, found {token.text!r}", token.line)
    if version == (0, 0):
        tokens.fail("no .version directive", 1)
    if not target:
        tokens.fail("no .target directive", 1)
    if version < (lowest := MINIMUM_PTX_VERSION.get(target, version)):
        given, needed = (".".join(map(str, numbers)) for numbers in (version, lowest))
        tokens.fail(f".version {given} does not know {target}; it came with {needed}", version_line)
    return ParsedModule(file=name, lines=tokens.lines, version=version, target=target, functions=functions)


def _declaration(tokens: Tokens, token: Token, scope: Scope, functions: dict[str, Function]) -> None:
    extern = False
    while token.text in _LINKAGE:
        extern |= token.text == ".extern"
        token = tokens.take("directive")
    kind = token.text[1:]
    if kind in ("entry", "func"):
        function = FunctionParser(tokens, scope).function(kind == "entry", token.line)
        if function:
            if function.name in functions:
                tokens.fail(f"function {function.name} is defined twice", token.line)
            functions[function.name] = function
    elif kind in SPACES:
        declare_variables(tokens, kind, scope, extern=extern)
    else:
        tokens.fail(f"unknown directive {token.text!r}", token.line)
