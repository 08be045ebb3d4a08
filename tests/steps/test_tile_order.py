"""The order in which tile ids become tiles, against its definition, for every small problem and group.

The text's own instructions are evaluated, for all tile ids of all problems at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from ptxgen.render import emit
from ptxgen.steps import step
from ptxgen.steps.launch import verify_shapes

Ids = npt.NDArray[np.uint64]

OPCODES: dict[str, Callable[..., Ids]] = {
    "mov.b32": lambda a: a,
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "div.u32": lambda a, b: a // b,
    "rem.u32": lambda a, b: a % b,
    "min.u32": np.minimum,
}
INSTRUCTION = re.compile(r"^    ([\w.]+) (%\w+), ([^;]+);", re.MULTILINE)


def reference(tile: int, m_tiles: int, n_tiles: int, group: int) -> tuple[int, int]:
    """Full bands of `group` tile rows, then the rows that are left, each walked column by column."""
    full = m_tiles // group
    tail, span = m_tiles - full * group, group * n_tiles
    if tile < full * span:
        return tile // span * group + tile % span % group, tile % span // group
    rest = tile - full * span
    return full * group + rest % tail, rest // tail


def located(text: str, m_tiles: Ids, n_tiles: Ids, tile: Ids) -> tuple[Ids, Ids]:
    """m_tile and n_tile as the text computes them, until it multiplies them by the tile's extents.

    Instructions on anything but tile counts and ids are passed over. No value leaves 32 bits.
    """
    values: dict[str, Ids] = {"[m_tiles]": m_tiles, "[n_tiles]": n_tiles, "%ctaid.x": tile, "%clusterid.x": tile}
    for opcode, dst, operands in INSTRUCTION.findall(text):
        if dst == "%m_coord":
            return values["%m_tile"], values["%n_tile"]
        words = operands.split(", ")
        known = [
            np.full_like(tile, int(word)) if word.isdecimal() else values[word]
            for word in words
            if _known(word, values)
        ]
        values.pop(dst, None)
        if len(known) < len(words):
            continue
        if opcode == "ld.param.u32":
            (values[dst],) = known
        elif opcode in OPCODES:
            values[dst] = OPCODES[opcode](*known)
            assert values[dst].max() < 2**32
    raise AssertionError("the text locates no tile")


def _known(word: str, values: dict[str, Ids]) -> bool:
    return word.isdecimal() or word in values


def texts(order: str, group: int | None) -> list[str]:
    scheduler = {"order": order, "group": group}
    found = [emit(step(number).replace(scheduler={**scheduler, "kind": "persistent"})) for number in (6, 7)]
    if group in (None, 1, 5):  # pairs take longer to build
        found.append(emit(step(10).replace(scheduler={**scheduler, "kind": "persistent"})))
        found.append(emit(step(10).replace(scheduler={**scheduler, "kind": "clc"})))
    if order == "grouped":
        found.append(emit(step(5).replace(scheduler=scheduler)))
    return found


PROBLEMS = [(m, n, tile) for m, n in itertools.product(range(1, 10), range(1, 10)) for tile in range(m * n)]


def columns(problems: list[tuple[int, int, int]]) -> tuple[Ids, Ids, Ids]:
    m, n, tile = np.array(problems, np.uint64).T
    return m, n, tile


@pytest.mark.parametrize("group", range(1, 9))
def test_the_grouped_order_is_the_ladders(group: int) -> None:
    wanted = [reference(tile, m, n, group) for m, n, tile in PROBLEMS]
    for text in texts("grouped", group):
        m_tile, n_tile = located(text, *columns(PROBLEMS))
        assert list(zip(m_tile.tolist(), n_tile.tolist(), strict=True)) == wanted


def test_the_row_major_order_goes_along_rows() -> None:
    for text in texts("row_major", None):
        m_tile, n_tile = located(text, *columns(PROBLEMS))
        assert list(zip(m_tile.tolist(), n_tile.tolist(), strict=True)) == [divmod(tile, n) for _, n, tile in PROBLEMS]


@pytest.mark.parametrize("group", range(1, 9))
def test_every_tile_has_one_id(group: int) -> None:
    """Of the definition that the texts are compared with: it leaves no tile out."""
    for m, n in itertools.product(range(1, 10), range(1, 10)):
        order = [reference(tile, m, n, group) for tile in range(m * n)]
        assert sorted(order) == list(itertools.product(range(m), range(n)))


def test_no_value_overflows_at_the_largest_problem() -> None:
    """MT x NT below 2**31, a group above MT: the group is the number of tile rows then."""
    sizes = [(46340, 46340), (1, 2**31 - 1), (2**31 - 1, 1), (65535, 32768)]
    ids = [(m, n, tile) for m, n in sizes for tile in (0, 1, m * n // 2, m * n - 2, m * n - 1)]
    for group in (7, 2**31 - 1):
        wanted = [reference(tile, m, n, min(group, m)) for m, n, tile in ids]
        (text, *_) = texts("grouped", group)
        m_tile, n_tile = located(text, *columns(ids))
        assert list(zip(m_tile.tolist(), n_tile.tolist(), strict=True)) == wanted


def test_a_grid_in_row_major_order_is_two_dimensional() -> None:
    text = emit(step(5))
    assert re.search(r"mov.b32 %n_tile, %ctaid.x;", text)
    assert re.search(r"mov.b32 %m_tile, %ctaid.y;", text)
    assert '//   "grid": [["ceil_div", "N", 128], ["ceil_div", "M", 128], 1],' in text


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1), (1, 2, 1)])
def test_verify_reaches_a_second_band(cluster: tuple[int, int, int]) -> None:
    """Bands are of tiles of clusters."""
    chosen = step(10, target="sm_90a").replace(cluster=cluster)
    whole, group = chosen.cluster_tile, chosen.scheduler.group
    assert group is not None
    assert any(m > group * whole.m and n > whole.n for m, n, _ in verify_shapes(chosen))
