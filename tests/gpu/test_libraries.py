"""Arrays of torch, cupy, JAX and numba, and of whatever speaks their protocols, in place on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.cuda import CudaDevice
from ptxgen.errors import LaunchError

KernelOf = Callable[..., ptxgen.Kernel]


class Dlpack:
    """Nothing but DLPack around a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)


class Interface:
    """Nothing but `__cuda_array_interface__` around a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_protocols(wrap: Any, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(200, 136, 72)
    out = torch.zeros((200, 136), dtype=torch.float16, device="cuda")
    kernel(6).launch(wrap(a), wrap(b), out=wrap(out))
    assert torch.equal(out, reference(a, b).half())
    stream = torch.cuda.Stream()
    out.zero_()
    torch.cuda.synchronize()
    kernel(6).launch(wrap(a), wrap(b), out=wrap(out), stream=stream)
    stream.synchronize()
    assert torch.equal(out, reference(a, b).half())


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_copies_of_foreign_arrays(wrap: Any, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = (matrix.contiguous() for matrix in operands(200, 136, 45))
    out = torch.zeros((200, 136), dtype=torch.float16, device="cuda")
    with pytest.raises(LaunchError, match="rows start 90 bytes apart"):
        kernel(6).launch(wrap(a), wrap(b), out=wrap(out))
    kernel(6).launch(wrap(a), wrap(b), out=wrap(out), copy=True)
    assert torch.equal(out, reference(a, b).half())


def test_bf16_through_dlpack(kernel: KernelOf, torch: Any, operands: Any) -> None:
    a, b = operands(64, 64, 64, torch.bfloat16)
    out = torch.zeros((64, 64), dtype=torch.bfloat16, device="cuda")
    kernel(5, operand_type="bf16", output_type="bf16").launch(Dlpack(a), Dlpack(b), out=Dlpack(out))
    assert torch.equal(out, (a.float() @ b.float().T).bfloat16())


@pytest.mark.parametrize("shape", [(256, 200, 128), (130, 50, 72)])
def test_cupy(shape: tuple[int, int, int], kernel: KernelOf, library: Any) -> None:
    cupy = library("cupy")
    m, n, k = shape
    a, b = (cupy.random.randint(-4, 5, (rows, k)).astype(cupy.float16) for rows in (m, n))
    expected = (a.astype(cupy.float32) @ b.astype(cupy.float32).T).astype(cupy.float16)
    d = kernel(6)(a, b)
    assert isinstance(d, cupy.ndarray)
    assert d.shape == (m, n)
    assert bool((d == expected).all())
    out = cupy.zeros((m, n + 16), cupy.float16)[:, : n + (-n % 8)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        doubled = a * 2
        kernel(7).launch(doubled, b, out=out[:, :n], copy=n % 8 != 0)
        result = out[:, :n] + 0
    stream.synchronize()
    assert bool((result == 2 * expected).all())
    kernel(7).launch(a.T.copy().T, b, out=out[:, :n], copy=True)
    cupy.cuda.runtime.deviceSynchronize()
    assert bool((out[:, :n] == expected).all())


def test_cupy_and_torch_share_a_process(
    kernel: KernelOf, library: Any, torch: Any, operands: Any, reference: Any
) -> None:
    cupy = library("cupy")
    a, b = operands(128, 128, 64)
    torch.cuda.synchronize()
    d = kernel(6)(cupy.from_dlpack(a), cupy.from_dlpack(b))
    cupy.cuda.runtime.deviceSynchronize()
    assert torch.equal(torch.from_dlpack(d), reference(a, b).half())
    with pytest.raises(LaunchError, match="A is a torch tensor and B a cupy array"):
        kernel(6)(a, cupy.from_dlpack(b))


@pytest.mark.parametrize("shape", [(256, 200, 128), (130, 50, 72), (64, 30, 45)])
@pytest.mark.parametrize("type_", ["float16", "bfloat16"])
def test_jax(
    shape: tuple[int, int, int], type_: str, kernel: KernelOf, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = library("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this JAX sees no GPU")
    m, n, k = shape
    name = {"float16": "f16", "bfloat16": "bf16"}[type_]
    host = [np.random.default_rng(seed).integers(-4, 5, (rows, k)) for seed, rows in enumerate((m, n))]
    a, b = (jax.numpy.asarray(matrix).astype(type_) * 2 for matrix in host)  # still being computed
    d = kernel(6, operand_type=name, output_type="f32")(a, b, copy=k % 8 != 0)
    assert isinstance(d, jax.Array)
    assert np.array_equal(np.asarray(d), 4 * (host[0] @ host[1].T))
    with pytest.raises(LaunchError, match="D .JAX array, float32, .*is read-only"):
        kernel(6, operand_type=name, output_type="f32").launch(a, b, out=d, copy=True)


def test_numba(kernel: KernelOf, library: Any) -> None:
    cuda = library("numba.cuda")
    if not cuda.is_available():
        pytest.skip("this numba sees no GPU")
    host = [np.random.default_rng(seed).integers(-4, 5, (128, 64)).astype(np.float16) for seed in (0, 1)]
    a, b = (cuda.to_device(matrix) for matrix in host)
    out = cuda.device_array((128, 128), np.float16)
    kernel(4).launch(a, b, out=out)
    assert np.array_equal(out.copy_to_host(), host[0].astype(np.float32) @ host[1].astype(np.float32).T)


def test_torch_operands_that_cannot_be_taken(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(64, 64, 64)
    call = kernel(6)
    with pytest.raises(LaunchError, match="A .* lies in host memory"):
        call(a.cpu(), b)
    with pytest.raises(LaunchError, match="A .* has type float32.*\ncast=True"):
        call(a.float(), b)
    assert torch.equal(call(a.float(), b, cast=True), reference(a, b).half())
    shifted = torch.zeros(64 * 64 + 1, dtype=torch.float16, device="cuda")[1:].view(64, 64).copy_(a)
    with pytest.raises(LaunchError, match="A .*: it begins at 0x"):
        call(shifted, b)
    assert torch.equal(call(shifted, b, copy=True), reference(a, b).half())
    columns = a.T.contiguous().T
    with pytest.raises(LaunchError, match="not row-major .transposed"):
        call(columns, b)
    assert torch.equal(call(columns, b, copy=True), reference(a, b).half())
    wide = torch.zeros((64, 96), dtype=torch.float16, device="cuda")
    with pytest.raises(LaunchError, match="end inside a 16-byte chunk of wider rows"):
        call.launch(a, b[:60], out=wide[:, :60])
    call.launch(a, b[:60], out=wide[:, :60], copy=True)
    assert torch.equal(wide[:, :60], reference(a, b[:60]).half())
    assert int(wide[:, 60:].count_nonzero()) == 0


def test_the_pointer_of_numpy_is_a_host_pointer(kernel: KernelOf, torch: Any, operands: Any) -> None:
    a, b = operands(64, 64, 64)

    class Claimed:
        def __init__(self) -> None:
            self.array = np.zeros((64, 64), np.float16)
            self.__cuda_array_interface__ = self.array.__array_interface__ | {"version": 3}

    with pytest.raises(LaunchError, match="A .*Claimed.* lies in host memory"):
        kernel(6).launch(Claimed(), Claimed(), out=Claimed())
    assert isinstance(kernel(6).device, CudaDevice)
    assert kernel(6)(a, b).shape == (64, 64)
