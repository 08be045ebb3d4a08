"""pyptx 0.1.1's one-CTA Blackwell GEMM, unmodified: right when nothing is late, and its faults found when something is.

It frees tensor memory with no barrier after the other warps' loads, and it hands a slot back with a plain
mbarrier.arrive while the MMAs that read the slot may still run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.checker import Checker
from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.emulator.tensor_maps import encode
from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

pytestmark = pytest.mark.peers

PINNED = "0.1.1"
SMEM_BYTES = 196_696


@pytest.fixture(scope="module")
def examples() -> Any:
    """The module of the GEMMs. It imports jax for its own runners only; an empty stand-in will do."""
    pyptx = pytest.importorskip("pyptx", reason=f"pyptx {PINNED} is not installed")
    if pyptx.__version__ != PINNED:
        pytest.skip(f"pyptx is {pyptx.__version__}, not {PINNED}")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("jax") is None:
            jax = types.ModuleType("jax")
            jax.numpy = types.ModuleType("jax.numpy")  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "jax", jax)
            patch.setitem(sys.modules, "jax.numpy", jax.numpy)
        yield importlib.import_module("pyptx.examples.blackwell.gemm_highperf_blackwell")


def run(
    text: str, size: tuple[int, int, int], policy: str, check: bool = False, *, ctas: int = 0, threads: int = 128
) -> tuple[bool, set[str]]:
    """(whether D is right, the rules of the errors), those of the checker too with `check`; a CTA a tile, or `ctas`."""
    m, n, k = size
    random = np.random.default_rng(k)
    a, b = (random.integers(-8, 9, (rows, k)).astype(np.float32) for rows in (m, n))
    memory = GlobalMemory()
    buffers = {}
    for name, values in (("A", a.astype(ml_dtypes.bfloat16)), ("B", b.astype(ml_dtypes.bfloat16)), ("D", a @ b.T)):
        buffers[name] = memory.allocate(values.nbytes, name=name)
        buffers[name].data[:] = 0xFF if name == "D" else np.frombuffer(values.tobytes(), np.uint8)
    addresses = [buffers[name].address for name in ("A", "B", "D")]
    for name, rows, box_rows in (("A", m, 128), ("B", n, 256)):
        tensor_map = TensorMap(
            element_type=element_type("bf16"),
            address=buffers[name].address,
            dims=(k, rows),
            strides_bytes=(2 * k,),
            box=(64, box_rows),
            swizzle=Swizzle.B128,
        )
        place = memory.allocate(128, name=f"map of {name}")
        place.data[:] = np.frombuffer(encode(tensor_map), np.uint8)
        addresses.append(place.address)
    module = load_module(text, name="pyptx")
    chip, grid = target("sm_100a"), (ctas, 1, 1) if ctas else (n // 256, m // 128, 1)
    checker = Checker(module.lines, grid=grid, cluster=(1, 1, 1), threads=threads, smem_bytes=chip.smem_per_sm_bytes)
    observers = (checker,) if check else ()
    report = Machine(chip=chip, memory=memory, policy=policy, workers=1, observers=observers).launch(
        module,
        entry=next(iter(module.entries)),
        grid=grid,
        block=(threads, 1, 1),
        cluster=(1, 1, 1),
        dynamic_smem_bytes=SMEM_BYTES,
        arguments=[address.to_bytes(8, "little") for address in addresses],
    )
    right = bool(np.array_equal(np.frombuffer(buffers["D"].data.tobytes(), np.float32).reshape(m, n), a @ b.T))
    findings = checker.conclude(report.findings) if check else report.findings
    return right, {finding.rule for finding in findings if finding.severity == "error"}


@pytest.mark.parametrize("size", [(128, 256, 64), (256, 512, 320), (128, 256, 512)])
def test_right_when_nothing_is_late(examples: Any, size: tuple[int, int, int]) -> None:
    assert run(examples.build_gemm(*size).ptx(), size, "eager") == (True, set())


@pytest.mark.parametrize("size", [(128, 256, 64), (256, 512, 320)])
def test_tensor_memory_is_freed_under_the_other_warps(examples: Any, size: tuple[int, int, int]) -> None:
    assert run(examples.build_gemm(*size).ptx(), size, "late") == (False, {"tmem-use-after-dealloc"})


def test_a_slot_is_overwritten_under_its_mmas(examples: Any) -> None:
    """With a barrier before the dealloc, the other fault is left: the numbers are wrong once slots are used again."""
    size = (128, 256, 512)
    lines = examples.build_gemm(*size).ptx().splitlines()
    last_store = max(number for number, line in enumerate(lines) if "st.global" in line)
    lines.insert(last_store + 1, "\tbar.sync 0;")
    mended = "\n".join(lines)
    assert run(mended, size, "eager") == (True, set())
    assert run(mended, size, "late")[0] is False


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
def test_the_checker_finds_both_faults(examples: Any, policy: str) -> None:
    """Also where they do not show: the plain arrive for asynchronous MMAs, and the dealloc with no barrier."""
    size = (128, 256, 512)
    _, rules = run(examples.build_gemm(*size).ptx(), size, policy, check=True)
    assert {"stage-released-early", "tmem-use-after-dealloc"} <= rules


PERSISTENT = (256, 512, 320)


@pytest.mark.parametrize("policy", ["eager", "late"])
def test_persistent_has_warps_that_read_lanes_which_are_not_there(examples: Any, policy: str) -> None:
    """All of its 256 threads take part in the epilogue: warp 4 reads from lane 128 on."""
    text = examples.build_gemm_persistent(*PERSISTENT, num_ctas=4).ptx()
    right, rules = run(text, PERSISTENT, policy, ctas=4, threads=256)
    assert not right
    assert "tmem-lane-access" in rules


def test_persistent_with_half_its_threads(examples: Any) -> None:
    """The same text is then right where nothing is late; it too hands slots back by a plain arrive."""
    text = examples.build_gemm_persistent(*PERSISTENT, num_ctas=4).ptx()
    assert run(text, PERSISTENT, "eager", ctas=4) == (True, set())
    assert run(text, PERSISTENT, "eager", check=True, ctas=4) == (True, {"stage-released-early"})
    assert run(text, PERSISTENT, "late", ctas=4)[0] is False


@pytest.mark.parametrize("ctas", [1, 3])
def test_persistent_initialises_live_barriers_again_before_its_second_tile(examples: Any, ctas: int) -> None:
    text = examples.build_gemm_persistent(*PERSISTENT, num_ctas=ctas).ptx()
    assert run(text, PERSISTENT, "eager", ctas=ctas) == (False, {"barrier-overwritten"})
