"""Compiles kernels/*.cu with nvcc, once a session, and runs their entries on the emulator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, load_module
from ptxgen.hardware.targets import target
from ptxgen.hardware.tensor_map import TensorMap

KERNELS = Path(__file__).parent / "kernels"
SCALARS: dict[type, str] = {int: "<i4", float: "<f4"}

Argument = Any
"""A scalar (int: 32 bits; float: f32), the name of a buffer, or a function of the buffers' addresses."""


class Launcher:
    """Runs entries of one compiled file."""

    def __init__(self, path: Path) -> None:
        self.module = load_module(path.read_text(), name=path.name)

    def __call__(
        self,
        entry: str,
        arguments: Sequence[Argument],
        buffers: Mapping[str, np.ndarray[Any, Any]],
        *,
        grid: int | tuple[int, int, int] = 1,
        block: int | tuple[int, int, int] = 128,
        dynamic_smem_bytes: int = 0,
        policy: str = "eager",
        seed: int = 0,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Every buffer after the launch, which must end without a finding of severity error."""
        memory = GlobalMemory()
        held = {}
        for name, values in buffers.items():
            held[name] = memory.allocate(values.nbytes, name=name, align=256)
            held[name].data[:] = np.frombuffer(values.tobytes(), np.uint8)
        passed: list[bytes | TensorMap] = []
        for argument in arguments:
            if isinstance(argument, str):
                passed.append(int(held[argument].address).to_bytes(8, "little"))
            elif callable(argument):
                passed.append(argument({name: buffer.address for name, buffer in held.items()}))
            else:
                passed.append(np.array([argument], SCALARS[type(argument)]).tobytes())
        machine = Machine(chip=target("sm_100a"), memory=memory, policy=policy, seed=seed, workers=1)
        report = machine.launch(
            self.module,
            entry=entry,
            grid=(grid, 1, 1) if isinstance(grid, int) else grid,
            block=(block, 1, 1) if isinstance(block, int) else block,
            cluster=(1, 1, 1),
            dynamic_smem_bytes=dynamic_smem_bytes,
            arguments=passed,
        )
        errors = [finding for finding in report.findings if finding.severity == "error"]
        assert not errors, errors
        return {
            name: np.frombuffer(held[name].data.tobytes(), values.dtype).reshape(values.shape)
            for name, values in buffers.items()
        }


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Launcher]:
    """`cuda("integers")` compiles kernels/integers.cu for sm_100a; skips where nvcc is missing."""
    nvcc = shutil.which("nvcc")
    folder = tmp_path_factory.mktemp("nvcc")
    launchers: dict[str, Launcher] = {}

    def compile_file(name: str, *options: str) -> Launcher:
        if nvcc is None:
            pytest.skip("nvcc is not on PATH")
        key = " ".join((name, *options))
        if key not in launchers:
            ptx = folder / f"{len(launchers)}_{name}.ptx"
            source = KERNELS / f"{name}.cu"
            command = [nvcc, "-ptx", "-arch=sm_100a", *options, "-o", str(ptx), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if "gpu-architecture" in done.stderr or "gpu architecture" in done.stderr:
                pytest.skip("this nvcc is older than sm_100a")
            assert done.returncode == 0, done.stderr
            launchers[key] = Launcher(ptx)
        return launchers[key]

    return compile_file
