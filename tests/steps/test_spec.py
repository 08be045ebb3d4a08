"""GemmSpec: what it refuses and in which words, its JSON form, its settings on a command line."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ptxgen.errors import PtxgenError, SpecError, UnknownNameError
from ptxgen.spec import GemmSpec, parse_setting, parse_settings
from ptxgen.steps import STEPS, step
from ptxgen.steps.launch import reproduce_command


def violations(number: int = 5, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(SpecError) as error:
        step(number).replace(**changes)
    return error.value.violations


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "tile.m": ({"tile": {"m": 96}}, "tile.m=96: one CTA's tcgen05.mma has M 64 or 128"),
    "tile.n below": ({"tile": {"n": 8}}, "tile.n=8: tcgen05.mma takes N 16 to 256 in steps of 16"),
    "tile.n above": ({"tile": {"n": 272}}, "tile.n=272: tcgen05.mma takes N 16 to 256 in steps of 16"),
    "tile.n between": ({"tile": {"n": 120}}, "tile.n=120: tcgen05.mma takes N 16 to 256 in steps of 16"),
    "tile.k": ({"tile": {"k": 48}}, "tile.k=48: a stage holds K 32, 64 or 128"),
    "depth 0": ({"pipe_depth": 0}, "pipe_depth=0: a ring has 1 to 8 stages"),
    "depth 9": ({"pipe_depth": 9}, "pipe_depth=9: a ring has 1 to 8 stages"),
    "group 0": (
        {"scheduler": {"order": "grouped", "group": 0}},
        "scheduler.group=0: the grouped order needs a group of 1 or more",
    ),
    "no group": (
        {"scheduler": {"order": "grouped", "group": None}},
        "scheduler.group=None: the grouped order needs a group of 1 or more",
    ),
    "a group of 32 bits": (
        {"scheduler": {"order": "grouped", "group": 2**31}},
        "scheduler.group=2147483648: a group is below 2**31 tile rows",
    ),
    "a group without the order": (
        {"scheduler": {"group": 4}},
        "scheduler.group=4 has a meaning only with scheduler.order=grouped or hilbert (the order is row_major)",
    ),
    "a span that does not divide": (
        {"tile": {"k": 32}, "operand_swizzle": 128},
        "operand_swizzle=128: the span does not divide a row of a stage, tile.k=32 x 2 bytes = 64 bytes",
    ),
    "a slice that does not divide": (
        {"tile": {"n": 80}, "epilogue": {"slice_n": 32}},
        "epilogue.slice_n=32: a slice is a number of columns that divides tile.n=80 (possible: 16)",
    ),
    "several buffers of a tile": (
        {"epilogue": {"staging_buffers": 2}},
        "epilogue.staging_buffers=2: staging of the whole tile is one buffer",
    ),
    "too many slices": (
        {"epilogue": {"staging": "slices", "staging_buffers": 5}},
        "epilogue.staging_buffers=5: slices are staged in 1 to 4 buffers",
    ),
    "shared memory": (
        {"tile": {"n": 256}, "pipe_depth": 4, "output_type": "f32"},
        "shared memory: control 1024 + staging 131072 + 4 stages x 49152 = 328704 bytes, but a CTA has"
        " at most 232448 (it fits with pipe_depth=2 or epilogue.staging=slices or a smaller tile)",
    ),
    "two accumulators without roles": (
        {"accumulators": 2},
        "accumulators=2: only specialized roles can fill one while the other is stored",
    ),
    "roles of another step": ({"roles": "specialized"}, "roles=specialized: step 5 has unified roles"),
}


def test_every_broken_rule_is_named_at_once() -> None:
    changes: dict[str, Any] = {
        "tile": {"n": 256},
        "pipe_depth": 4,
        "output_type": "f32",
        "roles": "specialized",
        "scheduler": {"kind": "single", "group": 2},
    }
    assert [message.split(":")[0].split("=")[0] for message in violations(**changes)] == [
        "roles",
        "scheduler.kind",
        "scheduler.group",
        "shared memory",
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named_with_its_numbers(rule: str) -> None:
    changes, message = RULES[rule]
    assert violations(**changes) == (message,)


def test_step_4_has_no_ring() -> None:
    assert violations(4, pipe_depth=2) == ("pipe_depth=2: step 4 has no ring, its depth is 1 (use step 5)",)


def test_all_broken_rules_are_listed_at_once() -> None:
    found = violations(
        tile={"m": 96, "n": 100, "k": 16},
        pipe_depth=9,
        output_type="f61",
        cta_group=2,
        cluster=(2, 1, 1),
        scheduler={"kind": "persistant", "group": 3},
        epilogue={"ops": ("relu",)},
    )
    starts = "output_type cta_group scheduler.kind cluster epilogue.ops tile.m tile.n tile.k pipe_depth scheduler.group"
    names = [re.split(r"[= ]", text.removeprefix("unknown "))[0] for text in found]
    assert sorted(names) == sorted(starts.split())


def test_all_broken_rules_of_the_plan_are_listed_at_once() -> None:
    found = violations(
        tile={"k": 32}, operand_swizzle=128, epilogue={"slice_n": 48, "staging_buffers": 3, "staging": "tile"}
    )
    assert [text.split("=")[0] for text in found] == [
        "operand_swizzle",
        "epilogue.slice_n",
        "epilogue.staging_buffers",
    ]


def test_the_message_lists_the_rules_below_the_subject() -> None:
    with pytest.raises(SpecError) as error:
        step(5).replace(tile={"m": 96}, pipe_depth=9)
    assert str(error.value).splitlines() == [
        "step 5 with these choices is not possible:",
        "  - tile.m=96: one CTA's tcgen05.mma has M 64 or 128",
        "  - pipe_depth=9: a ring has 1 to 8 stages",
    ]


NOT_BUILT: dict[str, dict[str, Any]] = {
    "target=sm_103a": {"target": "sm_103a"},
    "operand_type=e4m3": {"operand_type": "e4m3"},
    "accumulate_type=f16": {"accumulate_type": "f16"},
    "a_major=MN": {"a_major": "MN"},
    "b_major=MN": {"b_major": "MN"},
    "epilogue.ops=['relu']": {"epilogue": {"ops": ("relu",)}},
}


@pytest.mark.parametrize("choice", NOT_BUILT)
def test_an_axis_that_is_not_built_is_refused(choice: str) -> None:
    (message,) = violations(**NOT_BUILT[choice])
    assert message.startswith(f"{choice} is not built yet (built: ")


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (5, {"load": "threads"}, "load=threads: step 5 for sm_100a has load=tma (load=threads: steps 1 to 3)"),
        (
            9,
            {"scheduler": {"kind": "clc"}},
            "scheduler.kind=clc: step 9 for sm_100a has no warp that claims tiles (use step 10 for sm_100a)",
        ),
        (
            10,
            {"scheduler": {"depth": 2}},
            "scheduler.depth=2 has a meaning only with scheduler.kind=clc (the kind is persistent)",
        ),
        (10, {"scheduler": {"kind": "clc", "depth": 1}}, "scheduler.depth=1: 2 to 4 tiles are claimed ahead"),
        (10, {"scheduler": {"kind": "clc", "depth": 5}}, "scheduler.depth=5: 2 to 4 tiles are claimed ahead"),
        (9, {"setmaxnreg": True}, "setmaxnreg=true: a choice of step 10 for sm_100a, not of step 9 for sm_100a"),
        (
            10,
            {"swap_ab": True, "epilogue": {"slice_n": 24}},
            "swap_ab=true: a choice of step 10 for sm_90a, not of step 10 for sm_100a (leave it at false)",
        ),
        (
            9,
            {"dependent_launch": True},
            "dependent_launch=true: a choice of step 10, not of step 9",
        ),
        (
            10,
            {"epilogue": {"staging": "tile", "staging_buffers": 1}, "tile": {"n": 128}},
            "epilogue.staging=tile: step 10 stages slices (epilogue.staging=slices)",
        ),
        (
            10,
            {"epilogue": {"staging_buffers": 1}},
            "epilogue.staging_buffers=1: step 10 for sm_100a needs two, one is stored from while one is written"
            " (epilogue.staging_buffers=2)",
        ),
        (
            10,
            {"consumers": 3, "tile": {"m": 768}},
            "consumers=3: one or two warps multiply, for 256 rows each"
            " (consumers=1 with tile.m=256, consumers=2 with tile.m=512)",
        ),
        (
            10,
            {"accumulators": 2, "tile": {"n": 128}},
            "accumulators=2: two consumers have an accumulator each, which fill tensor memory",
        ),
        (10, {"cta_group": 1, "tile": {"m": 128}, "consumers": 1}, "cta_group=1: step 10 has cta_group=2"),
        (
            2,
            {"epilogue": {"store": "tma"}},
            "epilogue.store=tma: step 2 for sm_100a has epilogue.store=direct (epilogue.store=tma: step 4 and up)",
        ),
        (2, {"scheduler": {"kind": "grid"}}, "scheduler.kind=grid: steps like 2 have single: they compute one tile"),
        (3, {"scheduler": {"kind": "single"}}, "scheduler.kind=single: steps like 3 have grid or persistent"),
        (3, {"pipe_depth": 2}, "pipe_depth=2: step 3 has no ring, its depth is 1 (use step 5)"),
        (6, {"roles": "specialized"}, "roles=specialized: step 6 has unified roles"),
        (7, {"pipe_depth": 1}, "pipe_depth=1: specialized roles need two stages, one is read while one is loaded"),
        (8, {"cta_group": 1, "tile": {"m": 128}}, "cta_group=1: step 8 has cta_group=2"),
        (6, {"cluster": (2, 1, 1)}, "cluster=2x1x1 is not built yet for step 6 (built: 1x1x1)"),
        (
            8,
            {"tile": {"m": 128}},
            "tile.m=128: a pair's MMA has 256 rows, 128 a CTA, for each of its consumers (tile.m=256 with consumers=1)",
        ),
        (8, {"tile": {"n": 48}}, "tile.n=48: a pair's tile has N 32 to 256 in steps of 32, half of B a CTA"),
        (6, {"accumulators": 2}, "accumulators=2: only specialized roles can fill one while the other is stored"),
    ],
)
def test_a_step_is_what_it_is(number: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        step(number).replace(**changes)
    assert error.value.violations == (message,)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("pipe_dept=4", "unknown setting 'pipe_dept'; did you mean 'pipe_depth'?"),
        ("tile.nn=4", "unknown setting 'tile.nn'; did you mean 'tile.n'?"),
        ("step=6", "step is chosen with --step, not with a setting"),
        ("target=sm_90a", "target is chosen with --target, not with a setting"),
        ("output_type=fp16", "unknown output_type 'fp16'; did you mean 'f16'?"),
        ("scheduler=persistant", "unknown scheduler.kind 'persistant'; did you mean 'persistent'?"),
        ("scheduler.order=group", "unknown scheduler.order 'group'; did you mean 'grouped'?"),
        ("operand_swizzle=96", "unknown operand_swizzle '96'"),
        ("pipe_depth", "a setting is written key=value, got 'pipe_depth'"),
        ("pipe_depth=two", "pipe_depth is a whole number, got 'two'"),
        ("pipe_depth=2.0", "pipe_depth is a whole number, got '2.0'"),
        ("tile=128x256", "tile is three numbers joined by x, as in 128x128x64; got '128x256'"),
        ("tile=128x-16x64", "tile is three numbers joined by x, as in 128x128x64; got '128x-16x64'"),
        ("epilogue.unroll=yes", "epilogue.unroll is true or false, got 'yes'"),
    ],
)
def test_a_setting_that_cannot_be_read_is_explained(setting: str, message: str) -> None:
    with pytest.raises(PtxgenError) as error:
        parse_setting(step(5), setting)
    assert message in str(error.value)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown spec field 'pipedepth'; did you mean 'pipe_depth'"):
        step(5).replace(pipedepth=3)
    with pytest.raises(UnknownNameError, match="unknown field of epilogue 'slice'; did you mean 'slice_n'"):
        step(5).replace(epilogue={"slice": 16})
    with pytest.raises(PtxgenError, match="a step is a whole number, got '6'"):
        step("6")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"^unknown step '11' \(known"):
        step(11)
    with pytest.raises(UnknownNameError, match="unknown target 'sm_100'; did you mean 'sm_100a'"):
        step(5, target="sm_100")
    with pytest.raises(
        SpecError, match=r"step 3 for sm_90a is not possible:\n  - it is not built yet \(built: 4, 5, 6, 7, 10\)"
    ):
        step(3, target="sm_90a")


def test_settings_are_applied_together() -> None:
    """Each alone would be impossible: 128x256x64 with f32 output does not fit in one tile of staging."""
    settings = ("tile=128x256x64", "output_type=f32", "pipe_depth=4", "epilogue.staging=slices")
    spec = parse_settings(step(6), settings)
    assert (spec.tile.n, spec.output_type, spec.pipe_depth, spec.epilogue.staging) == (256, "f32", 4, "slices")
    with pytest.raises(SpecError):
        parse_settings(step(6), settings[:3])


def test_the_order_brings_its_group() -> None:
    assert parse_setting(step(5), "scheduler.order=grouped").scheduler.group == 8
    assert parse_setting(step(6), "scheduler.order=row_major").scheduler.group is None
    assert parse_settings(step(5), ("scheduler.order=grouped", "scheduler.group=3")).scheduler.group == 3


def test_replace_keeps_what_is_not_named() -> None:
    spec = step(6).replace(tile={"n": 256}, scheduler={"group": 4})
    assert (spec.tile.m, spec.tile.n, spec.tile.k) == (128, 256, 64)
    assert (spec.scheduler.kind, spec.scheduler.order, spec.scheduler.group) == ("persistent", "grouped", 4)
    assert step(6).tile.n == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the spec is not JSON"),
        ("[5]", 'a spec is a JSON object with at least "step"'),
        ('{"step": "5"}', 'a spec is a JSON object with at least "step"'),
        ('{"step": 5, "depth": 2}', "unknown spec field 'depth'"),
        ('{"step": 5, "tile": {"width": 2}}', "unknown field of tile 'width'"),
        ('{"step": 5, "tile": 128}', "spec field tile must be an object, got 128"),
        ('{"step": true}', "step must be of type int, got True"),
        ('{"step": 5, "pipe_depth": 2.5}', "pipe_depth must be of type int, got 2.5"),
        ('{"step": 5, "operand_type": 16}', "operand_type must be of type str, got 16"),
        ('{"step": 5, "epilogue": {"unroll": 1}}', "epilogue.unroll must be of type bool, got 1"),
        ('{"step": 5, "cluster": 1}', "cluster must be of type tuple, got 1"),
    ],
)
def test_json_that_is_not_a_spec_is_refused(text: str, message: str) -> None:
    with pytest.raises(PtxgenError) as error:
        GemmSpec.from_json(text)
    assert message in str(error.value)


@given(data=st.data())
def test_json_and_command_line_bring_back_the_spec(specs: SearchStrategy[GemmSpec], data: DataObject) -> None:
    spec = data.draw(specs)
    assert GemmSpec.from_json(spec.to_json()) == spec
    assert spec.to_json() == json.dumps(json.loads(spec.to_json()), sort_keys=True, separators=(",", ":"))
    words = shlex.split(reproduce_command(spec))
    assert words[:6] == ["ptxgen", "emit", "--step", str(spec.step), "--target", spec.target]
    assert words[6::2] == ["--set"] * len(words[7::2])
    assert parse_settings(step(spec.step, target=spec.target), tuple(words[7::2])) == spec


def test_the_hash_says_what_was_chosen_and_nothing_else() -> None:
    numbers = [number for number, known in STEPS.items() if "sm_100a" in known.targets]
    specs = [*(step(number) for number in numbers), *(step(number).replace(pipe_depth=3) for number in (5, 6, 7))]
    hashes = [spec.hash for spec in specs]
    assert len(set(hashes)) == len(specs)
    assert all(re.fullmatch(r"[0-9a-f]{16}", value) for value in hashes)
    assert step(6).replace(pipe_depth=3).replace(pipe_depth=2).hash == step(6).hash


def test_the_canonical_json() -> None:
    assert step(4).to_json() == (
        '{"a_cache":"evict_normal","a_major":"K","accumulate_type":"f32","accumulators":1,'
        '"b_cache":"evict_normal","b_major":"K","cluster":[1,1,1],"consumer_tiles":"shared","consumers":1,'
        '"cta_group":1,"dependent_launch":false,"epilogue":{"ops":[],"slice_n":null,"staging":"tile",'
        '"staging_buffers":1,"store":"tma","unroll":false},"l2_promotion":0,"load":"tma","operand_swizzle":null,'
        '"operand_type":"f16","output_type":"f16","pipe_depth":1,"roles":"unified","scheduler":{"depth":null,'
        '"group":null,"kind":"grid","order":"row_major","split_k":1,"stream_k":false},"setmaxnreg":false,"step":4,'
        '"suspend_ns":null,"swap_ab":false,"target":"sm_100a","tile":{"k":64,"m":128,"n":128}}'
    )


def test_the_hash_covers_the_step_and_what_is_not_usual() -> None:
    assert step(4).hash == hashlib.sha256(b'{"step":4}').hexdigest()[:16]
    spec = step(5, target="sm_90a").replace(epilogue={"staging": "tile"})
    chosen = json.dumps(
        {"epilogue.unroll": True, "pipe_depth": 2, "step": 5, "target": "sm_90a"}, separators=(",", ":")
    )
    assert spec.hash == hashlib.sha256(chosen.encode()).hexdigest()[:16]
