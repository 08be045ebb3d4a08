"""What the machine tells its observers: memory accesses, synchronisation and asynchronous work.

An observer is any object with `on_event(event)`. Without observers no event is ever made.

Bytes are given as ranges [start, stop) of addresses in their space, in SMEM relative to the CTA;
tensor memory as lanes x columns. `async_id` names the asynchronous operation that makes an access;
0 stands for the issuing warp itself.

Nobody changes an event. The classes are not frozen all the same: that would make each one cost three
times as much, and a K tile makes two dozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from ptxgen.emulator.smem_layout import merge_ranges

Range = tuple[int, int]
Ranges = Sequence[Range]


class BoxRanges(Sequence[Range]):
    """The ranges of a tensor copy's box in global memory, worked out when somebody looks at them;
    all lie within `bounds`. `rows` gives them row by row: the starts (an array) and the bytes of each;
    as a sequence, neighbours are joined."""

    __slots__ = ("_ranges", "bounds", "rows")

    def __init__(self, bounds: Range, rows: Callable[[], tuple[Any, int]]) -> None:
        self.bounds = bounds
        self.rows = rows
        self._ranges: tuple[Range, ...] | None = None

    def _all(self) -> tuple[Range, ...]:
        if self._ranges is None:
            starts, nbytes = self.rows()
            merged = merge_ranges(starts.tolist(), nbytes) if nbytes else ()
            self._ranges = tuple((start, start + size) for start, size in merged)
        return self._ranges

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Range, ...]: ...
    def __getitem__(self, index: int | slice) -> Range | tuple[Range, ...]:
        return self._all()[index]


class LaneRanges(Sequence[Range]):
    """The ranges of lanes that access `size` bytes each, from `starts` (an array) on. The size is a power of
    two, and the starts are multiples of it."""

    __slots__ = ("_bounds", "_units", "size", "starts")

    def __init__(self, starts: Any, size: int) -> None:
        self.starts, self.size = starts, size
        self._bounds: Range | None = None
        self._units: Any = None

    @property
    def bounds(self) -> Range:
        """All lie within these."""
        if self._bounds is None:
            self._bounds = int(self.starts.min()), int(self.starts.max()) + self.size
        return self._bounds

    @property
    def units(self) -> Any:
        """The starts as multiples of the size."""
        if self._units is None:
            self._units = self.starts // self.size
        return self._units

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Range]:
        return ((start, start + self.size) for start in self.starts.tolist())

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Range, ...]: ...
    def __getitem__(self, index: int | slice) -> Range | tuple[Range, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        start = int(self.starts[index])
        return start, start + self.size


class Observer(Protocol):
    def on_event(self, event: Event) -> None: ...


Place = tuple[int, int, int, int, int]
"""What all events have in common, in its order; given by position, which costs least."""


def bounds_of(ranges: Ranges) -> Range:
    """The least address in the ranges, and the one behind the greatest; those of a box may lie wider."""
    if isinstance(ranges, BoxRanges | LaneRanges):
        return ranges.bounds
    return min(start for start, _ in ranges), max(stop for _, stop in ranges)


@dataclass(slots=True)
class Event:
    """Where it happened: cluster (work unit), CTA rank in it, linear CTA index in the grid, warp in
    the CTA, bit mask of the lanes, 1-based PTX line. A completion keeps the line of its issue."""

    unit: int
    cta: int
    warp: int
    lanes: int
    line: int


@dataclass(slots=True, kw_only=True)
class Access(Event):
    """Bytes read or written. space: "shared" | "global"; kind: "read" | "write" | "atomic"; proxy:
    "generic" | "async" | "tensormap" (a tensor copy reads its map in global memory). For generic
    accesses ranges are per active lane, lane ascending (one range when all lanes share an address);
    `owner` is the CTA rank whose SMEM it is. `order` is the instruction's ordering: "weak",
    "relaxed", "acquire", "release", "acq_rel", "volatile", with the `scope` "cta", "cluster", "gpu" or
    "sys". `value` are the words that all lanes of a store write to the same address, where they are equal."""

    space: str
    kind: str
    proxy: str
    ranges: Ranges
    owner: int = 0
    async_id: int = 0
    order: str = "weak"
    value: tuple[int, ...] | None = None
    scope: str = "gpu"


@dataclass(slots=True, kw_only=True)
class TmemAccess(Event):
    """Tensor memory read or written: lanes [first, last] and columns [first, stop), of `owner`."""

    kind: str
    tmem_lanes: tuple[int, int]
    columns: tuple[int, int]
    owner: int = 0
    async_id: int = 0


@dataclass(slots=True, kw_only=True)
class TmemAllocation(Event):
    """action: "alloc" | "dealloc" | "relinquish"; `pair`: one CTA's half of what a pair runs together."""

    action: str
    column: int = 0
    columns: int = 0
    pair: bool = False


@dataclass(slots=True, kw_only=True)
class MbarrierInit(Event):
    barrier: int
    count: int
    owner: int = 0


