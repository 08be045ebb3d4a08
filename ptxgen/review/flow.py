"""Control flow of a PTX function: basic blocks, loops, and who can reach what.

Loops are the strongly connected parts of the flow graph, so they are found in any order of blocks. A
loop that only asks an mbarrier is a wait, not a loop. Threads are followed along branches whose
condition is known from the thread index, which is how kernels tell their warps apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ptxgen.emulator.module import Function, FunctionName, Instruction, Label
from ptxgen.review.arithmetic import execute
from ptxgen.review.values import Condition, Context, State, address_value, join

_ENDS = ("ret", "exit", "trap")
_WAIT_LENGTH = 12
"""Instructions of the longest loop that is taken for a wait."""


@dataclass(slots=True, eq=False)
class Block:
    """Instructions [start, stop) and the blocks that may follow: by the branch, then by falling through."""

    number: int
    start: int
    stop: int
    jumps: list[int] = field(default_factory=list)
    falls: int | None = None

    @property
    def successors(self) -> list[int]:
        return [*self.jumps, *([] if self.falls is None else [self.falls])]


@dataclass(frozen=True, slots=True, eq=False)
class Circle:
    """A loop: its blocks, the block that is entered, the loops inside."""

    blocks: frozenset[int]
    header: int
    inner: tuple[Circle, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Who gets somewhere: threads as a bit mask, and whether one lane of a warp at most."""

    threads: int
    one: bool


def blocks_of(function: Function) -> list[Block]:
    """The basic blocks in the order of the text."""
    code = function.instructions
    leaders = {0, *function.labels}
    for index, item in enumerate(code):
        if item.name.startswith(("bra", "brx", *_ENDS)):
            leaders.add(index + 1)
    starts = sorted(start for start in leaders if start < len(code))
    stops = [*starts[1:], len(code)]
    blocks = [Block(n, start, stop) for n, (start, stop) in enumerate(zip(starts, stops, strict=True))]
    at = {block.start: block.number for block in blocks}
    for block in blocks:
        last = code[block.stop - 1]
        for target in _targets(function, last):
            if target in at:
                block.jumps.append(at[target])
        ends = last.name.startswith(("bra", "brx", *_ENDS)) and last.guard is None
        if not ends and block.number + 1 < len(blocks):
            block.falls = block.number + 1
    return blocks


def _targets(function: Function, instruction: Instruction) -> Iterator[int]:
    if not instruction.name.startswith(("bra", "brx")):
        return
    for operand in instruction.operands:
        if isinstance(operand, Label):
            yield function.labels[operand.index]
        elif isinstance(operand, FunctionName) and operand.name in function.branch_targets:
            for label in function.branch_targets[operand.name]:
                yield function.labels[label]


# -- loops --------------------------------------------------------------------------------------


def circles_of(blocks: list[Block]) -> tuple[Circle, ...]:
    """The outermost loops, in the order of the text."""
    edges = {block.number: block.successors for block in blocks}
    return _circles(set(edges), edges, {0})


def _circles(inside: set[int], edges: dict[int, list[int]], entered: set[int]) -> tuple[Circle, ...]:
    """Loops among the blocks `inside`; `entered` are blocks that control reaches from outside."""
    found = []
    for part in _components(inside, edges):
        if len(part) == 1 and not any(to in part for number in part for to in edges[number]):
            continue
        doors = {to for number in inside - part for to in edges[number] if to in part} | (entered & part)
        header = min(doors or part)
        within = {number: [to for to in edges[number] if to in part and to != header] for number in part}
        inner = _circles(part - {header}, within, set(within[header]))
        found.append(Circle(frozenset(part), header, inner))
    return tuple(sorted(found, key=lambda circle: circle.header))


