"""Where values live: slots of a warp's value list, and places of variables in their spaces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.memory import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_RESERVED_BYTES,
    SHARED_WINDOW,
)
from ptxgen.emulator.module import Address, Instruction, Operand, Register, Symbol, Variable, Vector

if TYPE_CHECKING:
    from ptxgen.emulator.module import Function


class Slots:
    """The value list that all warps of an entry share the layout of; slot 0 holds the Warp.

    `template` are the initial values; `late` the slots that are filled when a warp starts, with
    keys ("special", name), ("param", offset, bytes), ("global", variable), ("shared", offset).
    """

    def __init__(self, registers: Iterable[Register]) -> None:
        self.template: list[Any] = [None]
        self.widths: list[int] = [0]
        self.names: list[str] = [""]
        for register in registers:
            self._add(None, register.bits, register.name)
        self.register_count = len(self.template)
        self.late: list[tuple[int, tuple[Any, ...]]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self.sink = self._add(0, 0, "_")

    def _add(self, value: Any, width: int, name: str) -> int:
        self.template.append(value)
        self.widths.append(width)
        self.names.append(name)
        return len(self.template) - 1

    def scratch(self, width: int, name: str) -> int:
        """A hidden register, one per name (the carry flag, a tensor queue …)."""
        key = ("scratch", name)
        if key not in self._known:
            self._known[key] = self._add(0, width, name)
        return self._known[key]

    def constant(self, value: int | bool, width: int) -> int:
        key = ("constant", type(value), value)
        if key not in self._known:
            self._known[key] = self._add(value, width, str(value))
        return self._known[key]

    def at_start(self, width: int, name: str, *key: Any) -> int:
        if key not in self._known:
            self._known[key] = self._add(0, width, name)
            self.late.append((self._known[key], key))
        return self._known[key]


class Layout:
    """Where the variables that an entry names lie in their spaces."""

    def __init__(self, function: Function) -> None:
        self.shared_bytes = 0
        self.const = bytearray()
        self.local_bytes = 0
        self._places: dict[Variable, int] = {}
        self._parameters = {p.variable: p.offset for p in function.parameters}
        self._unsized: list[Variable] = []

    def settle(self, instructions: Iterable[Instruction]) -> None:
        """Places every variable that some instruction names, in order of first use."""
        for item in instructions:
            for operand in item.operands:
                for variable in _variables(operand):
                    self._place(variable)
        for variable in self._unsized:  # dynamic shared memory follows all static variables
            self.shared_bytes = -(-self.shared_bytes // variable.align) * variable.align
        for variable in self._unsized:
            self._places[variable] = SHARED_RESERVED_BYTES + self.shared_bytes

    def _place(self, variable: Variable) -> None:
        if variable in self._places or variable in self._parameters:
            return
        if variable.space == "shared":
            if variable.size_bytes == 0:
                self._unsized.append(variable)
                self._places[variable] = 0
                return
            start = -(-self.shared_bytes // variable.align) * variable.align
            self._places[variable] = SHARED_RESERVED_BYTES + start
            self.shared_bytes = start + variable.size_bytes
        elif variable.space in ("local", "param"):
            start = -(-self.local_bytes // variable.align) * variable.align
            self._places[variable] = start
            self.local_bytes = start + variable.size_bytes
        elif variable.space == "const":
            start = -(-len(self.const) // variable.align) * variable.align
            self.const.extend(bytes(start - len(self.const)))
            self.const.extend(variable.initial or bytes(variable.size_bytes))
            self._places[variable] = start

    def is_parameter(self, variable: Variable) -> bool:
        return variable in self._parameters

    def place(self, variable: Variable) -> int:
        """The variable's address in its own space (not for global variables)."""
        if variable in self._parameters:
            return self._parameters[variable]
        return self._places[variable]


def _variables(operand: Operand) -> Iterable[Variable]:
    if isinstance(operand, Symbol):
        yield operand.variable
    elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
        yield operand.base.variable
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from _variables(element)


WINDOWS = {
    "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
    "const": CONST_WINDOW,
    "global": 0,
}
