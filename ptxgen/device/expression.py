"""Sizes in a launch description that depend on the problem.

An expression is an integer, a symbol, or a list that begins with the name of an operation. The set is
closed on purpose: a description is data that any launcher can evaluate, not a program.

    4096    "M"    ["ceil_div", "M", 128]    ["round_up", ["product", "N", 2], 16]    ["min", "SM_COUNT", 64]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ptxgen.errors import LaunchError, UnknownNameError

Expression: TypeAlias = "int | str | tuple[Expression, ...]"

PROBLEM_SYMBOLS = ("M", "N", "K")
SYMBOLS = (*PROBLEM_SYMBOLS, "SM_COUNT", "CTAS")
"""CTAS are those of the grid as it is launched."""


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _round_up(value: int, multiple: int) -> int:
    return _ceil_div(value, multiple) * multiple


# name -> (operands, or None for one or more; meaning)
_OPERATIONS: dict[str, tuple[int | None, Callable[..., int]]] = {
    "product": (None, lambda *values: math.prod(values)),
    "ceil_div": (2, _ceil_div),
    "round_up": (2, _round_up),
    "min": (None, min),
}


def parse_expression(value: object, where: str) -> Expression:
    """The expression in a piece of JSON. `where` names its place in errors (LaunchError)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value not in SYMBOLS:
            raise LaunchError(f"{where}: {UnknownNameError('symbol', value, SYMBOLS)}")
        return value
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], str):
        raise LaunchError(
            f"{where}: {value!r} is no size: write an integer, one of the symbols {', '.join(SYMBOLS)}, "
            f"or a list that begins with one of {', '.join(_OPERATIONS)}"
        )
    name, *operands = value
    if name not in _OPERATIONS:
        raise LaunchError(f"{where}: {UnknownNameError('operation', name, _OPERATIONS)}")
    count = _OPERATIONS[name][0]
    if len(operands) != count if count is not None else not operands:
        wanted = f"{count} operands" if count is not None else "at least one operand"
        raise LaunchError(f"{where}: {name} takes {wanted}, got {len(operands)}")
    return (name, *(parse_expression(operand, where) for operand in operands))


def evaluate(expression: Expression, symbols: Mapping[str, int], where: str) -> int:
    """The value of an expression; LaunchError where a divisor is not positive."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return symbols[expression]
    name, *operands = expression
    values = [evaluate(operand, symbols, where) for operand in operands]
    if name in ("ceil_div", "round_up") and values[1] <= 0:
        raise LaunchError(f"{where}: {name} by {values[1]}; the divisor must be positive")
    return _OPERATIONS[str(name)][1](*values)


def symbols_in(expression: Expression) -> Iterator[str]:
    """The symbols that an expression depends on."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple):
        for operand in expression[1:]:
            yield from symbols_in(operand)


def to_json(expression: Expression) -> object:
    """The JSON form, inverse of `parse_expression`."""
    if isinstance(expression, tuple):
        return [expression[0], *(to_json(operand) for operand in expression[1:])]
    return expression
