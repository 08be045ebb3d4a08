"""Calls of simple `.func`s are expanded in place, so that a warp needs no call stack.

A callee's formal parameters become the caller's argument variables; its registers and labels are
renumbered, `ret` becomes a branch to the end. Recursion, calls through pointers and functions that
the module only declares are refused (PTX ISA 9.1 §9.7.12.7).
"""

from __future__ import annotations

from dataclasses import replace

from ptxgen.emulator.module import (
    Address,
    Function,
    FunctionName,
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
from ptxgen.errors import NotSupportedError, PtxError

_MAX_INSTRUCTIONS = 1 << 20


def inline_calls(module: ParsedModule, entry: Function) -> Function:
    """The entry with every call expanded; the entry itself when it calls nothing."""
    if not any(_is_call(item) for item in entry.instructions):
        return entry
    expansion = _Expansion(module, list(entry.registers))
    places = expansion.body(entry, {}, (entry.name,))
    return replace(
        entry,
        registers=tuple(expansion.registers),
        instructions=tuple(expansion.out),
        labels=tuple(expansion.labels),
        branch_targets=places,
    )


def _is_call(item: Instruction) -> bool:
    return item.name == "call" or item.name.startswith("call.")


class _Expansion:
    def __init__(self, module: ParsedModule, registers: list[Register]) -> None:
        self._module = module
        self.registers = registers
        self.out: list[Instruction] = []
        self.labels: list[int] = []

    def body(
        self, function: Function, variables: dict[Variable, Variable], chain: tuple[str, ...]
    ) -> dict[str, tuple[int, ...]]:
        """Appends a function's instructions; returns its branch tables with new label numbers."""
        first_register = 0
        if len(chain) > 1:
            first_register = len(self.registers)
            self.registers.extend(Register(f"{r.name}", first_register + r.index, r.type) for r in function.registers)
        first_label = len(self.labels)
        self.labels.extend([-1] * (len(function.labels) + 1))
        end_label = Label("return", len(self.labels) - 1)
        rename = _Rename(first_register, first_label, variables)
        at: dict[int, list[int]] = {}
        for number, index in enumerate(function.labels):
            at.setdefault(index, []).append(first_label + number)
        for index, item in enumerate(function.instructions):
            for label in at.get(index, ()):
                self.labels[label] = len(self.out)
            if _is_call(item):
                self._call(item, rename, chain)
            elif len(chain) > 1 and item.name.split(".")[0] == "ret":
                guard = rename.guard(item.guard)
                self._append(Instruction("bra", (end_label,), guard, item.line))
            else:
                operands = tuple(rename.operand(operand) for operand in item.operands)
                self._append(Instruction(item.name, operands, rename.guard(item.guard), item.line))
        for label in at.get(len(function.instructions), ()):
            self.labels[label] = len(self.out)
        self.labels[end_label.index] = len(self.out)
        return {name: tuple(first_label + label for label in table) for name, table in function.branch_targets.items()}

    def _append(self, item: Instruction) -> None:
        if len(self.out) >= _MAX_INSTRUCTIONS:
            raise NotSupportedError("expanding the calls of this entry makes it too long")
        self.out.append(item)

    def _call(self, item: Instruction, rename: _Rename, chain: tuple[str, ...]) -> None:
        def fail(reason: str) -> PtxError:
            file, lines = self._module.file, self._module.lines
            return PtxError(file, item.line, lines[item.line - 1], reason)

        if item.name not in ("call", "call.uni"):
            raise fail(f"unknown modifier in {item.name}")
        names = [o for o in item.operands if isinstance(o, FunctionName)]
        groups = [o for o in item.operands if isinstance(o, Group)]
        if len(names) != 1:
            raise fail("a call through a register is not supported")
        callee = self._module.functions.get(names[0].name)
        if callee is None or callee.is_entry:
            raise fail(f"call of {names[0].name}, which this module does not define")
        if callee.name in chain:
            raise fail(f"recursive call of {callee.name} is not supported")
        if callee.branch_targets:
            raise fail(f"call of {callee.name}, which uses branch tables, is not supported")
        results = groups[0].elements if callee.results and groups else ()
        arguments = groups[-1].elements if callee.formals and groups else ()
        variables: dict[Variable, Variable] = {}
        pairs = [*zip(callee.results, results, strict=False)]
        pairs += [*zip(callee.formals, arguments, strict=False)]
        if len(pairs) != len(callee.results) + len(callee.formals):
            raise fail(f"{callee.name} takes another number of arguments")
        for formal, actual in pairs:
            actual = rename.operand(actual)
            if not isinstance(actual, Symbol) or actual.variable.space != "param":
                raise fail(f"arguments of {callee.name} must be .param variables")
            if actual.variable.size_bytes != formal.size_bytes:
                raise fail(f"argument {actual.variable.name} has another size than {formal.name}")
            variables[formal] = actual.variable
        if item.guard is not None:
            over = Label("call", len(self.labels))
            self.labels.append(-1)
            guard = rename.guard(item.guard)
            assert guard is not None
            skip = Guard(guard.register, not guard.negated)
            self._append(Instruction("bra", (over,), skip, item.line))
            self.body(callee, variables, (*chain, callee.name))
            self.labels[over.index] = len(self.out)
        else:
            self.body(callee, variables, (*chain, callee.name))


class _Rename:
    def __init__(self, registers: int, labels: int, variables: dict[Variable, Variable]) -> None:
        self._registers, self._labels, self._variables = registers, labels, variables

    def _register(self, register: Register) -> Register:
        return Register(register.name, register.index + self._registers, register.type)

    def guard(self, guard: Guard | None) -> Guard | None:
        return None if guard is None else Guard(self._register(guard.register), guard.negated)

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return self._register(operand)
        if isinstance(operand, Label):
            return Label(operand.name, operand.index + self._labels)
        if isinstance(operand, Symbol):
            variable = self._variables.get(operand.variable, operand.variable)
            return Symbol(variable, operand.offset)
        if isinstance(operand, Negated):
            return Negated(self._register(operand.register))
        if isinstance(operand, Vector):
            return Vector(tuple(self.operand(element) for element in operand.elements))
        if isinstance(operand, Pair):
            return Pair(self.operand(operand.first), self.operand(operand.second))
        if isinstance(operand, Group):
            return Group(tuple(self.operand(element) for element in operand.elements))
        if isinstance(operand, Address):
            base = self.operand(operand.base)
            assert isinstance(base, (Register, Symbol)) or base is operand.base
            coordinates = operand.coordinates
            if coordinates is not None:
                coordinates = tuple(self.operand(element) for element in coordinates)
            return Address(base, operand.offset, coordinates)
        return operand
