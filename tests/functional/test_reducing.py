"""Reductions against NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import check, few, full_shapes, run, seeds, shapes, values
from hypothesis import given
from hypothesis import strategies as st

import lambent as lt


@st.composite
def reductions(draw: Any, empty: bool = True) -> tuple[tuple[int, ...], Any, bool]:
    """A shape, an axis argument for it, and keepdims."""
    shape = draw(shapes if empty else full_shapes)
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    axis: Any = draw(st.sampled_from([None, tuple(a - len(shape) for a in axes)]))
    if axes and draw(st.booleans()):
        axis = axes[0]
    return shape, axis, draw(st.booleans())


ANY: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "any": np.any, "all": np.all,
                                      "prod": np.prod, "var": np.var, "std": np.std}  # fmt: skip
FULL: dict[str, Callable[..., Any]] = {"max": np.max, "min": np.min}


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@few
@given(reductions(), seeds)
def test_any_size(name: str, dtype: str, case: Any, seed: int) -> None:
    shape, axis, keep = case
    x = values(shape, dtype, seed)
    if name in ("mean", "var", "std"):
        x = x.astype(np.float32)
    check(lambda x: getattr(x, name)(axis, keepdims=keep),
          lambda x: ANY[name](x, axis=axis, keepdims=keep), x, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "bool"])
@few
@given(reductions(empty=False), seeds, st.booleans())
def test_extrema(name: str, dtype: str, case: Any, seed: int, special: bool) -> None:
    shape, axis, keep = case
    x = values(shape, dtype, seed, special)
    if dtype == "int8":
        x = np.where(x == 3, -128, x).astype(np.int8)
    check(lambda x: getattr(x, name)(axis, keep),
          lambda x: FULL[name](x, axis=axis, keepdims=keep), x)  # fmt: skip


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8"])
@few
@given(full_shapes, seeds, st.booleans(), st.booleans())
def test_first_of_the_extrema(
    name: str, dtype: str, shape: tuple[int, ...], seed: int, keep: bool, special: bool
) -> None:
    x = values(shape, dtype, seed, special)
    x = np.round(x) if dtype == "float32" else x  # ties
    expected = getattr(np, name)
    for axis in [None, *range(len(shape))]:
        check(lambda x, a=axis: getattr(x, name)(a, keep),
              lambda x, a=axis: expected(x, axis=a, keepdims=keep), x)  # fmt: skip


def test_integer_sums_widen() -> None:
    x = np.full((300,), 100, np.int8)
    check(lambda x: [x.sum(), x.cumsum(0), x.sum(dtype="int8")],
          lambda x: [np.sum(x), np.cumsum(x), np.sum(x, dtype="int8")], x)  # fmt: skip


def test_variance_corrections() -> None:
    x = values((4, 5), "float32", 0)
    for n in 0, 1, 2:
        check(lambda x, n=n: [x.var(1, correction=n), x.std(0, True, n)],
              lambda x, n=n: [x.var(1, ddof=n), x.std(0, ddof=n, keepdims=True)], x)  # fmt: skip
    one = values((3, 1), "float32", 0)
    assert np.isnan(run(lambda x: x.var(1, correction=1), one)).all()


def test_mean_of_half_floats_does_not_overflow() -> None:
    x = np.full((4096,), 30.0, np.float16)
    assert run(lambda x: x.mean(), x) == 30
    assert run(lambda x: x.var(), x) == 0


@few
@given(full_shapes, seeds)
def test_softmax_family(shape: tuple[int, ...], seed: int) -> None:
    x = values(shape, "float32", seed) * 10
    t = torch.tensor(x)
    for axis in range(len(shape)):
        check(lambda x, a=axis: [lt.softmax(x, a), lt.log_softmax(x, a), lt.logsumexp(x, a)],
              lambda x, a=axis: [t.softmax(a), t.log_softmax(a), t.logsumexp(a)], x, rtol=1e-5,
              atol=1e-5)  # fmt: skip
    check(lambda x: x.logsumexp(keepdims=True),
          lambda x: t.logsumexp(tuple(range(len(shape))), keepdim=True), x, rtol=1e-5)  # fmt: skip


def test_rows_of_infinities() -> None:
    inf = np.inf
    x = np.array([[-inf, -inf], [-inf, 1], [inf, 1], [inf, -inf], [np.nan, 1]], np.float32)
    t = torch.tensor(x)
    check(lambda x: [lt.softmax(x), lt.log_softmax(x), lt.logsumexp(x, 1)],
          lambda x: [t.softmax(1), t.log_softmax(1), t.logsumexp(1)], x)  # fmt: skip
    big = np.array([[1e30, -1e30, 0], [1000, 999, -1000]], np.float32)
    check(lambda x: lt.softmax(x), lambda x: torch.tensor(x).softmax(1), big)


@few
@given(shapes, seeds)
def test_cumsum(shape: tuple[int, ...], seed: int) -> None:
    for dtype in "float32", "int64":
        x = values(shape, dtype, seed)
        for axis in range(len(shape)):
            check(lambda x, a=axis: x.cumsum(a), lambda x, a=axis: np.cumsum(x, a), x, atol=1e-5)


def test_a_later_infinity_does_not_reach_earlier_sums() -> None:
    x = np.array([1.0, 2.0, np.inf, np.nan], np.float32)
    check(lambda x: x.cumsum(0), lambda x: np.cumsum(x), x)


def test_prod_of_every_length() -> None:
    for n in range(1, 18):
        x = values((2, n), "float32", n)
        check(lambda x: x.prod(1), lambda x: x.prod(1), x, rtol=1e-5)


def test_symbolic_counts() -> None:
    s = lt.Dim("counted", 0, 9)
    x = lt.input("x", (s, 3))
    a = values((4, 3), "float32", 0)
    found = lt.evaluate([x.mean(0), x.var((0, 1), correction=1), lt.tensor(s * 2 + 1)], {"x": a})
    for got, want in zip(found, [a.mean(0), a.var(ddof=1), np.int64(9)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
