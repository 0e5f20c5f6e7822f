"""Pooling against PyTorch: ranks, strides, padding, ceil mode, adaptive sizes, symbolic windows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from against_torch import draw, ours, same
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lambent.backends.reference.graph import evaluate
from lambent.functional import pool
from lambent.graph.dim import Dim
from lambent.graph.tensor import input

RANKS = (1, 2, 3)
MAX = dict(zip(RANKS, (pool.max_pool1d, pool.max_pool2d, pool.max_pool3d), strict=True))
AVG = dict(zip(RANKS, (pool.avg_pool1d, pool.avg_pool2d, pool.avg_pool3d), strict=True))
TORCH_MAX = dict(zip(RANKS, (F.max_pool1d, F.max_pool2d, F.max_pool3d), strict=True))
TORCH_AVG = dict(zip(RANKS, (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), strict=True))


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    rank = draw_(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return draw_(st.tuples(*[st.integers(low, high)] * rank))

    kernel = each(1, 4)
    return {
        "rank": rank,
        "lead": draw_(st.sampled_from([(2,), (1, 2), (2, 3)])),
        "size": each(1, 8 if rank < 3 else 5),
        "kernel": kernel,
        "stride": draw_(st.one_of(st.none(), st.just(each(1, 4)))),
        "padding": tuple(draw_(st.integers(0, k // 2)) for k in kernel),
        "dilation": each(1, 2),
        "ceil_mode": draw_(st.booleans()),
        "seed": draw_(st.integers(0, 99)),
    }


@settings(max_examples=80, deadline=None)
@given(cases())
def test_max_pool_is_pytorchs(c: dict[str, Any]) -> None:
    spans = [(k - 1) * d + 1 for k, d in zip(c["kernel"], c["dilation"], strict=True)]
    assume(all(n + 2 * p >= s for n, p, s in zip(c["size"], c["padding"], spans, strict=True)))
    x = draw(np.random.default_rng(c["seed"]), (*c["lead"], *c["size"]))
    args = [c[k] for k in ("kernel", "stride", "padding", "dilation", "ceil_mode")]
    same(lambda x: MAX[c["rank"]](x, *args), lambda x: TORCH_MAX[c["rank"]](x, *args), x)
    if any(n == 0 for n in x.shape):
        return
    x = x.round()  # so that some are equal
    most, want = TORCH_MAX[c["rank"]](x, *args, return_indices=True)
    (got,) = ours(lambda x: pool.max_pool_indices(c["rank"], x, *args), x)
    seen = np.isfinite(np.asarray(most))  # a window of padding alone has no place
    np.testing.assert_array_equal(got[seen], np.asarray(want)[seen])


@settings(max_examples=80, deadline=None)
@given(cases(), st.booleans())
def test_avg_pool_is_pytorchs(c: dict[str, Any], include: bool) -> None:
    parts = zip(c["size"], c["padding"], c["kernel"], strict=True)
    bonus = 0 if c["rank"] == 3 else 2  # PyTorch's check forgets the padding at rank 3
    assume(all(n + bonus * p >= k for n, p, k in parts))
    x = draw(np.random.default_rng(c["seed"]), (*c["lead"], *c["size"]))
    args = [c[k] for k in ("kernel", "stride", "padding", "ceil_mode")]
    same(
        lambda x: AVG[c["rank"]](x, *args, include),
        lambda x: TORCH_AVG[c["rank"]](x, *args, include),
        x,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.data())
def test_adaptive_pools_are_pytorchs(size: list[int], data: st.DataObject) -> None:
    rank = len(size)
    outs = st.tuples(*[st.integers(1, 9)] * rank) if rank > 1 else st.integers(1, 9)
    out = data.draw(st.one_of(st.integers(1, 4), outs))
    x = draw(np.random.default_rng(rank), (2, 3, *size))
    for kind in ("avg", "max"):
        name = f"adaptive_{kind}_pool{rank}d"
        ours, theirs = getattr(pool, name), getattr(F, name)
        same(lambda x, f=ours: f(x, out), lambda x, f=theirs: f(x, out), x)


def test_adaptive_sizes_may_be_kept() -> None:
    x = draw(np.random.default_rng(0), (2, 3, 4, 5))
    same(
        lambda x: pool.adaptive_avg_pool2d(x, (None, 2)),
        lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
        x,
    )


def test_minus_infinity_stays_and_nan_spreads() -> None:
    x = torch.tensor([[[-torch.inf, -torch.inf, 1.0, torch.nan, 2.0, torch.inf]]])
    same(lambda x: pool.max_pool1d(x, 2, 1, 1), lambda x: F.max_pool1d(x, 2, 1, 1), x)
    same(lambda x: pool.adaptive_max_pool1d(x, 4), lambda x: F.adaptive_max_pool1d(x, 4), x)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
def test_integers_pad_with_their_minimum(dtype: str) -> None:
    x = draw(np.random.default_rng(0), (1, 2, 7), dtype) - (0 if dtype == "uint8" else 100)
    wide = F.max_pool1d(x.double(), 3, 2, 1).to(x.dtype)
    same(lambda x: pool.max_pool1d(x, 3, 2, 1), lambda x: wide, x)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (1, 1, 1)])
def test_empty_and_small_dims(shape: tuple[int, ...]) -> None:
    x = draw(np.random.default_rng(0), shape)
    k = min(2, shape[-1])
    same(lambda x: pool.max_pool1d(x, k), lambda x: x.unfold(-1, k, k).amax(-1), x)
    same(lambda x: pool.avg_pool1d(x, k), lambda x: x.unfold(-1, k, k).mean(-1), x)
    same(lambda x: pool.adaptive_avg_pool1d(x, 1), lambda x: x.mean(-1, keepdim=True), x)


def test_unfold_is_pytorchs() -> None:
    x = draw(np.random.default_rng(0), (3, 7, 2))
    for size in (1, 3, 7):
        for step in (1, 2, 5):
            args = (1, size, step)
            same(lambda x, a=args: pool.unfold(x, *a), lambda x, a=args: x.unfold(*a), x)


def test_symbolic_windows_build_fast_case_10() -> None:
    """A window count over Dim("n", 1, 4096) must not make building explode."""
    n = Dim("pool_n", 1, 4096)
    start = time.process_time()
    x = input("x", (2, n, n), "float64")
    padded = pool.max_pool2d(x, 3, 2, 1)
    mean = pool.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    y = input("y", (2, n + 2), "float64")
    unfolded = pool.unfold(y, 1, 3, 2)
    deep = padded
    for _ in range(3):
        deep = pool.max_pool2d(deep, 3, 2, 1)
    assert time.process_time() - start < 1.0
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 8):
        a, b = draw(rng, (2, size, size)), draw(rng, (2, size + 2))
        got = evaluate([padded, mean, unfolded, deep], {"x": a.numpy(), "y": b.numpy()})
        wanted = [
            F.max_pool2d(a, 3, 2, 1),
            F.avg_pool2d(a, 3, 2, 1, True, False),
            b.unfold(1, 3, 2),
            F.max_pool2d(
                F.max_pool2d(F.max_pool2d(F.max_pool2d(a, 3, 2, 1), 3, 2, 1), 3, 2, 1), 3, 2, 1
            ),
        ]
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w.numpy(), atol=1e-12)


def test_a_window_must_fit_every_size() -> None:
    x = input("x", (2, Dim("pool_small", 1, 4096)))
    with pytest.raises(ValueError, match=r"the window 3 .* more than the pool_small"):
        pool.max_pool1d(x, 3, 2)
    pooled = pool.adaptive_avg_pool1d(x, 1)
    assert pooled.shape == (2, 1)
    with pytest.raises(ValueError, match="adaptive_avg_pool1d: 2 parts of the symbolic size"):
        pool.adaptive_avg_pool1d(x, 2)


def test_errors_name_the_op() -> None:
    x = input("x", (2, 3, 5))
    with pytest.raises(ValueError, match="max_pool1d: padding 2 is more than half"):
        pool.max_pool1d(x, 3, 1, 2)
    with pytest.raises(TypeError, match="avg_pool1d: needs a floating dtype"):
        pool.avg_pool1d(input("i", (2, 3, 5), "int64"), 2)
    with pytest.raises(ValueError, match="max_pool2d: kernel_size must be 2"):
        pool.max_pool2d(x, (2, 2, 2))
    with pytest.raises(ValueError, match="parts of dim 2"):
        pool.adaptive_max_pool1d(input("e", (2, 3, 0)), 2)
