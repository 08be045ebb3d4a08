"""What CTAs hand to each other through global memory: clean where it is released and acquired, else a race."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.description import LaunchDescription, launch_in_header
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel
from ptxgen.toolchain import ptx_target

POLICIES = ("eager", "late", "random")
SMALL: dict[str, Any] = {"tile": {"m": 64, "n": 64, "k": 64}, "consumers": 1, "pipe_depth": 3}
PAIR: dict[str, Any] = {"tile": {"m": 256, "n": 64, "k": 64}, "consumers": 1, "accumulators": 1, "pipe_depth": 2}


def text_of(**scheduler: Any) -> str:
    return ptxgen.emit(ptxgen.step(10, target="sm_90a").replace(scheduler=scheduler, **SMALL))


def run(text: str, policy: str, shape: tuple[int, int, int] = (129, 100, 500), grid: int = 4) -> Any:
    """The report, and the kernel that made it; integers, so that D is exact."""
    description = launch_in_header(text, "text")
    assert description is not None
    device = EmulatedDevice(
        ptx_target(text, "text"), policy=policy, seed=1, workers=1, check=True, instruction_budget=100_000
    )
    kernel = Kernel(text, description, device, name="text")
    m, n, k = shape
    rng = np.random.default_rng(1)
    a = rng.integers(-5, 6, (m, k)).astype(np.float16)
    b = rng.integers(-5, 6, (n, k)).astype(np.float16)
    d, report = kernel.execute(a, b, grid=(grid, 1, 1))
    right = bool((d == (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)).all())
    return right, report, device


@pytest.mark.parametrize(
    ("target", "scheduler", "changes"),
    [
        ("sm_90a", {"stream_k": True}, SMALL),
        ("sm_90a", {"stream_k": True}, SMALL | {"cluster": (2, 1, 1)}),
        ("sm_90a", {"split_k": 2}, SMALL | {"tile": {"m": 128, "n": 32, "k": 64}, "consumers": 2}),
        ("sm_100a", {"stream_k": True}, PAIR),
        ("sm_100a", {"split_k": 2}, PAIR | {"epilogue": {"unroll": True}}),
    ],
)
def test_the_kernels_are_clean_and_nothing_in_them_is_idle(
    target: str, scheduler: dict[str, Any], changes: dict[str, Any]
) -> None:
    text = ptxgen.emit(ptxgen.step(10, target=target).replace(scheduler=scheduler, **changes))
    idle: list[set[int]] = []
    for policy in POLICIES[1:]:
        right, report, device = run(text, policy, (129, 100, 500) if target == "sm_90a" else (1025, 60, 500))
        assert report.errors == ()
        assert report.findings == ()
        assert right
        idle.append(set(device.usage.idle_lines()))
    lines = text.split("\n")
    assert [lines[line - 1] for line in set.intersection(*idle)] == []


def without(pattern: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, "", text, count=1)


def instead(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


FENCED_STORE = "fence.acq_rel.gpu; st.relaxed.gpu"
FENCED_LOAD = (
    r"ld\.acquire(\.gpu\.global.b32 [^\n]*\n[^\n]*\n[^\n]*bra [^\n]*)",
    r"ld.relaxed\1\n    fence.acq_rel.gpu;",
)


def fenced(text: str) -> str:
    """With relaxed accesses to the flags, and fences beside them."""
    found = re.sub(*FENCED_LOAD, text.replace("st.release.gpu", FENCED_STORE))
    assert found.count("fence.acq_rel.gpu") == 2
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_relaxed_flags_with_fences_are_as_good(policy: str, scope: str) -> None:
    right, report, _ = run(fenced(text_of(stream_k=True)).replace("acq_rel.gpu", f"acq_rel.{scope}"), policy)
    assert right
    assert report.findings == ()


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("scope", ["cta", "cluster"])
def test_a_fence_of_too_little_scope_is_a_race(which: int, scope: str) -> None:
    parts = fenced(text_of(stream_k=True)).split("fence.acq_rel.gpu")
    broken = f"fence.acq_rel.{scope}".join(parts[:2]) + "fence.acq_rel.gpu" + parts[2]
    if which == 2:
        broken = parts[0] + "fence.acq_rel.gpu" + f"fence.acq_rel.{scope}".join(parts[1:])
    _, report, _ = run(broken, "eager")
    assert {finding.rule for finding in report.findings} == {"global-race"}


FAULTS = {
    "released to nobody": instead("st.release.gpu", "st.relaxed.gpu"),
    "a weak store": instead("st.release.gpu.global", "st.global"),
    "released in the CTA": instead("st.release.gpu", "st.release.cta"),
    "not acquired": instead("ld.acquire.gpu", "ld.relaxed.gpu"),
    "a weak load": instead("ld.acquire.gpu.global", "ld.global"),
    "acquired in the CTA": instead("ld.acquire.gpu", "ld.acquire.cta"),
    "released before the other lanes have stored": without(r"    bar\.warp\.sync[^\n]*all lanes have stored[^\n]*\n"),
    "read before it is there for the other lanes": without(r"    bar\.warp\.sync[^\n]*there for all lanes[^\n]*\n"),
    "not waited for": without(r"(?s)consumer_wait_flag:.*?(?=    st\.relaxed)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_link_is_a_race(fault: str) -> None:
    """Though the numbers are right: on the emulator everybody sees everything at once."""
    text = text_of(stream_k=True)
    broken = FAULTS[fault](text)
    assert broken != text
    for policy in POLICIES if fault == "released to nobody" else POLICIES[:1]:
        _, report, _ = run(broken, policy)
        assert {finding.rule for finding in report.findings} == {"global-race"}
    message = str(report.findings[0])
    assert re.search(r"of CTA \(\d, 0, 0\) (writes|reads) bytes \[0x\w+, 0x\w+\) of global memory", message)
    assert "missing: a release of .gpu scope by the first" in message


def test_a_flag_that_is_not_cleared_is_told() -> None:
    broken = without(r"    st\.relaxed\.gpu[^\n]*\n")(text_of(stream_k=True))
    _, report, _ = run(broken, "eager")
    assert report.findings == ()
    assert "elements of FLAGS are not zero again" in report.errors[0]


def test_a_flag_that_is_not_raised_is_a_deadlock() -> None:
    broken = without(r"    st\.release\.gpu[^\n]*\n")(text_of(stream_k=True))
    for policy in POLICIES:
        _, report, _ = run(broken, policy)
        assert [finding.rule for finding in report.findings] == ["deadlock"]
        assert "waits for a change of global memory" in str(report.findings[0])


CHAIN = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry chain(.param .u64 data, .param .u64 flags)
.reqntid 32
{
    .reg .b32 %cta, %value, %place;
    .reg .b64 %data, %flags, %mine;
    .reg .pred %first, %leader, %unset;
    ld.param.u64 %data, [data];
    ld.param.u64 %flags, [flags];
    mov.u32 %place, %tid.x;
    mad.wide.u32 %mine, %place, 4, %data;
    setp.eq.u32 %leader, %place, 0;
    mov.u32 %cta, %ctaid.x;
    mad.wide.u32 %flags, %cta, 4, %flags;
    setp.eq.u32 %first, %cta, 0;
    @%first bra go;
wait_flag:
    ld.acquire.gpu.global.b32 %value, [%flags+-4];
    setp.eq.u32 %unset, %value, 0;
    @%unset bra wait_flag;
    setp.lt.u32 %first, %cta, 2;
    @%first bra raise;
go:
    ld.global.b32 %value, [%mine];
    add.u32 %value, %value, 1;
    st.global.b32 [%mine], %value;
raise:
    bar.warp.sync 0xffffffff;
    @!%leader bra done;
    st.release.gpu.global.b32 [%flags], 1;
done:
    ret;
}
"""
"""CTA 0 and CTA 2 change the same words; CTA 1 between them touches none."""
LAUNCH: dict[str, Any] = {
    "version": 1,
    "entry": "chain",
    "grid": [3, 1, 1],
    "block": [32, 1, 1],
    "defaults": {"M": 1, "N": 1, "K": 1},
    "buffers": [
        {"name": "DATA", "type": "u32", "shape": [1, 32], "pitch_bytes": 128, "fill": "zero"},
        {"name": "FLAGS", "type": "u32", "shape": [1, 4], "pitch_bytes": 16, "fill": "zero"},
    ],
    "arguments": [
        {"name": "data", "kind": "buffer", "buffer": "DATA"},
        {"name": "flags", "kind": "buffer", "buffer": "FLAGS"},
    ],
}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_handed_on_by_a_third_is_known(policy: str) -> None:
    for text, rules in (
        (CHAIN, set()),
        (CHAIN.replace("ld.acquire", "ld.relaxed"), {"global-race"}),
        (CHAIN.replace("@%unset bra wait_flag;", "@%unset bra wait_flag; fence.acq_rel.gpu;"), set()),
        (
            CHAIN.replace("ld.acquire", "ld.relaxed").replace(
                "@%unset bra wait_flag;", "@%unset bra wait_flag; fence.acq_rel.gpu;"
            ),
            set(),
        ),
    ):
        description = LaunchDescription.from_json(LAUNCH, "chain")
        device = EmulatedDevice("sm_90a", policy=policy, seed=3, workers=1, check=True)
        kernel = Kernel(text, description, device, name="chain")
        execution = kernel.run(kernel.plan({"M": 1, "N": 1, "K": 1}), {})
        assert {finding.rule for finding in execution.report.findings} == rules
        assert execution.outputs["DATA"].tolist() == [[2] * 32]
