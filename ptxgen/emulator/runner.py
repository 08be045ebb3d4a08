"""Hands the clusters of a launch to worker processes, or runs them here.

Workers are forked, so that they share global memory and the decoded code; each takes the next
cluster number from a common counter. What they send back is small: findings, instruction counts
and the global ranges that each cluster touched. Results do not depend on the number of workers:
after an error in cluster n, findings of clusters beyond n are left out.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from ptxgen.emulator.backlog import Backlog
from ptxgen.emulator.ranges import Spans, Strips, find_races
from ptxgen.emulator.report import Finding, Stop
from ptxgen.emulator.unit import Unit
from ptxgen.errors import NotSupportedError

if TYPE_CHECKING:
    from ptxgen.emulator.events import Event
    from ptxgen.emulator.machine import Launch

Progress = Callable[[int, int], None] | None
Outcome = tuple[tuple[Finding, ...], int, int]

_PARALLEL_FROM = 4
"""Clusters below which starting processes costs more than it gains."""


class _Result(NamedTuple):
    """One finished (or failed) cluster. `error` is an exception that the caller must see."""

    unit: int
    findings: tuple[Finding, ...]
    failed: bool
    instructions: int
    entries: list[Strips | Spans]
    error: BaseException | None = None


def run_units(launch: Launch, workers: int | None, progress: Progress) -> Outcome:
    """Runs every cluster; returns findings, warp instructions, CTAs that ran to their end."""
    from ptxgen.emulator.machine import emitter

    if len(launch.code.cta_groups) > 1:
        return (_mixed_groups(launch),), 0, 0
    emit = emitter(launch.observers)
    count = workers if workers is not None else len(os.sched_getaffinity(0))
    interleaved = launch.one_process or launch.code.cancels_clusters
    together = interleaved or emit is not None
    if together or count < 2 or launch.units < _PARALLEL_FROM or "fork" not in multiprocessing.get_all_start_methods():
        with _numpy_settings():
            source = _run_together(launch, emit) if interleaved else _run_in_turn(launch, emit)
            return _gather(launch, source, progress)
    return _gather(launch, _run_parallel(launch, min(count, launch.units)), progress)


def _mixed_groups(launch: Launch) -> Finding:
    (_, first), (group, line) = sorted(launch.code.cta_groups.items(), key=lambda item: item[1])
    return Finding(
        rule="cta-group-mixed",
        severity="error",
        message=f"cta_group::{group} here, another in line {first}: all tcgen05 instructions of a kernel name one",
        line=line,
        text=launch.lines[line - 1].strip(),
    )


def _gather(launch: Launch, results: Iterator[_Result], progress: Progress) -> Outcome:
    done: dict[int, _Result] = {}
    for result in results:
        if result.error is not None:
            raise result.error
        done[result.unit] = result
        if progress is not None:
            progress(len(done), launch.units)
    first_failed = min((unit for unit, result in done.items() if result.failed), default=None)
    kept = [done[unit] for unit in sorted(done) if first_failed is None or unit <= first_failed]
    findings = [finding for result in kept for finding in result.findings]
    if first_failed is None and not launch.one_process:
        findings.extend(_races(launch, kept))
    ended = sum(not result.failed for result in kept) * launch.cluster_size
    return tuple(findings), sum(result.instructions for result in kept), ended


def _races(launch: Launch, results: list[_Result]) -> Iterator[Finding]:
    for race in find_races(launch.memory, {result.unit: result.entries for result in results}):
        buffer = launch.memory.find(race.start)
        other = "writes" if race.second_writes else "reads"
        yield Finding(
            rule="global-race",
            severity="error",
            message=(
                f"clusters {race.first} and {race.second} touch bytes [{race.start - buffer.address}, "
                f"{race.end - buffer.address}) of {buffer.name!r}: {race.first} writes (line {race.first_line}), "
                f"{race.second} {other} (line {race.second_line}), and nothing orders them"
            ),
            line=race.first_line,
            text=launch.lines[race.first_line - 1].strip(),
            unit=race.first,
        )


def _finish(unit: Unit, failure: Stop | None) -> _Result:
    findings = list(unit.findings)
    if failure is not None:
        findings.append(failure.finding)
    entries = [] if failure is not None or unit.launch.one_process else unit.log.entries()
    return _Result(unit.number, tuple(findings), failure is not None, unit.instructions, entries)


def _run_one(launch: Launch, number: int, emit: Callable[[Event], None] | None) -> _Result:
    unit = Unit(launch, number, emit)
    try:
        unit.run()
    except Stop as failure:
        return _finish(unit, failure)
    return _finish(unit, None)


def _run_in_turn(launch: Launch, emit: Callable[[Event], None] | None) -> Iterator[_Result]:
    for number in range(launch.units):
        result = _run_one(launch, number, emit)
        yield result
        if result.failed:
            return


def _run_together(launch: Launch, emit: Callable[[Event], None] | None) -> Iterator[_Result]:
    """Clusters that may wait for each other or take each other's work, in turns."""
    backlog = Backlog(launch)
    resident: list[Unit] = []
    moved = True
    while backlog or resident:
        while (number := backlog.next(len(resident), wanted=not moved)) is not None:
            resident.append(Unit(launch, number, emit, backlog))
            moved = True
        if not moved:
            yield _finish(resident[0], resident[0].blocked)
            return
        moved = False
        for unit in list(resident):
            try:
                before = unit.activity
                ended = unit.step()
                moved |= ended or unit.activity != before or unit.blocked is None
            except Stop as failure:
                yield _finish(unit, failure)
                return
            if ended:
                resident.remove(unit)
                yield _finish(unit, None)


# -- processes ----------------------------------------------------------------------------------


def _run_parallel(launch: Launch, count: int) -> Iterator[_Result]:
    context = multiprocessing.get_context("fork")
    counter = context.Value("q", 0)
    pipes: list[Connection] = []
    processes = []
    for _ in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(launch, counter, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    result = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
                    continue
                yield result
        for process in processes:
            process.join()
            if process.exitcode:
                raise NotSupportedError(f"a worker process of the emulator died (exit code {process.exitcode})")
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()


def _worker(launch: Launch, counter: Any, pipe: Connection) -> None:
    with _numpy_settings():
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= launch.units:
                return
            try:
                result = _run_one(launch, number, None)
            except BaseException as error:
                result = _Result(number, (), True, 0, [], error)
            pipe.send(result)
            if result.failed:
                with counter.get_lock():  # later clusters need not start
                    counter.value = launch.units


@contextmanager
def _numpy_settings() -> Iterator[None]:
    """One BLAS thread, as products are small and the workers share the cores; no warnings, as NaN
    and infinity are ordinary operands here."""
    with threadpool_limits(limits=1, user_api="blas"), np.errstate(all="ignore"):
        yield
