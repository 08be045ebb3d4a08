"""Every generated kernel is clean under every schedule: no error, and no warning."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ptxgen.device.choice import chip_for
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel, load
from ptxgen.device.verification import Case, cases, run_case
from ptxgen.toolchain import ptx_target

GENERATED = Path(__file__).resolve().parents[2] / "generated"
KERNELS = sorted(path.relative_to(GENERATED).as_posix() for path in GENERATED.glob("*/*.ptx"))
SCHEDULES = ("eager", "late", "random")


def checked(name: str) -> Kernel:
    path = GENERATED / name
    device = EmulatedDevice(chip_for(ptx_target(path.read_text(), name)), workers=1, check=True)
    return load(path, device=device)


def device_of(kernel: Kernel) -> EmulatedDevice:
    assert isinstance(kernel.device, EmulatedDevice)
    return kernel.device


def check(kernel: Kernel, case: Case) -> None:
    run = run_case(kernel, case)
    assert [str(finding) for finding in run.report.findings] == []
    assert run.clean
    assert run.comparison is not None


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_clean(name: str) -> None:
    """At a small, a large and a middle size; on one CTA or cluster where it is persistent. Nothing in it is idle, but
    for arrivals that serve another reading of wgmma.wait_group (docs/mutations.md)."""
    kernel = checked(name)
    for policy, size in (("eager", 0), ("late", -1), ("random", 1)):
        first_of_size = {case.problem["K"]: case for case in reversed(cases(kernel, {}, None, (policy,), (0,)))}
        check(kernel, first_of_size[sorted(first_of_size)[size]])
    lines = kernel.text.split("\n")
    idle = [lines[number - 1].split("//")[0].strip() for number in device_of(kernel).usage.idle_lines()]
    assert [one for one in idle if not ("%mma_done" in one and name == "sm_90a/step4.ptx")] == []


def test_a_racy_run_takes_little_longer_than_a_clean_one() -> None:
    """Thousands of pairs that race, and each is looked at; once that took ten times as long."""
    clean = checked("sm_100a/step10.ptx")
    line = next(one for one in clean.text.splitlines() if "bar.sync %epilogue_barrier" in one)
    racy = Kernel(clean.text.replace(line, ""), clean.description, clean.device, name="racy")
    case = Case(problem={"M": 300, "N": 300, "K": 100}, grid=(2, 1, 1), policy="late", seed=0)
    seconds: list[float] = []
    for kernel in (clean, racy):
        run_case(kernel, case)
        began = time.process_time()
        run = run_case(kernel, case)
        seconds.append(time.process_time() - began)
        assert run.clean is (kernel is clean)
    assert seconds[1] < 4 * seconds[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_clean_at_every_size_and_with_ten_seeds(name: str) -> None:
    kernel = checked(name)
    for case in cases(kernel, {}, None, SCHEDULES, tuple(range(10))):
        check(kernel, case)
