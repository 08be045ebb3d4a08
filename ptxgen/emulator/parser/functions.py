"""Functions: formals and directives before the body, its blocks, and all of it resolved."""

from __future__ import annotations

from ptxgen.emulator.module import (
    TYPE_BITS,
    Function,
    FunctionName,
    Label,
    Parameter,
    Register,
    Symbol,
    Variable,
)
from ptxgen.emulator.parser.instructions import Unresolved, read_instruction, resolve
from ptxgen.emulator.parser.lexer import Token
from ptxgen.emulator.parser.scopes import Scope
from ptxgen.emulator.parser.tokens import Tokens
from ptxgen.emulator.parser.variables import SPACES, declare_variables, read_formal

_TRIPLES = {".reqntid", ".maxntid", ".reqnctapercluster", ".maxclusterrank"}
_COUNTS = {".maxnreg", ".minnctapersm", ".maxnctapersm"}
_BARE = {".explicitcluster", ".blocksareclusters", ".noreturn"}


class FunctionParser:
    """Parses one function, from its formals on."""

    def __init__(self, tokens: Tokens, module: Scope) -> None:
        self._tokens = tokens
        self._module = module
        self._registers: list[Register] = []
        self._labels: list[int] = []
        self._instructions: list[Unresolved] = []
        self._branch_targets: dict[str, tuple[Scope, list[Token]]] = {}
        self._facts: dict[str, tuple[int, ...]] = {}

    def function(self, is_entry: bool, line: int) -> Function | None:
        """None of a declaration, whose definition or a call decides."""
        tokens, scope = self._tokens, Scope(self._module)
        results = self._formals(scope) if tokens.next.kind == "(" else ()
        name = tokens.take("word").text
        formals = self._formals(scope) if tokens.next.kind == "(" else ()
        while tokens.next.kind == "directive":
            self._fact(tokens.take())
        if tokens.accept(";"):
            self._module.names.setdefault(name, FunctionName(name))
            return None
        self._module.names[name] = FunctionName(name)
        tokens.take("{")
        self._block(scope)
        facts = self._facts
        return Function(
            name=name,
            is_entry=is_entry,
            parameters=_parameters(formals) if is_entry else (),
            formals=formals,
            results=results,
            instructions=tuple(resolve(tokens, raw) for raw in self._instructions),
            registers=tuple(self._registers),
            labels=tuple(self._labels),
            branch_targets={
                table: tuple(self._label(token, scope).index for token in items)
                for table, (scope, items) in self._branch_targets.items()
            },
            reqntid=_triple(facts.get("reqntid")),
            maxntid=_triple(facts.get("maxntid")),
            cluster=_triple(facts.get("reqnctapercluster")),
            maxnreg=next(iter(facts.get("maxnreg", ())), None),
            minnctapersm=next(iter(facts.get("minnctapersm", ())), None),
            directives=tuple(facts),
            line=line,
        )

    def _formals(self, scope: Scope) -> tuple[Variable, ...]:
        """A parenthesised list of `.param` formals."""
        tokens = self._tokens
        tokens.take("(")
        formals: list[Variable] = []
        while not tokens.accept(")"):
            token = tokens.take("directive")
            if token.text != ".param":
                tokens.fail(f"only .param formals are supported, found {token.text}", token.line)
            formal = read_formal(tokens)
            scope.declare(formal.name, Symbol(formal), tokens.fail)
            formals.append(formal)
            if tokens.next.kind != ")":
                tokens.take(",")
        return tuple(formals)

    def _fact(self, directive: Token) -> None:
        """A directive between the formals and the body."""
        tokens, name = self._tokens, directive.text[1:]
        if directive.text in _TRIPLES:
            values = [tokens.integer()]
            while tokens.accept(","):
                values.append(tokens.integer())
            self._facts[name] = tuple(values)
        elif directive.text in _COUNTS:
            self._facts[name] = (tokens.integer(),)
        elif directive.text in _BARE:
            self._facts[name] = ()
        elif directive.text == ".pragma":
            tokens.skip_past(";")
        else:
            tokens.fail(f"unknown directive {directive.text!r} of a function", directive.line)

    # -- the body -------------------------------------------------------------------------------

    def _block(self, scope: Scope) -> None:
        """The statements of a `{}` block, up to and with its closing brace."""
        tokens = self._tokens
        while not tokens.accept("}"):
            token = tokens.take()
            if token.kind == "{":
                self._block(Scope(scope))
            elif token.kind == "directive":
                self._directive(token, scope)
            elif token.kind == ";":
                continue
            elif token.kind == "word" and tokens.accept(":"):
                if tokens.next.text in (".branchtargets", ".calltargets", ".callprototype"):
                    self._table(token, scope)
                    continue
                scope.declare(token.text, Label(token.text, len(self._labels)), tokens.fail)
                self._labels.append(len(self._instructions))
            elif token.kind in ("word", "@"):
                self._instructions.append(read_instruction(tokens, token, scope))
            else:
                shown = token.text or "the end of the file"
                tokens.fail(f"expected an instruction, found {shown!r}", token.line)

    def _directive(self, token: Token, scope: Scope) -> None:
        tokens, kind = self._tokens, token.text[1:]
        if kind == "reg":
            self._declare_registers(scope)
        elif kind in SPACES:
            declare_variables(tokens, kind, scope)
        elif kind == "extern" and tokens.next.text in (".shared", ".global", ".const"):
            declare_variables(tokens, tokens.take().text[1:], scope, extern=True)
        elif kind == "pragma":
            tokens.skip_past(";")
        elif kind == "section":
            tokens.skip_section()
        else:
            tokens.fail(f"unknown directive {token.text!r}", token.line)

    def _table(self, name: Token, scope: Scope) -> None:
        tokens = self._tokens
        directive = tokens.take()
        items: list[Token] = []
        while not tokens.accept(";"):
            if tokens.next.kind == "end":
                tokens.fail(f"unterminated {directive.text}")
            item = tokens.take()
            if item.kind != ",":
                items.append(item)
        if directive.text == ".branchtargets":
            self._branch_targets[name.text] = scope, items
        scope.declare(name.text, FunctionName(name.text), tokens.fail)

    def _label(self, token: Token, scope: Scope) -> Label:
        found = scope.lookup(token.text)
        if not isinstance(found, Label):
            self._tokens.fail(f"{token.text} is not a label", token.line)
        return found

    def _declare_registers(self, scope: Scope) -> None:
        tokens, registers = self._tokens, self._registers
        token = tokens.take("directive")
        if token.text in (".v2", ".v4"):
            tokens.fail("vector registers are not supported", token.line)
        kind = token.text[1:]
        if kind not in TYPE_BITS:
            tokens.fail(f"unknown register type {token.text}", token.line)
        while True:
            name, first = tokens.take("word").text, len(registers)
            if tokens.accept("<"):
                count = tokens.integer()
                tokens.take(">")
                if not 0 < count <= 1 << 20:
                    tokens.fail(f"register range {name}<{count}> is not between 1 and 2^20")
                if name in scope.ranges:
                    tokens.fail(f"register range {name}<> is declared twice in this block")
                scope.ranges[name] = (first, count, kind)
                registers.extend(Register(f"{name}{i}", first + i, kind) for i in range(count))
            else:
                registers.append(Register(name, first, kind))
                scope.declare(name, registers[first], tokens.fail)
            if not tokens.accept(","):
                break
        tokens.take(";")


def _parameters(formals: tuple[Variable, ...]) -> tuple[Parameter, ...]:
    """An entry's formals with their places in parameter space."""
    parameters, offset = [], 0
    for formal in formals:
        offset = -(-offset // formal.align) * formal.align
        parameters.append(Parameter(formal.name, formal.type, formal.size_bytes, formal.align, offset, formal))
        offset += formal.size_bytes
    return tuple(parameters)


def _triple(values: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    padded = (*values, 1, 1)
    return padded[0], padded[1], padded[2]
