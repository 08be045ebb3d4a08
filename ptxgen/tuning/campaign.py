"""A search over many problems on one or several GPUs, which can be broken off and continued.

A problem is a task for one GPU. Any `concurrent.futures.Executor` runs them, as many at a time as there are GPUs; what
is found is in the state file as soon as a problem is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxgen.bench.timing import Mode
from ptxgen.errors import HungKernelError, PtxgenError
from ptxgen.files import read_text, write_file
from ptxgen.tuning.search import HungContestantError, Report, contestants, search
from ptxgen.tuning.table import Entry, Problem

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker needs: the problem, the GPU's number, and how to search. `hung`: contestants to leave out.

    `pause_seconds` and `load_seconds` come before the rounds of the final; None: as long as `ptxgen bench` has them.
    """

    problem: Problem
    target: str
    ordinal: int
    candidates: int
    modes: tuple[Mode, ...]
    rounds: int
    pause_seconds: float | None = None
    load_seconds: float | None = None
    hung: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a worker found: the entry and every contestant's times, or why there is none.

    `hung`: the key of a contestant that never ended; the worker's process is lost with it.
    """

    entry: Entry | None
    results: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    hung: str = ""


@dataclass(slots=True, kw_only=True)
class State:
    """Outcomes by problem, in a file. One that was found with other candidates or another effort does not count."""

    path: Path | None
    gpu: str
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    hung: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path | None, gpu: str) -> State:
        """The state in a file, or a new one; PtxgenError where the file is of another GPU or no state."""
        if path is None or not path.exists():
            return cls(path=path, gpu=gpu)
        try:
            data = json.loads(read_text(path))
            known = data["version"], data["gpu"], data["finished"], data["hung"]
        except (ValueError, KeyError, TypeError) as error:
            raise PtxgenError(f"{path} is no state of ptxgen tune: {type(error).__name__}: {error}") from error
        if known[:2] != (STATE_VERSION, gpu):
            raise PtxgenError(
                f"{path} is of {known[1]} (version {known[0]}), this is {gpu} (version {STATE_VERSION}): "
                "give another --state, or delete it"
            )
        return cls(path=path, gpu=gpu, finished=known[2], hung=known[3])

    def entry(self, task: Task, effort: str) -> Entry | None:
        """What was found for a task's problem with the same effort."""
        found = self.finished.get(str(task.problem))
        return Entry.of(found["entry"], task.target) if found is not None and found["effort"] == effort else None

    def record(self, task: Task, effort: str, outcome: Outcome) -> None:
        """Keep an outcome; the file is complete at every moment."""
        if outcome.hung:
            self.hung.append(outcome.hung)
        if outcome.entry is not None:
            self.finished[str(task.problem)] = {
                "effort": effort,
                "entry": outcome.entry.to_json(),
                "contestants": list(outcome.results),
            }
        if self.path is not None:
            data = {"version": STATE_VERSION, "gpu": self.gpu, "hung": self.hung, "finished": self.finished}
            write_file(self.path, json.dumps(data, indent=1) + "\n")


Work = Callable[..., Outcome]


def tune_problem(task: Task, report: Report = lambda line: None) -> Outcome:
    """Search one problem on one GPU: what a worker runs, in any process."""
    from ptxgen.tuning.arena import GpuArena

    device = _device(task.ordinal)
    chip = device.properties.chip
    try:
        entry, results = search(
            task.problem,
            GpuArena(device, task.problem, pause_seconds=task.pause_seconds, load_seconds=task.load_seconds),
            chip,
            contestants(task.problem, task.target, chip, task.candidates),
            modes=task.modes,
            rounds=task.rounds,
            hung=task.hung,
            report=report,
        )
    except HungContestantError as error:
        return Outcome(entry=None, error=str(error), hung=error.contestant.key)
    except PtxgenError as error:
        return Outcome(entry=None, error=str(error))
    return Outcome(entry=entry, results=tuple(result.to_json() for result in results))


def campaign(
    tasks: Sequence[Task],
    state: State,
    *,
    ordinals: Sequence[int] = (0,),
    executor: Executor | None = None,
    work: Work = tune_problem,
    report: Report = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
    found: Callable[[Entry], None] = lambda entry: None,
) -> list[Entry]:
    """The entries of all tasks that could be done, those of an earlier run included.

    Without an executor the tasks run here, one after the other. With one, each runs on the GPU of `ordinals` that is
    free. `stop` is asked before a task begins; what is left then is for another run. `found` gets each entry at once.
    HungKernelError where a kernel never ended: the state knows which, and another run goes on without it.
    """
    entries: list[Entry] = []
    waiting: list[tuple[Task, str]] = []
    for task in tasks:
        effort = _effort(task)
        entry = state.entry(task, effort)
        if entry is not None:
            report(f"{task.problem}: done earlier")
            entries.append(entry)
            found(entry)
        else:
            waiting.append((task, effort))
    done = 0

    def finish(task: Task, effort: str, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        state.record(task, effort, outcome)
        what = f"failed: {outcome.error}" if outcome.entry is None else "done"
        report(f"[{done}/{len(waiting)}] {task.problem}: {what}")
        if outcome.entry is not None:
            entries.append(outcome.entry)
            found(outcome.entry)
        if outcome.hung:
            raise HungKernelError(outcome.error)

    def at(task: Task, ordinal: int) -> Task:
        return replace(task, ordinal=ordinal, hung=tuple(state.hung))

    if executor is None:
        for task, effort in waiting:
            if stop():
                break
            finish(task, effort, work(at(task, ordinals[0]), report))
        return entries
    free, running = list(ordinals), dict[Future[Outcome], tuple[Task, str, int]]()
    pending = list(waiting)
    try:
        while pending or running:
            while pending and free and not stop():
                task, effort = pending.pop(0)
                ordinal = free.pop(0)
                running[executor.submit(work, at(task, ordinal))] = task, effort, ordinal
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, effort, ordinal = running.pop(future)
                free.append(ordinal)
                finish(task, effort, future.result())
    finally:
        for future in running:
            future.cancel()
    return entries


def _effort(task: Task) -> str:
    """A digest of how the problem is searched, and among which specs."""
    from ptxgen.tuning.candidates import candidates

    specs = candidates(task.target, task.problem.operand_type, task.problem.output_type)
    text = json.dumps([task.candidates, list(task.modes), task.rounds, [spec.hash for spec in specs]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=16)
def _device(ordinal: int) -> CudaDevice:
    from ptxgen.device.cuda import CudaDevice

    return CudaDevice(ordinal)
