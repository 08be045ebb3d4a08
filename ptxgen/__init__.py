"""ptxgen: GEMM kernels for NVIDIA's TMA and tensor cores as PTX that a person can read.

    import ptxgen

    spec = ptxgen.step(6)                              # the choices of the ladder's step 6
    text = ptxgen.emit(spec.replace(pipe_depth=4))     # PTX
    kernel = ptxgen.compile(spec, device="emulator")
    d = kernel(a, b)                                   # D = A @ B.T
    ptxgen.best(4096, 4096, 4096).spec                 # the fastest that is known; .why says why

Everything is imported when it is first used: emitting PTX loads neither NumPy nor CUDA.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.device.cuda import CudaDevice
    from ptxgen.device.emulated import EmulatedDevice
    from ptxgen.device.kernel import Kernel, compile, load
    from ptxgen.errors import PtxgenError
    from ptxgen.render import emit
    from ptxgen.spec import GemmSpec
    from ptxgen.steps import step
    from ptxgen.toolchain import assemble
    from ptxgen.tuning.best import best

__version__ = "0.1.0"

__all__ = [
    "CudaDevice",
    "EmulatedDevice",
    "GemmSpec",
    "Kernel",
    "PtxgenError",
    "__version__",
    "assemble",
    "best",
    "compile",
    "emit",
    "load",
    "step",
]

_HOME = {
    "CudaDevice": "ptxgen.device.cuda",
    "EmulatedDevice": "ptxgen.device.emulated",
    "GemmSpec": "ptxgen.spec",
    "Kernel": "ptxgen.device.kernel",
    "PtxgenError": "ptxgen.errors",
    "assemble": "ptxgen.toolchain",
    "best": "ptxgen.tuning.best",
    "compile": "ptxgen.device.kernel",
    "emit": "ptxgen.render",
    "load": "ptxgen.device.kernel",
    "step": "ptxgen.steps",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ptxgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
