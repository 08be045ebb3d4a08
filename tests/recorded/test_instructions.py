"""Instruction by instruction, the emulator computes what an H200 computed.

h200_instructions.txt has a line for each form: type of the result, operands (their kind and their row in the recorded
inputs), relative tolerance (of approximations), PTX with the operands in braces. h200_instructions.npz has the inputs
(rows x 64 threads), the H200's results (forms x 64 threads), and where the manual defines them. NaNs are equal
whatever their payload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.hardware.targets import target

Array = np.ndarray[Any, Any]
HERE = Path(__file__).parent
THREADS = 64
BITS = {"i16": 16, "f16": 16, "bf16": 16, "i64": 64, "f64": 64}
"""Widths of the operands' kinds; all others have 32 bits."""
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
TINY = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
"""Smallest normal numbers: an approximation that is smaller may be off by the tolerance of these."""


@dataclass(frozen=True)
class Form:
    """One line of h200_instructions.txt."""

    number: int
    result: str
    operands: tuple[tuple[int, int], ...]
    """(bits, row of the inputs) of each."""
    tolerance: float
    text: str

    @property
    def result_bits(self) -> int:
        name = self.result
        return 32 if name.endswith("x2") else int(name.lstrip("bf"))

    def ptx(self) -> str:
        """A block that loads the operands of this thread, computes and stores 64 bits."""
        names = {}
        lines = []
        for letter, (bits, row) in zip("abce", self.operands, strict=False):
            lines.append(f"ld.global.b64 {letter}64, [inputs+{row * THREADS * 8}];")
            if bits < 64:
                lines.append(f"cvt.u{bits}.u64 {letter}{bits}, {letter}64;")
            names[letter] = f"{letter}{bits}"
        bits = self.result_bits
        widen = "" if bits == 64 else f"cvt.u64.u{bits} d64, d{bits};"
        store = f"st.global.b64 [results+{self.number * THREADS * 8}], d64;"
        lines += [self.text.format(d=f"d{bits}", **names), widen, store]
        registers = " ".join(f".reg .b{size} {', '.join(f'{x}{size}' for x in 'abced')};" for size in (16, 32, 64))
        body = "\n\t\t".join(lines)
        return f"\t{{\n\t\t{registers} .reg .pred p, q, r;\n\t\tmov.b32 d32, 0;\n\t\t{body}\n\t}}\n"


def forms() -> Iterator[Form]:
    for number, line in enumerate((HERE / "h200_instructions.txt").read_text().splitlines()):
        result, operands, tolerance, text = (part.strip() for part in line.split("|", 3))
        pairs = [operand.split(":") for operand in operands.split()]
        yield Form(
            number=number,
            result=result,
            operands=tuple((BITS.get(kind, 32), int(row)) for kind, row in pairs),
            tolerance=float(tolerance or 0),
            text=text,
        )


def by_opcode() -> dict[str, list[Form]]:
    groups = defaultdict(list)
    for form in forms():
        groups[form.text.split(" ")[0].split(".")[0]].append(form)
    return groups


GROUPS = by_opcode()


def module(group: list[Form]) -> str:
    body = "".join(form.ptx() for form in group)
    return f""".version 8.6
.target sm_90
.address_size 64

.visible .entry forms(
	.param .u64 inputs_pointer,
	.param .u64 results_pointer
)
{{
	.reg .b64 inputs, results, offset;
	.reg .b32 thread;
	mov.u32 thread, %tid.x;
	mul.wide.u32 offset, thread, 8;
	ld.param.u64 inputs, [inputs_pointer];
	ld.param.u64 results, [results_pointer];
	add.u64 inputs, inputs, offset;
	add.u64 results, results, offset;
{body}	ret;
}}
"""


