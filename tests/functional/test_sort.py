"""Sorting against PyTorch: ties, NaN and infinities, directions, dtypes, empty lines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from against_torch import DTYPES, draw, same
from hypothesis import given, settings
from hypothesis import strategies as st

from lambent.backends.reference.graph import evaluate
from lambent.functional import sorting
from lambent.graph.dim import Dim
from lambent.graph.tensor import input

VALUES = st.sampled_from([0.0, 1.0, 1.0, 2.0, -1.0, float("nan"), float("inf"), -float("inf")])


@settings(max_examples=80, deadline=None)
@given(st.lists(VALUES, max_size=8), st.booleans())
def test_sort_is_stable_and_nan_is_largest(values: list[float], descending: bool) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    same(
        lambda x: sorting.sort(x, -1, descending),
        lambda x: torch.sort(x, stable=True, descending=descending),
        x,
    )
    same(
        lambda x: sorting.argsort(x, 0, descending),
        lambda x: torch.argsort(x, dim=0, descending=descending, stable=True),
        x,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort_every_dtype_along_every_axis(dtype: str, axis: int) -> None:
    x = draw(np.random.default_rng(1), (4, 5, 3), dtype)
    for descending in (False, True):
        same(
            lambda x, d=descending: sorting.sort(x, axis, d),
            lambda x, d=descending: torch.sort(x, dim=axis, descending=d, stable=True),
            x,
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=8), st.booleans(), st.data())
def test_topk_is_the_start_of_sort(values: list[float], largest: bool, data: st.DataObject) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    k = data.draw(st.integers(0, len(values)))

    def theirs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ordered, places = torch.sort(x, stable=True, descending=largest)
        return ordered[:k], places[:k]

    same(lambda x: sorting.topk(x, k, largest=largest), theirs, x)
    same(
        lambda x: sorting.topk(x, k, largest=largest)[0], lambda x: x.topk(k, largest=largest)[0], x
    )


def test_symbolic_sort() -> None:
    n = Dim("sort_n", 1, 50)
    values, places = sorting.sort(input("x", (2, n), "float64"))
    a = np.random.default_rng(0).integers(0, 4, (2, 9)).astype(np.float64)
    got = evaluate([values, places], {"x": a})
    np.testing.assert_array_equal(got[0], np.sort(a))
    np.testing.assert_array_equal(got[1], np.argsort(a, kind="stable"))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"topk: k=6 of the 5 along axis 1"):
        sorting.topk(input("x", (2, 5)), 6)
    with pytest.raises(IndexError, match="sort: axis 2"):
        sorting.sort(input("x", (2, 5)), 2)
