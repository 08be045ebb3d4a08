"""Devices in processes of their own: a fault or a hang costs one process and no more.

A CUDA context is lost with the first illegal instruction, so the next launch has to happen in a new process.
A worker serves questions, one answer per case, until one is fatal; `Lane` then starts another for the rest.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from conformance.execution import CRASHED, HUNG, Outcome, load, run_case
from conformance.probe import Probe, Question
from ptxgen.device.interface import Device
from ptxgen.errors import DeviceError

OpenDevice = Callable[[], Device]
"""What makes the device, in the worker. It is sent there by name."""

KERNEL_TIMEOUT_SECONDS = 10.0
_ANSWER_TIMEOUT_SECONDS = 120.0
"""For one case, with everything that precedes the first: imports, the context, compilation."""


def emulator() -> Device:
    """An H200-like chip on the emulator."""
    from ptxgen.device.emulated import EmulatedDevice

    return EmulatedDevice(chip="sm_90a", workers=1)


def cuda() -> Device:
    """The GPU that runs sm_90a code."""
    from ptxgen.device.cuda import CudaDevice, fitting_ordinal

    return CudaDevice(fitting_ordinal("sm_90a"), timeout_seconds=KERNEL_TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Cases `first` and later of a question."""

    probe: Probe
    question: Question
    first: int


def answers(device: Device, probe: Probe, question: Question, first: int = 0) -> Iterator[Outcome]:
    """The outcome of each case; ends early behind a fatal one."""
    module = load(device, probe.text, f"{probe.name}.ptx")
    for case in question.cases[first:]:
        if isinstance(module, Outcome):
            yield module
            continue
        outcome = run_case(device, module, case, question.inputs, seed=probe.name, tolerates=question.tolerates)
        yield outcome
        if outcome.fatal:
            return


def _serve(connection: Connection, open_device: OpenDevice) -> None:
    try:
        device = open_device()
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send("")
    task: _Task | None
    with contextlib.suppress(EOFError):  # the other side is gone
        while (task := connection.recv()) is not None:
            try:
                for outcome in answers(device, task.probe, task.question, task.first):
                    connection.send(outcome)
                    if outcome.fatal:
                        os._exit(0)  # a lost or busy context cannot be left in order
            except Exception as error:  # a mistake of this project's, not of a kernel
                place = traceback.extract_tb(error.__traceback__)[-1]
                message = f"{type(error).__name__}: {error} ({place.name}, {place.filename}:{place.lineno})"
                connection.send(Outcome(fault=CRASHED, message=message, fatal=True))
                os._exit(1)


class Lane:
    """A worker process at a time. Not for several threads at once."""

    def __init__(self, open_device: OpenDevice) -> None:
        self._open_device = open_device
        self._process: Any = None
        self._connection: Connection | None = None

    def ask(self, probe: Probe, question: Question) -> list[Outcome]:
        """The outcome of every case. DeviceError where there is no device."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(question.cases):
            connection = self._worker()
            connection.send(_Task(probe=probe, question=question, first=len(outcomes)))
            while len(outcomes) < len(question.cases):
                outcome = self._receive(connection)
                outcomes.append(outcome)
                if outcome.fatal:
                    self.close()
                    break
        return outcomes

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            assert self._connection is not None
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._process.join(timeout=2)
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = self._connection = None

    def _worker(self) -> Connection:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._open_device), daemon=True)
            self._process.start()
            theirs.close()
            problem = self._next(self._connection)
            if problem != "":
                self.close()
                raise DeviceError(str(problem))
        return self._connection

    def _receive(self, connection: Connection) -> Outcome:
        answer = self._next(connection)
        return answer if isinstance(answer, Outcome) else Outcome(fault=HUNG, message=str(answer), fatal=True)

    def _next(self, connection: Connection) -> Any:
        """What the worker sends next, or in words why there is nothing."""
        try:
            if connection.poll(_ANSWER_TIMEOUT_SECONDS):
                return connection.recv()
            return f"the worker said nothing for {_ANSWER_TIMEOUT_SECONDS:g} s"
        except (EOFError, OSError):
            self._process.join(timeout=10)
            return f"the worker died with exit code {self._process.exitcode}"
