"""The text: what it is made of, that it reproduces itself, and that it is the same bytes everywhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ptxgen import render as rendering
from ptxgen.commands.emit import emit as emit_command
from ptxgen.errors import PtxgenError
from ptxgen.ir import ops as ir
from ptxgen.render import emit, render
from ptxgen.review.goldens import MANIFEST
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import STEPS, build, step

ROOT = Path(__file__).resolve().parents[2]
GENERATED = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "generated").rglob("*.ptx"))

SPECS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    f"step {item.number} for {target}": (item.number, target, ()) for item in STEPS.values() for target in item.targets
}
SPECS |= {
    "rolled slices": (6, "sm_100a", ("epilogue.staging=slices", "epilogue.staging_buffers=2", "output_type=f32")),
    "unrolled slices": (5, "sm_100a", ("epilogue.unroll=true", "tile=64x96x128", "scheduler.order=grouped")),
    "claimed tiles": (10, "sm_100a", ("scheduler=clc", "setmaxnreg=true", "dependent_launch=true")),
    "direct stores": (10, "sm_100a", ("epilogue.store=direct", "tile=256x256x64", "consumers=1", "accumulators=2")),
    "depth 8": (5, "sm_100a", ("tile=128x16x32", "pipe_depth=8", "operand_swizzle=16")),
}


def spec_of(name: str) -> GemmSpec:
    number, target, settings = SPECS[name]
    return parse_settings(step(number, target=target), settings)


@pytest.fixture(scope="module", params=SPECS)
def spec(request: pytest.FixtureRequest) -> GemmSpec:
    return spec_of(request.param)


@pytest.fixture(scope="module")
def text(spec: GemmSpec) -> str:
    return emit(spec)


# ---- what it is made of ---------------------------------------------------------------------


def test_it_is_plain_ascii_with_clean_line_ends(text: str) -> None:
    assert re.fullmatch(r"[ -~\n]+", text)
    assert not re.search(r" \n|\n\n\n", text)
    assert text.endswith("}\n")


def test_it_begins_with_what_go_tools_know_as_generated(spec: GemmSpec, text: str) -> None:
    first, command, digest, launch = text.splitlines()[:4]
    assert re.fullmatch(r"// Code generated .* DO NOT EDIT\.", first) and "Edit a copy" in first
    assert command.startswith(f"// ptxgen emit --step {spec.step} --target {spec.target}")
    assert digest == f"// spec: sha256 {spec.hash}"
    assert launch == "// launch: {"


def test_it_names_no_place_person_or_time(text: str) -> None:
    assert not re.search(r"(?<![\w)])/\w+/\w|\d{4}-\d\d-\d\d|\d\d:\d\d", text)
    assert socket.gethostname() not in text
    assert str(ROOT) not in text


def test_its_directives_follow_the_target(spec: GemmSpec, text: str) -> None:
    version = {"sm_100a": "8.6", "sm_90a": "8.0"}[spec.target]
    if "st.global.v8" in text:
        version = "8.8"
    assert f"\n.version {version}\n.target {spec.target}\n.address_size 64\n" in text
    assert text.count(".extern .shared .align 1024 .b8 smem[];") == 1
    assert f"\n.reqntid {spec.threads}\n" in text
    assert ("\n.maxnreg 168 " in text) == ("setmaxnreg" in text)
    assert text.count(".param .align 128 .b8") == 2 * (spec.load == "tma") + (spec.epilogue.store == "tma")


def test_labels_are_unique_and_every_branch_has_its_own(text: str) -> None:
    labels = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert len(labels) == len(set(labels))
    assert set(re.findall(r"\bbra(?:\.\w+)* (\w+);", text)) <= set(labels)


def test_loops_and_guards_stay_flat(text: str) -> None:
    body = text.split("\n{\n")[1].split("\n}\n")[0].splitlines()
    assert all(re.match(r"    \S|\w+:$|$", line) for line in body)


def test_every_comment_of_an_op_stands_in_the_text_in_order(spec: GemmSpec, text: str) -> None:
    wanted = [op.comment for op in build(spec).ops() if op.comment]
    found = iter(re.findall(r"(?:;|^   )\s*// (.*)$", text.split("\n{\n")[1], re.MULTILINE))
    for comment in wanted:
        assert any(item.startswith(comment) for item in found), comment


def test_ops_without_a_comment_are_repeated_or_close_a_block(spec: GemmSpec) -> None:
    bare = {type(op) for op in build(spec).ops() if not op.comment}
    closing = {ir.Label, ir.Branch, ir.Compare, ir.Return}
    assert bare <= closing | {ir.ConvertPair}


FIELD = re.compile(r"(\d+)(?:-(\d+))?: ([^;=]*) = (\d+)")


def test_comments_of_descriptor_constants_name_their_fields(text: str) -> None:
    """Every bit that is set lies in a field that the comment names, and has the value that it gives."""
    found = re.findall(r"(?:%idesc|%ring_[ab]_desc), (0x[0-9a-f]+); +// (.*bits \d.*)$", text, re.MULTILINE)
    assert len(found) >= 2
    for constant, comment in found:
        told = 0
        for low, high, name, value in FIELD.findall(comment.partition("bits ")[2]):
            shift, width = int(low), int(high or low) - int(low) + 1
            assert int(constant, 16) >> shift & (1 << width) - 1 == int(value), name
            told |= int(value) << shift
        assert told == int(constant, 16)


def test_a_branch_around_one_lane_says_where_the_warp_meets_again(text: str) -> None:
    """What follows the label may be `.aligned`: barriers, tcgen05.ld, wgmma, dealloc."""
    branches = re.findall(r"@!%elected bra \w+;(.*)$", text, re.MULTILINE)
    assert branches and {branch.strip() for branch in branches} == {"// one lane; the warp meets again at the label"}


# ---- the templates --------------------------------------------------------------------------


def macros() -> dict[str, Any]:
    return rendering._environment()[1]


def all_ops(base: type[ir.Op] = ir.Op) -> Iterator[type[ir.Op]]:
    for kind in base.__subclasses__():
        yield kind
        yield from all_ops(kind)


def test_every_op_has_one_macro_and_every_macro_an_op() -> None:
    structure = {"Guard", "While", "DoWhile"}  # flattened to branches and labels
    kinds = {kind.__name__ for kind in all_ops() if kind.__module__.startswith(ir.__name__ + ".")}
    assert set(macros()) == {re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower() for kind in kinds - structure}


@pytest.mark.parametrize("value", [None, True, False, 1.0])
def test_what_is_no_name_or_number_never_becomes_text(value: object) -> None:
    template = rendering._environment()[0].from_string("<< value >>")
    assert template.render(value=7) == "7"
    with pytest.raises(PtxgenError, match=f"a template printed {value!r}"):
        template.render(value=value)


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(Exception, match="has no attribute 'nothing'"):
        rendering._environment()[0].from_string("<< op.nothing >>").render(op=ir.Return())


# ---- it reproduces itself -------------------------------------------------------------------


@pytest.mark.parametrize("path", GENERATED)
def test_the_command_in_the_header_prints_the_file(path: str) -> None:
    committed = (ROOT / path).read_bytes()
    command = shlex.split(committed.decode("ascii").splitlines()[1].removeprefix("// "))
    assert command[:2] == ["ptxgen", "emit"]
    printed = CliRunner().invoke(emit_command, command[2:])
    assert printed.exit_code == 0
    assert printed.stdout_bytes == committed


def test_every_step_and_target_is_generated() -> None:
    kernels = {f"generated/{target}/step{item.number}.ptx" for item in STEPS.values() for target in item.targets}
    assert kernels <= set(GENERATED)
    assert (ROOT / "generated" / MANIFEST).is_file()


def test_rendering_twice_gives_the_same_text(spec: GemmSpec, text: str) -> None:
    assert render(build(spec)) == text


# ---- the same bytes everywhere ----------------------------------------------------------------

EMIT_ALL = """
import sys
from ptxgen.render import emit
from ptxgen.spec import parse_settings
from ptxgen.steps import step
for line in sys.argv[1:]:
    number, target, *settings = line.split()
    text = emit(parse_settings(step(int(number), target=target), tuple(settings)))
    sys.stdout.buffer.write(text.encode("ascii"))