def differences(form: Form, got: Array, recorded: Array, defined: Array) -> list[str]:
    """What is wrong in the results of one form, by thread."""
    bits = form.result_bits
    name = form.result.removesuffix("x2")
    kind = FLOATS.get(name)
    wrong = got != recorded
    if kind is not None:
        count = bits // (8 * np.dtype(kind).itemsize)
        words = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits // count]
        with np.errstate(all="ignore"):
            ours, theirs = (
                words_of.view(words).reshape(THREADS, -1)[:, :count].copy().view(kind).astype(np.float64)
                for words_of in (got, recorded)
            )
            near = np.abs(ours - theirs) <= form.tolerance * np.maximum(np.abs(theirs), TINY[name])
        same = got.view(words).reshape(THREADS, -1)[:, :count] == recorded.view(words).reshape(THREADS, -1)[:, :count]
        close = near if form.tolerance else np.zeros_like(same)
        wrong = ~(same | close | (np.isnan(ours) & np.isnan(theirs))).all(axis=1)
    return [
        f"{form.text} thread {thread}: {int(got[thread]):#x}, not {int(recorded[thread]):#x}"
        for thread in np.flatnonzero(wrong & defined)
    ]


def check(group: list[Form], results: Array) -> None:
    with np.load(HERE / "h200_instructions.npz") as data:
        recorded, defined = data["results"], data["defined"]
    wrong = [
        line
        for form in group
        for line in differences(form, results[form.number], recorded[form.number], defined[form.number])
    ]
    assert not wrong, wrong[:8]


@pytest.mark.parametrize("opcode", GROUPS)
def test_the_emulator_computes_what_an_h200_computed(opcode: str) -> None:
    with np.load(HERE / "h200_instructions.npz") as data:
        inputs, shape = data["inputs"], data["results"].shape
    memory = GlobalMemory()
    source = memory.allocate(inputs.nbytes, name="inputs")
    source.data[:] = np.frombuffer(inputs.tobytes(), np.uint8)
    results = memory.allocate(8 * shape[0] * shape[1], name="results")
    report = Machine(chip=target("sm_100a"), memory=memory, policy="eager", elect="first", workers=1).launch(
        load_module(module(GROUPS[opcode]), name=opcode),
        entry="forms",
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(1, 1, 1),
        dynamic_smem_bytes=0,
        arguments=[address.to_bytes(8, "little") for address in (source.address, results.address)],
    )
    assert not report.findings
    check(GROUPS[opcode], results.data.copy().view(np.uint64).reshape(shape))


@pytest.mark.gpu
def test_a_gpu_computes_what_an_h200_computed() -> None:
    """Repeats the recording on the machine's own GPU, whose driver assembles the text."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

    def call(name: str, *arguments: Any) -> Any:
        error, *values = getattr(driver, name)(*arguments)
        assert error == driver.CUresult.CUDA_SUCCESS, (name, error)
        return values[0] if values else None

    try:
        found = driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS and call("cuDeviceGetCount") > 0
    except RuntimeError:  # no driver library
        found = False
    if not found:
        pytest.skip("no NVIDIA GPU")
    device = call("cuDeviceGet", 0)
    major = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    if call("cuDeviceGetAttribute", major, device) < 9:
        pytest.skip("the GPU is older than sm_90")
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    with np.load(HERE / "h200_instructions.npz") as data:
        inputs, results = np.ascontiguousarray(data["inputs"]), np.zeros_like(data["results"])
    source, sink = (call("cuMemAlloc", array.nbytes) for array in (inputs, results))
    call("cuMemcpyHtoD", source, inputs, inputs.nbytes)
    pointers = np.array([int(source), int(sink)], np.uint64)
    places = np.array([pointers.ctypes.data, pointers.ctypes.data + 8], np.uint64)
    for group in GROUPS.values():
        loaded = call("cuModuleLoadData", module(group).encode() + b"\0")
        call("cuLaunchKernel", call("cuModuleGetFunction", loaded, b"forms"), 1, 1, 1, THREADS, 1, 1, 0, 0, places, 0)
        call("cuCtxSynchronize")
        call("cuModuleUnload", loaded)
    call("cuMemcpyDtoH", results, sink, results.nbytes)
    call("cuMemFree", source)
    call("cuMemFree", sink)
    call("cuDevicePrimaryCtxRelease", device)
    for group in GROUPS.values():
        check(group, results)
