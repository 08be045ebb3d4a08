"""ptxas takes every kernel as it is: no warning, no spill, few registers, and no loop around an elected lane."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ptxgen.render import emit
from ptxgen.steps import step
from ptxgen.toolchain import assemble, disassemble, find_tool

ROOT = Path(__file__).resolve().parents[2]
GENERATED = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "generated").rglob("*.ptx"))
TARGETS = sorted({path.split("/")[1] for path in GENERATED})

Merge = Callable[[list[str]], str]

ISSUED_BY_ONE_LANE = r"(?:UTMALDG|UTMASTG|UTCHMMA|UTCBAR)\b"

pytestmark = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")


@pytest.mark.parametrize("path", GENERATED)
def test_every_generated_kernel_assembles_clean(path: str) -> None:
    assembly = assemble((ROOT / path).read_text(), name=path)
    assert (assembly.warnings, assembly.infos, assembly.spill_bytes) == ((), (), 0)
    (entry,) = assembly.entries
    assert (entry.stack_bytes, entry.smem_bytes) == (0, 0)
    assert entry.registers <= (128 if "/sm_100a/" in path else 168)


@pytest.mark.parametrize("number", range(4, 11))
def test_the_tutorials_steps_need_at_most_64_registers(number: int) -> None:
    assert assemble(emit(step(number))).registers <= 64


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_what_one_lane_issues_needs_neither_predicate_nor_loop(target: str, merged: Merge) -> None:
    texts = [(ROOT / path).read_text() for path in GENERATED if f"/{target}/" in path]
    sass = disassemble(assemble(merged(texts), line_info=False).cubin)
    assert sass.count("BRA.U.ANY") == 0
    # Flags of stream-K, once a part of a tile, and the barriers before and behind all tiles of a pair. At every release
    # of a stage such a fence costs a quarter of the speed.
    fences = ("st.release.gpu", "barrier.cluster.arrive.release")
    assert sass.count("MEMBAR.ALL.GPU") == sum("\n".join(texts).count(fence) for fence in fences)
    issued = re.findall(rf"(@\S+)?\s+{ISSUED_BY_ONE_LANE}", sass)
    assert len(issued) >= 4 * len(texts)
    assert set(issued) == {""}


ELECTION = "elect.sync _|%elected, 0xffffffff;"
LANE_0 = "{{ .reg .b32 %lane; {}; setp.eq.u32 %elected, %lane, 0; }}"


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
def test_a_lane_that_ptxas_cannot_prove_alone_costs_both(merged: Merge) -> None:
    """The counterpart of the test above: `lane == 0`, found out in two ways, for the same kernels."""
    texts = [emit(step(number)) for number in (4, 5, 6)]
    assert all(text.count(ELECTION) == 1 for text in texts)

    def sass(lane: str) -> str:
        variants = [text.replace(ELECTION, LANE_0.format(lane)) for text in texts]
        return disassemble(assemble(merged(variants), line_info=False).cubin)

    computed = sass("and.b32 %lane, %thread, 31")
    assert computed.count("BRA.U.ANY") >= 7 * len(texts)
    special = sass("mov.b32 %lane, %laneid")
    assert len(re.findall(rf"@\S+\s+{ISSUED_BY_ONE_LANE}", special)) >= 2 * len(texts)