for name in ("numpy", "cuda", "ml_dtypes", "click"):
    assert name not in sys.modules, name
"""
EVERYWHERE = ["step 3 for sm_100a", "step 6 for sm_100a", "step 7 for sm_90a", "rolled slices"]
LINES = [" ".join((str(SPECS[name][0]), SPECS[name][1], *SPECS[name][2])) for name in EVERYWHERE]


def printed_by(python: str, folder: Path, path: Path, **environment: str) -> bytes:
    base = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LC_", "LANG"))}
    run = subprocess.run(
        [python, "-S", "-c", EMIT_ALL, *LINES],
        cwd=folder,
        env={**base, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout


@pytest.fixture(scope="module")
def everything() -> bytes:
    return "".join(emit(spec_of(name)) for name in EVERYWHERE).encode("ascii")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this package and what it needs to emit, for interpreters that have nothing installed."""
    import jinja2
    import markupsafe

    folder = tmp_path_factory.mktemp("path")
    for module in (jinja2, markupsafe):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "ptxgen", folder / "ptxgen", ignore=shutil.ignore_patterns("__pycache__", "emulator"))
    shutil.copytree(ROOT / "templates", folder / "templates")
    return folder


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"PYTHONHASHSEED": "0", "LC_ALL": "C"}, "/"),
        ({"PYTHONHASHSEED": "1", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}, "tmp"),
        ({"PYTHONHASHSEED": "4294967295", "LC_ALL": "C.UTF-8", "TZ": "Asia/Kathmandu"}, "tmp"),
        ({"PYTHONHASHSEED": "random", "PYTHONUTF8": "1", "PYTHONOPTIMIZE": "2", "COLUMNS": "20"}, "tmp"),
    ],
    ids=["C", "Turkish", "UTF-8", "optimised"],
)
def test_the_bytes_depend_on_no_surroundings(
    everything: bytes, path: Path, tmp_path: Path, environment: dict[str, str], folder: str
) -> None:
    where = Path(folder) if folder == "/" else tmp_path
    assert printed_by(sys.executable, where, path, **environment) == everything


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, one on PATH, or one of pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        probe = subprocess.run([candidate, "-c", ""], capture_output=True, check=False)
        if probe.returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_bytes_depend_on_no_python_version(everything: bytes, path: Path, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    assert printed_by(python, tmp_path, path) == everything
