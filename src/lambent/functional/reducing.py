"""Reductions: over one axis, a tuple of axes, or (by default) all; `keepdims` leaves size 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lambent.functional import operands
from lambent.functional.arithmetic import invert, isinf, isnan, logical_not, sqrt, where
from lambent.functional.gradient import stop_gradient
from lambent.functional.mathematics import as_float, exp, log
from lambent.functional.operands import (
    TensorLike,
    as_tensor,
    cast,
    constant,
    reduce,
)
from lambent.functional.shaping import as_axes, flatten, moveaxis, unsqueeze
from lambent.graph import tensor as core
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import bool_, int64
from lambent.graph.tensor import Tensor, view

Axes = int | Sequence[int] | None


def _over(op: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """One primitive reduction after the other, the last axis first."""
    out = x
    for axis in reversed(axes):
        out = reduce(op, out, axis)
    return _kept(out, x, axes, keepdims)


def _kept(out: Tensor, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    if not keepdims:
        return out
    return view("reshape", out, tuple(1 if i in axes else s for i, s in enumerate(x.shape)))


def sum(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, dtype: core.DTypeLike = None
) -> Tensor:
    """The sum: `sum_reduce`. Bools and integers are summed as int64 unless a dtype is given."""
    x = as_tensor(x)
    x = cast(x, dtype if dtype is not None else x.dtype if x.dtype.is_float else int64)
    return _over("sum_reduce", x, as_axes("sum", x, axis), keepdims)


def max(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The maximum, NaN if any is: `max_reduce`.

    Raises:
        ValueError: an axis that may be empty.
    """
    x = as_tensor(x)
    return _over("max_reduce", x, as_axes("max", x, axis), keepdims)


