"""What a name means in a `{}` block (PTX ISA 9.1 §5.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from ptxgen.emulator.module import Operand, Register, Symbol


@dataclass(slots=True)
class Scope:
    """A block, or with no parent the module: what is declared in it, by name.

    `ranges` has the registers `%r<count>`: index of the first, count, type.
    """

    parent: Scope | None = None
    names: dict[str, Operand] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def declare(self, name: str, what: Operand, fail: Callable[[str], NoReturn]) -> None:
        known = self.names.get(name)
        if known is None:
            self.names[name] = what
        elif self.parent or not (isinstance(known, Symbol) and isinstance(what, Symbol)):
            fail(f"{name} is declared twice in this block")  # a module's variable may be, if first as extern

    def lookup(self, name: str) -> Operand | None:
        """What the name means here, or in the blocks around."""
        found = self.names.get(name)
        if found is not None:
            return found
        base = name.rstrip("0123456789")
        digits = name[len(base) :]
        scope: Scope | None = self
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
