"""What goes wrong on a real driver says what it is. Kernels that take the context with them run in a process of
their own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ptxgen
from ptxgen.device.cuda import CudaDevice
from ptxgen.errors import DeviceError

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
TINY = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry tiny(.param .u64 out)
.reqntid 32
{
    .reg .b64 %out;
    ld.param.u64 %out, [out];
    st.global.u32 [%out], 1;
    ret;
}
"""
HEADER = """\
// launch: {"version": 1, "entry": "tiny", "grid": [1, 1, 1], "block": [32, 1, 1],
//   "buffers": [{"name": "D", "type": "u32", "shape": ["M", "N"], "pitch_bytes": ["product", "N", 4], "fill": "nan"}],
//   "arguments": [{"name": "out", "kind": "u64", "value": 16}],
//   "defaults": {"M": 1, "N": 1, "K": 1}, "verify": []}
"""


def ptxgen_run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "cli.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_ptx_that_does_not_compile(device: CudaDevice) -> None:
    with pytest.raises(DeviceError) as caught:
        device.load(TINY.replace("st.global.u32 [%out], 1;", "st.globl.u32 [%out], 1;"), name="tiny.ptx")
    message = str(caught.value)
    assert "CUDA_ERROR_INVALID_PTX (218)" in message
    assert re.search(r"tiny.ptx:9: .*\n      st.globl.u32 \[%out\], 1;", message), message


def test_a_target_of_another_architecture(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match=r"sm_100a, which does not load on NVIDIA H\d+.*9\.0: take a kernel for it"):
        device.load(ptxgen.emit(ptxgen.step(6)), name="step6.ptx")
    with pytest.raises(DeviceError, match=r"no CUDA device loads PTX with \.target sm_100a; there are\n  cuda:0 "):
        ptxgen.compile(ptxgen.step(6))


def test_the_driver_itself_refuses_the_target(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were our table wrong, the driver's refusal would still be told with both sides named."""
    monkeypatch.setattr("ptxgen.device.cuda_module.check_target", lambda *arguments: None)
    text = TINY.replace("sm_90a", "sm_100a").replace("8.0", "8.6")
    with pytest.raises(DeviceError, match=r"loading tiny.ptx: CUDA_ERROR_\w+"):
        device.load(text, name="tiny.ptx")


def test_a_version_of_the_future(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TINY.replace(".version 8.0", ".version 9.9")
    with pytest.raises(
        DeviceError, match=r"loading tiny.ptx: CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|INVALID_PTX)"
    ) as caught:
        device.load(text, name="tiny.ptx")
    assert "9.9" in str(caught.value)


def test_out_of_memory(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match=r"buffer A needs 1024\.0 GiB; NVIDIA .* GiB free"):
        device.allocate(1 << 40, name="A")
    device.allocate(1 << 20, name="B").free()


def test_more_shared_memory_than_there_is(device: CudaDevice) -> None:
    chip = device.properties.chip
    assert chip.smem_optin_bytes == 227 * 1024
    kernel = ptxgen.load(DATA / "tma_copy.ptx", device=device)
    assert device.occupancy(kernel._module, "tma_copy", threads=32, dynamic_smem_bytes=73728) == 3
    assert device.occupancy(kernel._module, "tma_copy", threads=32, dynamic_smem_bytes=chip.smem_optin_bytes) == 1
    assert device.occupancy(kernel._module, "tma_copy", threads=32, dynamic_smem_bytes=chip.smem_optin_bytes + 1) == 0


def test_a_cluster_that_cannot_be_scheduled(device: CudaDevice, tmp_path: Path) -> None:
    text = (DATA / "cluster_ranks.ptx").read_text().replace('"cluster": [2, 1, 1]', '"cluster": [32, 1, 1]')
    (tmp_path / "large.ptx").write_text(text)
    kernel = ptxgen.load(tmp_path / "large.ptx", device=device)
    with pytest.raises(DeviceError, match="cluster"):
        kernel.run(kernel.plan({"M": 32, "N": 1, "K": 1}), {})


def test_a_hung_kernel(device: CudaDevice) -> None:
    start = time.monotonic()
    code, error = ptxgen_run("run", str(DATA / "hang.ptx"), "--device", "cuda", "--timeout", "2")
    assert code == 2
    assert "hang of " in error and "did not end within 2 s" in error and "`ptxgen verify`" in error
    assert "Traceback" not in error
    assert time.monotonic() - start < 60


def test_an_illegal_address(device: CudaDevice, tmp_path: Path) -> None:
    (tmp_path / "illegal.ptx").write_text(HEADER + TINY)
    code, error = ptxgen_run("run", str(tmp_path / "illegal.ptx"), "--device", "cuda")
    assert code == 2
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in error and "`ptxgen verify`" in error
    assert "Traceback" not in error


def test_this_process_goes_on(device: CudaDevice) -> None:
    kernel = ptxgen.load(DATA / "cluster_ranks.ptx", device=device)
    outputs = kernel.run(kernel.plan({"M": 4, "N": 1, "K": 1}), {}).outputs
    assert outputs["D"].tolist() == [[0, 2], [1, 2], [0, 2], [1, 2]]
