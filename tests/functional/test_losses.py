"""Losses and their gradients against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import lambent as lt

reductions = st.sampled_from(["mean", "sum", "none"])
few = settings(max_examples=12, deadline=None, derandomize=True)


def same(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Equal values, and equal gradients by the first operand, of a weighted sum."""
    first = torch.tensor(arrays[0], requires_grad=True)
    want = theirs(first, *map(torch.tensor, arrays[1:]))
    x = lt.input("x", arrays[0].shape, "float64")
    out = ours(x, *map(lt.tensor, arrays[1:]))
    assert out.shape == tuple(want.shape)
    r = np.random.default_rng(5).normal(size=out.shape)
    (want * torch.tensor(r)).sum().backward()
    loss = (out * lt.tensor(r, "float64")).sum()
    value, slope = lt.evaluate([out, lt.grad(loss, x)], {"x": arrays[0]})
    np.testing.assert_allclose(value, want.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope, first.grad.numpy(), rtol=1e-10, atol=1e-12)


@few
@given(
    st.sampled_from([(3,), (5, 3), (2, 3, 4), (2, 3, 2, 2)]), reductions,
    st.sampled_from([0.0, 0.1]), st.integers(0, 9),
)  # fmt: skip
def test_cross_entropy_and_nll(
    shape: tuple[int, ...], reduction: str, smoothing: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 5
    target = rng.integers(0, 3, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    if target.ndim and seed % 2:
        target.flat[0] = -100
    keys = {"reduction": reduction, "label_smoothing": smoothing}
    same(lambda x, t: lt.cross_entropy(x, t, **keys), lambda x, t: F.cross_entropy(x, t, **keys),
         x, target)  # fmt: skip
    shares = rng.random(shape)
    same(
        lambda x, t: lt.cross_entropy(x, t, **keys) if len(shape) > 1 else x.sum(),
        lambda x, t: F.cross_entropy(x, t, **keys) if len(shape) > 1 else x.sum(),
        x,
        shares,
    )
    same(lambda x, t: lt.nll_loss(lt.log_softmax(x, min(1, x.ndim - 1)), t, reduction=reduction),
         lambda x, t: F.nll_loss(F.log_softmax(x, min(1, x.ndim - 1)), t, reduction=reduction),
         x, target)  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")  # PyTorch's of kl_div
@few
@given(reductions, st.integers(0, 9))
def test_elementwise_losses(reduction: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, p = rng.normal(size=(3, 4)) * 3, rng.normal(size=(3, 4)), rng.random((3, 4))
    p[0, 0] = 0.0
    for name, *operands in (
        ("mse_loss", x, y), ("huber_loss", x, y), ("kl_div", x, p),
        ("binary_cross_entropy_with_logits", np.append(x, [[0.0, 800, -800, 1]], 0),
         np.append(p, [[0.5, 0, 1, 1]], 0)),
    ):  # fmt: skip
        f, g = getattr(lt, name), getattr(F, name)
        same(lambda *a, f=f: f(*a, reduction=reduction), lambda *a, g=g: g(*a, reduction=reduction),
             *operands)  # fmt: skip
    same(lambda x, y: lt.huber_loss(x, y, 0.3, reduction),
         lambda x, y: F.huber_loss(x, y, reduction, 0.3), x, y)  # fmt: skip
    same(lambda x, y: lt.kl_div(x, y, "batchmean", True),
         lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), x, y)  # fmt: skip


def test_the_classes_along_another_axis() -> None:
    x, target = lt.input("x", (2, 4, 3)), lt.input("t", (2, 4), "int64")
    a = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    t = np.array([[0, 1, 2, 2], [1, 1, 0, -100]])
    (found,) = lt.evaluate([lt.cross_entropy(x, target, axis=-1)], {"x": a, "t": t})
    want = F.cross_entropy(torch.tensor(a).reshape(-1, 3), torch.tensor(t).reshape(-1))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_a_target_out_of_range_shows() -> None:
    x, target = lt.input("x", (2, 3)), lt.input("t", (2,), "int64")
    a = np.zeros((2, 3), np.float32)
    for t in (3, -1):
        (found,) = lt.evaluate([lt.cross_entropy(x, target)], {"x": a, "t": np.array([0, t])})
        assert np.isnan(found)
    narrow = lt.cross_entropy(lt.input("h", (2, 3), "bfloat16"), target)
    assert narrow.dtype == lt.float32


def test_errors() -> None:
    x, t = lt.input("x", (2, 3, 4)), lt.input("t", (2, 3), "int64")
    with pytest.raises(ValueError, match=r"classes along dim 1 needs a target of shape \[2, 4\]"):
        lt.cross_entropy(x, t)
    with pytest.raises(ValueError, match="reduction must be"):
        lt.mse_loss(x, x, "avg")
    with pytest.raises(ValueError, match="label_smoothing 2 is not"):
        lt.cross_entropy(x, t, label_smoothing=2, axis=2)
    with pytest.raises(ValueError, match="differ in shape"):
        lt.mse_loss(x, t)
    with pytest.raises(TypeError, match="target must be integers"):
        lt.nll_loss(x, lt.input("f", (2, 4)))
