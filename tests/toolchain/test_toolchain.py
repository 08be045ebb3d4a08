"""ptxas: found, run, and read."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from ptxgen import toolchain
from ptxgen.errors import PtxError, ToolchainError
from ptxgen.toolchain import assemble, disassemble, find_tool, ptx_target, ptxas, wheel_tool

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
needs_nvdisasm = pytest.mark.skipif(
    find_tool("nvdisasm") is None and find_tool("cuobjdump") is None, reason="no disassembler is installed"
)

GOOD = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry first(.param .u64 out) .reqntid 128
{
    .reg .b32 %lane;
    .reg .b64 %out;
    .shared .align 8 .b8 bytes[96];
    ld.param.u64 %out, [out];
    mov.u32 %lane, %tid.x;
    st.shared.u32 [bytes], %lane;
    bar.sync 1, 128;
    st.global.u32 [%out], %lane;
    ret;
}
.visible .entry second() .reqntid 32 { ret; }
"""
SPILLS = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry spills(.param .u64 p) .maxntid 1024 .minnctapersm 2
{
    .reg .b32 %r<200>; .reg .b64 %p;
    ld.param.u64 %p, [p];
BODY
    ret;
}
""".replace(
    "BODY",
    "\n".join(f"    ld.volatile.global.u32 %r{i}, [%p+{4 * i}];" for i in range(200))
    + "\n    bar.sync 0;\n"
    + "\n".join(f"    st.volatile.global.u32 [%p+{4 * i}], %r{i};" for i in reversed(range(200))),
)
SETMAXNREG = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k() .reqntid 128 DIRECTIVE { setmaxnreg.dec.sync.aligned.u32 40; ret; }
"""


@needs_ptxas
def test_resources_of_every_entry() -> None:
    assembly = assemble(GOOD)
    assert assembly.cubin[:4] == b"\x7fELF"
    assert (assembly.target, assembly.warnings, assembly.infos) == ("sm_90a", (), ())
    resources = {entry.entry: entry for entry in assembly.entries}
    assert set(resources) == {"first", "second"}
    first = resources["first"]
    assert (first.smem_bytes, first.barriers, first.spill_store_bytes, first.stack_bytes) == (96, 2, 0, 0)
    assert 4 <= first.registers <= 16
    assert assembly.registers == max(first.registers, resources["second"].registers)


