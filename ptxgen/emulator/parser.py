"""Parses PTX text into a ParsedModule (PTX ISA 9.1 §4, §5, §11).

Names are resolved here (block-scoped registers, variables and labels); opcodes and modifiers are
checked later, by the decoder of each instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from ptxgen.emulator.lexer import Token, tokenize
from ptxgen.emulator.module import (
    TYPE_BITS,
    Function,
    FunctionName,
    Guard,
    Immediate,
    Instruction,
    Label,
    Operand,
    Parameter,
    ParsedModule,
    Register,
    Symbol,
    Variable,
)
from ptxgen.emulator.operands import Operands, constant_bytes, number
from ptxgen.errors import PtxError
from ptxgen.hardware.targets import MINIMUM_PTX_VERSION

_SPACES = {"shared", "global", "const", "local", "param"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_TRIPLES = {".reqntid", ".maxntid", ".reqnctapercluster", ".maxclusterrank"}
_COUNTS = {".maxnreg", ".minnctapersm", ".maxnctapersm"}
_BARE = {".explicitcluster", ".blocksareclusters", ".noreturn"}


def parse(text: str, name: str) -> ParsedModule:
    """The module of a PTX text. `name` is used in error messages only."""
    return _Parser(text, name).module()


@dataclass(slots=True)
class _Scope:
    """A `{}` block: what is declared in it, by name."""

    parent: _Scope | None
    names: dict[str, Operand] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Raw:
    """An instruction whose names are not resolved yet."""

    name: str
    operands: list[list[Token]]
    guard: tuple[str, bool] | None
    line: int
    scope: _Scope


class _Body:
    """The function being parsed."""

    def __init__(self) -> None:
        self.registers: list[Register] = []
        self.labels: list[int] = []
        self.raw: list[_Raw] = []
        self.tables: dict[str, list[list[Token]]] = {}
        self.table_scopes: dict[str, _Scope] = {}


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._file = name
        self._lines = tuple(text.split("\n"))
        self._tokens = tokenize(text, name)
        self._at = 0
        self._globals = _Scope(None)
        self._functions: dict[str, Function] = {}

    # -- token access ---------------------------------------------------------------------------

    def _fail(self, reason: str, line: int | None = None) -> NoReturn:
        line = self._tokens[min(self._at, len(self._tokens) - 1)].line if line is None else line
        raise PtxError(self._file, line, self._lines[line - 1], reason)

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self, kind: str | None = None) -> Token:
        token = self._tokens[self._at]
        if kind is not None and token.kind != kind:
            shown = token.text or "the end of the file"
            self._fail(f"expected {kind}, found {shown!r}", token.line)
        self._at += 1
        return token

    def _accept(self, kind: str) -> bool:
        if self._tokens[self._at].kind == kind:
            self._at += 1
            return True
        return False

    def _integer(self) -> int:
        negative = self._accept("-")
        token = self._take("number")
        value = number(token.text)
        if value.kind != "int":
            self._fail(f"expected an integer, found {token.text!r}", token.line)
        return -int(value.value) if negative else int(value.value)

    # -- module ---------------------------------------------------------------------------------

    def module(self) -> ParsedModule:
        version, target, version_line = (0, 0), "", 1
        while self._next.kind != "end":
            token = self._take()
            if token.text == ".version":
                number = self._take("number").text
                major, _, minor = number.partition(".")
                version, version_line = (int(major), int(minor or 0)), token.line
            elif token.text == ".target":
                target = self._take("word").text
                while self._accept(","):
                    self._take("word")
            elif token.text == ".address_size":
                if self._integer() != 64:
                    self._fail("only .address_size 64 is supported", token.line)
            elif token.text == ".section":
                self._skip_section()
            elif token.text in (".pragma", ".alias"):
                self._skip_past(";")
            elif token.kind == "directive":
                self._declaration(token)
            else:
                self._fail(f"expected a directive, found {token.text!r}", token.line)
        if version == (0, 0):
            self._fail("no .version directive", 1)
        if not target:
            self._fail("no .target directive", 1)
        if version < (lowest := MINIMUM_PTX_VERSION.get(target, version)):
            given, needed = (".".join(map(str, numbers)) for numbers in (version, lowest))
            self._fail(f".version {given} does not know {target}; it came with {needed}", version_line)
        return ParsedModule(
            file=self._file, lines=self._lines, version=version, target=target,
            functions=self._functions,
        )  # fmt: skip

    def _skip_past(self, kind: str) -> None:
        while self._next.kind not in (kind, "end"):
            self._at += 1
        self._take(kind)

    def _skip_section(self) -> None:
        while self._next.kind not in ("{", "end"):
            self._at += 1
        self._take("{")
        depth = 1
        while depth:
            token = self._take()
            if token.kind == "end":
                self._fail("unterminated .section", token.line)
            depth += {"{": 1, "}": -1}.get(token.kind, 0)

    def _declaration(self, token: Token) -> None:
        extern = False
        while token.text in _LINKAGE:
            extern |= token.text == ".extern"
            token = self._take("directive")
        kind = token.text[1:]
        if kind in ("entry", "func"):
            self._function(kind == "entry", token.line)
        elif kind in _SPACES:
            self._variables(kind, self._globals, extern)
        else:
            self._fail(f"unknown directive {token.text!r}", token.line)

    # -- variables ------------------------------------------------------------------------------

    def _variable(self, space: str, extern: bool = False) -> Variable:
        """One declarator after its state space: attributes, type, name, dimensions, initialiser."""
        align, kind, vector, pointer = 0, "", 1, False
        while self._next.kind == "directive":
            word = self._take().text[1:]
            if word == "align":
                number_of_bytes = self._integer()
                align = align if pointer else number_of_bytes  # after .ptr it is that of what is pointed to
            elif word == "ptr":
                pointer = True
            elif word in ("v2", "v4"):
                vector = int(word[1:])
            elif word in TYPE_BITS and word != "pred":
                kind = word
            elif word in ("attribute",):
                self._skip_past(")")
            elif word not in _SPACES:
                self._fail(f"unknown attribute .{word} of a variable")
        if not kind:
            self._fail("a variable declaration needs a type")
        return self._declarator(space, kind, align, vector, extern)

    def _declarator(self, space: str, kind: str, align: int, vector: int, extern: bool) -> Variable:
        name = self._take("word").text
        size = TYPE_BITS[kind] // 8
        count, unsized = vector, False
        while self._accept("["):
            if self._accept("]"):
                unsized = True
                continue
            count *= self._integer()
            self._take("]")
        initial = self._initialiser(kind) if self._accept("=") else None
        if unsized and initial is not None:
            count = len(initial) // size
        elif unsized and not extern and space != "param":
            self._fail(f"array {name} needs a size")
        total = 0 if unsized and initial is None else size * count
        return Variable(name, space, kind, total, align or size * vector, initial)

    def _initialiser(self, kind: str) -> bytes:
        out = bytearray()
        depth = 0
        while True:
            if self._accept("{"):
                depth += 1
            elif self._accept("}"):
                depth -= 1
            elif not self._accept(","):
                negative = self._accept("-")
                out += constant_bytes(self._number_token(), negative, kind)
            if depth == 0 and self._next.kind != ",":
                return bytes(out)

    def _number_token(self) -> Immediate:
        if self._next.kind != "number":
            self._fail("only numbers are supported in an initialiser")
        return number(self._take().text)

    def _variables(self, space: str, scope: _Scope, extern: bool = False) -> None:
        first = self._variable(space, extern)
        self._declare(scope, first.name, Symbol(first))
        while self._accept(","):
            more = self._declarator(space, first.type, first.align, 1, extern)
            self._declare(scope, more.name, Symbol(more))
        self._take(";")

    def _declare(self, scope: _Scope, name: str, what: Operand) -> None:
        known = scope.names.get(name)
        if known is not None:
            both = isinstance(known, Symbol) and isinstance(what, Symbol)
            if both and scope is self._globals:  # an extern declaration before the definition
                return
            self._fail(f"{name} is declared twice in this block")
        scope.names[name] = what

    # -- functions ------------------------------------------------------------------------------

    def _function(self, is_entry: bool, line: int) -> None:
        body = _Body()
        scope = _Scope(self._globals)
        results = self._formals(scope, body) if self._next.kind == "(" else ()
        name = self._take("word").text
        formals = self._formals(scope, body) if self._next.kind == "(" else ()
        facts: dict[str, tuple[int, ...]] = {}
        while self._next.kind == "directive":
            self._function_directive(facts)
        if self._accept(";"):  # a declaration; its definition or a call decides
            self._globals.names.setdefault(name, FunctionName(name))
            return
        self._globals.names[name] = FunctionName(name)
        if name in self._functions:
            self._fail(f"function {name} is defined twice", line)
        self._take("{")
        self._block(scope, body)
        parameters, offset = [], 0
        for formal in formals:
            offset = -(-offset // formal.align) * formal.align
            parameters.append(Parameter(formal.name, formal.type, formal.size_bytes, formal.align, offset, formal))
            offset += formal.size_bytes
        self._functions[name] = Function(
            name=name,
            is_entry=is_entry,
            parameters=tuple(parameters) if is_entry else (),
            formals=formals,
            results=results,
            instructions=tuple(self._resolve(raw) for raw in body.raw),
            registers=tuple(body.registers),
            labels=tuple(body.labels),
            branch_targets={
                table: tuple(self._label(tokens[0], body.table_scopes[table]).index for tokens in items)
                for table, items in body.tables.items()
            },
            reqntid=_triple(facts.get("reqntid")),
            maxntid=_triple(facts.get("maxntid")),
            cluster=_triple(facts.get("reqnctapercluster")),
            maxnreg=facts["maxnreg"][0] if "maxnreg" in facts else None,
            minnctapersm=facts["minnctapersm"][0] if "minnctapersm" in facts else None,
            directives=tuple(facts),
            line=line,
        )

    def _function_directive(self, facts: dict[str, tuple[int, ...]]) -> None:
        token = self._take()
        if token.text in _TRIPLES:
            values = [self._integer()]
            while self._accept(","):
                values.append(self._integer())
            facts[token.text[1:]] = tuple(values)
        elif token.text in _COUNTS:
            facts[token.text[1:]] = (self._integer(),)
        elif token.text in _BARE:
            facts[token.text[1:]] = ()
        elif token.text == ".pragma":
            self._skip_past(";")
        else:
            self._fail(f"unknown directive {token.text!r} of a function", token.line)

    def _formals(self, scope: _Scope, body: _Body) -> tuple[Variable, ...]:
        """A parenthesised formal list; `.reg` formals become parameters of the same type."""
        self._take("(")
        formals: list[Variable] = []
        while not self._accept(")"):
            token = self._take("directive")
            if token.text != ".param":
                self._fail(f"only .param formals are supported, found {token.text}", token.line)
            formal = self._variable("param")
            self._declare(scope, formal.name, Symbol(formal))
            formals.append(formal)
            if self._next.kind != ")":
                self._take(",")
        return tuple(formals)

    def _block(self, scope: _Scope, body: _Body) -> None:
        """The statements of a `{}` block, up to and with its closing brace."""
        while not self._accept("}"):
            token = self._take()
            if token.kind == "{":
                self._block(_Scope(scope), body)
            elif token.kind == "directive":
                self._body_directive(token, scope, body)
            elif token.kind == ";":
                continue
            elif token.kind == "word" and self._next.kind == ":":
                self._at += 1
                if self._next.text in (".branchtargets", ".calltargets", ".callprototype"):
                    self._table(token, scope, body)
                    continue
                self._declare(scope, token.text, Label(token.text, len(body.labels)))
                body.labels.append(len(body.raw))
            elif token.kind in ("word", "@"):
                self._at -= 1
                body.raw.append(self._instruction(scope))
            else:
                shown = token.text or "the end of the file"
                self._fail(f"expected an instruction, found {shown!r}", token.line)

    def _body_directive(self, token: Token, scope: _Scope, body: _Body) -> None:
        kind = token.text[1:]
        if kind == "reg":
            self._registers(scope, body)
        elif kind in _SPACES:
            self._variables(kind, scope)
        elif kind == "extern" and self._next.text in (".shared", ".global", ".const"):
            self._variables(self._take().text[1:], scope, extern=True)
        elif kind == "pragma":
            self._skip_past(";")
        elif kind == "section":
            self._skip_section()
        else:
            self._fail(f"unknown directive {token.text!r}", token.line)

    def _table(self, name: Token, scope: _Scope, body: _Body) -> None:
        directive = self._take()
        items: list[list[Token]] = []
        while not self._accept(";"):
            if self._next.kind == "end":
                self._fail(f"unterminated {directive.text}")
            item = self._take()
            if item.kind != ",":
                items.append([item])
        if directive.text == ".branchtargets":
            body.tables[name.text] = items
            body.table_scopes[name.text] = scope
        self._declare(scope, name.text, FunctionName(name.text))

    def _registers(self, scope: _Scope, body: _Body) -> None:
        token = self._take("directive")
        if token.text in (".v2", ".v4"):
            self._fail("vector registers are not supported", token.line)
        kind = token.text[1:]
        if kind not in TYPE_BITS:
            self._fail(f"unknown register type {token.text}", token.line)
        while True:
            name = self._take("word").text
            if self._accept("<"):
                count = self._integer()
                self._take(">")
                if not 0 < count <= 1 << 20:
                    self._fail(f"register range {name}<{count}> is not between 1 and 2^20")
                if name in scope.ranges:
                    self._fail(f"register range {name}<> is declared twice in this block")
                scope.ranges[name] = (len(body.registers), count, kind)
                body.registers.extend(Register(f"{name}{i}", len(body.registers) + i, kind) for i in range(count))
            else:
                register = Register(name, len(body.registers), kind)
                self._declare(scope, name, register)
                body.registers.append(register)
            if not self._accept(","):
                break
        self._take(";")

    # -- instructions ---------------------------------------------------------------------------

    def _instruction(self, scope: _Scope) -> _Raw:
        guard = None
        if self._accept("@"):
            negated = self._accept("!")
            guard = (self._take("word").text, negated)
        opcode = self._take("word")
        operands: list[list[Token]] = []
        current: list[Token] = []
        depth = 0
        while True:
            token = self._take()
            if token.kind in (";", "end"):
                break
            if token.kind in ("[", "{", "("):
                depth += 1
            elif token.kind in ("]", "}", ")"):
                depth -= 1
                if depth < 0:
                    self._fail(f"unexpected {token.text!r}: a semicolon is missing", opcode.line)
            elif token.kind == "," and depth == 0:
                operands.append(current)
                current = []
                continue
            current.append(token)
        if token.kind == "end":
            self._fail("an instruction without its semicolon", opcode.line)
        if depth:
            self._fail("a bracket that is not closed", opcode.line)
        if current or operands:
            operands.append(current)
        if any(not tokens for tokens in operands):
            self._fail("an empty operand", opcode.line)
        return _Raw(opcode.text, operands, guard, opcode.line, scope)

    def _resolve(self, raw: _Raw) -> Instruction:
        guard = None
        if raw.guard is not None:
            name, negated = raw.guard
            register = self._lookup(name, raw.scope)
            if not isinstance(register, Register) or register.type != "pred":
                self._fail(f"guard {name} is not a declared predicate register", raw.line)
            guard = Guard(register, negated)

        def lookup(name: str) -> Operand | None:
            return self._lookup(name, raw.scope)

        def fail(reason: str) -> NoReturn:
            self._fail(reason, raw.line)

        def operand(tokens: list[Token]) -> Operand:
            if len(tokens) == 1 and tokens[0].kind == "word":  # as most are; the general way comes to the same
                found = self._lookup(tokens[0].text, raw.scope)
                if found is not None:
                    return found
            return Operands(tokens, lookup, fail).operand()

        return Instruction(raw.name, tuple(map(operand, raw.operands)), guard, raw.line)

    def _lookup(self, name: str, scope: _Scope | None) -> Operand | None:
        if scope is not None and (found := scope.names.get(name)) is not None:
            return found
        base = name.rstrip("0123456789")
        digits = name[len(base) :]
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            # A register of a range: its number may begin within a name that itself ends in digits.
            for cut in range(len(digits)):
                span = scope.ranges.get(base + digits[:cut])
                number = digits[cut:]
                if span is None or (number[0] == "0" and number != "0"):
                    continue
                if int(number) < span[1]:
                    return Register(name, span[0] + int(number), span[2])
            scope = scope.parent
        return None

    def _label(self, token: Token, scope: _Scope) -> Label:
        found = self._lookup(token.text, scope)
        if not isinstance(found, Label):
            self._fail(f"{token.text} is not a label", token.line)
        return found


def _triple(values: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    padded = (*values, 1, 1)
    return padded[0], padded[1], padded[2]
