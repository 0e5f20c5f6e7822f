"""Gradients of the composed ops against PyTorch's and against finite differences, in float64."""

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

X = ((3, 4),)
WIDE = (-3.0, 3.0)
Case = tuple[
    Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...], tuple[float, float]
]

_ids = np.array([[1, 0, 3], [-1, 3, 3]])
_tids = torch.tensor(_ids) % 4
_unique = np.array([[1, 0], [2, 3]])  # of equal indices PyTorch's gradient takes both for written
_ids3 = np.array([[1, 0, 3, 3], [0, 3, 3, 1], [2, 2, 2, 2]])
_mask = np.random.default_rng(0).random((3, 4)) < 0.5


def _both(
    name: str, shapes: Any = X, span: tuple[float, float] = WIDE, **changes: Any
) -> dict[str, Case]:
    """A row for an op of one name and one calling convention in both libraries."""
    theirs = getattr(torch, name, None) or getattr(F, name)
    return {name: (getattr(lt, name), theirs, shapes, span)}


def _unary(span: tuple[float, float], *names: str) -> dict[str, Case]:
    return {k: v for name in names for k, v in _both(name, X, span).items()}


CASES: dict[str, Case] = {
    **_unary(WIDE, "abs", "neg", "square", "exp2", "exp", "expm1", "sin", "cos", "tan", "tanh"),
    **_unary(WIDE, "sigmoid", "relu", "leaky_relu", "elu", "silu", "softplus", "mish", "atan"),
    **_unary(WIDE, "hardsigmoid", "hardswish", "sinh", "cosh", "asinh", "sign", "floor"),
    **_unary(WIDE, "ceil", "trunc", "round", "logsumexp", "softmax", "log_softmax", "erf", "gelu"),
    **_unary((0.2, 4.0), "log2", "log", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"),
    **_unary((-0.95, 0.95), "asin", "acos", "atanh"),
    **_unary((1.1, 4.0), "acosh"),
    "gelu_tanh": (lambda x: lt.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), X, WIDE),
    "pow": (lambda x, y: x**y, lambda x, y: x**y, ((3, 4), (4,)), (0.2, 3.0)),
    "whole_pow": (lambda x: x**3 + x**-2, lambda x: x**3 + x**-2, X, WIDE),
    "broken_pow": (lambda x: x**1.7, lambda x: x**1.7, X, (0.1, 3.0)),
    **_both("add", ((3, 4), (4,))), **_both("sub", ((3, 1), (4,))), **_both("mul", ((3, 4), (1,))),
    **_both("div", ((3, 4), (3, 1)), (0.3, 2.0)), **_both("maximum", ((3, 4), (4,))),
    **_both("minimum", ((3, 4), (4,))), **_both("remainder", ((3, 4), (3, 4)), (0.3, 5.0)),
    "clip": (lambda x: x.clip(-1.0, 1.5), lambda x: x.clip(-1.0, 1.5), X, WIDE),
    "where": (
        lambda x, y: lt.where(_mask, x * x, y),
        lambda x, y: torch.where(torch.tensor(_mask), x * x, y), ((3, 4), (4,)), WIDE,
    ),
    # reductions
    **_both("sum"), **_both("mean"), **_both("prod"),
    "max": (lambda x: x.max((0, 2)), lambda x: x.amax((0, 2)), ((2, 3, 4),), WIDE),
    "ties": (lambda x: lt.round(x * 0).max() + (x * 0).max(1).sum() + (lt.clip(x, 0, 1)).max(),
             lambda x: (x * 0).amax() + (x * 0).amax(1).sum() + x.clip(0, 1).amax(), X, (1.5, 3)),
    "min": (lambda x: x.min(1), lambda x: x.amin(1), X, WIDE),
    "var": (lambda x: x.var(1, correction=1), lambda x: x.var(1), X, WIDE),
    "std": (lambda x: x.std((0, 1)), lambda x: x.std((0, 1), correction=0), X, WIDE),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1), X, WIDE),
    # shapes
    "shaping": (
        lambda x: x.mT.flatten()[1:-1:3].flip(0), lambda x: x.mT.flatten()[1:-1:3].flip(0), X, WIDE,
    ),
    "backwards": (lambda x: x[::-2, 1], lambda x: x.flip(0)[::2, 1], X, WIDE),
    "concat": (
        lambda x, y: lt.concat([x, y, x * y], 1), lambda x, y: torch.cat([x, y, x * y], 1),
        ((3, 2), (3, 2)), WIDE,
    ),
    "stack_split": (
        lambda x, y: lt.stack(lt.stack([x, y], 1).split([1, 2], 2)[1:]),
        lambda x, y: torch.stack(torch.stack([x, y], 1).split([1, 2], 2)[1:]),
        ((2, 3), (2, 3)), WIDE,
    ),
    "repeat": (lambda x: x.tile((2, 3)), lambda x: x.repeat(2, 3), X, WIDE),
    "roll": (lambda x: x.roll(3, 1), lambda x: x.roll(3, 1), X, WIDE),
    "reflect": (
        lambda x: lt.pad(x, [(0, 0), (2, 1)], "reflect"),
        lambda x: F.pad(x, (2, 1), "reflect"), X, WIDE,
    ),
    "tril": (lambda x: x.tril(1) + x.triu(), lambda x: x.tril(1) + x.triu(), X, WIDE),
    "diagonal": (lambda x: x.diagonal(), lambda x: x.diagonal(), ((4, 4),), WIDE),
    "unfold": (lambda x: x.unfold(1, 2, 2), lambda x: x.unfold(1, 2, 2), ((2, 5),), WIDE),
    # products
    "matmul": (lambda x, y: x @ y, lambda x, y: x @ y, ((2, 3, 4), (4, 2)), WIDE),
    "linear": (lt.linear, F.linear, ((2, 3), (4, 3), (4,)), WIDE),
    "einsum": (
        lambda x, y: lt.einsum("iij,kj->ik", x, y), lambda x, y: torch.einsum("iij,kj->ik", x, y),
        ((2, 2, 3), (2, 3)), WIDE,
    ),
    "attention": (
        lambda q, k, v: lt.attention(q, k, v, causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 2, 4, 3),) * 3, WIDE,
    ),
    "conv2d": (
        lambda x, w, b: lt.conv2d(x, w, b, stride=2, padding=1, groups=2),
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=2),
        ((1, 2, 5, 4), (4, 1, 3, 2), (4,)), WIDE,
    ),
    "conv1d_dilated": (
        lambda x, w: lt.conv1d(x, w, dilation=2), lambda x, w: F.conv1d(x, w, dilation=2),
        ((2, 2, 7), (3, 2, 3)), WIDE,
    ),
    "conv_transpose1d": (
        lambda x, w: lt.conv_transpose1d(x, w, stride=2),
        lambda x, w: F.conv_transpose1d(x, w, stride=2), ((1, 2, 4), (2, 3, 3)), WIDE,
    ),
    "max_pool": (
        lambda x: lt.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1),
        ((1, 1, 5, 4),), WIDE,
    ),
    "avg_pool": (
        lambda x: lt.avg_pool1d(x, 3, 2, 1), lambda x: F.avg_pool1d(x, 3, 2, 1), ((1, 2, 6),), WIDE,
    ),
    "adaptive_avg_pool": (
        lambda x: lt.adaptive_avg_pool1d(x, 3), lambda x: F.adaptive_avg_pool1d(x, 3),
        ((1, 1, 7),), WIDE,
    ),
    "convolutions of three dims": (
        lambda x, w, v: lt.conv_transpose3d(lt.conv3d(x, w, padding=1), v),
        lambda x, w, v: F.conv_transpose3d(F.conv3d(x, w, padding=1), v),
        ((1, 1, 2, 3, 2), (2, 1, 2, 2, 2), (2, 1, 1, 2, 1)), WIDE,
    ),
    "conv_transpose2d": (
        lambda x, w: lt.conv_transpose2d(x, w, stride=2, padding=1),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        ((1, 2, 3, 3), (2, 1, 3, 2)), WIDE,
    ),
    "pools of lines": (
        lambda x: lt.max_pool1d(x, 2) + lt.adaptive_max_pool1d(x, 3),
        lambda x: F.max_pool1d(x, 2) + F.adaptive_max_pool1d(x, 3), ((1, 2, 6),), WIDE,
    ),
    "pools of planes": (
        lambda x: lt.avg_pool2d(x, 2) + lt.adaptive_max_pool2d(x, 2) + lt.adaptive_avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2) + F.adaptive_max_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 2),
        ((1, 1, 4, 4),), WIDE,
    ),
    "pools of spaces": (
        lambda x: lt.avg_pool3d(x, 2) + lt.max_pool3d(x, 2) + lt.adaptive_max_pool3d(x, 1)
        + lt.adaptive_avg_pool3d(x, 1),
        lambda x: F.avg_pool3d(x, 2) + F.max_pool3d(x, 2) + F.adaptive_max_pool3d(x, 1)
        + F.adaptive_avg_pool3d(x, 1), ((1, 1, 2, 2, 2),), WIDE,
    ),
    "more products": (
        lambda x, y: lt.outer(x, y) * lt.dot(x, y), lambda x, y: torch.outer(x, y) * (x @ y),
        ((3,), (3,)), WIDE,
    ),
    "more shapes": (
        lambda x: lt.squeeze(lt.unsqueeze(lt.moveaxis(lt.transpose(x, 0, 1), 0, 1), 0), 0)
        * lt.chunk(lt.broadcast_to(x.sum(), (3, 8)), 2, 1)[1] + lt.unflatten(x, 1, (2, 2)).sum(),
        lambda x: x * x.sum().broadcast_to(3, 4) + x.sum(), X, WIDE,
    ),
    "views": (
        lambda x: lt.window(lt.reshape(lt.permute(x, 1, 0), -1), 0, 3, 2)
        * lt.expand(lt.repeat(lt.pow(x[:1, :1], 2.0), 3, 1), 5, 3),
        lambda x: x.permute(1, 0).reshape(-1).unfold(0, 3, 2) * x[0, 0] ** 2, X, WIDE,
    ),
    # norms
    "batch_norm_given": (
        lambda x: lt.batch_norm(x, np.ones(2), np.full(2, 0.5)),
        lambda x: F.batch_norm(x, torch.ones(2).double(), torch.full((2,), 0.5).double()),
        ((3, 2, 2),), WIDE,
    ),
    "instance_norm": (
        lambda x: lt.instance_norm(x), lambda x: F.instance_norm(x), ((1, 2, 3, 2),), WIDE,
    ),
    "layer_norm": (
        lambda x, w, b: lt.layer_norm(x, 4, w, b), lambda x, w, b: F.layer_norm(x, (4,), w, b),
        ((3, 4), (4,), (4,)), WIDE,
    ),
    "rms_norm": (
        lambda x, w: lt.rms_norm(x, 4, w), lambda x, w: F.rms_norm(x, (4,), w),
        ((3, 4), (4,)), WIDE,
    ),
    "group_norm": (
        lambda x, w, b: lt.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b),
        ((1, 4, 3), (4,), (4,)), WIDE,
    ),
    "batch_norm": (
        lambda x, w, b: lt.batch_norm_train(x, w, b)[0],
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), ((3, 2, 2), (2,), (2,)), WIDE,
    ),
    # indices
    "embedding": (
        lambda t: lt.embedding(_ids % 4, t), lambda t: F.embedding(_tids, t), ((4, 2),), WIDE,
    ),
    "take": (lambda x: x.take(_ids, 1), lambda x: x[:, _tids], X, WIDE),
    "gather": (
        lambda x: x.gather(1, _ids % 4), lambda x: x[:2].gather(1, _tids), X, WIDE,
    ),
    "more gathers": (
        lambda x: lt.index_select(x, 0, np.array([2, 0, 2])) * lt.take_along_axis(x, _ids3, 1),
        lambda x: x[[2, 0, 2]] * x.gather(1, torch.tensor(_ids3)), X, WIDE,
    ),
    "getitem": (lambda x: x[_ids % 3, _ids], lambda x: x[_tids_3, _tids], X, WIDE),
    "scatter": (
        lambda x, y: x.scatter(1, _unique, y),
        lambda x, y: x.scatter(1, torch.tensor(_unique), y), ((3, 4), (2, 2)), WIDE,
    ),
    "scatter_add": (
        lambda x, y: x.scatter_add(1, _ids % 4, y),
        lambda x, y: x.scatter_add(1, _tids, y), ((3, 4), (2, 3)), WIDE,
    ),
    "index_add": (
        lambda x, y: x.index_add(0, np.array([2, 0, 2]), y),
        lambda x, y: x.index_add(0, torch.tensor([2, 0, 2]), y), ((3, 4), (3, 4)), WIDE,
    ),
    "sort": (lambda x: x.sort(1)[0], lambda x: x.sort(1)[0], X, WIDE),
    "topk": (lambda x: x.topk(2)[0], lambda x: x.topk(2)[0], X, WIDE),
}  # fmt: skip
_tids_3 = torch.tensor(_ids % 3)
_WITH_AXIS = {"logsumexp", "softmax", "log_softmax"}
LOOSE = {"erf": 2e-5, "gelu": 2e-5, "atan": 1e-5, "asin": 1e-5, "acos": 1e-5}
"""Fits that are made for float32, whose slopes are as good."""


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 99))
def test_gradients_are_pytorchs_and_those_of_differences(name: str, seed: int) -> None:
    f, theirs, shapes, (low, high) = CASES[name]
    if name in _WITH_AXIS:
        g, h = f, theirs
        f, theirs = (lambda x: g(x, 1)), (lambda x: h(x, 1))
    rng = np.random.default_rng(seed)
    at = {f"x{i}": rng.uniform(low, high, s) for i, s in enumerate(shapes)}
    xs = {n: lt.input(n, a.shape, "float64") for n, a in at.items()}
    out = f(*xs.values())
    r = rng.normal(size=out.shape)
    loss = (out * lt.tensor(r)).sum()
    operands = [torch.tensor(a, requires_grad=True) for a in at.values()]
    (theirs(*operands) * torch.tensor(r)).sum().backward()
    rtol = LOOSE.get(name, 1e-8)
    try:
        found = lt.grad(loss, xs)
    except ValueError:  # through comparisons alone: PyTorch says zero
        assert all(not x.grad.any() for x in operands)
        return
    values = dict(zip(xs, lt.evaluate(list(found.values()), at, float64=True), strict=True))
    for x, got in zip(operands, values.values(), strict=True):
        np.testing.assert_allclose(got, x.grad.numpy(), rtol=rtol, atol=rtol)
    way = {n: rng.normal(size=a.shape) * 1e-6 for n, a in at.items()}
    ends = [
        lt.evaluate([loss], {n: a + sign * way[n] for n, a in at.items()}, float64=True)[0]
        for sign in (1, -1)
    ]
    along = sum(float((values[n] * way[n]).sum()) for n in at)
    np.testing.assert_allclose((ends[0] - ends[1]) / 2, along, rtol=2e-5, atol=2e-11)


