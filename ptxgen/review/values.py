"""What can be known of registers without running a kernel, and how instructions change it.

A number is known for all threads of a CTA, or for each of them; a condition is known as the set of
threads for which it may hold. What depends on a launch (sizes, block indices, memory) is unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, repeat
from math import gcd

from ptxgen.emulator.module import (
    Address,
    Immediate,
    Negated,
    Operand,
    Register,
    SpecialRegister,
    Symbol,
    Variable,
    Vector,
)

PerThread = tuple[int, ...]
WARP = 32


@dataclass(frozen=True, slots=True)
class Number:
    """`value`, one for all threads or one for each, plus some unknown multiple of `step`.

    `of` is the kernel parameter whose address it counts from. Addresses in shared memory count from
    the start of the CTA's variables, those in tensor memory from the first allocation.
    """

    value: int | PerThread
    step: int = 0
    of: Variable | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds for the threads in the bit mask `threads` at most; for all of them where `exact`.

    `one`: for at most one lane of a warp.
    """

    threads: int
    exact: bool = True
    one: bool = False


Known = Number | Condition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What does not change while a kernel is walked: threads of a CTA, places of shared variables,
    shared addresses into which tcgen05.alloc writes."""

    threads: int
    places: dict[Variable, int]
    allocations: set[int]

    @property
    def everyone(self) -> int:
        return (1 << self.threads) - 1


State = dict[int, Known]
"""By register index."""


def join(one: Known, other: Known) -> Known:
    """What is still known where two paths meet."""
    if one == other:
        return one
    if not (isinstance(one, Number) and isinstance(other, Number) and one.of is other.of):
        return None
    apart = lift(operator.sub, [one.value, other.value])
    if apart is None:
        return None
    step = gcd(one.step, other.step, *([apart] if isinstance(apart, int) else apart))
    return Number(one.value, step, one.of) if step > 1 else None


def operand_value(operand: Operand, state: State, context: Context) -> Known:
    """What is known of a source operand."""
    if isinstance(operand, Register):
        return state.get(operand.index)
    if isinstance(operand, Immediate):
        return Number(int(operand.value)) if operand.kind == "int" else None
    if isinstance(operand, Symbol):
        if operand.variable.space == "param":
            return Number(operand.offset, 0, operand.variable)
        place = context.places.get(operand.variable)
        return None if place is None else Number(place + operand.offset)
    if isinstance(operand, SpecialRegister):
        return _special(operand.name, context)
    if isinstance(operand, Negated):
        return negated(state.get(operand.register.index), context)
    if isinstance(operand, Vector) and len(operand.elements) == 2:
        return _packed([operand_value(element, state, context) for element in operand.elements])
    return None


def _packed(halves: list[Known]) -> Known:
    """Two 32-bit words as one of 64 bits, the lower first."""
    low, high = halves
    if not (isinstance(low, Number) and isinstance(high, Number)) or low.of is not None or high.of is not None:
        return None
    if high.step or not (isinstance(low.value, int) and isinstance(high.value, int)):
        return None
    return Number(low.value & 0xFFFFFFFF | high.value << 32, low.step)


def of_threads(value: Known, threads: int) -> Known:
    """What is known for the threads of a bit mask alone: one number where they agree, else one for each of them."""
    if not isinstance(value, Number) or isinstance(value.value, int):
        return value
    mine = tuple(compress(value.value, _selectors(threads, len(value.value))))
    if not mine:
        return value
    return Number(mine[0] if mine.count(mine[0]) == len(mine) else mine, value.step, value.of)


@lru_cache(maxsize=64)
def _selectors(threads: int, count: int) -> tuple[int, ...]:
    """The first bits of a mask, one by one."""
    return tuple(threads >> thread & 1 for thread in range(count))


def address_value(operand: Operand, state: State, context: Context) -> Number | None:
    """What is known of an address operand, its offset included."""
    if not isinstance(operand, Address):
        return None
    base = operand_value(operand.base, state, context)
    if not isinstance(base, Number):
        return None
    return add(base, Number(operand.offset))


def _special(name: str, context: Context) -> Known:
    if name == "%tid.x":
        return Number(tuple(range(context.threads)))
    if name == "%laneid":
        return Number(tuple(thread % WARP for thread in range(context.threads)))
    if name == "%ntid.x":
        return Number(context.threads)
    return Number(0) if name in ("%tid.y", "%tid.z") else None


def negated(value: Known, context: Context) -> Known:
    if not isinstance(value, Condition):
        return None
    if value.exact:
        return Condition(context.everyone & ~value.threads)
    return Condition(context.everyone, exact=False)


def lift(function: Callable[..., int], values: list[int | PerThread]) -> int | PerThread | None:
    """`function` on every thread's values."""
    try:
        if all(isinstance(value, int) for value in values):
            return function(*values)
        result = tuple(map(function, *(repeat(value) if isinstance(value, int) else value for value in values)))
    except (ZeroDivisionError, ValueError):
        return None
    return result[0] if result.count(result[0]) == len(result) else result


def add(a: Number, b: Number, sign: int = 1) -> Number | None:
    if b.of is not None:
        if a.of is not None or sign < 0:
            return None
        a, b = b, a
    value = lift(operator.add if sign > 0 else operator.sub, [a.value, b.value])
    return None if value is None else Number(value, gcd(a.step, b.step), a.of)
