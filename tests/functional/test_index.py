"""Gathers and scatters against NumPy and PyTorch: negative, repeated, broadcast indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from against_torch import DTYPES, draw, ours, same
from hypothesis import given, settings
from hypothesis import strategies as st

from lambent.backends.reference.graph import evaluate
from lambent.functional import indexing as ix
from lambent.graph.dim import Dim
from lambent.graph.tensor import Tensor, input

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def indices(rng: np.random.Generator, shape: tuple[int, ...], n: int, least: int = 0) -> Any:
    return torch.from_numpy(rng.integers(least, n, shape).astype(np.int32))


def test_gather_is_not_embedding_case_3() -> None:
    """Axis-wise gather and embedding lookup are different: each against NumPy."""
    rng = np.random.default_rng(3)
    x, table = rng.standard_normal((5, 7)), rng.standard_normal((11, 6))
    along1, along0 = rng.integers(0, 7, (5, 3)), rng.integers(0, 5, (3, 7))
    ids = rng.integers(0, 11, (2, 3))
    names = {"x": x, "a": along1, "b": along0, "table": table, "ids": ids}
    t = {k: input(k, v.shape, v.dtype) for k, v in names.items()}
    got = evaluate(
        [
            ix.take_along_axis(t["x"], t["a"], 1),
            ix.take_along_axis(t["x"], t["b"], 0),
            ix.embedding(t["ids"], t["table"]),
        ],
        names,
    )
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, along1, 1))
    np.testing.assert_array_equal(got[1], np.take_along_axis(x, along0, 0))
    np.testing.assert_array_equal(got[2], table[ids])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from([(), (0,), (3,), (2, 2)]), st.data())
def test_take_is_numpys(shape: tuple[int, ...], to: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(len(shape))
    x = draw(rng, shape, dtype)
    n = x.numel() if axis is None else shape[axis]
    i = indices(rng, to, n, -n)
    every = np.arange(x.numel()).reshape(shape)
    places = torch.from_numpy(np.asarray(np.take(every, i.numpy(), axis)))
    same(lambda x, i: ix.take(x, i, axis), lambda x, i: x.flatten()[places], x, i)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_take_along_axis_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(len(shape))
    to = [data.draw(st.sampled_from([1, n])) for n in shape]
    to[axis] = data.draw(st.integers(0, 4))
    x, i = draw(rng, shape), indices(rng, tuple(to), shape[axis], -shape[axis])
    want = torch.from_numpy(np.take_along_axis(x.numpy(), i.numpy(), axis))
    same(lambda x, i: ix.take_along_axis(x, i, axis), lambda x, i: want, x, i)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_gather_and_scatter_are_pytorchs(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(len(shape))
    to = [data.draw(st.integers(1, n)) for n in shape]
    to[axis] = data.draw(st.integers(0, 5))
    more = tuple(n + data.draw(st.integers(0, 1)) for n in to)
    x, src = draw(rng, shape), draw(rng, more)
    i = indices(rng, tuple(to), shape[axis])
    same(lambda x, i: ix.gather(x, axis, i), lambda x, i: x.gather(axis, i.long()), x, i)
    same(
        lambda x, i, s: ix.scatter_add(x, axis, i, s),
        lambda x, i, s: x.scatter_add(axis, i.long(), s),
        x,
        i,
        src,
    )
    want = x.numpy().copy()  # in order, so that the last wins
    for at in np.ndindex(*to):
        want[(*at[:axis], int(i[at]), *at[axis + 1 :])] = src[at]
    wanted = torch.from_numpy(want)
    same(lambda x, i, s: ix.scatter(x, axis, i, s), lambda *_: wanted, x, i, src)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_of_a_number_in_every_dtype(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, i = draw(rng, (3, 6), dtype), indices(rng, (3, 2), 6)
    same(lambda x, i: ix.scatter(x, 1, i, 1), lambda x, i: x.scatter(1, i.long(), 1), x, i)


def test_index_add_and_select_are_pytorchs() -> None:
    rng = np.random.default_rng(0)
    x, s = draw(rng, (3, 4, 2)), draw(rng, (3, 6, 2))
    i = torch.tensor([1, 0, 1, 3, 3, 1], dtype=torch.int32)
    same(
        lambda x, i, s: ix.index_add(x, 1, i, s),
        lambda x, i, s: x.index_add(1, i, s),
        x,
        i,
        s,
    )
    same(lambda x, i: ix.index_select(x, 1, i), lambda x, i: x.index_select(1, i), x, i)


def test_one_hot_is_pytorchs() -> None:
    ids = torch.tensor([[0, 3], [2, 2]])
    same(lambda i: ix.one_hot(i, 4), lambda i: F.one_hot(i, 4), ids)
    (got,) = ours(lambda i: ix.one_hot(i, 3, "float32"), torch.tensor([-1, 3, 1]))
    np.testing.assert_array_equal(got, [[0, 0, 0], [0, 0, 0], [0, 1, 0]])


def test_out_of_range_reads_zero_and_writes_nothing() -> None:
    x, i = torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([3, -4, 1])
    for got in (ours(ix.take, x, i), ours(lambda x, i: ix.embedding(i, x), x, i)):
        np.testing.assert_array_equal(got[0], [0, 0, 2])
    (got,) = ours(lambda x, i: ix.scatter(x, 0, i, 5), x, i)
    np.testing.assert_array_equal(got, [1, 5, np.nan])


KEYS: list[tuple[Any, ...]] = [
    ("i",),
    ("j",),
    ("i", "i"),
    ("i", slice(None), "i"),
    (slice(None), "i"),
    (slice(None), "i", "i"),
    (slice(None), "i", 1),
    (0, slice(None), "i"),
    (0, "i"),
    (..., "j"),
    (None, "i", None, slice(1, None)),
    (slice(None), None, "j", "i"),
    ("j", None, "i"),
    (slice(None, None, -1), slice(None), "j"),
    ("j", slice(0, 2), "k"),
    ("k", "j", "k"),
    (None, "i", slice(None), "i"),
    (slice(None), "i", None, 1),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_getitem_by_arrays_is_numpys(key: tuple[Any, ...], kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 3))
    arrays = {"i": rng.integers(-3, 3, (2,)), "j": rng.integers(-3, 3, (3, 2)), "k": np.array([2])}
    wrap: Any = (lambda k: input(k, arrays[k].shape, "int64")) if kind == "tensor" else arrays.get
    ours_key = tuple(wrap(k) if isinstance(k, str) else k for k in key)
    want = x[tuple(arrays[k] if isinstance(k, str) else k for k in key)]
    y = input("x", x.shape, "float64")[ours_key]
    (got,) = evaluate([y], {"x": x, **arrays})
    np.testing.assert_array_equal(got, want)
    assert got.shape == want.shape


def test_getitem_by_a_list() -> None:
    x = np.arange(12.0).reshape(3, 4)
    (got,) = evaluate([input("x", x.shape, "float64")[[2, 0]]], {"x": x})
    np.testing.assert_array_equal(got, x[[2, 0]])


def test_symbolic_gather() -> None:
    n = Dim("index_n", 1, 100)
    x, i = input("x", (n, 2), "float64"), input("i", (3,), "int64")
    y = ix.take(x, i, 0)
    a = np.arange(14.0).reshape(7, 2)
    (got,) = evaluate([y], {"x": a, "i": np.array([-1, 0, 6])})
    np.testing.assert_array_equal(got, a[[-1, 0, 6]])


def test_index_errors() -> None:
    x, i = input("x", (4, 5)), input("i", (3, 2), "int64")
    with pytest.raises(TypeError, match="take: indices must be integers"):
        ix.take(x, x, 0)
    with pytest.raises(ValueError, match="take_along_axis: x and indices need equally many dims"):
        ix.take_along_axis(x, input("v", (3,), "int64"), 0)
    with pytest.raises(ValueError, match=r"scatter: .* does not cover"):
        ix.scatter(x, 1, input("big", (5, 2), "int64"), 1)
    with pytest.raises(ValueError, match="scatter: src must have 2 dims"):
        ix.scatter(x, 1, i, input("s", (2,)))
    with pytest.raises(IndexError, match="out of range of the size 4"):
        x[np.array([4])]
    with pytest.raises(TypeError, match="getitem: indices must be integers"):
        x[np.array([True, False, True, True])]
    assert isinstance(x[np.array([-4, 3])], Tensor)
