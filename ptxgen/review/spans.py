"""What a timeline consists of."""

from __future__ import annotations

from dataclasses import dataclass

LOAD, MULTIPLY, STORE, WAIT, EPILOGUE = "load", "multiply", "store", "wait", "epilogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that takes [start, stop) cycles. `track` is an engine ("TMA load", "tensor core", "TMA store")
    or a warp ("warp 4"); kind: "load", "multiply", "store", "wait", "epilogue". `stage` and `k_tile` are -1, and
    `tile` (row and column of the output tile) is (-1, -1), where they mean nothing."""

    cta: int
    track: str
    kind: str
    start: float
    stop: float
    line: int
    label: str = ""
    stage: int = -1
    k_tile: int = -1
    tile: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """A phase of an mbarrier (address from the start of the CTA's variables) from its first arrival or bytes until
    it was complete."""

    cta: int
    address: int
    phase: int
    start: float
    stop: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All spans and phases of a cluster; `end` is when all of it is done."""

    spans: tuple[Span, ...]
    phases: tuple[PhaseTime, ...]
    end: float

    def of(self, kind: str, cta: int = 0) -> tuple[Span, ...]:
        """The spans of a kind, in order."""
        return tuple(span for span in self.spans if span.kind == kind and span.cta == cta)
