"""From PTX text to a loaded module: checks, compilation by the driver or by ptxas, and the cubin cache.

The driver compiles a text as a whole program and keeps the outcome in a cache of its own
(~/.nv/ComputeCache; CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE, CUDA_CACHE_DISABLE). Its linker, the one way to get
a cubin out of it, compiles for relocation and so ignores setmaxnreg (ptxas advice C7504); it is not used.
What ptxas makes is kept in ptxgen's own cache, see ptxgen.device.cuda_cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ptxgen.device.cuda_cache import CubinCache, cubin_key
from ptxgen.device.cuda_driver import USE_EMULATOR, CudaDriver, CudaError
from ptxgen.device.declarations import DeclaredEntry, declarations
from ptxgen.errors import DeviceError
from ptxgen.hardware.targets import TARGETS, Target, target_loads_on
from ptxgen.toolchain import assemble, find_tool, ptxas, refusal

Compiler = Literal["driver", "ptxas"]
COMPILERS: tuple[Compiler, ...] = ("driver", "ptxas")

_LOG_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFunction:
    """An entry on a device. Registers per thread; static shared memory per CTA in bytes."""

    name: str
    handle: Any
    registers: int
    local_bytes: int
    static_smem_bytes: int
    max_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaModule:
    """PTX in a device's context, loaded until `unload`.

    `log` is what the driver's compiler said; empty where the driver or ptxgen had the cubin in its cache.
    """

    name: str
    target: str
    entries: Mapping[str, DeclaredEntry]
    functions: Mapping[str, CudaFunction]
    log: str
    handle: Any


def load_module(
    driver: CudaDriver, text: str, *, name: str, chip: Target, device_name: str, compiler: Compiler
) -> CudaModule:
    """Load PTX into the current context. DeviceError or ToolchainError says why it cannot be."""
    head = declarations(text, name)
    check_target(head.target, name, chip, device_name)
    if compiler == "driver":
        driver.check_ptx_version(head.version, name)
        handle, log = _load_image(driver, text.encode() + b"\0", text, name, chip)
    else:
        handle, log = _load_assembled(driver, text, name, head.target, chip)
    functions = {entry: _function(driver, handle, entry, chip) for entry in head.entries}
    return CudaModule(name=name, target=head.target, entries=head.entries, functions=functions, log=log, handle=handle)


def check_target(target_name: str, name: str, chip: Target, device_name: str) -> None:
    """DeviceError, by number and by name, unless a device like `chip` loads PTX of this `.target`."""
    if target_loads_on(target_name, chip.capability):
        return
    own = [known.name for known in TARGETS.values() if known.capability == chip.capability]
    way_out = (
        f"take a kernel for it (--target {own[0]})"
        if own
        else f"it has neither wgmma (compute capability 9.0) nor tcgen05 (10.x); {USE_EMULATOR}"
    )
    raise DeviceError(
        f"{name} has .target {target_name}, which does not load on {device_name}, a device of compute capability "
        f"{chip.capability[0]}.{chip.capability[1]}: {way_out}"
    )


def _load_assembled(driver: CudaDriver, text: str, name: str, target_name: str, chip: Target) -> tuple[Any, str]:
    # Code for a variant (a, f) loads as it is; of a plain target only the device's own code does.
    arch = target_name if target_name[-1] in "af" else "sm_{}{}".format(*chip.capability)
    cache = CubinCache.from_environment()
    key = cubin_key(text, arch, _assembler_identity()) if cache else ""
    kept = cache.load(key) if cache else None
    if kept is not None:
        try:
            return _load_image(driver, kept, text, name, chip)
        except DeviceError:  # from another world: make it again
            pass
    cubin = assemble(text, name=name, target=arch).cubin
    loaded = _load_image(driver, cubin, text, name, chip)
    if cache:
        cache.store(key, cubin)
    return loaded


def _assembler_identity() -> str:
    """What tells one ptxas from another, without the time that asking for its version takes."""
    path = find_tool("ptxas")
    if path is None:
        return ptxas().version  # which raises, and says where ptxas was looked for
    status = path.stat()
    return f"ptxas {path.resolve()} {status.st_size} {status.st_mtime_ns} -lineinfo"


def _load_image(driver: CudaDriver, image: bytes, text: str, name: str, chip: Target) -> tuple[Any, str]:
    """The module handle and the compiler's remarks for PTX or a cubin."""
    option = driver.bindings.CUjit_option
    errors, remarks = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
    options = {
        option.CU_JIT_ERROR_LOG_BUFFER: errors,
        option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        option.CU_JIT_INFO_LOG_BUFFER: remarks,
        option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        option.CU_JIT_LOG_VERBOSE: 1,
        option.CU_JIT_GENERATE_LINE_INFO: 1,
    }
    try:
        handle = driver.call(
            "cuModuleLoadDataEx", image, len(options), [*options], [*options.values()], what=f"loading {name}"
        )
    except CudaError as error:
        said = _text(errors)
        parts = [str(error)]
        if error.code in ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_NO_BINARY_FOR_GPU"):
            version = re.search(r"^\s*\.version\s+(\S+)", text, re.MULTILINE)
            parts.append(
                f"the text has .version {version[1] if version else '?'}, this machine {driver.version_text} and "
                f"a device of compute capability {chip.capability[0]}.{chip.capability[1]}"
            )
        if said:
            parts.append(refusal(said, text, name, f"{driver.version_text} refuses {name}:"))
        raise DeviceError("\n".join(parts)) from error
    return handle, _text(remarks)


def _function(driver: CudaDriver, module: Any, entry: str, chip: Target) -> CudaFunction:
    """The entry's handle, opted in to all the shared memory that the device lends to a CTA."""
    handle = driver.call("cuModuleGetFunction", module, entry.encode(), what=f"finding entry {entry}")
    attribute = driver.bindings.CUfunction_attribute

    def value(name: str) -> int:
        return int(driver.call("cuFuncGetAttribute", getattr(attribute, f"CU_FUNC_ATTRIBUTE_{name}"), handle))

    static = value("SHARED_SIZE_BYTES")
    driver.call(
        "cuFuncSetAttribute",
        handle,
        attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        chip.smem_optin_bytes - static,
        what=f"opting in to shared memory for entry {entry}",
    )
    return CudaFunction(
        name=entry,
        handle=handle,
        registers=value("NUM_REGS"),
        local_bytes=value("LOCAL_SIZE_BYTES"),
        static_smem_bytes=static,
        max_threads=value("MAX_THREADS_PER_BLOCK"),
    )


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0", 1)[0].decode(errors="replace").strip()
