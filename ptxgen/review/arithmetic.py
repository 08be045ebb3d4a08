"""How instructions change what is known of registers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache

from ptxgen.emulator.module import Instruction, Operand, Pair, Register, Vector
from ptxgen.review.values import (
    WARP,
    Condition,
    Context,
    Known,
    Number,
    PerThread,
    State,
    add,
    address_value,
    join,
    lift,
    negated,
    operand_value,
)


def execute(instruction: Instruction, state: State, context: Context) -> None:
    """Updates `state` for one instruction; where it is guarded both outcomes are kept."""
    operands = instruction.operands
    if not operands or instruction.name.startswith(("st.", "bra", "bar.", "mbarrier.", "cp.", "red.")):
        return
    results = _results(instruction, state, context)
    for register, value in results:
        if instruction.guard is not None:
            value = join(state.get(register.index), value)
        state[register.index] = value


Results = list[tuple[Register, Known]]


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, tuple[str, ...]]:
    """The opcode and its modifiers, of which there is at least an empty one."""
    opcode, _, rest = name.partition(".")
    return opcode, tuple(rest.split("."))


def _results(instruction: Instruction, state: State, context: Context) -> Results:
    first = instruction.operands[0]
    opcode, words = _words(instruction.name)
    if opcode == "elect" and isinstance(first, Pair) and isinstance(first.second, Register):
        lane: Results = [(first.first, None)] if isinstance(first.first, Register) else []
        return [*lane, (first.second, Condition(context.everyone, exact=False, one=True))]
    if opcode == "setp":
        value = _compare(instruction, words, state, context)
        second: Results = []
        if isinstance(first, Pair) and isinstance(first.second, Register):
            second = [(first.second, None)]
        target = first.first if isinstance(first, Pair) else first
        return [*second, (target, value)] if isinstance(target, Register) else second
    if not isinstance(first, Register):
        return [(register, None) for register in _registers(first)]
    sources = instruction.operands[1:]
    if opcode == "ld" and words[0].startswith("shared") and sources:
        address = address_value(sources[0], state, context)
        known = address is not None and address.step == 0 and address.value in context.allocations
        return [(first, Number(0) if known else None)]
    values = [operand_value(source, state, context) for source in sources]
    if first.type == "pred":
        return [(first, _logic(opcode, values, context))]
    return [(first, _compute(opcode, words, values, context))]


def _registers(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    if isinstance(operand, Vector):
        return [register for element in operand.elements for register in _registers(element)]
    return []


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b, "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
}  # fmt: skip


def _compare(instruction: Instruction, words: tuple[str, ...], state: State, context: Context) -> Known:
    compare = _COMPARISONS.get(words[0])
    values = [operand_value(source, state, context) for source in instruction.operands[1:]]
    known: Known = None
    if compare is not None and len(values) >= 2 and (pair := _plain(values[:2])) is not None:
        bits, signed = _type(words)
        left, right = (_wrap(value, bits, signed) for value in pair)
        known = Condition(_mask(compare, left, right, context))
    if len(words) > 2 and words[1] in ("and", "or", "xor") and len(values) > 2:
        return _logic(words[1], [known, values[2]], context)
    return known


def _mask(compare: Callable[[int, int], bool], a: int | PerThread, b: int | PerThread, context: Context) -> int:
    if isinstance(a, int) and isinstance(b, int):
        return context.everyone if compare(a, b) else 0
    threads = 0
    for thread in range(context.threads):
        if compare(a if isinstance(a, int) else a[thread], b if isinstance(b, int) else b[thread]):
            threads |= 1 << thread
    return threads


def _logic(opcode: str, values: list[Known], context: Context) -> Known:
    """Predicate arithmetic; an unknown operand may hold for everyone."""
    if opcode == "mov" and values:
        source = values[0]
        if isinstance(source, Number):
            return Condition(context.everyone if source.value else 0)
        return source
    if opcode == "not" and values:
        return negated(values[0], context)
    if opcode not in ("and", "or") or len(values) != 2:
        return None
    a, b = (value if isinstance(value, Condition) else Condition(context.everyone, exact=False) for value in values)
    exact = a.exact and b.exact
    if opcode == "and":
        return Condition(a.threads & b.threads, exact, a.one or b.one)
    return Condition(a.threads | b.threads, exact)


@lru_cache(maxsize=1024)
def _type(words: tuple[str, ...]) -> tuple[int, bool]:
    """Bits and signedness of the last type among an instruction's modifiers."""
    for word in reversed(words):
        if word[:1] in "usb" and word[1:].isdigit():
            return int(word[1:]), word[0] == "s"
    return 32, False


def _plain(values: list[Known]) -> list[int | PerThread] | None:
    """The values of numbers that are known completely."""
    found = []
    for value in values:
        if not isinstance(value, Number) or value.step or value.of is not None:
            return None
        found.append(value.value)
    return found


def _wrap(value: int | PerThread, bits: int, signed: bool = False) -> int | PerThread:
    mask, half = (1 << bits) - 1, 1 << (bits - 1)
    if isinstance(value, int):
        value &= mask
        return value - (mask + 1) if signed and value & half else value
    if min(value) >= 0 and max(value) <= (mask >> 1 if signed else mask):
        return value
    if signed:
        return tuple(v - (mask + 1) if (v := each & mask) & half else v for each in value)
    return tuple(each & mask for each in value)


