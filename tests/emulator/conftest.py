"""Runs a few lines of PTX on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.hardware.targets import target

Array = np.ndarray[Any, Any]

HEADER = """\
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 in, .param .u64 out)
{
    .reg .pred %p<8>;
    .reg .b16 %h<8>;
    .reg .b32 %r<48>;
    .reg .b64 %rd<16>;
    .reg .b32 %t;
    ld.param.u64 %rd0, [in];
    ld.param.u64 %rd1, [out];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %rd2, %t, 4;
    add.s64 %rd1, %rd1, %rd2;
"""


@dataclass(frozen=True)
class Outcome:
    """The report, and the output as one u32 a thread."""

    report: Report
    out: Array

    @property
    def rules(self) -> list[str]:
        return [finding.rule for finding in self.report.findings]


def kernel(body: str) -> str:
    """A kernel with the body; %t is the thread, %rd0 the input, %rd1 this thread's word of the output."""
    return f"{HEADER}{body}\n}}\n"


@pytest.fixture
def run_ptx() -> Callable[..., Outcome]:
    """`run_ptx(body, threads=32, inputs=(…))` executes a body; `grid`, `cluster`, `smem` and options of
    the Machine by name."""

    def run(
        body: str,
        *,
        threads: int = 32,
        inputs: Sequence[int] | Array = (0,),
        grid: int = 1,
        cluster: int = 1,
        smem: int = 16384,
        workers: int = 1,
        **options: Any,
    ) -> Outcome:
        memory = GlobalMemory()
        words = np.asarray(inputs, dtype=np.uint32)
        source = memory.allocate(words.nbytes, name="in")
        source.data[:] = words.view(np.uint8)
        result = memory.allocate(4 * threads * grid, name="out")
        result.data[:] = 0
        machine = Machine(chip=target("sm_100a"), memory=memory, workers=workers, **options)
        report = machine.launch(
            load_module(kernel(body), name="body.ptx"),
            "kernel",
            grid=(grid, 1, 1),
            block=(threads, 1, 1),
            cluster=(cluster, 1, 1),
            dynamic_smem_bytes=smem,
            arguments=[buffer.address.to_bytes(8, "little") for buffer in (source, result)],
        )
        return Outcome(report, result.data.view(np.uint32).copy())

    return run
