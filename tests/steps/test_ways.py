"""The ways out that refusals name work, each alone, as it is written."""

from __future__ import annotations

import itertools
import re

import pytest

from ptxgen.errors import SpecError, UnknownNameError
from ptxgen.spec import GemmSpec, parse_settings
from ptxgen.steps import step

SETTING = re.compile(r"[a-z_.]+=[a-z0-9_]+")


def refusal(number: int, target: str, settings: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_settings(step(number, target=target), settings)
    except SpecError as error:
        return error.violations
    return ()


def ways(message: str) -> list[tuple[str, ...]]:
    """Alternatives in the parenthesis at the end; the settings of one are joined by "with"."""
    inside = re.fullmatch(r".*\(([^()]*)\)", message, re.DOTALL)
    assert inside, message
    found = [tuple(SETTING.findall(part)) for part in re.split(r",| or ", inside[1])]
    return [way for way in found if way]


def test_too_much_shared_memory() -> None:
    kinds: dict[str, int] = {}
    for (number, target), depth, n, out, staging in itertools.product(
        ((5, "sm_100a"), (7, "sm_100a"), (8, "sm_100a"), (10, "sm_100a"), (5, "sm_90a"), (7, "sm_90a"), (10, "sm_90a")),
        (3, 4, 6, 8),
        (128, 256),
        ("f16", "f32"),
        (
            (),
            ("epilogue.staging=tile", "epilogue.staging_buffers=1"),
            ("epilogue.store=direct",),
            ("epilogue.staging=slices", "epilogue.staging_buffers=1"),
            ("epilogue.staging=slices", "epilogue.staging_buffers=3"),
            ("epilogue.staging=slices", "epilogue.staging_buffers=4", "epilogue.slice_n=64"),
        ),
    ):
        settings = (f"pipe_depth={depth}", f"tile.n={n}", f"output_type={out}", *staging)
        messages = refusal(number, target, settings)
        if len(messages) != 1 or not messages[0].startswith("shared memory"):
            continue
        for way in ways(messages[0]):
            spec = parse_settings(step(number, target=target), (*settings, *way))
            assert isinstance(spec, GemmSpec)
            kinds[way[0].partition("=")[0]] = kinds.get(way[0].partition("=")[0], 0) + 1
    wanted = {"pipe_depth", "epilogue.staging", "epilogue.staging_buffers", "epilogue.slice_n"}
    assert set(kinds) == wanted and min(kinds.values()) > 3, kinds


@pytest.mark.parametrize(
    ("number", "target", "settings"),
    [
        (10, "sm_100a", ("consumers=1",)),
        (10, "sm_100a", ("consumers=3",)),
        (10, "sm_100a", ("tile.m=256",)),
        (10, "sm_100a", ("epilogue.staging_buffers=1",)),
        (10, "sm_100a", ("epilogue.slice_n=64",)),
        (10, "sm_100a", ("epilogue.staging_buffers=3",)),
        (10, "sm_100a", ("epilogue.store=direct", "pipe_depth=5")),
        (10, "sm_90a", ("consumers=1",)),
        (10, "sm_90a", ("consumer_tiles=own",)),
        (10, "sm_90a", ("consumer_tiles=own", "tile.n=128", "scheduler=grid")),
        (10, "sm_90a", ("cluster=2x1x1", "scheduler=grid")),
        (7, "sm_90a", ("consumers=1",)),
    ],
)
def test_refused_choices(number: int, target: str, settings: tuple[str, ...]) -> None:
    messages = refusal(number, target, settings)
    assert messages
    for message in messages:
        assert ways(message), message
    (first, *others) = messages
    for way in ways(first):
        after = refusal(number, target, (*settings, *way))
        assert set(after) <= set(others), (way, after)


def test_refusals_name_the_target_and_write_clusters_as_the_user_does() -> None:
    (message,) = refusal(10, "sm_90a", ("epilogue.store=direct",))
    assert "step 10 for sm_90a has epilogue.store=tma" in message and "step 10 for sm_100a" in message
    (message,) = refusal(7, "sm_90a", ("cluster=2x1x1",))
    assert message.startswith("cluster=2x1x1 is not built yet for step 7 (built: 1x1x1)")


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("11", range(1, 11), None),
        ("sm_80", ("sm_100a", "sm_90a"), None),
        ("sm_90", ("sm_100a", "sm_90a"), "sm_90a"),
        ("fp16", ("f16", "bf16", "f32"), "f16"),
        ("persistant", ("grid", "persistent"), "persistent"),
    ],
)
def test_what_is_suggested_is_meant(name: str, known: tuple[object, ...], near: str | None) -> None:
    message = str(UnknownNameError("thing", name, known))
    assert (f"did you mean {near!r}?" in message) if near else ("did you mean" not in message)


def test_a_mapping_says_what_the_command_line_says() -> None:
    base = step(10)
    for setting, changes in (
        ("epilogue.store=direct", {"epilogue": {"store": "direct"}}),
        ("scheduler.order=row_major", {"scheduler": {"order": "row_major"}}),
        ("scheduler.order=hilbert", {"scheduler": {"order": "hilbert"}}),
    ):
        assert parse_settings(base, (setting,)) == base.replace(**changes)
    narrow = base.replace(scheduler={"group": 4})
    assert narrow.replace(scheduler={"order": "grouped"}) == narrow
