"""The CUDA device on a stand-in driver: what is launched, with which parameters, and every error on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.arrays import make_matrix
from ptxgen.device.cuda import CudaDevice, cuda_devices, fitting_ordinal
from ptxgen.device.cuda_driver import CudaDriver
from ptxgen.device.launch import Launch
from ptxgen.device.reference import compare
from ptxgen.errors import DeviceError, HungKernelError, LaunchError, UnknownNameError
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.tensor_map import TensorMap

F16 = element_type("f16")
MakeGpu = Callable[..., tuple[Any, CudaDevice]]

TINY = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry tiny(.param .u8 flag, .param .align 128 .b8 map[128], .param .u64 out, .param .f32 scale)
.reqntid 32
.reqnctapercluster 2
{
    ret;
}
"""
TINY_LAUNCH: dict[str, Any] = {
    "version": 1,
    "entry": "tiny",
    "grid": ["SM_COUNT", 1, 1],
    "block": [32, 1, 1],
    "cluster": [2, 1, 1],
    "dynamic_smem_bytes": 4096,
    "buffers": [{"name": "X", "type": "f16", "shape": ["M", "N"], "pitch_bytes": ["product", "N", 2], "fill": "nan"}],
    "arguments": [
        {"name": "flag", "kind": "u8", "value": 7},
        {"name": "map", "kind": "tensor_map", "buffer": "X", "dims": ["N", "M"], "strides_bytes": [["product", "N", 2]],
         "box": [64, 8], "swizzle": 128},
        {"name": "out", "kind": "buffer", "buffer": "X"},
        {"name": "scale", "kind": "f32", "value": 1.5},
    ],
    "defaults": {"M": 16, "N": 64, "K": 1},
    "verify": [],
}  # fmt: skip
HOPPER = [("NVIDIA H200", (9, 0), 132)]


def tiny_launch(device: CudaDevice) -> Launch:
    from ptxgen.device.description import LaunchDescription

    description = LaunchDescription.from_json(TINY_LAUNCH, "tiny")
    return Launch.of(description, problem={"M": 16, "N": 64, "K": 1}, chip=device.properties.chip)


@pytest.fixture(scope="module")
def step6() -> str:
    return ptxgen.emit(ptxgen.step(6))


def operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    return make_matrix("integers", m, k, F16, 0), make_matrix("integers", n, k, F16, 1)


