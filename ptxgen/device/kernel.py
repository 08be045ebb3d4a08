"""A GEMM kernel that can be called: D = A @ B.T."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.device.arrays import Matrix, as_matrix, numpy_type
from ptxgen.device.choice import choose_device
from ptxgen.device.description import GemmExpectation, LaunchDescription, launch_in_header, parse_launch
from ptxgen.device.interface import Device, GemmCalls, LaunchReport, PreparedCall, Stream
from ptxgen.device.launch import Extent, Launch
from ptxgen.device.matrices import Execution, run_on_matrices
from ptxgen.errors import DeviceError, LaunchError
from ptxgen.files import read_text
from ptxgen.toolchain import ptx_target

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec


def compile(spec: GemmSpec, device: Device | str | None = None, *, check: bool = False) -> Kernel:
    """A kernel for `spec`, loaded on a device: a Device, "cuda", "cuda:1" or "emulator".

    None is a CUDA device that fits the spec's target; DeviceError where there is none. With `check` every
    launch is checked for races and missing fences as well as for broken rules of the machine, as by
    `ptxgen run --check`: docs/checker.md. That goes with device="emulator" only, and takes 2.5 times as long.
    """
    from ptxgen.render import emit

    text = emit(spec)
    name = f"step {spec.step} ({spec.target})"
    description = launch_in_header(text, name)
    assert description is not None  # every emitted text carries one
    return Kernel(text, description, choose_device(device, spec.target, check=check), name=name, spec=spec)


def load(
    path: str | os.PathLike[str],
    *,
    launch: str | os.PathLike[str] | None = None,
    device: Device | str | None = None,
    check: bool = False,
) -> Kernel:
    """A kernel from a PTX file, loaded on a device; `check` is that of `compile`.

    The launch description stands in the file's header, or in the JSON file `launch`. PtxgenError where a
    file cannot be read, LaunchError where there is no description or it does not fit.
    """
    text, source = read_text(path), os.fspath(path)
    if launch is not None:
        description = parse_launch(read_text(launch), os.fspath(launch))
    else:
        found = launch_in_header(text, source)
        if found is None:
            raise LaunchError(f"{source} has no launch description in its header; give one with --launch FILE.json")
        description = found
    return Kernel(text, description, choose_device(device, ptx_target(text, source), check=check), name=source)


class Kernel:
    """PTX on a device with its launch description.

    Called with NumPy arrays it copies them to the device and the result back, and waits for it. On a GPU it
    also takes arrays of torch, cupy, JAX, or with `__cuda_array_interface__` or DLPack, that lie there: they
    are used where they are, in the order of their library's current stream, and nothing is waited for. Such
    a matrix must be row-major with its base and row pitch a multiple of 16 bytes.

    `text`, `description`, `device`, `name` and `spec` (None for a kernel from a file) say what it is;
    `report` is what the last launch left, None before the first.
    """

    def __init__(
        self, text: str, description: LaunchDescription, device: Device, *, name: str, spec: GemmSpec | None = None
    ) -> None:
        self.text = text
        self.description = description
        self.device = device
        self.name = name
        self.spec = spec
        self.report: LaunchReport | None = None
        self._module = device.load(text, name=name)
        entries = self._module.entries
        if description.entry not in entries:
            raise LaunchError(
                f"the launch description of {name} names entry {description.entry!r}; "
                f"the file has {', '.join(entries) or 'none'}"
            )
        self._entry = entries[description.entry]

    def __repr__(self) -> str:
        return f"<ptxgen.Kernel {self.name} on {self.device.properties.name}>"

    def __call__(self, a: Any, b: Any, *, cast: bool = False, copy: bool = False, grid: Extent | None = None) -> Any:
        """D = A @ B.T for A (M x K) and B (N x K), as a new array of the output type (M x N).

        D is of the library that A and B are of, on the same device; the pitch of a torch or cupy D is
        rounded up to 16 bytes. `cast` rounds operands of another type; `copy` copies operands that the kernel
        cannot take where they lie; `grid` replaces the grid of a persistent kernel, in CTAs. LaunchError
        where the operands do not fit, DeviceError where the launch fails.
        """
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) and (direct := self._direct) is not None:
            return direct(a, b, copy=copy, cast=cast, grid=grid)
        d, report = self.execute(a, b, cast=cast, grid=grid)
        self._raise_errors(report)
        return d

    def launch(
        self,
        a: Any,
        b: Any,
        *,
        out: Any,
        stream: Any = None,
        cast: bool = False,
        copy: bool = False,
        grid: Extent | None = None,
        programmatic: bool | None = None,
    ) -> None:
        """As a call, with the result in `out`: an M x N array of the output type.

        A NumPy `out` may have any strides. With arrays on a GPU nothing is allocated or waited for, unless
        `copy` or `cast` has something to do, so that a launch may be captured into a CUDA graph; `stream` is
        a stream of torch or cupy, a handle, or what has `__cuda_stream__`; `programmatic` lets the kernel
        begin before its predecessor has ended, which only a kernel with griddepcontrol may (None: where
        its launch description says `dependent`). With a `stream` that is not their library's current one,
        torch keeps the arrays' memory until it is done with them; elsewhere the caller does.
        """
        numpy = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and isinstance(out, np.ndarray)
        if not numpy and (direct := self._direct) is not None:
            early = self._may_begin_early(programmatic)
            direct.launch(a, b, out, stream=stream, copy=copy, cast=cast, grid=grid, programmatic=early)
            return
        a, b, problem = self._operands(a, b, cast=cast)
        wanted = numpy_type(self.description.buffer(self.expectation.d).element_type)
        if not isinstance(out, np.ndarray) or out.shape != (problem["M"], problem["N"]) or out.dtype != wanted:
            got = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise LaunchError(f"out must be a {wanted.name} array of shape {(problem['M'], problem['N'])}, got {got}")
        if not out.flags.writeable:
            raise LaunchError("out is read-only")
        d, report = self.execute(a, b, stream=stream, grid=grid)
        self._raise_errors(report)
        out[...] = d

    def prepare(
        self, a: Any, b: Any, *, out: Any, grid: Extent | None = None, programmatic: bool | None = None
    ) -> PreparedCall:
        """All of `launch` but the launch, for arrays on a GPU: `prepare(a, b, out=d).launch(stream)`.

        It keeps the arrays alive, and reads what they hold at each launch.
        """
        if self._direct is None:
            raise LaunchError(f"{self.device.properties.name} launches on NumPy arrays only: call launch()")
        return self._direct.prepare(a, b, out, grid=grid, programmatic=self._may_begin_early(programmatic))

    def _may_begin_early(self, programmatic: bool | None) -> bool:
        if programmatic is None:
            return bool(self.description.dependent)
        return programmatic

    def execute(
        self,
        a: Matrix,
        b: Matrix,
        *,
        stream: Stream | None = None,
        cast: bool = False,
        grid: Extent | None = None,
    ) -> tuple[Matrix, LaunchReport]:
        """D and the report of the launch, whatever it says; an empty product is answered without a launch."""
        a, b, problem = self._operands(a, b, cast=cast)
        expect = self.expectation
        if 0 in problem.values():
            kind = numpy_type(self.description.buffer(expect.d).element_type)
            self.report = LaunchReport(device=self.device.properties.name, grid=(0, 0, 0), seconds=0.0)
            return np.zeros((problem["M"], problem["N"]), kind), self.report
        inputs = {expect.a: a, expect.b: b}
        for buffer in self.description.buffers:
            if buffer.fill == "input" and buffer.name not in inputs:
                raise LaunchError(f"{self.name} has an input {buffer.name} beside {expect.a} and {expect.b}")
        execution = self.run(self.plan(problem, grid=grid), inputs, stream=stream)
        return execution.outputs[expect.d], execution.report

    def plan(self, problem: Mapping[str, int], *, grid: Extent | None = None) -> Launch:
        """The launch for a problem size (M, N, K); LaunchError where it breaks a rule."""
        launch = Launch.of(self.description, problem=problem, chip=self.device.properties.chip, grid=grid)
        launch.check_entry(self._entry, self.name)
        return launch

    def run(self, launch: Launch, inputs: Mapping[str, Matrix], *, stream: Stream | None = None) -> Execution:
        """Launch on matrices by buffer name: dense and of the buffers' own types."""
        execution = run_on_matrices(self.device, self._module, launch, inputs, stream=stream)
        self.report = execution.report
        return execution

    @property
    def expectation(self) -> GemmExpectation:
        """Which buffers are A, B and D; LaunchError where the description does not say."""
        if self.description.expect is None:
            raise LaunchError(
                f'the launch description of {self.name} does not say what is computed (no "expect"), '
                "so it cannot be called with A and B"
            )
        return self.description.expect

    @cached_property
    def _direct(self) -> GemmCalls | None:
        return self.device.gemm(self._module, self.description, self.name)

    def _raise_errors(self, report: LaunchReport) -> None:
        if report.errors:
            raise DeviceError(f"{self.name} failed on {report.device}:\n" + "\n".join(report.errors))

    def _operands(self, a: Matrix, b: Matrix, *, cast: bool) -> tuple[Matrix, Matrix, dict[str, int]]:
        expect = self.expectation
        a = as_matrix(a, self.description.buffer(expect.a).element_type, expect.a, cast=cast)
        b = as_matrix(b, self.description.buffer(expect.b).element_type, expect.b, cast=cast)
        if a.shape[1] != b.shape[1]:
            hint = f"; transpose {expect.b}" if a.shape[1] == b.shape[0] else ""
            raise LaunchError(
                f"{expect.a} is {a.shape[0]} x {a.shape[1]} and {expect.b} {b.shape[0]} x {b.shape[1]}: "
                f"D = A @ B.T takes M x K and N x K with the same K{hint}"
            )
        return a, b, {"M": a.shape[0], "N": b.shape[0], "K": a.shape[1]}
