"""NVIDIA's assembler and disassembler: find them, run them, and read what they say.

ptxas takes seconds where the emulator takes minutes and knows the real register file, so its report
(registers, spills, C75xx advisories) belongs to every kernel that this project prints.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ptxgen.errors import PtxError, ToolchainError

_INSTALL_HINT = (
    "install it with `pip install 'nvidia-cuda-nvcc==13.0.*'`, or put a CUDA toolkit's bin folder on PATH, "
    "or name the program in PTXGEN_PTXAS"
)
_SOURCE_NAME = "kernel.ptx"  # what ptxas is given, and so what stands in its messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program of the CUDA toolkit: where it is and its release, such as "13.0.88"."""

    path: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryResources:
    """What one kernel needs, per thread where not said otherwise, as `ptxas -v` reports it."""

    entry: str
    registers: int
    smem_bytes: int  # static shared memory per CTA; what a launch adds is not in it
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    barriers: int  # named barriers per CTA


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The outcome of assembling one PTX file."""

    cubin: bytes
    target: str
    ptxas: Tool
    entries: tuple[EntryResources, ...]
    warnings: tuple[str, ...]
    infos: tuple[str, ...]  # everything said beside the resource report, such as "(C7508) ..."

    @property
    def registers(self) -> int:
        """The most registers a thread of any entry needs."""
        return max((entry.registers for entry in self.entries), default=0)

    @property
    def spill_bytes(self) -> int:
        """Bytes spilled per thread, stores and loads, over all entries."""
        return sum(entry.spill_store_bytes + entry.spill_load_bytes for entry in self.entries)

    @property
    def advisories(self) -> tuple[str, ...]:
        """The C7xxx remarks: ptxas kept the program right by making it slower."""
        return tuple(line for line in (*self.infos, *self.warnings) if re.search(r"\(C7\d{3}\)", line))


def find_tool(name: str) -> Path | None:
    """The program `name` ("ptxas", "nvdisasm", ...) or None.

    Looked for, in this order: the path in PTXGEN_<NAME>, PATH, CUDA_HOME and CUDA_PATH, the NVIDIA
    wheels among the installed packages (two layouts: nvidia/cu13/bin, before it nvidia/cuda_nvcc/bin).
    The path is absolute, since tools run in folders of their own.
    """
    named = os.environ.get(f"PTXGEN_{name.upper()}")
    if named:
        path = shutil.which(named)
        if path is None:
            raise ToolchainError(f"PTXGEN_{name.upper()} names {named!r}, which is not a program that can be run")
        return Path(path).absolute()
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path).absolute()
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and (path := shutil.which(name, path=str(Path(root, "bin")))):
            return Path(path).absolute()
    return wheel_tool(name)


def wheel_tool(name: str) -> Path | None:
    """The program `name` of an NVIDIA wheel in this Python environment, or None."""
    for folder in sys.path:
        for pattern in ("nvidia/cu[0-9]*/bin", "nvidia/cuda_nvcc/bin"):
            for found in sorted(Path(folder or ".").glob(pattern), reverse=True):
                if path := shutil.which(name, path=str(found)):
                    return Path(path).absolute()
    return None


@lru_cache(maxsize=8)
def _describe(path: Path) -> Tool:
    output = _run([str(path), "--version"], None).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", output) or re.search(r"release (\d+\.\d+)", output)
    if match is None:
        raise ToolchainError(f"{path} --version prints no release number; is it a tool of the CUDA toolkit?")
    return Tool(path=path, version=match.group(1))


def ptx_target(text: str, name: str) -> str:
    """The `.target` of a PTX text; PtxError where it has none."""
    match = re.search(r"^[ \t]*\.target[ \t]+(\w+)", text, re.MULTILINE)
    if match is None:
        raise PtxError(name, 1, text.split("\n", 1)[0], "there is no .target directive; is this PTX?")
    return match.group(1)


def ptxas() -> Tool:
    """The assembler that `assemble` uses unless told otherwise."""
    path = find_tool("ptxas")
    if path is None:
        raise ToolchainError(f"ptxas was not found; {_INSTALL_HINT}")
    return _describe(path)


def assemble(
    text: str,
    *,
    name: str = _SOURCE_NAME,
    target: str | None = None,
    line_info: bool = True,
    path: str | os.PathLike[str] | None = None,
) -> Assembly:
    """Assemble PTX for `target` (as a rule the text's own `.target`).

    `name` is the file that messages speak of; `path` is a ptxas other than the one that is found.
    The cubin does not depend on where it was made. ToolchainError if ptxas refuses the text: it shows
    the PTX lines that ptxas complains about, with its words.
    """
    named = None if path is None else Path(path)
    tool = ptxas() if named is None else _describe(named.absolute() if named.exists() else named)
    arch = target or ptx_target(text, name)
    command = [str(tool.path), "-v", "-arch", arch, _SOURCE_NAME, "-o", "kernel.cubin"]
    if line_info:
        command.append("-lineinfo")
    with tempfile.TemporaryDirectory(prefix="ptxgen-") as folder:
        Path(folder, _SOURCE_NAME).write_bytes(text.encode())
        run = _run(command, folder)
        said = run.stdout + run.stderr
        if run.returncode != 0:
            raise ToolchainError(refusal(said, text, name, f"ptxas {tool.version} refuses {name} for {arch}:"))
        cubin = Path(folder, "kernel.cubin").read_bytes()
    return Assembly(
        cubin=cubin,
        target=arch,
        ptxas=tool,
        entries=_resources(said),
        warnings=tuple(_spoken(said, "warning", name)),
        infos=tuple(line for line in _spoken(said, "info", name) if not _REPORT_LINE.match(line)),
    )


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin, by nvdisasm or else cuobjdump."""
    with tempfile.TemporaryDirectory(prefix="ptxgen-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        if nvdisasm := find_tool("nvdisasm"):
            command = [str(nvdisasm), "-c", file.name]
        elif cuobjdump := find_tool("cuobjdump"):
            command = [str(cuobjdump), "-sass", file.name]
        else:
            raise ToolchainError(
                "neither nvdisasm nor cuobjdump was found; install one with `pip install nvidia-cuda-nvdisasm`, "
                "or put a CUDA toolkit's bin folder on PATH"
            )
        run = _run(command, folder)
        if run.returncode != 0:
            raise ToolchainError(f"{command[0]} cannot read the cubin: {(run.stderr or run.stdout).strip()}")
        return run.stdout


def _run(command: list[str], folder: str | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise ToolchainError(f"cannot run {command[0]}: {error.strerror or error}") from error


# "ptxas kernel.ptx, line 10; error   : Unknown symbol '%r9'" or "ptxas fatal   : ..."
_MESSAGE = re.compile(r"^ptxas (?:[^\n]*?, line (?P<line>\d+); )?(?P<kind>\w+)\s*: (?P<words>.*)$", re.MULTILINE)
_REPORT_LINE = re.compile(
    r"\d+ bytes gmem|Compiling entry function|Function properties for|Used \d+ registers|Compile time ="
)


def _spoken(said: str, kind: str, name: str) -> list[str]:
    """What ptxas said of one kind, with the line of the PTX where it names one."""
    return [
        (f"{name}:{match['line']}: " if match["line"] else "") + match["words"].strip()
        for match in _MESSAGE.finditer(said)
        if match["kind"] == kind
    ]


def refusal(said: str, text: str, name: str, heading: str) -> str:
    """The errors in what ptxas, or the driver's copy of it, said of `text`, each with the line of the PTX."""
    lines = text.splitlines()
    parts = [heading]
    for match in _MESSAGE.finditer(said):
        if match["kind"] not in ("error", "fatal"):
            continue
        if match["line"] is None:
            if "aborted due to errors" not in match["words"]:
                parts.append(f"  {match['words'].strip()}")
            continue
        number = int(match["line"])
        parts.append(f"  {name}:{number}: {match['words'].strip()}")
        if 1 <= number <= len(lines):
            parts.append(f"      {lines[number - 1].strip()}")
    if len(parts) == 1:
        parts.append("  " + (said.strip().replace("\n", "\n  ") or "it printed nothing"))
    return "\n".join(parts)


def _resources(said: str) -> tuple[EntryResources, ...]:
    """One EntryResources per "Compiling entry function" block of `ptxas -v`."""
    blocks = re.split(r"^ptxas info\s*: Compiling entry function '([^']+)'[^\n]*$", said, flags=re.MULTILINE)
    return tuple(
        EntryResources(
            entry=entry,
            registers=_number(block, r"Used (\d+) registers"),
            smem_bytes=_number(block, r"(\d+) bytes smem"),
            stack_bytes=_number(block, r"(\d+) bytes stack frame"),
            spill_store_bytes=_number(block, r"(\d+) bytes spill stores"),
            spill_load_bytes=_number(block, r"(\d+) bytes spill loads"),
            barriers=_number(block, r"used (\d+) barriers"),
        )
        for entry, block in zip(blocks[1::2], blocks[2::2], strict=True)
    )


def _number(block: str, pattern: str) -> int:
    match = re.search(pattern, block)
    return int(match.group(1)) if match else 0