def min(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The minimum, NaN if any is: `−max(−x)`; for integers and bools `~max(~x)`, as −x may wrap.

    Raises:
        ValueError: an axis that may be empty.
    """
    x = as_tensor(x)
    if x.dtype.is_float:
        return -max(-x, axis, keepdims)
    return invert(max(invert(x), axis, keepdims))


def any(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True if any element is not 0: the maximum of bools. False where there is none."""
    x = cast(as_tensor(x), bool_)
    axes = as_axes("any", x, axis)
    if 0 in (x.shape[i] for i in axes):
        out = constant(False, shape=tuple(s for i, s in enumerate(x.shape) if i not in axes))
        return _kept(out, x, axes, keepdims)
    return _over("max_reduce", x, axes, keepdims)


def all(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True if no element is 0: `not any(not x)`."""
    return logical_not(any(logical_not(x), axis, keepdims))


def _divided(x: Tensor, of: Tensor, axes: Sequence[int], less_by: float = 0) -> Tensor:
    """x / (number of elements of a tensor along axes − less_by), the divisor at least 0."""
    n = math.prod(of.shape[i] for i in axes)
    if isinstance(n, Dim):
        freedom = constant(n, x.dtype) - float(less_by)
        return x / (freedom.maximum(0.0) if less_by else freedom)
    return x / float(n - less_by if n > less_by else 0)


def mean(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean: `sum / n`, in float32 where x is narrower, so that the sum does not overflow."""
    x = as_float(x)
    axes = as_axes("mean", x, axis)
    total = sum(cast(x, x.dtype.compute), axes, keepdims)
    return cast(_divided(total, x, axes), x.dtype)


def var(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, correction: int | float = 0
) -> Tensor:
    """The variance: `sum((x − mean)²) / (n − correction)`, in two passes; 0 is NumPy's correction,
    1 is PyTorch's. Without degrees of freedom it is NaN or inf, as there."""
    x = as_float(x)
    axes = as_axes("var", x, axis)
    wide = cast(x, x.dtype.compute)
    centred = wide - mean(wide, axes, keepdims=True)
    total = sum(centred * centred, axes, keepdims)
    return cast(_divided(total, x, axes, correction), x.dtype)


def std(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, correction: int | float = 0
) -> Tensor:
    """The standard deviation: `sqrt(var)`."""
    return sqrt(var(x, axis, keepdims, correction))


def prod(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product, of one half with the other until one element is left. Integers give int64.

    Raises:
        ValueError: a symbolic size, whose number of halvings is not known.
    """
    x = as_tensor(x)
    axes = as_axes("prod", x, axis)
    out = x if x.dtype.is_float else cast(x, int64)
    for axis_ in reversed(axes):
        out = _product(out, axis_)
    return _kept(out, x, axes, keepdims)


def _product(x: Tensor, axis: int) -> Tensor:
    x = moveaxis(x, axis, -1)
    n = x.shape[-1]
    if not isinstance(n, int):
        raise ValueError(f"prod: axis {axis} of {core.describe(x)}: its size is symbolic")
    if n == 0:
        return constant(1, x.dtype, x.shape[:-1])
    while n > 1:
        half = n // 2
        pairs = x[..., :half] * x[..., half : 2 * half]
        if n % 2:  # the odd one out joins the first pair
            first = pairs[..., :1] * x[..., -1:]
            pairs = first if half == 1 else _join(first, pairs[..., 1:])
        x, n = pairs, half
    return view("reshape", x, x.shape[:-1])


def _join(a: Tensor, b: Tensor) -> Tensor:
    zeros = [(0, 0)] * (a.ndim - 1)
    left = view("pad", a, (*zeros, (0, b.shape[-1])))
    return left + view("pad", b, (*zeros, (a.shape[-1], 0)))


def _first(hit: Tensor, axis: int) -> Tensor:
    """The first index with a hit: n − 1 less the greatest distance from the end."""
    n = hit.shape[axis]
    last = constant(n - 1, int64)
    back = view("reshape", last - core.iota(n), (n,) + (1,) * (hit.ndim - 1 - axis))
    return last - reduce("max_reduce", hit * back, axis)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first maximum as int64, of the first NaN if there is one.

    Where x is not below its maximum, the first index by `max_reduce` over distances from the end.
    Without an axis it counts in the flattened tensor.

    Raises:
        ValueError: an axis that may be empty.
    """
    x = as_tensor(x)
    at = operands.as_axis("argmax", x, axis) if axis is not None else 0
    flat = flatten(x) if axis is None else x
    best = reduce("max_reduce", flat, at, keepdims=True)
    hit = flat >= best
    hit = hit | isnan(flat) if x.dtype.is_float else hit
    out = _first(hit, at)
    return _kept(out, x, range(x.ndim) if axis is None else (at,), keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first minimum: `argmax` of −x (of ~x for integers and bools)."""
    x = as_tensor(x)
    return argmax(-x if x.dtype.is_float else invert(x), axis, keepdims)


def logsumexp(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log Σ e^x without overflow: `log(sum(exp(x − max))) + max`; ±inf where the maximum is."""
    x = as_float(x)
    axes = as_axes("logsumexp", x, axis)
    top = stop_gradient(max(x, axes, keepdims=True))  # the result does not depend on it
    total = sum(exp(x - top), axes, keepdims=True)
    out = where(isinf(top), top, log(total) + top)
    return out if keepdims else view("reshape", out, _dropped(x, axes))


def _dropped(x: Tensor, axes: Sequence[int]) -> tuple[Size, ...]:
    return tuple(s for i, s in enumerate(x.shape) if i not in axes)


def softmax(x: TensorLike, axis: int | Sequence[int] = -1) -> Tensor:
    """`e / sum(e)` with `e = exp(x − max(x))`. A row of −inf alone gives NaN."""
    x = as_float(x)
    e = exp(x - stop_gradient(max(x, axis, keepdims=True)))
    return e / sum(e, axis, keepdims=True)


def log_softmax(x: TensorLike, axis: int | Sequence[int] = -1) -> Tensor:
    """`z − log(sum(exp(z)))` with `z = x − max(x)`."""
    x = as_float(x)
    z = x - stop_gradient(max(x, axis, keepdims=True))
    return z - log(sum(exp(z), axis, keepdims=True))


def cumsum(x: TensorLike, axis: int, dtype: core.DTypeLike = None) -> Tensor:
    """Running sums: `sum` over j of x[j] masked by j <= i. Integers are summed as int64."""
    x = as_tensor(x)
    x = cast(x, dtype if dtype is not None else x.dtype if x.dtype.is_float else int64)
    axis = operands.as_axis("cumsum", x, axis)
    last = moveaxis(x, axis, -1)
    n = last.shape[-1]
    upto = core.iota(n) < view("reshape", core.iota(n), (n, 1)) + 1
    out = reduce("sum_reduce", upto * unsqueeze(last, -2), -1)
    return moveaxis(out, -1, axis)