def _multiply(a: Known, b: Known) -> Number | None:
    """A product; of an unknown with a known factor the step is known."""
    if isinstance(b, Number) and isinstance(b.value, int) and not b.step and b.of is None:
        if not isinstance(a, Number):
            return Number(0, abs(b.value)) if abs(b.value) > 1 else None
    elif not isinstance(b, Number):
        return _multiply(b, a) if isinstance(a, Number) else None
    if not isinstance(a, Number) or a.of is not None or b.of is not None or (a.step and b.step):
        return None
    factor, other = (b, a) if a.step else (a, b)
    if other.step and not isinstance(factor.value, int):
        return None
    value = lift(operator.mul, [a.value, b.value])
    step = other.step * abs(factor.value) if isinstance(factor.value, int) else 0
    return None if value is None else Number(value, step)


def _truncated_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _field(a: int, position: int, count: int) -> int:
    return a >> (position & 255) & ((1 << (count & 255)) - 1)


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "shr": lambda a, b: a >> min(b, 64),
    "div": _truncated_div,
    "rem": lambda a, b: a - b * _truncated_div(a, b),
    "bfe": _field,
    "cvt": operator.pos,
}


def _compute(opcode: str, words: tuple[str, ...], values: list[Known], context: Context) -> Known:
    """The result of integer arithmetic, modulo the width of its type."""
    bits, signed = _type(words)
    result: Known = None
    if opcode == "mapa" and len(values) == 2:  # the same place, in another CTA
        return values[0] if isinstance(values[0], Number) else None
    if opcode in ("mov", "cvta") and len(values) == 1:
        return values[0] if isinstance(values[0], Number) else None
    if opcode in ("add", "sub") and len(values) == 2:
        result = _sum(values[0], values[1], -1 if opcode == "sub" else 1)
    elif opcode in ("mul", "mad") and len(values) >= 2 and words[0] in ("lo", "wide"):
        result = _multiply(values[0], values[1])
        if opcode == "mad":
            result = _sum(result, values[2])
        bits = 2 * bits if words[0] == "wide" else bits
    elif opcode == "shl" and len(values) == 2 and (count := _plain(values[1:])) and isinstance(count[0], int):
        result = _multiply(values[0], Number(1 << min(count[0], 64)))
    elif opcode == "selp" and len(values) == 3:
        return _select(values, context)
    elif opcode == "shfl" and words[:2] == ("sync", "idx") and len(values) >= 2:
        return _from_lane(values)
    elif opcode == "cvt" and len(values) == 1 and isinstance(values[0], Number) and values[0].of is not None:
        return values[0]
    elif (strided := _of_strided(opcode, values)) is not None:
        result = strided
    elif opcode in _FUNCTIONS and (plain := _plain(values)) is not None:
        if opcode == "cvt" and not all(word[:1] in "usb" for word in words):
            return None
        value = lift(_FUNCTIONS[opcode], [_wrap(each, bits, signed) for each in plain])
        result = None if value is None else Number(value)
    if not isinstance(result, Number) or result.of is not None:
        return result
    return Number(_wrap(result.value, bits), result.step)


_FIELD_BITS = (14, 15)
"""Widths of the address in a matrix descriptor, which code cuts out before it adds the constant bits."""


def _of_strided(opcode: str, values: list[Known]) -> Number | None:
    """Arithmetic that makes a matrix descriptor of an address with an unknown multiple of a step."""
    first = values[0] if values else None
    rest = _plain(values[1:])
    if not isinstance(first, Number) or not first.step or first.of is not None or not isinstance(first.value, int):
        return None
    if rest is None or not all(isinstance(value, int) for value in rest):
        return None
    constants = [value for value in rest if isinstance(value, int)]
    shift = constants[0] if opcode in ("shr", "bfe") and constants else 0
    if first.value % (1 << shift) or first.step % (1 << shift):
        return None
    value, step = first.value >> shift, first.step >> shift
    if opcode in ("shr", "cvt"):
        return Number(value, step)
    masks = [(1 << bits) - 1 for bits in _FIELD_BITS]
    if opcode == "bfe" and constants[1:] and constants[1] in _FIELD_BITS:
        return Number(value & ((1 << constants[1]) - 1), step)
    if opcode == "and" and constants[0] in masks:
        return Number(value & constants[0], step)
    if opcode == "or" and value <= masks[0] and constants[0] & masks[0] == 0:
        return Number(value | constants[0], step)
    return None


def _sum(a: Known, b: Known, sign: int = 1) -> Known:
    return add(a, b, sign) if isinstance(a, Number) and isinstance(b, Number) else None


def _select(values: list[Known], context: Context) -> Known:
    """selp; where its condition is not known for each thread, either."""
    a, b, condition = values
    if isinstance(condition, Condition) and condition.exact and (pair := _plain([a, b])) is not None:
        chosen = condition.threads

        def pick(thread: int) -> int:
            side = pair[0] if chosen >> thread & 1 else pair[1]
            return side if isinstance(side, int) else side[thread]

        picked = tuple(pick(thread) for thread in range(context.threads))
        return Number(picked if len(set(picked)) > 1 else picked[0])
    return join(a, b)


def _from_lane(values: list[Known]) -> Known:
    """shfl.sync.idx from one lane: every thread gets that lane's value."""
    plain = _plain(values[:2])
    if plain is None or not isinstance(plain[1], int):
        return None
    source, lane = plain[0], plain[1]
    if isinstance(source, int):
        return Number(source)
    first = lane % WARP
    spread = tuple(source[min(thread // WARP * WARP + first, len(source) - 1)] for thread in range(len(source)))
    return Number(spread if len(set(spread)) > 1 else spread[0])
