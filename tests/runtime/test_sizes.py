"""Sizes as text say what the sizes say, also in sizes of symbols that are multiples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambent.backends.sizes import number
from lambent.graph.dim import Dim, Size, evaluate, show
from lambent.graph.prove import maximum, minimum

S, T = Dim("sizes_s", 1, 300), Dim("sizes_t", 0, 640, multiple=8)


def combine(inner: Any) -> Any:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]), pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]), pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] // p[1]),
        st.tuples(inner, st.sampled_from([S, T + 1])).map(lambda p: p[0] // p[1]),
    )  # fmt: skip


SIZES = st.recursive(st.one_of(st.integers(-9, 9), st.sampled_from([S, T])), combine, max_leaves=5)


@settings(max_examples=300, deadline=None)
@given(SIZES, st.integers(1, 300), st.integers(0, 80))
def test_text_is_the_size(size: Size, s: int, t: int) -> None:
    values = {"sizes_s": s, "sizes_t": 8 * t}
    assert number(show(size), values) == evaluate(size, values)


@pytest.mark.parametrize("text", ["s.real", "[s][0]", "s if s else 1", "1.5", "(lambda: s)()"])
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        number(text, {"s": 3})
