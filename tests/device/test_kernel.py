"""Kernels on the emulated device: calls, guards, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxgen
from ptxgen.device.arrays import Matrix, make_matrix
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel, load
from ptxgen.errors import DeviceError, LaunchError, PtxError, PtxgenError, UnknownNameError
from ptxgen.hardware.element_types import ELEMENT_TYPES

Write = Callable[..., Path]

STORE = "st.global.b16 [%d], %half;"


def operands(m: int, n: int, k: int, name: str = "f16") -> tuple[Matrix, Matrix]:
    kind = ELEMENT_TYPES[name]
    return make_matrix("integers", m, k, kind, 1), make_matrix("integers", n, k, kind, 2)


def product(a: Matrix, b: Matrix) -> Matrix:
    d: Matrix = a.astype(np.float64) @ b.astype(np.float64).T
    return d


def emulated(path: Path, **options: Any) -> Kernel:
    return load(path, device=EmulatedDevice(workers=1, **options))


@pytest.fixture(scope="module")
def step6() -> Kernel:
    return ptxgen.compile(ptxgen.step(6), device=EmulatedDevice(workers=1))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (200, 136, 72), (33, 7, 15)])
def test_call(step6: Kernel, m: int, n: int, k: int) -> None:
    a, b = operands(m, n, k)
    d = step6(a, b)
    assert (d.shape, d.dtype, d.flags.c_contiguous) == ((m, n), np.float16, True)
    np.testing.assert_array_equal(d, product(a, b))
    assert step6.report is not None
    assert step6.report.findings == ()
    assert step6.report.grid == (148, 1, 1)
    assert step6.report.instructions is not None
    assert step6.report.seconds > 0
    assert "emulated B200" in repr(step6)


def test_grid_is_a_choice(step6: Kernel) -> None:
    a, b = operands(200, 136, 72)
    np.testing.assert_array_equal(step6(a, b, grid=(2, 1, 1)), product(a, b))
    assert step6.report is not None
    assert step6.report.grid == (2, 1, 1)


def test_launch_writes_into_out_of_any_strides(step6: Kernel) -> None:
    a, b = operands(130, 40, 8)
    wide = np.zeros((260, 40), np.float16)
    step6.launch(a, b, out=wide[::2])
    np.testing.assert_array_equal(wide[::2], product(a, b))
    assert not wide[1::2].any()
    with pytest.raises(LaunchError, match=r"out must be a float16 array of shape \(130, 40\), got float16 \(260, 40\)"):
        step6.launch(a, b, out=wide)
    with pytest.raises(LaunchError, match=r"got float32 \(130, 40\)"):
        step6.launch(a, b, out=np.zeros((130, 40), np.float32))
    with pytest.raises(LaunchError, match="got list"):
        step6.launch(a, b, out=[])
    frozen = np.zeros((130, 40), np.float16)
    frozen.flags.writeable = False
    with pytest.raises(LaunchError, match="out is read-only"):
        step6.launch(a, b, out=frozen)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 5), (3, 0, 5), (0, 0, 0)])
def test_empty_products_need_no_launch(step6: Kernel, m: int, n: int, k: int) -> None:
    d = step6(np.zeros((m, k), np.float16), np.zeros((n, k), np.float16))
    assert (d.shape, d.dtype) == ((m, n), np.float16)
    assert not d.any()
    assert step6.report is not None
    assert step6.report.grid == (0, 0, 0)
    out = np.ones((m, n), np.float16)
    step6.launch(np.zeros((m, k), np.float16), np.zeros((n, k), np.float16), out=out)
    assert not out.any()


def test_operands_that_do_not_fit(step6: Kernel) -> None:
    a, b = operands(8, 16, 24)
    with pytest.raises(LaunchError, match=r"A is 8 x 24 and B 24 x 16: .* with the same K; transpose B"):
        step6(a, np.ascontiguousarray(b.T))
    with pytest.raises(LaunchError, match=r"A is 8 x 24 and B 16 x 20: .* the same K$"):
        step6(a, b[:, :20])
    with pytest.raises(LaunchError, match="A has dtype float32, the kernel takes f16"):
        step6(a.astype(np.float32), b)
    with pytest.raises(LaunchError, match="B has dtype bfloat16"):
        step6(a, b.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(step6(a.astype(np.float32), b, cast=True), product(a, b))


def test_views_are_copied(step6: Kernel) -> None:
    a, b = operands(8, 16, 24)
    wide = np.repeat(a, 2, axis=1)
    np.testing.assert_array_equal(step6(wide[:, ::2], np.asfortranarray(b)), product(a, b))


def test_bf16_and_raw_bf16() -> None:
    spec = ptxgen.step(4).replace(operand_type="bf16", output_type="bf16")
    kernel = ptxgen.compile(spec, device=EmulatedDevice(workers=1))
    a, b = operands(20, 24, 40, "bf16")
    d = kernel(a.view("V2"), b)
    assert d.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(d.astype(np.float64), product(a, b).astype(ml_dtypes.bfloat16).astype(np.float64))


def test_no_gpu_is_said_plainly() -> None:
    for device in (None, "cuda"):
        with pytest.raises(DeviceError, match='device="emulator"'):
            ptxgen.compile(ptxgen.step(6), device=device)
    with pytest.raises(UnknownNameError, match="unknown device 'emulater'; did you mean 'emulator'"):
        ptxgen.compile(ptxgen.step(6), device="emulater")
    with pytest.raises(DeviceError, match=r"sm_100a does not load on emulated H200, .* capability 9.0"):
        ptxgen.compile(ptxgen.step(6), device=EmulatedDevice("sm_90a"))
    with pytest.raises(UnknownNameError, match="unknown policy 'lazy'"):
        EmulatedDevice(policy="lazy")


def test_grid_limit_of_the_row_major_grid() -> None:
    kernel = ptxgen.compile(ptxgen.step(5), device="emulator")
    with pytest.raises(LaunchError, match="grid y = 65536 is not in 1..65535; take a 1-D grid"):
        kernel.plan({"M": 128 * 65536, "N": 1, "K": 1})
    kernel.plan({"M": 128 * 65535, "N": 1, "K": 1})


def test_tile_count_limit(step6: Kernel) -> None:
    step6.plan({"M": 128 * 2**16, "N": 128 * (2**15 - 1), "K": 1})
    with pytest.raises(LaunchError, match=r"cannot run M=8388608 N=4194304 K=1: .*2147483648"):
        step6.plan({"M": 128 * 2**16, "N": 128 * 2**15, "K": 1})


def test_more_memory_than_there_is(step6: Kernel) -> None:
    with pytest.raises(DeviceError, match=r"buffer A needs [\d.]+ GiB; [\d.]+ GiB are free"):
        step6.device.allocate(2**50, name="A")


def test_a_hand_written_file(naive_file: Write) -> None:
    kernel = emulated(naive_file())
    a, b = operands(5, 40, 16)
    np.testing.assert_array_equal(kernel(a, b), product(a, b))
    assert kernel.spec is None


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("sub.s64 %d, %d, 80; " + STORE + " add.s64 %d, %d, 80; " + STORE, "first in row -1 at byte 0"),
        ("add.s64 %d, %d, 80; " + STORE + " sub.s64 %d, %d, 80; " + STORE, "first in row 5 at byte 0"),
    ],
    ids=["before", "behind"],
)
def test_writing_beside_the_output_is_found(naive_file: Write, store: str, words: str) -> None:
    """D has 5 rows of 80 bytes; each row is also stored one row too early or too late."""
    kernel = emulated(naive_file((STORE, store)))
    _, report = kernel.execute(*operands(5, 40, 16))
    assert len(report.guard_damage) == 1
    assert words in report.guard_damage[0]
    assert "bytes outside D (5 rows of 80 bytes, pitch 80) were written" in report.guard_damage[0]
    with pytest.raises(DeviceError, match="bytes outside D"):
        kernel(*operands(5, 40, 16))


def test_columns_behind_the_output_are_guarded(step6: Kernel) -> None:
    """With 20 columns of f16 a row holds 40 bytes; TMA may write up to byte 48, and the guard begins there."""
    a, b = operands(130, 20, 8)
    assert step6.execute(a, b)[1].guard_damage == ()
    wider = step6.text.replace('"dims": ["N", "M"]', '"dims": [["round_up", "N", 128], "M"]')
    assert wider != step6.text
    path_free = load_text(wider)
    _, report = path_free.execute(a, b)
    assert "first in row 0 at byte 48" in report.guard_damage[0]


def load_text(text: str) -> Kernel:
    from ptxgen.device.description import launch_in_header

    description = launch_in_header(text, "edited.ptx")
    assert description is not None
    return Kernel(text, description, EmulatedDevice(workers=1), name="edited.ptx")


def test_elements_never_written_come_back_as_nan(naive_file: Write) -> None:
    kernel = emulated(
        naive_file(("@%outside bra done;", "@%outside bra done; setp.eq.u32 %outside, %column, 7; @%outside bra done;"))
    )
    d = kernel(*operands(5, 40, 16))
    assert np.isnan(d[:, 7]).all()
    assert not np.isnan(np.delete(d, 7, axis=1)).any()


def test_out_of_bounds_is_a_finding_and_an_error_of_a_call(naive_file: Write) -> None:
    kernel = emulated(naive_file(("ld.param.u64 %a, [a];", "mov.u64 %a, 64;")))
    _, report = kernel.execute(*operands(5, 40, 16))
    assert {finding.rule for finding in report.findings} == {"out-of-bounds"}
    with pytest.raises(DeviceError, match=r"(?s)failed on emulated B200:\n.*out-of-bounds"):
        kernel(*operands(5, 40, 16))


@pytest.mark.parametrize(
    ("old", "new", "kind", "words"),
    [
        ("fma.rn.f32 %sum", "fmaa.rn.f32 %sum", PtxError, "fmaa.rn.f32"),
        (".target sm_100a", ".target sm_120a", DeviceError, "no emulated chip loads PTX with .target sm_120a"),
        (".target sm_100a", "", PtxError, "there is no .target directive"),
        ('"entry": "naive"', '"entry": "nave"', LaunchError, "names entry 'nave'; the file has naive"),
        ("// launch: {", "// lunch: {", LaunchError, "has no launch description in its header; give one with --launch"),
    ],
)
def test_files_that_cannot_run(naive_file: Write, old: str, new: str, kind: type[PtxgenError], words: str) -> None:
    with pytest.raises(kind) as caught:
        load(naive_file((old, new)), device="emulator")
    assert words in str(caught.value)


def test_arguments_that_do_not_fit_the_entry(naive_file: Write) -> None:
    kernel = load(naive_file((".param .u32 n,", ".param .u64 n,")), device="emulator")
    with pytest.raises(LaunchError, match="argument n has 4 bytes, parameter n 8"):
        kernel(*operands(5, 40, 16))


def test_description_from_another_file(naive_file: Write, tmp_path: Path) -> None:
    path = naive_file()
    other = tmp_path / "other.json"
    text = "".join(line.removeprefix("//") for line in path.read_text().splitlines()[1:12])
    other.write_text(
        text.replace(" launch:", "").replace(
            '"expect": {"kind": "gemm", "a": "A"', '"expect": {"kind": "gemm", "a": "B"'
        )
    )
    kernel = load(path, launch=other, device="emulator")
    assert kernel.expectation.a == "B"


def test_a_kernel_that_computes_something_else_cannot_be_called(naive_file: Write) -> None:
    kernel = emulated(naive_file((',\n//   "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"}}', "}")))
    with pytest.raises(LaunchError, match='does not say what is computed .no "expect".'):
        kernel(*operands(5, 40, 16))


def test_memory_is_given_back(step6: Kernel) -> None:
    device = step6.device
    assert isinstance(device, EmulatedDevice)
    before = len(device._memory.buffers)
    step6(*operands(8, 8, 8))
    assert len(device._memory.buffers) == before


def test_streams_events_and_occupancy(step6: Kernel) -> None:
    device = step6.device
    stream, first, second = device.create_stream(), device.create_event(), device.create_event()
    with pytest.raises(DeviceError, match="the event was not recorded"):
        second.seconds_since(first)
    first.record(stream)
    a, b = operands(8, 8, 8)
    step6.launch(a, b, out=np.zeros((8, 8), np.float16), stream=stream)
    second.record(stream)
    stream.synchronize()
    second.synchronize()
    assert second.seconds_since(first) > 0
    module = device.load(step6.text, name="step6.ptx")
    assert device.occupancy(module, "gemm_step6", threads=128, dynamic_smem_bytes=99328) == 2
    assert device.occupancy(module, "gemm_step6", threads=1024, dynamic_smem_bytes=0) == 2
    assert device.occupancy(module, "gemm_step6", threads=128, dynamic_smem_bytes=232449) == 0


def test_parts_of_another_device_are_refused(step6: Kernel) -> None:
    class Alien:
        address, size_bytes = 0, 4

        def free(self) -> None: ...

    with pytest.raises(DeviceError, match="the buffer belongs to another device"):
        step6.device.fill(Alien(), 0)


def test_races_are_found_where_they_are_looked_for(tmp_path: Path) -> None:
    """Without the fence between the threads' stores to shared memory and the copy that reads them."""
    text = ptxgen.emit(ptxgen.step(4))
    line = next(line for line in text.splitlines() if line.strip().startswith("fence.proxy.async"))
    path = tmp_path / "racy.ptx"
    path.write_text(text.replace(line, ""))
    a, b = operands(40, 40, 40)
    unchecked = ptxgen.load(path, device="emulator")
    unchecked(a, b)
    assert unchecked.report is not None and unchecked.report.findings == ()
    kernel = ptxgen.load(path, device="emulator", check=True)
    with pytest.raises(DeviceError, match="missing-proxy-fence"):
        kernel(a, b)
    assert kernel.report is not None and "missing-proxy-fence" in {one.rule for one in kernel.report.findings}
    checked = ptxgen.compile(ptxgen.step(4), device="emulator", check=True)
    np.testing.assert_array_equal(checked(a, b), product(a, b))


@pytest.mark.parametrize("device", [None, "cuda", "cuda:1", EmulatedDevice()])
def test_races_are_not_looked_for_elsewhere(device: Any) -> None:
    with pytest.raises(DeviceError, match='give device="emulator", or an EmulatedDevice with check=True'):
        ptxgen.compile(ptxgen.step(4), device=device, check=True)
