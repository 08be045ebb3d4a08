"""Control-flow facts of straight-line segments: reconvergence points and liveness.

Segments are numbered 0 … n-1; -1 stands for the end of the program.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT = -1


def immediate_postdominators(successors: Sequence[tuple[int, ...]]) -> list[int]:
    """For each segment, the first segment that every path from it to the end runs through.

    Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph. A segment
    that cannot reach the end (an endless loop) counts as leading there, so its lanes never wait.
    """
    end = len(successors)
    nodes = [tuple(end if t == EXIT else t for t in targets) for targets in successors]
    order = _reverse_postorder(nodes, end)
    for lost in set(range(end)) - set(order):
        nodes[lost] = (*nodes[lost], end)
    order = _reverse_postorder(nodes, end)
    rank = {node: place for place, node in enumerate(order)}
    parent: dict[int, int] = {end: end}

    def meet(a: int, b: int) -> int:
        while a != b:
            if rank[a] > rank[b]:
                a = parent[a]
            else:
                b = parent[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [target for target in nodes[node] if target in parent]
            best = known[0]
            for target in known[1:]:
                best = meet(best, target)
            if parent.get(node) != best:
                parent[node] = best
                changed = True
    return [EXIT if parent[node] == end else parent[node] for node in range(end)]


def _reverse_postorder(nodes: Sequence[tuple[int, ...]], end: int) -> list[int]:
    """The nodes that reach `end`, walked backwards from it; `end` comes first."""
    predecessors: list[list[int]] = [[] for _ in range(end + 1)]
    for node, targets in enumerate(nodes):
        for target in targets:
            predecessors[target].append(node)
    order: list[int] = []
    seen = {end}
    stack = [(end, iter(predecessors[end]))]
    while stack:
        node, rest = stack[-1]
        for previous in rest:
            if previous not in seen:
                seen.add(previous)
                stack.append((previous, iter(predecessors[previous])))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]


def live_in(successors: Sequence[tuple[int, ...]], reads: Sequence[int], kills: Sequence[int]) -> list[int]:
    """Bit sets of the slots whose value may still be read at the start of each segment.

    `reads[s]` are slots read in s before s overwrites them, `kills[s]` those that it overwrites in
    every lane it runs for.
    """
    count = len(successors)
    live = [0] * count
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for segment, targets in enumerate(successors):
        for target in targets:
            if target != EXIT:
                predecessors[target].append(segment)
    work = list(range(count))
    while work:
        segment = work.pop()
        out = 0
        for target in successors[segment]:
            if target != EXIT:
                out |= live[target]
        new = reads[segment] | (out & ~kills[segment])
        if new != live[segment]:
            live[segment] = new
            work.extend(predecessors[segment])
    return live
