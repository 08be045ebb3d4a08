"""What checking costs: one CTA of 64 K-tiles with and without the checker, `ptxgen verify --step 6` as a process,
and sentryward on the same kernels where it is installed (the interpreter that runs this has to have it).

Times of one CTA are processor time, the best of several runs with the two taken in turns. Their ratio is the median
of those of neighbouring runs, so that a machine which is slow for a while is slow for both.

    python benchmarks/checker_cost.py
"""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import record

from ptxgen.device.arrays import make_matrix
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel, load
from ptxgen.device.launch import Extent, Launch
from ptxgen.emulator import machine as emulator_machine
from ptxgen.hardware.tensor_map import TensorMap

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "generated" / "sm_100a"
ROUNDS = 40
KERNELS = ("step4", "step5", "step6", "step7")
SENTRYWARD_SECONDS = 120
MEET = (r"(?m)^k_loop:$", "k_loop:\n    bar.warp.sync 0xffffffff;")
FAULTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("step4", "as it is", ()),
    ("step5", "as it is", ()),
    ("step6", "as it is", ()),
    ("step4", "lanes meet in the K loop", (MEET,)),
    ("step5", "lanes meet in the K loop", (MEET,)),
    ("step6", "lanes meet in the K loop", (MEET,)),
    ("step4", "arrive in place of commit",
     (MEET, (r"tcgen05\.commit[^;]*\[%mma_done\];", "mbarrier.arrive.shared::cta.b64 _, [%mma_done];"))),
    ("step4", "no wait for the loads", (MEET, (r"wait_loaded:\n[^\n]*\n[^\n]*\n", ""))),
    ("step4", "no wait for the MMAs", (MEET, (r"wait_mma:\n[^\n]*\n[^\n]*\n", ""))),
    ("step4", "no proxy fence", (MEET, (r"    fence\.proxy\.async[^\n]*\n", ""))),
    ("step4", "no tcgen05 fence", (MEET, (r"    tcgen05\.fence::before_thread_sync[^\n]*\n", ""))),
    ("step4", "16 bytes too many", (MEET, (r"mov\.b32 %load_bytes, 32768;", "mov.b32 %load_bytes, 32784;"))),
    ("step4", "no barrier before the store",
     (MEET, (r"(fence::before_thread_sync;[^\n]*\n)    bar\.sync 1, 128;[^\n]*\n", r"\1"))),
    ("step4", "no barrier after the set-up", (MEET, (r"    bar\.sync 0;[^\n]*\n", ""))),
)  # fmt: skip
"""Kernel, what is wrong with it, and the replacements (pattern, text) that make it so."""


class _ProcessorTime:
    """Stands for the time module in the emulator, so that others' work on this machine counts less."""

    perf_counter = staticmethod(time.process_time)


def one_cta(name: str, text: str | None = None, k: int = 4096) -> tuple[Kernel, Launch, dict[str, Any]]:
    """A kernel on one output tile and one CTA."""
    kernel = load(GENERATED / f"{name}.ptx", device=EmulatedDevice("sm_100a", workers=1))
    if text is not None:
        kernel = Kernel(text, kernel.description, kernel.device, name=name)
    grid: Extent | None = (1, 1, 1) if kernel.description.persistent else None
    launch = kernel.plan(kernel.description.problem(M=128, N=128, K=k), grid=grid)
    inputs = {
        buffer.name: make_matrix("integers", buffer.rows, buffer.columns, buffer.element_type, (0, index))
        for index, buffer in enumerate(launch.buffers)
        if buffer.fill == "input"
    }
    return kernel, launch, inputs


def cost(name: str) -> dict[str, Any]:
    """Processor seconds of 64 K-tiles, unchecked and checked."""
    kernel, launch, inputs = one_cta(name)
    device = kernel.device
    assert isinstance(device, EmulatedDevice)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for check, taken in seconds.items():
            device.check = check
            taken.append(kernel.run(launch, inputs).report.seconds)
    plain, checked = (min(taken) for taken in seconds.values())
    ratio = median(second / first for first, second in zip(*seconds.values(), strict=True))
    print(f"{name}: {plain * 1e3:.1f} ms, checked {checked * 1e3:.1f} ms: {ratio:.2f} times")
    return {"kernel": name, "seconds": plain, "checked_seconds": checked, "ratio": ratio}


