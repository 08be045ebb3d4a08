"""Scratch buffers: zeroed once, a set for each stream, and grids that must run at once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ptxgen
from ptxgen.device.cuda import CudaDevice
from ptxgen.device.kernel import Kernel
from ptxgen.errors import DeviceError, LaunchError

MakeGpu = Callable[..., tuple[Any, CudaDevice]]
PROBLEM = {"M": 128, "N": 128, "K": 256}
H200 = [("NVIDIA H200", (9, 0), 132)]


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> tuple[Any, CudaDevice]:
    return make_gpu(driver_devices=H200)


def kernel_of(device: CudaDevice, **scheduler: Any) -> Kernel:
    spec = ptxgen.step(10, target="sm_90a").replace(tile={"m": 64, "n": 64}, consumers=1, scheduler=scheduler)
    return ptxgen.compile(spec, device=device)


def prepared(device: CudaDevice, kernel: Kernel, problem: dict[str, int] = PROBLEM) -> Any:
    """A launch on three matrices of the device."""
    launch = kernel.plan(problem)
    buffers = {
        shape.name: device.allocate(shape.rows * shape.pitch_bytes, name=shape.name)
        for shape in launch.buffers
        if not shape.scratch
    }
    module: Any = kernel._module
    return device.plan(module, launch).at({name: buffer.address for name, buffer in buffers.items()})


def scratch_of(launch: dict[str, Any]) -> tuple[int, int]:
    """Addresses of the partial sums and the flags."""
    partials, flags = launch["values"][-2:]
    return int.from_bytes(partials, "little"), int.from_bytes(flags, "little")


def test_streams_share_nothing_and_launches_of_a_stream_everything(gpu: tuple[Any, CudaDevice]) -> None:
    fake, device = gpu
    one = prepared(device, kernel_of(device, stream_k=True))
    other = prepared(device, kernel_of(device, stream_k=True), PROBLEM | {"M": 64})
    for launch, stream in ((one, 5), (one, 7), (other, 5), (one, 5)):
        launch.launch(stream)
    five, seven, shared, again = (scratch_of(launch) for launch in fake.launches)
    assert five == shared == again
    assert not set(five) & set(seven)
    assert all(address % 256 == 0 for address in (*five, *seven))
    allocated = fake.calls["cuMemAlloc"]
    one.launch(7)
    assert fake.calls["cuMemAlloc"] == allocated


def test_flags_begin_with_zeros(gpu: tuple[Any, CudaDevice]) -> None:
    fake, device = gpu
    prepared(device, kernel_of(device, stream_k=True)).launch(5)
    _, flags = scratch_of(fake.launches[0])
    assert ctypes.string_at(flags, 132 * 4 * 4) == bytes(132 * 4 * 4)


def test_a_larger_problem_gets_more(gpu: tuple[Any, CudaDevice]) -> None:
    """What was handed out before stays where it is."""
    fake, device = gpu
    kernel = kernel_of(device, split_k=2)
    small = prepared(device, kernel)
    small.launch(5)
    prepared(device, kernel, PROBLEM | {"M": 1024}).launch(5)
    small.launch(5)
    first, larger, again = (scratch_of(launch) for launch in fake.launches)
    assert first == again != larger
    assert set(first) <= set(fake.memory)


def test_the_stream_of_a_thread_is_its_own(gpu: tuple[Any, CudaDevice]) -> None:
    fake, device = gpu
    launch = prepared(device, kernel_of(device, stream_k=True))
    launch.launch(2)
    thread = threading.Thread(target=launch.launch, args=(2,))
    thread.start()
    thread.join()
    launch.launch(2)
    mine, other, again = (scratch_of(one) for one in fake.launches)
    assert mine == again != other


def test_a_captured_graph_has_its_own(gpu: tuple[Any, CudaDevice]) -> None:
    """It may be replayed beside the stream on which it was captured; capturing allocates without being part of it."""
    fake, device = gpu
    launch = prepared(device, kernel_of(device, stream_k=True))
    launch.launch(5)
    for capture in (31, 32):
        fake.captures[5] = capture
        launch.launch(5)
        launch.launch(5)
        assert fake.capture_mode.name.endswith("_GLOBAL")
        fake.captures.clear()
    launch.launch(5)
    before, one, again, other, _, after = (scratch_of(each) for each in fake.launches)
    assert before == after
    assert one == again
    assert len({before, one, other}) == 3


def test_all_must_run_at_once(gpu: tuple[Any, CudaDevice]) -> None:
    fake, device = gpu
    spec = ptxgen.step(10, target="sm_90a").replace(cluster=(2, 1, 1), scheduler={"stream_k": True})
    kernel = ptxgen.compile(spec, device=device)
    module: Any = kernel._module
    device.plan(module, kernel.plan(PROBLEM))
    fake.clusters = 60
    with pytest.raises(DeviceError, match="wait for each other, so all 132 must run at once; .* has room for 120"):
        device.plan(module, kernel.plan(PROBLEM))
    device.plan(module, kernel.plan(PROBLEM, grid=(120, 1, 1)))
    with pytest.raises(LaunchError, match="a grid of 134 CTAs, which wait for each other"):
        kernel.plan(PROBLEM, grid=(134, 1, 1))