def test_numpy_in_and_out(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    kernel = ptxgen.compile(ptxgen.step(6), device)
    for shape in ((130, 72, 40), (1, 1, 1), (33, 7, 15)):
        a, b = operands(*shape)
        d = kernel(a, b)
        assert compare(a, b, d).matches
        out = np.zeros((shape[1], shape[0]), np.float16).T
        kernel.launch(a, b, out=out)
        assert np.array_equal(out, d)
    assert fake.launches[0]["grid"] == (148, 1, 1)
    assert fake.launches[0]["block"] == (128, 1, 1)
    assert fake.launches[0]["smem"] == 99328
    assert kernel.report is not None and kernel.report.seconds == 0.0025
    assert fake.memory == {}
    assert fake.stack == []


def test_an_empty_product_launches_nothing(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    d = ptxgen.compile(ptxgen.step(6), device)(*operands(5, 3, 0))
    assert np.array_equal(d, np.zeros((5, 3)))
    assert fake.launches == []


def test_parameters_attributes_and_maps(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu(driver_devices=HOPPER)
    module = device.load(TINY, name="tiny.ptx")
    launch = tiny_launch(device)
    buffer = device.allocate(16 * 128, name="X")
    plan = device.plan(module, launch, programmatic=True)
    plan.at({"X": buffer.address}).launch(stream=77)
    (made,) = fake.launches
    assert made["grid"] == (132, 1, 1)
    assert made["stream"] == 77
    flag, tensor_map, out, scale = made["values"]
    assert flag == b"\x07"
    assert np.frombuffer(scale, np.float32)[0] == 1.5
    assert int.from_bytes(out, "little") == buffer.address
    words = np.frombuffer(tensor_map, np.uint64).tolist()[1:]
    assert words == [6, buffer.address, 64, 16, 128, 64, 8, 1, 1, 0, 3, 0, 0, 0, 0]
    cluster = made["attributes"]["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"].clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    serial = made["attributes"]["CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"]
    assert serial.programmaticStreamSerializationAllowed == 1
    # The same through the interface that all devices have, without the attribute that nobody asked for.
    report = device.launch(module, launch, launch.pack({"X": buffer.address}, device.encode_tensor_map))
    assert report.grid == (132, 1, 1)
    assert fake.launches[1]["values"] == made["values"]
    assert list(fake.launches[1]["attributes"]) == ["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"]


def test_a_tensor_map_of_one_dimension(make_gpu: MakeGpu) -> None:
    """It has no stride, and yet the driver wants an array of strides."""
    _, device = make_gpu(driver_devices=HOPPER)
    row = TensorMap(element_type=F16, address=0x1000, dims=(100,), strides_bytes=(), box=(64,))
    encoded = device.encode_tensor_map(row)
    assert isinstance(encoded, bytes)
    words = np.frombuffer(encoded, np.uint64).tolist()
    assert words[1:4] == [F16.tensor_map_code, 0x1000, 100]
    assert words[5:7] == [64, 1]


def test_blocks_are_clusters(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu(driver_devices=HOPPER)
    module = device.load(TINY.replace("cluster 2", "cluster 2\n.blocksareclusters"), name="tiny.ptx")
    device.plan(module, tiny_launch(device)).at({"X": 0x1000}).launch()
    assert fake.launches[0]["grid"] == (66, 1, 1)
    assert fake.launches[0]["attributes"] == {}


def test_shared_memory_is_opted_in(make_gpu: MakeGpu, step6: str) -> None:
    fake, device = make_gpu()
    device.load(step6, name="step6.ptx")
    assert fake.calls["CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=232448"] == 1


def test_an_unschedulable_cluster_is_refused(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu(driver_devices=HOPPER)
    module = device.load(TINY, name="tiny.ptx")
    fake.clusters = 0
    with pytest.raises(DeviceError, match="not one cluster of 2 x 1 x 1 CTAs of it fits NVIDIA H200"):
        device.plan(module, tiny_launch(device))
    assert fake.launches == []


def test_occupancy(make_gpu: MakeGpu, step6: str) -> None:
    _, device = make_gpu()
    module = device.load(step6, name="step6.ptx")
    assert device.occupancy(module, "gemm_step6", threads=128, dynamic_smem_bytes=99328) == 2
    assert device.occupancy(module, "gemm_step6", threads=128, dynamic_smem_bytes=240000) == 0


def test_contexts_follow_the_device_and_not_the_thread(make_gpu: MakeGpu) -> None:
    fake, first = make_gpu()
    second = CudaDevice(1, driver=first.driver)
    kernels = [ptxgen.compile(ptxgen.step(6), device) for device in (first, second)]
    a, b = operands(5, 8, 16)
    failures: list[BaseException] = []

    def work(kernel: ptxgen.Kernel) -> None:
        try:
            fake.stack.append(0xC0)  # as a thread of torch that works on device 0
            assert compare(a, b, kernel(a, b)).matches
            assert fake.stack == [0xC0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(kernel,)) for kernel in kernels * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert fake.stack == []


@pytest.mark.parametrize(
    ("devices", "target", "words"),
    [
        (HOPPER, "sm_100a", r"no CUDA device loads.*sm_100a.*\n  cuda:0 NVIDIA H200 \(compute capability 9.0\)"),
        ([("NVIDIA RTX PRO 6000", (12, 0), 188)], "sm_100a", r"compute capability 12\.0"),
        ([], "sm_100a", "the CUDA driver shows no device"),
    ],
)
def test_no_device_fits(devices: Any, target: str, words: str, make_gpu: MakeGpu) -> None:
    fake, _ = make_gpu()
    fake.devices = devices
    with pytest.raises(DeviceError, match=words):
        fitting_ordinal(target, CudaDriver(fake))


def test_the_device_in_use_is_preferred(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    assert fitting_ordinal("sm_100a", device.driver) == 0
    fake.stack.append(0xC1)
    assert fitting_ordinal("sm_100a", device.driver) == 1
    fake.devices[1] = ("NVIDIA H200", (9, 0), 132)
    assert fitting_ordinal("sm_100a", device.driver) == 0


def test_unknown_devices_have_their_own_limits(make_gpu: MakeGpu) -> None:
    _, device = make_gpu(driver_devices=[("NVIDIA GeForce RTX 5090", (12, 0), 170)])
    chip = device.properties.chip
    assert (chip.name, chip.sm_count, chip.tmem_columns) == ("sm_120", 170, 0)
    assert str(cuda_devices(device.driver)[0]) == "cuda:0 NVIDIA GeForce RTX 5090 (compute capability 12.0)"


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (HOPPER, "sm_100a, which does not load on NVIDIA H200 .*capability 9.0: take a kernel for it .--target sm_90a"),
        ([("RTX 5090", (12, 0), 170)], "12.0: it has neither wgmma .* nor tcgen05"),
    ],
)
def test_a_target_that_does_not_fit_is_refused_before_compilation(
    device: Any, words: str, make_gpu: MakeGpu, step6: str
) -> None:
    fake, gpu = make_gpu(driver_devices=device)
    with pytest.raises(DeviceError, match=words):
        gpu.load(step6, name="step6.ptx")
    assert fake.calls["cuModuleLoadDataEx"] == 0


def test_an_old_driver_is_named_before_compilation(make_gpu: MakeGpu, step6: str) -> None:
    fake, device = make_gpu(driver_version=12060)
    with pytest.raises(DeviceError, match=r"\.version 8\.6, which the driver knows from CUDA 12\.7 .*565.*CUDA 12\.6"):
        device.load(step6, name="step6.ptx")
    assert fake.calls["cuModuleLoadDataEx"] == 0
    fake.version = 12070
    CudaDevice(0, driver=CudaDriver(fake)).load(step6, name="step6.ptx")
    assert fake.calls["cuModuleLoadDataEx"] == 1


def test_compiler_messages_show_the_line(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu(driver_devices=HOPPER)
    fake.jit_log = "ptxas application ptx input, line 8; fatal   : Parsing error near 'rte': syntax error\nptxas fatal"
    with pytest.raises(DeviceError) as caught:
        device.load(TINY.replace("ret;", "rte;"), name="tiny.ptx")
    message = str(caught.value)
    assert message.startswith("loading tiny.ptx: CUDA_ERROR_INVALID_PTX (218)")
    assert "tiny.ptx:8: Parsing error near 'rte': syntax error\n      rte;" in message
    names = {option.name: value for option, value in fake.jit_options.items()}
    assert names["CU_JIT_GENERATE_LINE_INFO"] == 1
    assert len(names["CU_JIT_INFO_LOG_BUFFER"]) == names["CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES"]


def test_error_222_names_both_versions(make_gpu: MakeGpu, step6: str) -> None:
    fake, device = make_gpu()
    fake.fail["cuModuleLoadDataEx"] = fake.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    with pytest.raises(
        DeviceError, match=r"UNSUPPORTED_PTX_VERSION \(222\)[^\0]*the text has .version 8.6,.*CUDA 13.0"
    ):
        device.load(step6, name="step6.ptx")


def test_out_of_memory(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    fake.free_bytes = 3 << 30
    with pytest.raises(
        DeviceError, match=r"buffer A needs 8.0 GiB; NVIDIA B200 \(cuda:0\) has 3.0 of its 6.0 GiB free"
    ):
        device.allocate(8 << 30, name="A")


def test_broken_kernels_say_what_to_do(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu()
    kernel = ptxgen.compile(ptxgen.step(6), device)
    fake.fail["cuEventSynchronize"] = fake.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS.*context is lost.*ptxgen verify"):
        kernel(*operands(5, 8, 16))
    fake.fail["cuLaunchKernelEx"] = fake.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(DeviceError, match=r"launching gemm_step6 of step 6 .*OUT_OF_RESOURCES.*ptxgen asm"):
        kernel(*operands(5, 8, 16))


def test_a_hung_kernel_is_given_up(make_gpu: MakeGpu) -> None:
    fake, device = make_gpu(timeout_seconds=0.05)
    kernel = ptxgen.compile(ptxgen.step(6), device)
    fake.hangs = True
    with pytest.raises(HungKernelError, match=r"gemm_step6 of step 6 .* did not end within 0.05 s.*`ptxgen verify`"):
        kernel(*operands(5, 8, 16))
    assert fake.calls["cuMemFree"] == 0  # it would wait for the kernel


def test_other_peoples_buffers_and_modules(make_gpu: MakeGpu, step6: str) -> None:
    _, device = make_gpu()
    with pytest.raises(UnknownNameError, match="unknown compiler 'nvcc'"):
        CudaDevice(0, compiler="nvcc", driver=device.driver)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"there is no device cuda:2; there are\n  cuda:0 NVIDIA B200"):
        CudaDevice(2, driver=device.driver)
    kernel = ptxgen.compile(ptxgen.step(6), device)
    launch = kernel.plan({"M": 8, "N": 8, "K": 8})
    with pytest.raises(LaunchError, match="a tensor map at address 0x1008: it must be a multiple of 16 bytes"):
        device.plan(kernel._module, launch).at({"A": 0x1000, "B": 0x1008, "D": 0x2000})


def test_no_driver_and_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver:
        @staticmethod
        def cuInit(flags: int) -> None:  # noqa: N802
            raise RuntimeError("libcuda.so.1 is nowhere")

    with pytest.raises(DeviceError, match='no CUDA driver on this machine .libcuda.so.1 is nowhere.*device="emulator"'):
        CudaDriver(NoDriver())

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'cuda'", name="cuda")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(DeviceError, match="cuda-python cannot be imported.*pip install"):
        CudaDriver()


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PTXGEN_CACHE", raising=False)
    return tmp_path / "cache"


def test_cubins_of_ptxas_are_cached(make_gpu: MakeGpu, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, device = make_gpu(driver_devices=HOPPER, compiler="ptxas")
    device.load(TINY, name="tiny.ptx")
    (file,) = cache_folder.iterdir()
    assert fake.images[0].startswith(b"\x7fELF")
    calls = []
    monkeypatch.setattr("ptxgen.device.cuda_module.assemble", lambda *a, **k: calls.append(k))
    device.load(TINY, name="tiny.ptx")
    assert fake.images[1] == fake.images[0]
    assert calls == []
    # What the driver refuses is made again, and so is what a disk has spoilt.
    monkeypatch.undo()
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(cache_folder))
    fake.fail["cuModuleLoadDataEx"] = fake.CUresult.CUDA_ERROR_INVALID_IMAGE
    device.load(TINY, name="tiny.ptx")
    file.write_bytes(file.read_bytes()[:-7])
    device.load(TINY, name="tiny.ptx")
    assert set(fake.images) == {fake.images[0]}
    # Another text is another cubin.
    device.load(TINY.replace("tiny", "tidy"), name="tidy.ptx")
    assert len(list(cache_folder.iterdir())) == 2


def test_ptxas_names_the_line(make_gpu: MakeGpu, cache_folder: Path) -> None:
    _, device = make_gpu(driver_devices=HOPPER, compiler="ptxas")
    with pytest.raises(ptxgen.PtxgenError, match=r"ptxas 13.* refuses tiny.ptx for sm_90a:\n  tiny.ptx:8: "):
        device.load(TINY.replace("ret;", "rte;"), name="tiny.ptx")
    assert not cache_folder.exists()