def verify_step6() -> dict[str, Any]:
    """Wall and processor seconds of the whole command; on a machine that does other work too, the first says little."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "verify", "--step", "6"], capture_output=True, text=True, check=True
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"ptxgen verify --step 6: {seconds:.1f} s, {used:.1f} s of processors; {done.stdout.splitlines()[-1]}")
    return {"seconds": seconds, "processor_seconds": used, "output": done.stdout.splitlines()[-1]}


# -- sentryward ---------------------------------------------------------------------------------


def sentryward_input(launch: Launch, kernel: Kernel) -> dict[str, Any]:
    """The launch in sentryward's terms."""
    addresses = {buffer.name: 0x100000 * (number + 1) for number, buffer in enumerate(launch.buffers)}
    packed = launch.pack(addresses, lambda tensor_map: tensor_map)
    arguments, descriptors = [], []
    for argument, value in zip(kernel.description.arguments, packed, strict=True):
        if isinstance(value, TensorMap):
            descriptors.append(
                {
                    "parameter": argument.name, "object": argument.name, "element_type": value.element_type.name,
                    "rank": value.rank, "global_shape": list(value.dims),
                    "global_strides_bytes": list(value.strides_bytes), "box_shape": list(value.box),
                    "element_strides": list(value.element_strides), "swizzle": f"{value.swizzle.span_bytes}B",
                    "interleave": "none", "oob_fill": "zero",
                }
            )  # fmt: skip
        else:
            number = int.from_bytes(value, "little")
            arguments.append({"parameter": argument.name, "type": argument.kind, "value": number})
    shape = {"grid_dim": list(launch.grid), "block_dim": list(launch.block), "cluster_dim": list(launch.cluster)}
    return {
        "schema": "spverify.kernel-input/v1",
        "entry": launch.entry,
        "launch": {**shape, "dynamic_shared_bytes": launch.dynamic_smem_bytes},
        "arguments": arguments,
        "tma_descriptors": descriptors,
    }


def in_its_forms(text: str) -> str:
    """The same program in forms whose addresses sentryward can follow: it loses them at a 64-bit move of a
    parameter's address, a prefetch of a tensor map and a multiplied tensor memory address."""
    body = text[text.index(".version") :]
    body = re.sub(r"(?m)^\s*prefetch\.tensormap.*$", "", body)
    body = re.sub(r"mov\.b64 (%\w+), (\w+_map);", r"mov.b32 %moved, \2; cvt.u64.u32 \1, %moved;", body)
    body = re.sub(
        r"mad\.lo\.u32 %tmem_row, %warp, 0x200000, %tmem;",
        "shl.b32 %tmem_row, %warp, 21; add.u32 %tmem_row, %tmem_row, %tmem;",
        body,
    )
    return body.replace("{\n", "{\n    .reg .b32 %moved;\n", 1)


def second_opinion(name: str, fault: str, changes: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Both verdicts on a kernel of two K-tiles, with their times."""
    text = (GENERATED / f"{name}.ptx").read_text()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, count=1)
        assert count == 1, f"{fault}: {pattern} is not in {name}"
    kernel, launch, inputs = one_cta(name, text, k=128)
    device = kernel.device
    assert isinstance(device, EmulatedDevice)
    device.check = True
    began = time.perf_counter()
    findings = kernel.run(launch, inputs).report.findings
    row: dict[str, Any] = {
        "kernel": name, "fault": fault, "ptxgen": sorted({finding.rule for finding in findings}),
        "ptxgen_seconds": time.perf_counter() - began,
    }  # fmt: skip
    if importlib.util.find_spec("sentryward") is not None:
        verify = importlib.import_module("sentryward").verify
        with tempfile.TemporaryDirectory() as folder:
            ptx, configuration = Path(folder, "kernel.ptx"), Path(folder, "input.json")
            ptx.write_text(in_its_forms(text))
            configuration.write_text(json.dumps(sentryward_input(launch, kernel)))
            began = time.perf_counter()
            result = verify(str(ptx), input=str(configuration), timeout_seconds=SENTRYWARD_SECONDS)
            row |= {"sentryward": result["result"], "sentryward_seconds": time.perf_counter() - began}
    print(row)
    return row


def main() -> None:
    verified = verify_step6()
    emulator_machine.time = _ProcessorTime  # type: ignore[assignment]
    costs = [cost(name) for name in KERNELS]
    opinions = [second_opinion(*row) for row in FAULTS]
    record("checker_cost", {"one_cta_of_64_k_tiles": costs, "verify_step_6": verified, "second_opinions": opinions})


if __name__ == "__main__":
    main()
