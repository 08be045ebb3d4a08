"""mbarriers, CTA barriers and the cluster barrier: where knowledge is handed over."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxgen.checker.clocks import Clock
from ptxgen.checker.operations import Observation


@dataclass(slots=True)
class Transfer:
    """Bytes expected by, or arrived for, a phase: the line, and how often with how many bytes."""

    line: int
    nbytes: int
    times: int = 1


@dataclass(slots=True, eq=False)
class Mbarrier:
    """One mbarrier object from init to inval.

    `gathered` is what all arrivals so far know; `published` what they knew when the last phase
    ended, which a wait for it learns, `before` the same of the phase before. Nothing is ever taken
    back: the arrivals of a barrier form one chain of atomic updates. `included` is a clock all of which is
    gathered already: most often that of the thread which arrives and then issues the loads.
    `phase_lines` are the lines of the current phase's arrivals, `published_path` stands for those of the last one.
    """

    owner: int
    offset: int
    count: int
    init_warp: int
    init_lane: int
    init_epoch: int
    init_line: int
    gathered: Clock
    published: Clock
    before: Clock
    included: Clock | None = None
    init_fence_line: int = 0
    init_fence_epoch: int = 0
    """Line of the fence after the initialisation, and its epoch: who uses it asynchronously has to know both."""
    init_released: Observation | None = None
    """Stands for the initialisation once fence.mbarrier_init has released it: relaxed synchronisation passes it on."""
    phase: int = 0
    pending: int = 0
    ended_at: int = 0
    """The number of the last arrival that ended a phase, among all events."""
    phase_lines: set[int] = field(default_factory=set)
    published_path: int = 0
    seen: dict[int, Observation] = field(default_factory=dict)
    """Warp -> its observation of the last phase to end."""
    seen_phase: dict[int, int] = field(default_factory=dict)
    """Warp -> the last phase that it has seen end."""
    asked: dict[int, int] = field(default_factory=dict)
    """Warp -> the phase in which its unanswered test first failed."""
    missed: set[int] = field(default_factory=set)
    """Warps that have missed a phase."""
    users: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Warp -> epoch, lanes and line of its last use."""
    visible_to: set[tuple[int, int, bool]] = field(default_factory=set)
    """Users (warp, lanes, asynchronous unit) whose first use has been looked at."""
    from_afar: bool = False
    """Whether a thread of another CTA has arrived on it."""
    expected: list[Transfer] = field(default_factory=list)
    arrived: list[Transfer] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"mbarrier {self.offset:#x}"

    def end_phase(self, path: int) -> None:
        """The next phase starts with all arrivals pending; `path` names those of this one."""
        self.before, self.published, self.published_path = self.published, self.gathered, path
        self.seen.clear()
        self.phase += 1
        self.pending = self.count
        self.phase_lines = set()
        self.expected.clear()
        self.arrived.clear()

    @property
    def outstanding_bytes(self) -> int:
        return total(self.expected) - total(self.arrived)


def total(transfers: list[Transfer]) -> int:
    return sum(one.nbytes * one.times for one in transfers)


def note_transfer(transfers: list[Transfer], line: int, nbytes: int) -> None:
    for one in transfers:
        if one.line == line and one.nbytes == nbytes:
            one.times += 1
            return
    transfers.append(Transfer(line, nbytes))


@dataclass(slots=True, eq=False)
class Meeting:
    """One completion of a CTA barrier, a warp barrier or the cluster barrier, on its way."""

    gathered: Clock
    sources: list[int] = field(default_factory=list)
    """Warps that have brought what is gathered."""
    lines: set[int] = field(default_factory=set)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """(warp, lanes) that learn what all others bring."""
    arrived: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    """Warp -> its last epoch before it arrived at the cluster barrier, in whatever order of memory."""