def _components(inside: Iterable[int], edges: dict[int, list[int]]) -> list[set[int]]:
    """Strongly connected components (Tarjan), without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    nodes = set(inside)
    for root in sorted(nodes):
        if root in order:
            continue
        work = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for to in successors:
                if to not in nodes:
                    continue
                if to not in order:
                    order[to] = low[to] = len(order)
                    stack.append(to)
                    on_stack.add(to)
                    work.append((to, iter(edges[to])))
                    break
                if to in on_stack:
                    low[node] = min(low[node], order[to])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    part: set[int] = set()
                    while not part or part & {node} != {node}:
                        part.add(stack.pop())
                    on_stack -= part
                    found.append(part)
    return found


def is_wait(function: Function, blocks: list[Block], circle: Circle) -> bool:
    """Whether a loop does nothing but ask an mbarrier again and again."""
    code = [
        item for number in circle.blocks for item in function.instructions[blocks[number].start : blocks[number].stop]
    ]
    asks = any(item.name.startswith(("mbarrier.try_wait", "mbarrier.test_wait")) for item in code)
    busy = any(item.name.startswith(("cp.", "tcgen05.", "wgmma.", "st.", "bar", "mma.")) for item in code)
    return asks and not busy and len(code) <= _WAIT_LENGTH


# -- threads and values -------------------------------------------------------------------------


class Walk:
    """What is known before each instruction: `states` and `reaches`, by instruction index."""

    def __init__(self, function: Function, blocks: list[Block], context: Context) -> None:
        self._function, self._blocks, self._context = function, blocks, context
        self._entry: dict[int, tuple[State, Reach]] = {0: ({}, Reach(context.everyone, False))}
        pending = {0}
        while pending:
            number = min(pending)
            pending.discard(number)
            state, reach = self._entry[number]
            state = dict(state)
            code = function.instructions[blocks[number].start : blocks[number].stop]
            for item in code:
                _note_allocation(item, state, context)
                execute(item, state, context)
            for to, reached in self._outcomes(blocks[number], code[-1], state, reach):
                if self._meet(to, state, reached):
                    pending.add(to)

    def each(self) -> Iterator[tuple[int, Instruction, State, Reach]]:
        """Every instruction that can be reached, with what is known before it."""
        for block in self._blocks:
            if block.number not in self._entry:
                continue
            state, reach = self._entry[block.number]
            state = dict(state)
            for index in range(block.start, block.stop):
                item = self._function.instructions[index]
                yield index, item, state, guarded(item, state, reach)
                execute(item, state, self._context)

    def _outcomes(self, block: Block, last: Instruction, state: State, reach: Reach) -> Iterator[tuple[int, Reach]]:
        taken, stays = reach, reach
        if last.guard is not None and block.jumps:
            taken = guarded(last, state, reach)
            stays = guarded(last, state, reach, otherwise=True)
        for to in block.jumps:
            yield to, taken
        if block.falls is not None:
            yield block.falls, stays

    def _meet(self, number: int, state: State, reach: Reach) -> bool:
        """Merges one path into a block's entry; True if that changed it."""
        if not reach.threads:
            return False
        known = self._entry.get(number)
        if known is None:
            self._entry[number] = (dict(state), reach)
            return True
        old, seen = known
        merged: State = {}
        changed = False
        for register, value in old.items():
            if value is None:
                continue
            both = join(value, state.get(register))
            changed |= both != value
            if both is not None:
                merged[register] = both
        reached = Reach(seen.threads | reach.threads, seen.one and reach.one)
        if not changed and reached == seen:
            return False
        self._entry[number] = (merged, reached)
        return True


def guarded(instruction: Instruction, state: State, reach: Reach, otherwise: bool = False) -> Reach:
    """Who executes an instruction (or, `otherwise`, passes over it) of those who reach it."""
    guard = instruction.guard
    if guard is None:
        return reach
    value = state.get(guard.register.index)
    if not isinstance(value, Condition):
        return reach
    if guard.negated == otherwise:
        return Reach(reach.threads & value.threads, reach.one or value.one)
    return Reach(reach.threads & ~value.threads, reach.one) if value.exact else reach


def _note_allocation(instruction: Instruction, state: State, context: Context) -> None:
    if instruction.name.startswith("tcgen05.alloc"):
        address = address_value(instruction.operands[0], state, context)
        if address is not None and not address.step and isinstance(address.value, int):
            context.allocations.add(address.value)
