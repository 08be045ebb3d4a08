"""Small kernels written by hand: the same text, launches and results on the emulator and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.arrays import make_matrix
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.interface import Device
from ptxgen.errors import DeviceError
from ptxgen.hardware.element_types import element_type

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(params=["emulator", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("driver", "ptxas"))])
def device(request: pytest.FixtureRequest) -> Device:
    """The emulator, and a GPU with either compiler."""
    if request.param == "emulator":
        return EmulatedDevice("sm_90a", workers=1)
    from ptxgen.device.cuda import CudaDevice, fitting_ordinal

    try:
        return CudaDevice(fitting_ordinal("sm_90"), compiler=request.param, timeout_seconds=20)
    except DeviceError as error:
        pytest.skip(f"needs a Hopper GPU or a later one: {error}")


def run(name: str, device: Device, problem: dict[str, int], **inputs: Any) -> dict[str, Any]:
    kernel = ptxgen.load(DATA / name, device=device)
    execution = kernel.run(kernel.plan(problem), inputs)
    assert execution.report.errors == ()
    return dict(execution.outputs)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 7), (130, 129)])
def test_parameters_of_every_size(device: Device, m: int, n: int) -> None:
    x = np.random.default_rng(0).standard_normal((m, n), np.float32)
    y = run("scale.ptx", device, {"M": m, "N": n, "K": 1}, X=x)["Y"]
    assert np.array_equal(y, x * np.float32(1.5) * 2)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (64, 64), (3, 5), (130, 72), (200, 401)])
def test_tensor_maps_and_shared_memory(device: Device, m: int, n: int) -> None:
    a = make_matrix("ramp", m, n, element_type("f16"), 0)
    d = run("tma_copy.ptx", device, {"M": m, "N": n, "K": 1}, A=a)["D"]
    assert np.array_equal(d, a)


@pytest.mark.parametrize("ctas", [2, 12, 264])
def test_clusters(device: Device, ctas: int) -> None:
    d = run("cluster_ranks.ptx", device, {"M": ctas, "N": 1, "K": 1})["D"]
    assert np.array_equal(d, [[cta % 2, 2] for cta in range(ctas)])
