"""`ptxgen.best`: the model's ranking, tables of measurements, and when which of them decides."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.device.description import parse_launch
from ptxgen.device.launch import Launch
from ptxgen.errors import LaunchError, PtxgenError
from ptxgen.hardware.targets import TARGETS, target
from ptxgen.review.costs import costs_of
from ptxgen.review.predict import predict
from ptxgen.steps import STEPS
from ptxgen.steps.launch import launch_text
from ptxgen.tuning.candidates import AXES, candidates, variations
from ptxgen.tuning.model import _multiply_clocks, estimate, pays_to_divide
from ptxgen.tuning.table import Entry, Problem, Table, find_table, load_table, parse_table

H200 = target("sm_90a")
SECONDS = {"burst": 171.799e-6, "sustained": 199.190e-6}
BF16 = {"operand_type": "bf16", "output_type": "bf16"}


def entry(problem: Problem, grid: int | None = None, **choices: object) -> Entry:
    types = {"operand_type": problem.operand_type, "output_type": problem.output_type}
    spec = ptxgen.step(7, target="sm_90a").replace(**types, **choices)
    return Entry(problem=problem, spec=spec, grid=grid, seconds=SECONDS)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of an H200, with 4096 cubed in bf16 only."""
    problem = Problem(m=4096, n=4096, k=4096, **BF16)
    table = Table(gpu="NVIDIA H200", target="sm_90a", sm_count=132)
    path = tmp_path / "h200.json"
    path.write_text(table.merged([entry(problem, grid=128, pipe_depth=2)], {"driver": "580"}).to_json())
    monkeypatch.setenv("PTXGEN_TUNED", str(tmp_path))
    return path


# -- the model


@pytest.mark.parametrize(
    ("name", "step", "n"),
    [
        ("sm_100a", 7, 4096),
        ("sm_100a", 8, 4096),
        ("sm_100a", 9, 4096),
        ("sm_90a", 7, 4096),
        ("sm_90a", 7, 1024),
        ("sm_90a", 10, 4096),
    ],
)
def test_the_closed_form_is_near_the_replay(name: str, step: int, n: int) -> None:
    """What takes microseconds here is worth something only where it agrees with what takes seconds."""
    spec = ptxgen.step(step, target=name)
    short, long = estimate(spec, n, n, n), predict(spec, n, n, n)
    assert short.clocks == pytest.approx(long.clocks, rel=0.15)


def test_more_work_takes_longer() -> None:
    spec = ptxgen.step(7, target="sm_90a")
    times = [estimate(spec, *size).seconds for size in ((128, 256, 64), (4096, 256, 64), (4096, 4096, 64))]
    assert times == sorted(times)
    assert estimate(spec, 4096, 4096, 4096).seconds < estimate(spec, 4096, 4096, 8192).seconds
    assert estimate(spec, 4096, 4096, 4096).clocks < estimate(spec, 4096, 4096, 4096, grid=60).clocks


def test_fewer_sms_take_longer() -> None:
    spec = ptxgen.step(7, target="sm_90a")
    part = replace(H200, sm_count=66)
    assert estimate(spec, 4096, 4096, 4096, chip=part).waves == 8
    assert estimate(spec, 4096, 4096, 4096).waves == 4


def test_divided_tiles() -> None:
    """64 tiles of 16 K tiles on 132 SMs: in two parts they take half the K tiles, and the sums."""
    spec = ptxgen.step(10, target="sm_90a").replace(tile={"m": 128, "n": 128}, pipe_depth=4)
    whole, split, stream = (
        estimate(spec.replace(scheduler=scheduler), 1024, 1024, 1024)
        for scheduler in ({}, {"split_k": 2}, {"stream_k": True})
    )
    assert (whole.wave_efficiency, split.wave_efficiency) == pytest.approx((64 / 132, 128 / 132))
    assert stream.wave_efficiency == pytest.approx(64 * 16 / (132 * 8))
    saved = 8 * whole.k_tile
    assert whole.clocks - saved < split.clocks < whole.clocks
    assert not whole.divided and split.divided and stream.divided
    many = [estimate(spec.replace(scheduler=s), 8192, 8192, 8192) for s in ({}, {"split_k": 2})]
    assert many[0].clocks < many[1].clocks


