"""NVIDIA's driver API through cuda-python, with every result checked and errors that say what to do.

`import cuda.bindings.driver` works without a driver; the first call does not, and becomes a DeviceError.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptxgen.errors import DeviceError
from ptxgen.hardware.targets import PTX_VERSIONS

USE_EMULATOR = 'use the emulator instead (device="emulator", --device emulator)'

_VERIFY = "`ptxgen verify` runs the same text on the emulator and names the line that breaks a rule"

# CUresult -> what it means for a person who launches kernels
_ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "the device's memory is full",
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"a kernel left its memory and the context is lost: start anew; {_VERIFY}",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": f"a kernel broke a rule and the context is lost: start anew; {_VERIFY}",
    "CUDA_ERROR_MISALIGNED_ADDRESS": f"a kernel broke a rule and the context is lost: start anew; {_VERIFY}",
    "CUDA_ERROR_LAUNCH_FAILED": f"a kernel failed and the context is lost: start anew; {_VERIFY}",
    "CUDA_ERROR_LAUNCH_TIMEOUT": f"the kernel ran into the limit of a display's driver; {_VERIFY}",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers or shared memory than an SM has; "
    "see `ptxgen asm`",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "a stream is being captured into a graph; calls that copy or wait "
    "do not go there",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's parts are of different versions: restart the machine",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": 'libnvidia-ptxjitcompiler is missing; compiler="ptxas" does without',
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "the cluster does not fit this device",
}


class CudaError(DeviceError):
    """A driver call that failed; `code` is the CUresult's name."""

    def __init__(self, what: str, code: str, number: int, words: str) -> None:
        self.code = code
        advice = f"; {_ADVICE[code]}" if code in _ADVICE else ""
        super().__init__(f"{what}: {code} ({number}): {words}{advice}")


class CudaDriver:
    """The driver API. `bindings` is a module like cuda.bindings.driver, which it is unless given."""

    def __init__(self, bindings: Any = None) -> None:
        if bindings is None:
            try:
                bindings = importlib.import_module("cuda.bindings.driver")
            except ImportError as error:
                raise DeviceError(
                    f"cuda-python cannot be imported ({error}): pip install 'cuda-python>=12.8', or {USE_EMULATOR}"
                ) from error
        self.bindings = bindings
        try:
            self.call("cuInit", 0, what="starting the CUDA driver")
            version: int = self.call("cuDriverGetVersion")
        except CudaError as error:
            if error.code != "CUDA_ERROR_NO_DEVICE":
                raise
            raise DeviceError(f"the CUDA driver shows no device (see CUDA_VISIBLE_DEVICES): {USE_EMULATOR}") from error
        except DeviceError as error:
            raise DeviceError(
                f"there is no CUDA driver on this machine ({error}): install NVIDIA's driver, or {USE_EMULATOR}"
            ) from error
        self.cuda_version = version // 1000, version % 1000 // 10
        """The newest CUDA release that the driver knows, such as (13, 0)."""

    def call(self, function: str, *arguments: Any, what: str = "") -> Any:
        """The value (or tuple of values, or None) that a driver function returns.

        CudaError where it fails; the message begins with `what`, or with the function's name.
        """
        try:
            error, *values = getattr(self.bindings, function)(*arguments)
        except RuntimeError as missing:  # no driver, or one without this function
            raise DeviceError(str(missing)) from missing
        if int(error) != 0:
            raise self.error(error, what or function)
        return values[0] if len(values) == 1 else tuple(values) or None

    def error(self, result: Any, what: str) -> CudaError:
        """The exception for a CUresult other than success."""
        failed, words = self.bindings.cuGetErrorString(result)
        text = "no description" if int(failed) or words is None else words.decode()
        return CudaError(what, str(getattr(result, "name", "unknown error")), int(result), text)

    @contextlib.contextmanager
    def current(self, context: Any) -> Iterator[None]:
        """Make a context the thread's current one for the length of a block."""
        if self.is_current(context):
            yield
            return
        self.call("cuCtxPushCurrent", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    def is_current(self, context: Any) -> bool:
        """Whether `context` is the calling thread's current one."""
        error, present = self.bindings.cuCtxGetCurrent()
        return int(error) == 0 and int(present) == int(context)

    @property
    def version_text(self) -> str:
        """The driver's version as people and NVIDIA's tools name it, such as "driver 580.65 (CUDA 13.0)"."""
        release = kernel_module_version()
        major, minor = self.cuda_version
        return f"driver {release} (CUDA {major}.{minor})" if release else f"a driver for CUDA {major}.{minor}"

    def check_ptx_version(self, version: tuple[int, int], name: str) -> None:
        """DeviceError, naming both versions, if the driver is too old for PTX of this `.version`."""
        for known, (toolkit, branch) in sorted(PTX_VERSIONS.items()):
            if known < version:
                continue
            major, minor = (int(part) for part in toolkit.split("."))
            if (major, minor) > self.cuda_version:
                raise DeviceError(
                    f"{name} has .version {version[0]}.{version[1]}, which the driver knows from CUDA {toolkit} on "
                    f"(driver {branch} or newer); this machine has {self.version_text}: update the driver, lower "
                    '.version where the instructions allow it, or assemble with compiler="ptxas"'
                )
            return


@lru_cache(maxsize=1)
def kernel_module_version() -> str | None:
    """The version of NVIDIA's kernel module, such as "580.65.06"; None where Linux does not tell it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else None


@lru_cache(maxsize=1)
def cuda_driver() -> CudaDriver:
    """The driver of this machine; DeviceError where there is none, or no GPU."""
    return CudaDriver()
