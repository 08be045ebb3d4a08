"""How many instructions a warp executes between two lines, as far as the text's loops tell."""

from __future__ import annotations

from ptxgen.review import kinds
from ptxgen.review.structure import Structure


class Paths:
    """Instruction cycles on the way from one line to the next one that the emulator tells of.

    Loops that lie between two lines and around neither are passed over: what happens in them is told.
    """

    def __init__(self, structure: Structure, instruction: float, conversion: float) -> None:
        self._sites = structure.sites
        self._first = {line: sites[0] for line, sites in structure.by_line.items()}
        self._place = {site.index: number for number, site in enumerate(structure.sites)}
        self._cost = {True: conversion, False: instruction}
        self._known: dict[tuple[int, int, int], float] = {}

    def cycles(self, warp: int, start: int | None, stop: int) -> float:
        """From behind the line `start` (None: the entry) to behind the line `stop`."""
        key = (warp, -1 if start is None else start, stop)
        if key not in self._known:
            self._known[key] = self._walk(warp, start, stop)
        return self._known[key]

    def _walk(self, warp: int, start: int | None, stop: int) -> float:
        last = self._first.get(stop)
        first = None if start is None else self._first.get(start)
        if last is None or (start is not None and first is None):
            return 0.0
        here = -1 if first is None else self._place[first.index]
        there = self._place[last.index]
        ends = (() if first is None else first.loops, last.loops)
        if here < there:
            return self._sum(warp, here + 1, there + 1, ends)
        shared = _common(*ends)
        if not shared:
            return 0.0
        inside = [number for number, site in enumerate(self._sites) if site.loops[: len(shared)] == shared]
        return self._sum(warp, here + 1, inside[-1] + 1, ends) + self._sum(warp, inside[0], there + 1, ends)

    def _sum(self, warp: int, start: int, stop: int, ends: tuple[tuple[str, ...], tuple[str, ...]]) -> float:
        return sum(
            self._cost[site.kind == kinds.CONVERSION]
            for site in self._sites[start:stop]
            if warp in site.warps and any(end[: len(site.loops)] == site.loops for end in ends)
        )


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return one[:same]