def test_whole_tiles_are_not_dealt_out() -> None:
    """A whole number of waves, or two: the tiles are the CTAs' own, as without stream-K."""
    spec = ptxgen.step(10, target="sm_90a")
    for rows in (132, 264):
        m, n = 128 * rows, 256
        stream = estimate(spec.replace(scheduler={"stream_k": True}), m, n, 640)
        assert stream.clocks == estimate(spec, m, n, 640).clocks
        assert stream.wave_efficiency == 1


@pytest.mark.parametrize(
    ("scheduler", "size", "worth"),
    [
        ({"split_k": 2}, (1024, 1024, 1024), True),
        ({"split_k": 4}, (1024, 1024, 1024), False),  # 256 parts for 132 SMs
        ({"split_k": 2}, (1024, 1024, 192), False),  # three K tiles
        ({"stream_k": True}, (1024, 1024, 1024), True),
        ({"stream_k": True}, (128 * 12, 128 * 11, 1024), False),  # 132 tiles
        ({}, (1024, 1024, 1024), True),
    ],
)
def test_what_is_worth_a_try(scheduler: dict[str, Any], size: tuple[int, int, int], worth: bool) -> None:
    spec = ptxgen.step(10, target="sm_90a").replace(tile={"m": 128, "n": 128}, scheduler=scheduler)
    assert pays_to_divide(spec, *size, H200) is worth


def test_what_the_estimate_is_made_of() -> None:
    spec = ptxgen.step(7, target="sm_90a")
    found = estimate(spec, 4096, 4096, 4096)
    assert (found.limit, found.k_tile) == ("tensor core", 1024)  # 128 x 256 x 64 multiply-adds, 2048 a cycle
    assert found.wave_efficiency == pytest.approx(512 / 528)
    assert found.loaded_bytes == 512 * 64 * (128 + 256) * 64 * 2
    shallow = estimate(spec.replace(tile={"m": 128, "n": 64}, pipe_depth=2), 4096, 4096, 4096)
    assert shallow.limit in ("loads", "ring")


# -- candidates


@pytest.mark.parametrize("name", TARGETS)
def test_candidates_are_legal_and_distinct(name: str) -> None:
    found = candidates(name, "bf16", "bf16")
    assert len(set(found)) == len(found) > 20
    assert {spec.target for spec in found} == {name}
    assert {spec.step for spec in found} == {step for chip, step in AXES if chip == name and step in STEPS}
    for spec in found:
        plan = spec.plan
        full = plan.smem_bytes + plan.stage_bytes > plan.smem_limit_bytes
        assert full or spec.pipe_depth == 8


@pytest.mark.parametrize("name", TARGETS)
def test_every_axis_is_searched(name: str) -> None:
    """A line whose values are all illegal would be forgotten in silence."""
    found = [spec.settings() for spec in candidates(name, "f16", "f16")]
    for (chip, step), axes in AXES.items():
        if chip != name or step not in STEPS:
            continue
        for axis in axes:
            names = axis.settings.split(",")
            if names[0] == "tile":
                names[:1] = ["tile.m", "tile.n", "tile.k"]
            values = {tuple(s[key] for key in names) for s in found if s["step"] == step}
            assert len(values) == len(axis.values) or (axis.first and values), (step, axis.settings)


def test_variations_differ_in_one_choice() -> None:
    spec = ptxgen.step(7, target="sm_90a")
    others = variations(spec)
    assert others
    for other in others:
        changes = {key for key, value in other.settings().items() if value != spec.settings()[key]}
        assert {name.split(".")[0] for name in changes} in ({"scheduler"}, {"epilogue"}, {"epilogue", "pipe_depth"})