@dataclass(slots=True, kw_only=True)
class MbarrierInval(Event):
    barrier: int
    owner: int = 0


@dataclass(slots=True, kw_only=True)
class MbarrierArrive(Event):
    """`count` arrivals and `expect_bytes` in the given phase; `completed`: the phase ended with it.
    `dropped` counts arrivals taken from the later phases. async_id: an arrive by tcgen05.commit or
    cp.async. `continued`: lower lanes have arrived by the same execution of the instruction."""

    barrier: int
    owner: int = 0
    count: int = 0
    expect_bytes: int = 0
    dropped: int = 0
    phase: int = 0
    completed: bool = False
    async_id: int = 0
    order: str = "release.cta"
    continued: bool = False


@dataclass(slots=True, kw_only=True)
class MbarrierComplete(Event):
    """complete_tx: `tx_bytes` arrived (by a bulk copy, or the instruction of that name)."""

    barrier: int
    owner: int = 0
    tx_bytes: int = 0
    phase: int = 0
    completed: bool = False
    async_id: int = 0


@dataclass(slots=True, kw_only=True)
class MbarrierWait(Event):
    """A test or try of the phase with the given parity; `phase` is the barrier's current phase."""

    barrier: int
    owner: int = 0
    parity: int = 0
    phase: int = 0
    success: bool = False
    order: str = "acquire.cta"


@dataclass(slots=True, kw_only=True)
class NamedBarrier(Event):
    """bar/barrier: action "arrive" | "sync" | "red"; `threads` expected. `generation` counts the
    completions of this barrier so far; `completed`: this warp was the last."""

    barrier: int
    action: str
    threads: int
    generation: int
    completed: bool


@dataclass(slots=True, kw_only=True)
class ClusterBarrier(Event):
    action: str
    generation: int
    order: str


@dataclass(slots=True, kw_only=True)
class WarpSync(Event):
    """Lanes of a warp meet: bar.warp.sync, shfl, vote, match, redux, elect and aligned ops."""

    what: str
    mask: int


@dataclass(slots=True, kw_only=True)
class Fence(Event):
    """`name` is the full instruction, as "fence.proxy.async.shared::cta" or
    "tcgen05.fence::after_thread_sync"; `address` is that of the tensor map that fence.proxy.tensormap acquires."""

    name: str
    address: int = 0


@dataclass(slots=True, kw_only=True)
class AsyncIssue(Event):
    """An asynchronous operation starts. kind: "tensor-load", "tensor-store", "tensor-reduce",
    "bulk-load", "bulk-store", "bulk-reduce", "prefetch", "cp-async", "mma", "tmem-copy",
    "tmem-shift", "tmem-load", "tmem-store", "commit", "copy-arrive" (cp.async.mbarrier.arrive).
    `detail` holds a tensor copy's coordinates (innermost first), the number of MMAs, or the ids of the copies
    that a copy-arrive waits for. `mechanism` says what completes it:
    "mbarrier" (with `barrier` and `owner`), "bulk-group", "cp-group", "commit", "wait", "wgmma-group".

    kind "wgmma" is what a warpgroup issues between two wgmma.fence or commit_group: every one of its
    four warps reports its first wgmma.mma_async of it, all with one id. It starts when the last warp
    has issued it, reads shared memory as that warp, and is complete for all four at once. Registers
    have no events: the machine itself reports "wgmma-register-hazard"."""

    kind: str
    async_id: int
    mechanism: str
    barrier: int = -1
    owner: int = 0
    detail: Any = None


@dataclass(slots=True, kw_only=True)
class AsyncSourceRead(Event):
    """The operation has read all of its source. A commit has none; of a load it says nothing that its completion
    does not."""

    async_id: int


@dataclass(slots=True, kw_only=True)
class AsyncComplete(Event):
    """All writes of the operation are done."""

    async_id: int


@dataclass(slots=True, kw_only=True)
class Commit(Event):
    """Operations gathered for completion: mechanism "mbarrier" (tcgen05.commit), "bulk-group",
    "cp-group", "wgmma-group". `tracked` are the async ids."""

    mechanism: str
    tracked: tuple[int, ...]
    async_id: int = 0


@dataclass(slots=True, kw_only=True)
class WaitGroup(Event):
    """A wait for groups or TMEM accesses: mechanism "bulk-group", "cp-group", "tmem-load",
    "tmem-store", "wgmma-group"; "register" stands for the first use of a tcgen05.ld's destination
    without wait::ld. `covered` are the async ids waited for; `read_only`: only their sources."""

    mechanism: str
    pending: int
    covered: tuple[int, ...]
    read_only: bool = False


@dataclass(slots=True, kw_only=True)
class GridWait(Event):
    """griddepcontrol.wait: the launch before is complete and visible."""


@dataclass(slots=True, kw_only=True)
class RegisterRequest(Event):
    """setmaxnreg: the warp's registers have changed."""


@dataclass(slots=True, kw_only=True)
class WarpExit(Event):
    """Lanes end."""
