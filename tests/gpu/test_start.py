"""From text to a loaded module: both compilers, both caches, and how long the second start takes."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

import ptxgen
from ptxgen.device.arrays import make_matrix
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.reference import compare
from ptxgen.hardware.element_types import element_type
from ptxgen.toolchain import find_tool

STEPS = (4, 5, 6, 7)
F16 = element_type("f16")
START_SECONDS = 5e-3


@pytest.fixture
def assembled(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """The device with ptxas for a compiler and an empty cache."""
    if find_tool("ptxas") is None:
        pytest.skip("there is no ptxas")
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PTXGEN_CACHE", raising=False)
    return CudaDevice(device.ordinal, compiler="ptxas")


@pytest.mark.parametrize("step", STEPS)
def test_ptxas_and_its_cache(step: int, assembled: CudaDevice, tmp_path: Path) -> None:
    spec = ptxgen.step(step, target="sm_90a")
    a, b = make_matrix("integers", 130, 72, F16, 0), make_matrix("integers", 136, 72, F16, 1)
    assert compare(a, b, ptxgen.compile(spec, assembled)(a, b)).matches
    assert len(list(tmp_path.glob("*.cubin"))) == 1
    assert compare(a, b, ptxgen.compile(spec, assembled)(a, b)).matches
    assert len(list(tmp_path.glob("*.cubin"))) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_start_from_the_disk_cache_is_quick(step: int, assembled: CudaDevice, device: CudaDevice) -> None:
    text = ptxgen.emit(ptxgen.step(step, target="sm_90a"))
    for name, gpu in (("ptxas", assembled), ("driver", device)):
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            module = gpu.load(text, name="kernel.ptx")
            seconds.append(time.perf_counter() - start)
            gpu.unload(module)
        print(f"step {step}, {name}: first {seconds[0] * 1e3:.2f} ms, then {median(seconds[1:]) * 1e3:.2f} ms")
        if name == "ptxas":
            assert median(seconds[1:]) <= START_SECONDS


def test_the_properties_of_the_device(device: CudaDevice) -> None:
    chip = device.properties.chip
    assert chip.capability == (9, 0)
    assert chip.name == "sm_90a"
    assert chip.sm_count >= 1
    assert chip.smem_per_sm_bytes == 228 * 1024
    assert chip.smem_reserved_bytes == 1024
    assert chip.max_ctas_per_sm == 32
