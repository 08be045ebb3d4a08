"""Texts of neighbouring specs differ where the specs do, and in few lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ptxgen.errors import SpecError
from ptxgen.render import emit, render
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import STEPS, step, unchecked


def split(text: str) -> tuple[str, str]:
    """Header (comments before the first directive) and the rest."""
    header, rest = text.split("\n\n.version", 1)
    return header, rest


def changed(old: str, new: str) -> list[str]:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    return [line for line in lines if not line.startswith("@@")]


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize(("number", "old", "new"), [(5, 2, 3), (6, 2, 3), (7, 2, 3), (5, 1, 2), (5, 2, 6)])
def test_a_deeper_ring_changes_a_constant_and_its_barriers(target: str, number: int, old: int, new: int) -> None:
    spec = step(number, target=target).replace(tile={"n": 128})
    first, second = emit(spec.replace(pipe_depth=old)), emit(spec.replace(pipe_depth=new))
    lines = changed(split(first)[1], split(second)[1])
    assert len(lines) <= (15 if new == old + 1 else 25)
    assert all(re.search(r"%pipe_depth, \d|mbarrier\.init", line) for line in lines)


SCHEDULING = (
    r"entry gemm_step[56]\(|\.param \.u32 [kmn]_tiles|// tile scheduler$|%no_tile_left|%grid_size|%tile_count"
    r"|%[mn]_tiles?, \[?[mn%]|%(band|first|rows|rest|span|group)\b|%ctaid|^[+-]tile_loop:|^[+-]tiles_done:"
    r"|bra (tile_loop|tiles_done);|// (this CTA's output tile|output tiles: this CTA's id, then every grid-th)$"
)
DRAIN = r"// (this thread's earlier stores have read staging|staging is free)$"


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_step_6_adds_a_scheduler_to_step_5_and_nothing_else(target: str) -> None:
    old, new = emit(step(5, target=target)), emit(step(6, target=target))
    assert len(changed(old, new)) <= 60
    lines = changed(split(old)[1], split(new)[1])
    strangers = [line for line in lines if not re.search(SCHEDULING, line)]
    assert all(re.search(DRAIN, line) for line in strangers), strangers
    assert len(strangers) <= 2


HEADER = (
    r"^[+-]// (ptxgen emit |spec: sha256 |  \"(entry|grid|preconditions|verify|arguments)\""
    r"|    \{\"(name\": \"[kmn]_tiles|expression)|\s*\])"
)


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_the_header_tells_the_same_story(target: str) -> None:
    lines = changed(split(emit(step(5, target=target)))[0], split(emit(step(6, target=target)))[0])
    assert lines
    assert all(re.search(HEADER, line) for line in lines), lines


def body(spec: GemmSpec) -> str:
    return split(emit(spec))[1]


@pytest.mark.parametrize(
    ("settings", "limit", "words"),
    [
        (("output_type=bf16",), 20, r"bf16|f16"),
        (("operand_type=bf16",), 10, r"bf16|f16|idesc"),
        (("scheduler.group=4",), 6, r"%group|grouped order"),
    ],
)
def test_one_choice_changes_the_lines_that_speak_of_it(settings: tuple[str, ...], limit: int, words: str) -> None:
    lines = changed(body(step(6)), body(parse_settings(step(6), settings)))
    assert 0 < len([line for line in lines if line[0] == "+"]) <= limit
    assert all(re.search(words, line) for line in lines)


# ---- no choice is ignored -------------------------------------------------------------------

ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "tile.m": ("64", "128", "256", "512"),
    "tile.n": ("64", "96", "128"),
    "tile.k": ("32", "64", "128"),
    "pipe_depth": ("1", "2", "3"),
    "operand_type": ("f16", "bf16"),
    "output_type": ("f16", "bf16", "f32"),
    "operand_swizzle": ("64", "32", "16"),
    "consumers": ("1", "2"),
    "accumulators": ("1", "2"),
    "cta_group": ("1", "2"),
    "scheduler.kind": ("single", "grid", "persistent"),
    "scheduler.order": ("row_major", "grouped"),
    "scheduler.group": ("3",),
    "epilogue.slice_n": ("16", "64"),
    "epilogue.staging": ("tile", "slices"),
    "epilogue.staging_buffers": ("2", "3"),
    "epilogue.unroll": ("true", "false"),
    "epilogue.store": ("tma", "direct"),
    "load": ("tma", "threads"),
    "roles": ("unified", "specialized"),
}
SLICES = "epilogue.staging=slices"


def starting_points() -> Iterator[Any]:
    for item in STEPS.values():
        for target in item.targets:
            yield item.number, target, ()
            if item.number >= 4:
                yield item.number, target, (SLICES,)


def unchecked_text(spec: GemmSpec) -> str:
    """The text of a spec without the static check, which takes most of the time."""
    return split(render(unchecked(spec)))[1]


@pytest.mark.parametrize(("number", "target", "start"), list(starting_points()))
def test_a_choice_that_is_taken_changes_the_text(number: int, target: str, start: tuple[str, ...]) -> None:
    """A value that the spec allows has an effect, or it is refused; it is never ignored."""
    spec = parse_settings(step(number, target=target), start)
    usual = unchecked_text(spec)
    ignored = []
    for name, values in ALTERNATIVES.items():
        for value in values:
            try:
                other = parse_settings(spec, (f"{name}={value}",))
            except SpecError:
                continue
            by_name_only = name == "epilogue.slice_n" and other.plan == spec.plan  # what "auto" had chosen
            if other != spec and not by_name_only and unchecked_text(other) == usual:
                ignored.append(f"{name}={value}")
    assert not ignored
