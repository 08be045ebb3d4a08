"""Sizes in launch descriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.device.expression import SYMBOLS, evaluate, parse_expression, symbols_in, to_json
from ptxgen.errors import LaunchError

SIZES = {"M": 200, "N": 136, "K": 72, "SM_COUNT": 148, "CTAS": 148}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        ("K", 72),
        (["product", "M", "N", 2], 54400),
        (["ceil_div", "M", 128], 2),
        (["ceil_div", 128, 128], 1),
        (["round_up", ["product", "K", 2], 16], 144),
        (["round_up", 145, 16], 160),
        (["min", "SM_COUNT", ["ceil_div", "N", 16], 400], 9),
    ],
)
def test_value(expression: object, value: int) -> None:
    assert evaluate(parse_expression(expression, "here"), SIZES, "here") == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("SM_CONT", "unknown symbol 'SM_CONT'; did you mean 'SM_COUNT'?"),
        (True, "True is no size"),
        (1.5, "1.5 is no size"),
        (None, "None is no size"),
        ([], "[] is no size"),
        ([3, 4], "is no size"),
        (["cdiv", "M", 2], "unknown operation 'cdiv'; did you mean 'ceil_div'?"),
        (["ceil_div", "M"], "ceil_div takes 2 operands, got 1"),
        (["min"], "min takes at least one operand, got 0"),
        (["product", "M", ["min", "Q"]], "unknown symbol 'Q'"),
    ],
)
def test_refused(expression: object, words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_expression(expression, "grid[0]")
    assert words in str(caught.value)
    assert str(caught.value).startswith("grid[0]: ")


def test_divisor_of_zero_is_refused() -> None:
    with pytest.raises(LaunchError, match="box: round_up by 0; the divisor must be positive"):
        evaluate(parse_expression(["round_up", "M", ["product", "N", 0]], "box"), SIZES, "box")


leaves = st.integers(1, 10**6) | st.sampled_from(SYMBOLS)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["product", "min"]), inner, inner, inner).map(list),
        st.tuples(st.sampled_from(["ceil_div", "round_up"]), inner, inner).map(list),
    ),
    max_leaves=8,
)


@given(expressions)
def test_json_round_trip(data: Any) -> None:
    parsed = parse_expression(data, "here")
    assert parse_expression(json.loads(json.dumps(to_json(parsed))), "here") == parsed
    assert evaluate(parsed, SIZES, "here") >= 1
    assert set(symbols_in(parsed)) == {name for name in SYMBOLS if json.dumps(name) in json.dumps(data)}