# -- the choice


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("size", [(1, 1, 1), (512, 512, 512), (16, 8192, 8192), (4096, 4096, 4096), (10**6, 64, 8)])
def test_every_problem_has_a_choice(name: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.tuning.table._FOLDER", Path("nowhere"))
    choice = ptxgen.best(*size, target=name)
    assert (choice.basis, choice.grid) == ("model", None)
    assert "No table of measurements" in choice.why
    assert choice.seconds > 0
    assert choice.spec not in choice.others


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("types", [("bf16", "bf16"), ("f16", "f32"), ("bf16", "f16")])
def test_every_pair_of_types_has_a_choice(name: str, types: tuple[str, str]) -> None:
    spec = ptxgen.best(2048, 2048, 2048, target=name, operand_type=types[0], output_type=types[1]).spec
    assert (spec.operand_type, spec.output_type) == types


def test_small_problems_get_small_tiles() -> None:
    small, large = (ptxgen.best(n, n, n).spec.tile for n in (512, 8192))
    assert small.m * small.n < large.m * large.n
    assert ptxgen.best(8192, 8192, 8192).spec.cta_group == 2


def test_few_rows_are_the_second_operand_of_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.tuning.table._FOLDER", Path("nowhere"))
    for m in (1, 16, 32):
        spec = ptxgen.best(m, 8192, 8192, target="sm_90a").spec
        assert spec.swap_ab and spec.tile.m == max(m, 8)
    assert not ptxgen.best(4096, 4096, 4096, target="sm_90a").spec.swap_ab


def test_swapped_operands_of_a_square_tile_cost_the_same() -> None:
    tile = ptxgen.step(10, target="sm_90a").replace(tile={"m": 128, "n": 128}, pipe_depth=4)
    one, other = (estimate(tile.replace(swap_ab=swap), 4096, 4096, 4096) for swap in (False, True))
    assert one == other


@pytest.mark.parametrize(("m", "n"), [(32, 128), (16, 128), (96, 256), (128, 128)])
def test_a_swapped_tile_multiplies_as_its_mirror_image(m: int, n: int) -> None:
    ten, costs = ptxgen.step(10, target="sm_90a").replace(pipe_depth=2), costs_of("sm_90a")
    swapped, mirrored = (
        ten.replace(tile={"m": m, "n": n}, swap_ab=True),
        ten.replace(tile={"m": n, "n": m}),
    )
    assert _multiply_clocks(swapped, costs) == _multiply_clocks(mirrored, costs)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_recommended_can_run(name: str) -> None:
    """Every spec that is named, by the preconditions of its own launch description."""
    size = (10**7, 10**7, 64)
    choice = ptxgen.best(*size, target=name)
    for spec in (choice.spec, *choice.others):
        launch_of(spec, size)
    with pytest.raises(LaunchError, match="tile ids are 31-bit numbers"):
        launch_of(ptxgen.step(4 if name == "sm_90a" else 7, target=name).replace(scheduler=PERSISTENT), size)
    with pytest.raises(PtxgenError, match="no kernel for .* can run 100000000 x 100000000 x 64"):
        ptxgen.best(10**8, 10**8, 64, target=name)


PERSISTENT = {"kind": "persistent", "order": "row_major"}


def launch_of(spec: ptxgen.GemmSpec, size: tuple[int, int, int]) -> None:
    description = parse_launch(launch_text(spec), "text")
    Launch.of(description, problem=dict(zip("MNK", size, strict=True)), chip=target(spec.target))


def test_small_problems_are_told_in_time() -> None:
    why = ptxgen.best(1, 1, 1).why
    assert "so small that" in why and "TFLOP" not in why and "kFLOP" not in why


def test_rows_that_tma_cannot_step_by() -> None:
    assert "Rows of D (8194 bytes) are no multiple of 16 bytes" in ptxgen.best(4096, 4097, 4096).why
    assert "multiple" not in ptxgen.best(4096, 4096, 4096).why


def test_direct_stores_are_not_preferred_unmeasured() -> None:
    for n in (1024, 4096, 4097):
        epilogue = ptxgen.best(n, n, n).spec.epilogue
        assert epilogue.store == "tma" and epilogue.staging_buffers <= 2


def test_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.tuning.table._FOLDER", Path("nowhere"))
    ptxgen.best(64, 64, 64, target="sm_90a")
    start = time.process_time()
    for n in range(10):
        ptxgen.best(4096 + n, 4096, 4096, target="sm_90a")
    assert (time.process_time() - start) / 10 < 0.2


def test_it_needs_neither_numpy_nor_cuda() -> None:
    code = (
        "import sys, ptxgen; ptxgen.best(4096, 4096, 4096, target='sm_90a'); "
        "sys.exit(any(name.split('.')[0] in ('numpy', 'cuda') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_measured_problem(tuned: Path) -> None:
    choice = ptxgen.best(4096, 4096, 4096, target="sm_90a", operand_type="bf16")
    assert (choice.basis, choice.grid, choice.spec.pipe_depth) == ("measured", (128, 1, 1), 2)
    assert choice.why.startswith(
        "Measured fastest on NVIDIA H200 for this problem: 800 TFLOP/s burst, 690 TFLOP/s sustained."
    )
    assert choice.tflops == pytest.approx(800, rel=1e-4)


def test_near_a_measured_problem(tuned: Path) -> None:
    choice = ptxgen.best(4000, 4090, 4160, target="sm_90a", operand_type="bf16")
    assert (choice.basis, choice.spec.pipe_depth) == ("measured", 2)
    assert "for 4096 x 4096 x 4096 bf16, which is near" in choice.why
    far = ptxgen.best(2048, 4096, 4096, target="sm_90a", operand_type="bf16")
    assert (far.basis, "has nothing near this problem" in far.why) == ("model", True)
    wider = ptxgen.best(4096, 4096, 4096, target="sm_90a", operand_type="bf16", output_type="f32")
    assert wider.basis == "model"


def test_types_of_one_size_answer_for_each_other(tuned: Path) -> None:
    choice = ptxgen.best(4096, 4096, 4096, target="sm_90a", operand_type="f16")
    assert (choice.basis, choice.spec.pipe_depth, choice.spec.operand_type) == ("measured", 2, "f16")
    assert "for 4096 x 4096 x 4096 bf16, which takes the same time" in choice.why
    own = entry(Problem(m=4096, n=4096, k=4096), pipe_depth=3)
    tuned.write_text(load_table(tuned).merged([own], {}).to_json())
    choice = ptxgen.best(4096, 4096, 4096, target="sm_90a", operand_type="f16")
    assert "for this problem" in choice.why and choice.spec.pipe_depth == 3


def test_a_near_problem_with_worse_waves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """132 tiles of 128 x 128 are one wave; for 144 of them another tile needs less time."""
    problem = Problem(m=1408, n=1536, k=1024, **BF16)
    measured = entry(problem, tile={"m": 128, "n": 128, "k": 64}, pipe_depth=4)
    table = Table(gpu="NVIDIA H200", target="sm_90a", sm_count=132).merged([measured], {})
    (tmp_path / "one.json").write_text(table.to_json())
    monkeypatch.setenv("PTXGEN_TUNED", str(tmp_path / "one.json"))
    assert ptxgen.best(1408, 1536, 1024, target="sm_90a", operand_type="bf16").basis == "measured"
    choice = ptxgen.best(1536, 1536, 1024, target="sm_90a", operand_type="bf16")
    assert choice.basis == "model"
    assert "The measured spec for 1408 x 1536 x 1024 bf16 would take" in choice.why


def test_a_near_problem_that_reads_an_operand_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row more than a tile has, and B is read twice."""
    tile = {"m": 16, "n": 64, "k": 128}
    measured = Entry(
        problem=Problem(m=16, n=8192, k=8192, **BF16),
        spec=ptxgen.step(10, target="sm_90a").replace(swap_ab=True, tile=tile, consumers=1, pipe_depth=8, **BF16),
        grid=None,
        seconds={"burst": 31e-6},
    )
    table = Table(gpu="NVIDIA H200", target="sm_90a", sm_count=132).merged([measured], {})
    (tmp_path / "one.json").write_text(table.to_json())
    monkeypatch.setenv("PTXGEN_TUNED", str(tmp_path / "one.json"))
    near = ptxgen.best(15, 8000, 8192, target="sm_90a", operand_type="bf16")
    assert (near.basis, near.spec.tile.m) == ("measured", 16)
    wider = ptxgen.best(17, 8192, 8192, target="sm_90a", operand_type="bf16")
    assert (wider.basis, wider.spec.tile.m >= 17) == ("model", True)
    assert "16 x 8192 x 8192 bf16 would have to read an operand once more here" in wider.why


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0}, "m is a whole number of 1 or more, got 0"),
        ({"k": True}, "k is a whole number of 1 or more, got True"),
        ({"target": "sm_90"}, "unknown target 'sm_90'"),
        ({"operand_type": "e4m3"}, "operand_type=e4m3 is not built yet"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"m": 64, "n": 64, "k": 64, **arguments}
    with pytest.raises(PtxgenError, match=message):
        ptxgen.best(**values)  # type: ignore[arg-type]


# -- tables


def test_a_table_is_read_as_it_was_written(tuned: Path) -> None:
    table = load_table(tuned)
    assert parse_table(table.to_json(), "again").entries == table.entries
    assert table.entries[0].spec.replace(pipe_depth=3) == ptxgen.step(7, target="sm_90a").replace(**BF16)
    assert find_table("NVIDIA H200", 132, "sm_90a") == table
    assert find_table("H200", 132, "sm_90a") == table
    assert find_table("NVIDIA H200", 16, "sm_90a") is None  # a MIG instance


def test_new_entries_take_the_place_of_old_ones(tuned: Path) -> None:
    table = load_table(tuned)
    first, second = table.entries[0].problem, Problem(m=512, n=512, k=512, **BF16)
    merged = table.merged([entry(first, pipe_depth=3), entry(second)], {"driver": "581"})
    assert [(e.problem.m, e.spec.pipe_depth) for e in merged.entries] == [(512, 3), (4096, 3)]
    assert len(merged.to_json().splitlines()) == len(table.to_json().splitlines()) + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "JSONDecodeError"), ('{"version": 9}', "of version 9; this ptxgen reads 1"), ('{"version": 1}', "KeyError")],
)
def test_a_broken_table(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    monkeypatch.setenv("PTXGEN_TUNED", str(path))
    with pytest.raises(PtxgenError, match=message):
        ptxgen.best(64, 64, 64, target="sm_90a")


# -- the command


def test_command(tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["-m", "4096", "-n", "4096", "-k", "4096", "--target", "sm_90a", "--type", "bf16"]
    out = tmp_path / "k.ptx"
    assert run(["best", *size, "-o", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ptxgen emit --step 7 --target sm_90a --set operand_type=bf16")
    assert lines[1].startswith("Measured fastest on NVIDIA H200")
    assert lines[2] == "Launch it on 128 CTAs (--grid 128; grid= in Python)."
    assert out.read_text() == ptxgen.emit(load_table(tuned).entries[0].spec)
    assert run(["best", *size, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["basis"], data["grid"], data["step"], data["tflops"]) == ("measured", [128, 1, 1], 7, 800.0)
    assert "pipe_depth=2" in data["settings"]


def test_a_choice_prints_itself_without_the_others() -> None:
    choice = ptxgen.best(4096, 4096, 4096, target="sm_90a")
    assert choice.others
    assert repr(choice).count("GemmSpec(") == 1
