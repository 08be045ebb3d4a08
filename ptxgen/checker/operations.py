"""Asynchronous operations, and what is known of their progress.

An operation is a bit of the clocks' sets. It starts out knowing what its issuing thread knew; once
complete it passes that on, and its own completion, to whoever waits for it. What the issuing thread
itself did before without releasing it is not passed on (PTX ISA 9.1 §8.9.1.1).
"""

from __future__ import annotations

from ptxgen.checker.clocks import Clock
from ptxgen.checker.threads import View, Warp
from ptxgen.emulator.events import Ranges

MATRIX_KINDS = frozenset({"mma", "wgmma"})
BULK_LOADS = frozenset({"tensor-load", "bulk-load"})
STORES = frozenset({"tensor-store", "bulk-store", "tensor-reduce", "bulk-reduce"})
_REDUCTIONS = frozenset({"tensor-reduce", "bulk-reduce"})
TENSOR_MEMORY_ACCESSES = frozenset({"tmem-load", "tmem-store"})

TensorRegion = tuple[int, tuple[int, int], tuple[int, int]]
"""CTA rank, lanes [first, last] and columns [first, stop)."""
TensorAccess = tuple[bool, TensorRegion]
"""Whether it writes, and where."""


class Observation:
    """That a warp has seen a phase of an mbarrier complete: a bit like an operation's, so that it
    can be asked whether a later phase was completed by someone who knows."""

    __slots__ = ("bit", "line", "needed", "number", "order", "paths", "warp")

    def __init__(self, number: int, warp: int, line: int, order: int) -> None:
        self.number, self.bit, self.warp, self.line, self.order = number, 1 << number, warp, line, order
        self.paths: dict[object, int] = {}
        self.needed = False


class Operation:
    """One asynchronous operation.

    `of_thread` is the issuing thread, 32 * warp + lane; `clock` is what it knew; `proxied` the stamp of its last own
    proxy fence and `bridge` all it knew then; `after` what it knew at its last
    tcgen05.fence::after_thread_sync, on `after_line`. `order` numbers its issue among all events.
    `paths` says for each holder of knowledge (warp or barrier) along which path it learned of the
    operation, `needed` whether anything rests on knowing of it. `tracked` are the bits of the
    operations that a commit speaks for; `strong`: it updates its destination atomically; `reads_map`:
    what it reads just now is its tensor map. `copies` are the bytes that each lane's cp.async writes,
    as (CTA rank, lane bit, ranges); they become the lane's own writes when it has waited for them.
    """

    __slots__ = (
        "after", "after_line", "bit", "bridge", "clock", "commit_line", "copies", "cta", "fence_line", "kind",
        "lane", "lanes", "line", "needed", "number", "of_thread", "order", "paths", "proxied", "reads_map", "region",
        "strong", "tensor_accesses", "tracked", "warp",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        kind: str,
        warp: Warp,
        view: View,
        *,
        lanes: int,
        line: int,
        order: int,
    ) -> None:
        self.number, self.bit = number, 1 << number
        self.kind, self.cta, self.warp, self.lanes, self.line, self.order = (
            kind, warp.cta, warp.number, lanes, line, order,
        )  # fmt: skip
        self.lane = (lanes & -lanes).bit_length() - 1
        self.of_thread = warp.number << 5 | self.lane
        self.clock, self.proxied = view.clock, view.proxied
        self.bridge, self.after, self.after_line = view.bridge, view.after, view.after_line
        self.paths: dict[object, int] = {}
        self.needed = False
        self.tracked = 0
        self.strong = kind in _REDUCTIONS
        self.reads_map = False
        self.commit_line = self.fence_line = 0
        self.copies: list[tuple[int, int, Ranges]] = []
        self.tensor_accesses: list[TensorAccess] = []
        self.region: frozenset[TensorRegion] = frozenset()

    def outcome(self) -> Clock:
        """What its completion tells: of itself and of what it tracks, and what its issuer had learned."""
        bits = self.bit | self.tracked
        return self.clock.with_operations(bits, bits, self.tracked)
