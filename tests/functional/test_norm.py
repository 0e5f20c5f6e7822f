"""Norms against PyTorch, and the paddings by what is inside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from against_torch import draw, ours, same
from hypothesis import given, settings
from hypothesis import strategies as st

from lambent.functional import norm
from lambent.functional.padding import pad
from lambent.graph.dim import Dim
from lambent.graph.tensor import input

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.data())
def test_layer_and_rms_norm_are_pytorchs(shape: tuple[int, ...], data: st.DataObject) -> None:
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    lead = data.draw(st.sampled_from([(), (0,), (2,)]))
    rng = np.random.default_rng(len(shape))
    x, w, b = draw(rng, (*lead, *shape)), draw(rng, last), draw(rng, last)
    same(
        lambda x, w, b: norm.layer_norm(x, last, w, b, 1e-3),
        lambda x, w, b: F.layer_norm(x, last, w, b, 1e-3),
        x,
        w,
        b,
    )
    same(lambda x: norm.layer_norm(x, last), lambda x: F.layer_norm(x, last), x)
    same(lambda x, w: norm.rms_norm(x, last, w), lambda x, w: F.rms_norm(x, last, w), x, w)
    same(lambda x: norm.rms_norm(x, last, eps=0.1), lambda x: F.rms_norm(x, last, None, 0.1), x)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([(2,), (3, 1)]))
def test_channel_norms_are_pytorchs(n: int, groups: int, inner: int, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(n)
    c = groups * inner
    x, w, b, mean = draw(rng, (n, c, *size)), draw(rng, (c,)), draw(rng, (c,)), draw(rng, (c,))
    var = mean.square() + 0.1
    same(
        lambda x, w, b: norm.group_norm(x, groups, w, b),
        lambda x, w, b: F.group_norm(x, groups, w, b),
        x,
        w,
        b,
    )
    same(norm.instance_norm, lambda x, w, b: F.instance_norm(x, None, None, w, b), x, w, b)
    same(norm.batch_norm, lambda *xs: F.batch_norm(*xs, False), x, mean, var, w, b)

    def trained(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        axes = (0, *range(2, x.ndim))
        return F.batch_norm(x, None, None, w, b, True), x.mean(axes), x.var(axes, correction=0)

    same(norm.batch_norm_train, trained, x, w, b)


def test_batch_norm_of_plain_vectors() -> None:
    rng = np.random.default_rng(0)
    x, mean, var = draw(rng, (4, 3)), draw(rng, (3,)), draw(rng, (3,)).square()
    same(norm.batch_norm, lambda x, m, v: F.batch_norm(x, m, v), x, mean, var)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_do_not_overflow_inside(dtype: str) -> None:
    x = (draw(np.random.default_rng(0), (3, 64)) * 1000).to(getattr(torch, dtype))
    want = F.layer_norm(x.double(), (64,)).numpy()
    (got,) = ours(lambda x: norm.layer_norm(x, 64), x)
    np.testing.assert_allclose(got.astype(np.float64), want, atol=0.02)
    (got,) = ours(lambda x: norm.rms_norm(x, 64), x)
    want = F.rms_norm(x.double(), (64,)).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, atol=0.02)


def test_symbolic_layer_norm_builds() -> None:
    s = Dim("norm_s", 1, 64)
    x = input("x", (2, s, 8))
    assert norm.layer_norm(x, 8).shape == (2, s, 8)
    assert norm.layer_norm(x, (s, 8)).shape == (2, s, 8)


def test_norm_errors() -> None:
    x = input("x", (2, 4, 3))
    with pytest.raises(ValueError, match=r"layer_norm: float32\[2, 4, 3\] does not end in \[4\]"):
        norm.layer_norm(x, 4)
    with pytest.raises(ValueError, match=r"layer_norm: float32\[4\] does not fit"):
        norm.layer_norm(x, 3, input("w", (4,)))
    with pytest.raises(ValueError, match="group_norm: 3 groups do not divide 4"):
        norm.group_norm(x, 3)
    with pytest.raises(TypeError, match="rms_norm: needs a floating dtype"):
        norm.rms_norm(input("i", (3,), "int64"), 3)


# ---- padding ---------------------------------------------------------------------------------

NUMPY = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NUMPY)), SHAPES, st.data())
def test_pad_modes_are_numpys(mode: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    room = {"reflect": -1, "replicate": 3, "circular": 0}[mode]
    pads = [tuple(data.draw(st.integers(0, min(3, n + room))) for _ in range(2)) for n in shape]
    dtype = data.draw(st.sampled_from(["float64", "int32", "bool"]))
    x = draw(np.random.default_rng(0), shape, dtype)
    want = torch.from_numpy(np.pad(x.numpy(), pads, NUMPY[mode]))
    same(lambda x: pad(x, pads, mode), lambda x: want, x)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(-2, 3), st.integers(-2, 3), st.sampled_from([0, 7, -1.5]))
def test_constant_pad_is_pytorchs(n: int, low: int, high: int, value: float) -> None:
    if n + low + high < 0 or n < -low or n < -high:
        return
    x = draw(np.random.default_rng(n), (2, n))
    same(
        lambda x: pad(x, ((0, 1), (low, high)), value=value),
        lambda x: F.pad(x, (low, high, 0, 1), value=value),
        x,
    )


def test_pad_with_infinity_is_exact() -> None:
    x = torch.tensor([[1.0, torch.inf], [torch.nan, 0.0]])
    same(
        lambda x: pad(x, ((1, 0), (0, 1)), value=-np.inf),
        lambda x: F.pad(x, (0, 1, 1, 0), value=-np.inf),
        x,
    )


def test_pad_errors() -> None:
    x = input("x", (2, 3))
    with pytest.raises(ValueError, match=r"pad: reflect by \(3, 0\) at dim 1"):
        pad(x, ((0, 0), (3, 0)), "reflect")
    with pytest.raises(ValueError, match=r"pad: circular by \(0, 3\) at dim 0"):
        pad(x, ((0, 3), (0, 0)), "circular")
    with pytest.raises(ValueError, match="pad: mode 'mirror' is none of constant, reflect"):
        pad(x, ((0, 3), (0, 0)), "mirror")
    with pytest.raises(ValueError, match="pad: 1 pairs for the 2 dims"):
        pad(x, ((0, 3),), "reflect")