@needs_ptxas
def test_a_relative_path_is_that_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas runs in a folder of its own."""
    real = ptxas().path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ptxas").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    assert assemble(GOOD, path=Path("bin/ptxas")).cubin == assemble(GOOD).cubin
    monkeypatch.delenv("PTXGEN_PTXAS", raising=False)
    monkeypatch.setenv("PATH", f"bin{os.pathsep}{os.environ['PATH']}")
    assert find_tool("ptxas") == tmp_path / "bin" / "ptxas"
    assert assemble(GOOD).ptxas.path == tmp_path / "bin" / "ptxas"


@needs_ptxas
def test_spills_are_counted() -> None:
    assembly = assemble(SPILLS)
    (entry,) = assembly.entries
    assert entry.registers == 32
    assert entry.spill_store_bytes >= 4 * 150
    assert entry.spill_load_bytes >= 4 * 150
    assert assembly.spill_bytes == entry.spill_store_bytes + entry.spill_load_bytes


@needs_ptxas
def test_a_cubin_says_nothing_about_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = assemble(GOOD, name="one.ptx").cubin
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert assemble(GOOD, name="elsewhere/two.ptx").cubin == first
    assert list(tmp_path.iterdir()) == []


@needs_ptxas
def test_line_info_leaves_the_code_alone() -> None:
    assert len(assemble(GOOD, line_info=False).cubin) < len(assemble(GOOD).cubin)


@needs_ptxas
def test_refused_text_shows_line_text_and_words() -> None:
    broken = GOOD.replace("mov.u32 %lane, %tid.x;", "mov.u32 %lnae, %tid.x;").replace("bar.sync 1, 128;", "bar.snyc 1;")
    with pytest.raises(ToolchainError) as caught:
        assemble(broken, name="edited.ptx")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"ptxas {ptxas().version} refuses edited.ptx for sm_90a:"
    assert "  edited.ptx:10: Unknown symbol '%lnae'" in lines
    assert lines[lines.index("  edited.ptx:10: Unknown symbol '%lnae'") + 1] == "      mov.u32 %lnae, %tid.x;"
    assert any(line.startswith("  edited.ptx:12: ") for line in lines)
    assert "aborted" not in str(caught.value)


@needs_ptxas
def test_refusals_without_a_line() -> None:
    with pytest.raises(ToolchainError, match=r"(?s)refuses kernel.ptx for sm_12345.*sm_12345"):
        assemble(GOOD, target="sm_12345")
    with pytest.raises(ToolchainError, match=r"kernel.ptx:1: Unsupported .version 99.9"):
        assemble(GOOD.replace(".version 8.0", ".version 99.9"))


@needs_ptxas
@pytest.mark.parametrize(("directive", "ignored"), [("", True), (".minnctapersm 1", False)])
def test_ignored_setmaxnreg_is_an_advisory(directive: str, ignored: bool) -> None:
    assembly = assemble(SETMAXNREG.replace("DIRECTIVE", directive))
    assert any("'setmaxnreg' ignored" in line for line in assembly.advisories) is ignored


@needs_ptxas
@needs_nvdisasm
def test_disassembly() -> None:
    sass = disassemble(assemble(GOOD).cubin)
    assert "BAR.SYNC" in sass
    assert "first" in sass
    with pytest.raises(ToolchainError, match="cannot read the cubin"):
        disassemble(b"no cubin")


def test_target_directive() -> None:
    assert ptx_target("// .target sm_1\n\t.target sm_100a, debug\n", "x.ptx") == "sm_100a"
    with pytest.raises(PtxError, match=r"(?s)x.ptx:1: there is no .target directive.*hello"):
        ptx_target("hello\n", "x.ptx")


def program(path: Path, release: str | None) -> Path:
    """A stand-in for ptxas that knows its release, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{f'release {release}, V{release}.1' if release else 'hello'}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No ptxas anywhere; the folder to put some in."""
    for variable in ("PTXGEN_PTXAS", "PTXGEN_NVDISASM", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path


def test_absent(bare: Path) -> None:
    with pytest.raises(ToolchainError, match=r"ptxas was not found; install it with `pip install 'nvidia-cuda-nvcc"):
        assemble(GOOD)
    with pytest.raises(ToolchainError, match="neither nvdisasm nor cuobjdump was found"):
        disassemble(b"")


def test_order_of_search(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = program(bare / "site" / "nvidia" / "cuda_nvcc" / "bin" / "ptxas", "12.9")
    assert find_tool("ptxas") == older
    newer = program(bare / "site" / "nvidia" / "cu13" / "bin" / "ptxas", "13.0")
    assert find_tool("ptxas") == wheel_tool("ptxas") == newer
    toolkit = program(bare / "cuda" / "bin" / "ptxas", "12.8")
    monkeypatch.setenv("CUDA_PATH", str(bare / "cuda"))
    assert find_tool("ptxas") == toolkit
    home = program(bare / "home" / "bin" / "ptxas", "12.7")
    monkeypatch.setenv("CUDA_HOME", str(bare / "home"))
    assert find_tool("ptxas") == home
    on_path = program(bare / "path" / "ptxas", "12.6")
    assert find_tool("ptxas") == on_path
    named = program(bare / "named", "12.5")
    monkeypatch.setenv("PTXGEN_PTXAS", str(named))
    assert (ptxas().path, ptxas().version) == (named, "12.5.1")
    monkeypatch.setenv("PTXGEN_PTXAS", str(bare / "gone"))
    with pytest.raises(ToolchainError, match=r"PTXGEN_PTXAS names '.*gone', which is not a program"):
        ptxas()


def test_a_program_that_is_no_ptxas(bare: Path) -> None:
    program(bare / "path" / "ptxas", None)
    with pytest.raises(ToolchainError, match="prints no release number"):
        ptxas()


@pytest.mark.skipif(os.name != "posix", reason="exit codes of a shell script")
def test_a_ptxas_that_dies_in_silence(bare: Path) -> None:
    shell = shutil.which("sh", path="/bin:/usr/bin")
    assert shell is not None
    script = bare / "path" / "ptxas"
    script.parent.mkdir()
    script.write_text(f'#!{shell}\n[ "$1" = --version ] && echo "V13.0.88" && exit 0\nexit 255\n')
    script.chmod(0o755)
    toolchain._describe.cache_clear()
    with pytest.raises(ToolchainError, match="it printed nothing"):
        assemble(GOOD)