APART = {
    "checkpoint", "grad", "stop_gradient",  # tests/graph/test_autograd.py
    "all", "any", "isfinite", "isnan", "tensor", "zeros",
    "arange", "argmax", "argmin", "argsort", "cast", "constant", "equal", "eye", "floor_divide",
    "full", "full_like", "greater", "greater_equal", "invert", "isinf", "less", "less_equal",
    "linspace", "logical_and", "logical_not", "logical_or", "logical_xor", "not_equal", "one_hot",
    "ones", "ones_like", "tri", "zeros_like",  # of no operand, or with results that have none
}  # fmt: skip


def test_every_op_that_has_a_gradient_has_a_case() -> None:
    public = {n: f for n, f in vars(lt).items() if f.__class__.__name__ == "function"}
    ops = {n: f for n, f in public.items() if f.__module__.startswith("lambent.functional")}
    tested = {n for n, f in ops.items() if any(f is case[0] for case in CASES.values())}
    for f, *_ in CASES.values():
        tested.update(f.__code__.co_names)
    losses = {n for n in ops if n.endswith(("_loss", "entropy", "logits")) or n == "kl_div"}
    assert sorted(ops.keys() - tested - APART - losses) == []


def test_where_pytorch_is_finite_at_edges_so_are_we() -> None:
    """Zeros, ties and large values in ops that choose between two forms."""
    x = lt.input("x", (6,), "float64")
    a = np.array([0.0, 1.0, -1.0, 30.0, -30.0, 0.5])
    for name in ("abs", "expm1", "tanh", "sigmoid", "elu", "silu", "softplus", "mish", "gelu",
                 "erf", "atan", "sinh", "asinh", "relu", "hardswish", "log_softmax"):  # fmt: skip
        (found,) = lt.evaluate([lt.grad(getattr(lt, name)(x).sum(), x)], {"x": a})
        assert np.isfinite(found).all(), name
