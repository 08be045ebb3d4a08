"""Example kernels: bodies in tests/checker/examples, each at fault in one way and mended in one way.

A body starts with `// threads: N` (and `// target:`, `// cluster:`, `// grid:`, which counts clusters, `// registers:`,
`// budget:` where they matter).
Lines that end with `//-` stand only in the faulty text, lines that begin with `//+` only in the mended
one, and `// <--` marks the line on which the fault is reported (the last `ret` where nothing is marked).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import Finding, GlobalMemory, Machine, load_module
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

EXAMPLES = Path(__file__).parent / "examples"
SMEM_BYTES = 65536
DATA_BYTES = 4096

_PREAMBLE = """\
.version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry example(.param .align 128 .b8 in_map[128], .param .u64 data)
.reqntid {threads}
{registers}{{
    .reg .b32 %thread, %warp, %smem, %tile, %tmem, %parity, %idesc, %x<8>, %acc<32>;
    .reg .b64 %in_map, %data, %desc, %y<4>;
    .reg .pred %leader, %not_first, %passed, %other;
    mov.u32 %thread, %tid.x;
    shr.u32 %warp, %thread, 5;
    setp.eq.u32 %leader, %thread, 0;
    setp.ne.u32 %not_first, %warp, 0;
    mov.u32 %smem, smem;
    add.u32 %tile, %smem, 8192;
    mov.u64 %in_map, in_map;
    cvta.param.u64 %in_map, %in_map;
    ld.param.u64 %data, [data];
    shr.u32 %x0, %tile, 4;
    cvt.u64.u32 %desc, %x0;
    or.b64 %desc, %desc, {descriptor};
    mov.u32 %idesc, 0x04100010;
"""
_DESCRIPTORS = {"sm_100a": "0x4000404000010000", "sm_90a": "0x4000004000010000"}
_VERSIONS = {"sm_100a": "8.6", "sm_90a": "8.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A kernel text and the line (1-based) on which its fault is expected, None when it is mended."""

    name: str
    text: str
    threads: int
    target: str
    budget: int
    cluster: int
    grid: int
    line: int | None

    @property
    def rule(self) -> str:
        return self.name.partition(".")[0]


def compose(path: Path, *, mended: bool) -> Example:
    """The faulty or the mended text of an example."""
    options = {"target": "sm_100a", "registers": "", "budget": "100000", "cluster": "1", "grid": "1"}
    body: list[str] = []
    for line in path.read_text().splitlines():
        option = re.fullmatch(r"// (threads|target|registers|budget|cluster|grid): (\w+)", line)
        if option is not None:
            options[option[1]] = option[2]
        elif line.startswith("//+ "):
            body.append("    " + line[4:] if mended else "")
        elif "//-" in line:
            body.append("" if mended else line.replace("//-", "//"))
        else:
            body.append(line)
    registers = f".maxnreg {options['registers']}\n" if options["registers"] else ""
    preamble = _PREAMBLE.format(
        version=_VERSIONS[options["target"]],
        target=options["target"],
        threads=options["threads"],
        registers=registers,
        descriptor=_DESCRIPTORS[options["target"]],
    )
    lines = [*preamble.splitlines(), *body, "    ret;", "}", ""]
    marked = [number for number, line in enumerate(lines, start=1) if "<--" in line]
    return Example(
        name=path.stem,
        text="\n".join(lines),
        threads=int(options["threads"]),
        target=options["target"],
        budget=int(options["budget"]),
        cluster=int(options["cluster"]),
        grid=int(options["grid"]),
        line=None if mended else [*marked, len(lines) - 2][0],
    )


def find(example: Example, policy: str = "eager", seed: int = 0) -> tuple[Finding, ...]:
    """Everything that is found when the example runs, as one CTA (or cluster) if it does not say otherwise."""
    memory = GlobalMemory()
    data = memory.allocate(DATA_BYTES, "data")
    data.data[:] = 0
    tile = memory.allocate(8192, "in")
    tile.data[:] = 0
    in_map = TensorMap(
        element_type=element_type("f16"), address=tile.address, dims=(64, 64), strides_bytes=(128,), box=(64, 64),
        swizzle=Swizzle.B128,
    )  # fmt: skip
    chip = target(example.target)
    cluster, grid = (example.cluster, 1, 1), (example.grid * example.cluster, 1, 1)
    module = load_module(example.text, name=f"{example.name}.ptx")
    checker = Checker(
        module.lines, grid=grid, cluster=cluster, threads=example.threads, smem_bytes=chip.smem_per_sm_bytes,
        shares_global=module.entries["example"].code(hooks=True).shares_global,
    )  # fmt: skip
    machine = Machine(
        chip=chip, memory=memory, policy=policy, seed=seed, observers=(checker,), instruction_budget=example.budget
    )
    report = machine.launch(
        module, "example", grid=grid, block=(example.threads, 1, 1), cluster=cluster,
        dynamic_smem_bytes=SMEM_BYTES, arguments=(in_map, data.address.to_bytes(8, "little")),
    )  # fmt: skip
    return checker.conclude(report.findings)


@pytest.fixture
def run_example() -> Callable[..., tuple[Example, tuple[Finding, ...]]]:
    """(name, mended, policy, seed) -> the example and what is found in it."""

    def run(name: str, *, mended: bool, policy: str = "eager", seed: int = 0) -> tuple[Example, tuple[Finding, ...]]:
        example = compose(EXAMPLES / f"{name}.ptx", mended=mended)
        return example, find(example, policy, seed)

    return run
