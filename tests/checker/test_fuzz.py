"""Texts mutated at random end in a result, a finding or a clear error: never in a crash, never in a hang."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from ptxgen.device.arrays import make_matrix
from ptxgen.device.choice import chip_for
from ptxgen.device.description import launch_in_header
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel
from ptxgen.errors import PtxgenError
from ptxgen.toolchain import ptx_target

GENERATED = Path(__file__).resolve().parents[2] / "generated"
KERNELS = ("sm_100a/step4.ptx", "sm_100a/step6.ptx", "sm_100a/step7.ptx", "sm_90a/step7.ptx", "sm_100a/step2.ptx")
SCHEDULES = ("eager", "late", "random")
BUDGET = 8_000
"""Warp instructions of a cluster; the kernels need a tenth to a half of it."""

TOKEN = re.compile(r"//[^\n]*|%?[A-Za-z_$][\w$]*|\.[A-Za-z_][\w:]*|0[xX][0-9a-fA-F]+|\d+|\S")

KINDS = tuple("number number register register statement statement moved moved delete swap double".split())


def mutate(text: str, draw: random.Random) -> str:
    """One to three changes of the code: a number or register becomes another, a statement goes or moves, tokens are
    deleted, doubled or swapped."""
    start = text.index("{\n", text.index(".reqntid")) + 2
    tokens = list(TOKEN.finditer(text, start))
    pieces = [match[0] if not match[0].startswith("//") else "\n" for match in tokens]
    gaps = [text[a.end() : b.start()] for a, b in pairwise(tokens)] + [text[tokens[-1].end() :]]
    code = text.index("// set-up", start)
    first = next(index for index, match in enumerate(tokens) if match.start() >= code)
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(KINDS)
        at = draw.randrange(first, len(pieces))
        if kind in ("number", "register"):
            fits = str.isdigit if kind == "number" else "%".__eq__
            places = [index for index in range(first, len(pieces)) if pieces[index] and fits(pieces[index][0])]
            at = draw.choice(places)
            if kind == "register":
                near = [index for index in places if abs(index - at) < 200]
                pieces[at] = pieces[draw.choice(near)]
            else:
                value = int(pieces[at], 0)
                pieces[at] = str(draw.choice((0, 1, value + 1, abs(value - 1), 2 * value, value ^ 16, 1 << 31)))
        elif kind == "delete":
            pieces[at] = ""
        elif kind == "swap":
            other = draw.randrange(max(first, at - 12), min(len(pieces), at + 13))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif kind == "double":
            pieces[at] += " " + pieces[at]
        else:
            ends = [index for index in range(first, len(pieces)) if pieces[index] == ";"]
            number = draw.randrange(1, len(ends))
            span = slice(ends[number - 1] + 1, ends[number] + 1)
            statement = "".join(a + b for a, b in zip(pieces[span], gaps[span], strict=True))
            pieces[span] = [""] * (span.stop - span.start)
            if kind == "moved":
                pieces[draw.choice(ends)] += "\n" + statement
    return text[:start] + "".join(a + b for a, b in zip(pieces, gaps, strict=True))


def run(text: str, name: str, policy: str, seed: int, budget: int = BUDGET, size: int = 0) -> str:
    """What became of a mutated text: "clean", the rules found, or the class of the error."""
    original = (GENERATED / name).read_text()
    description = launch_in_header(original, name)
    assert description is not None
    try:
        device = EmulatedDevice(
            chip_for(ptx_target(text, name)), policy=policy, seed=seed, workers=1, check=True, instruction_budget=budget
        )
        kernel = Kernel(text, description, device, name=name)
        m, n, k = description.verify[size]
        grid = (description.cluster[0], 1, 1) if description.persistent else None
        launch = kernel.plan(description.problem(M=m, N=n, K=k), grid=grid)
        inputs = {
            buffer.name: make_matrix("integers", buffer.rows, buffer.columns, buffer.element_type, (0, index))
            for index, buffer in enumerate(launch.buffers)
            if buffer.fill == "input"
        }
        report = kernel.run(launch, inputs).report
    except PtxgenError as error:
        return type(error).__name__ if str(error) else "error without a message"
    return ", ".join(sorted({finding.rule for finding in report.findings})) or "clean"


def mutated(seed: int) -> tuple[str, str]:
    draw = random.Random(seed)
    name = draw.choice(KERNELS)
    return name, mutate((GENERATED / name).read_text(), draw)


def check(seeds: range) -> set[str]:
    outcomes = set()
    for seed in seeds:
        name, text = mutated(seed)
        outcomes.add(run(text, name, SCHEDULES[seed % 3], seed))
    assert "error without a message" not in outcomes
    return outcomes


def test_a_hundred_mutated_texts() -> None:
    outcomes = check(range(100))
    assert {"clean", "PtxError"} <= outcomes
    assert any("-" in outcome for outcome in outcomes), "no mutation was found by a rule"


def test_operations_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit inside the loop that waits for it: what is known of it would fill the memory before the budget is
    used up."""
    monkeypatch.setattr("ptxgen.emulator.unit._MOST_PENDING", 300)
    name = "sm_100a/step6.ptx"
    lines = (GENERATED / name).read_text().split("\n")
    (commit,) = (number for number, line in enumerate(lines) if line.strip().startswith("tcgen05.commit"))
    label = lines.index("wait_mma:")
    lines[label + 1] = lines[label + 1].partition("//")[0] + lines[commit]
    lines[commit] = ""
    assert "instruction-budget" in run("\n".join(lines), name, "late", 0, budget=1_000_000, size=1)


@pytest.mark.slow
def test_two_thousand_mutated_texts() -> None:
    check(range(2000))
