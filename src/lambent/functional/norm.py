"""Normalisation: means, a reciprocal root, a scale and a shift; narrow floats inside as float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from lambent.functional.operands import TensorLike, as_tensor
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, as_shape, describe

NormShape: TypeAlias = "Size | Sequence[Size]"
Maybe: TypeAlias = "TensorLike | None"
Axes: TypeAlias = tuple[int, ...]


def layer_norm(
    x: TensorLike, shape: NormShape, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5
) -> Tensor:
    """(x − mean) / √(var + eps) · weight + bias over the last dims, of `shape`.

    Composed: mean (`sum_reduce`), `sub`, mean of squares, `add`, `sqrt`, `recip`, `mul`, `add`.

    Raises:
        TypeError, ValueError: not floating; x does not end in `shape`.
    """
    x, axes = _last("layer_norm", x, shape)
    return _affine("layer_norm", x, _standard(x, axes, eps), weight, bias, axes)


def rms_norm(
    x: TensorLike, shape: NormShape, weight: Maybe = None, eps: float | None = None
) -> Tensor:
    """x / √(mean(x²) + eps) · weight over the last dims. eps is by default the dtype's.

    Composed: `mul`, mean (`sum_reduce`), `add`, `sqrt`, `recip`, `mul`.

    Raises:
        TypeError, ValueError: as `layer_norm`.
    """
    x, axes = _last("rms_norm", x, shape)
    wide = x.astype(x.dtype.compute)
    eps = float(np.finfo(wide.dtype.numpy).eps) if eps is None else eps
    y = wide * (wide.square().mean(axes, keepdims=True) + eps).rsqrt()
    return _affine("rms_norm", x, y, weight, None, axes)


def group_norm(
    x: TensorLike, groups: Size, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5
) -> Tensor:
    """x [n, c, …] standardised over each group of c / groups channels and all dims after.

    Composed: reshape to [n, groups, c / groups, …], as `layer_norm` over all but the first two
    dims, reshape back, scale and shift by channel.

    Args:
        weight, bias: [c].

    Raises:
        TypeError, ValueError: not floating; groups that do not divide the channels.
    """
    x = _floating("group_norm", x, 2)
    n, c, *rest = x.shape
    if groups == 0 or c % groups != 0:
        raise ValueError(f"group_norm: {groups} groups do not divide {c} channels")
    grouped = x.reshape(n, groups, c // groups, *rest)
    y = _standard(grouped, tuple(range(2, grouped.ndim)), eps).reshape(x.shape)
    return _affine("group_norm", x, y, weight, bias, (1,))


def instance_norm(
    x: TensorLike, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5
) -> Tensor:
    """`group_norm` of x [n, c, …] with every channel its own group."""
    x = _floating("instance_norm", x, 3)
    return group_norm(x, x.shape[1], weight, bias, eps)


def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    var: TensorLike,
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) / √(var + eps) · weight + bias by given statistics, all [c], for x [n, c, …].

    Composed: `sub`, `add`, `sqrt`, `recip`, `mul`, `add`. Where the statistics are weights, all
    but one product and one sum can be done when the program is loaded.

    Raises:
        TypeError, ValueError: not floating; a vector that is not [c].
    """
    x = _floating("batch_norm", x, 2)
    mean, var = (_vector("batch_norm", x, v, (1,)) for v in (mean, var))
    y = (x.astype(x.dtype.compute) - mean) * (var + eps).rsqrt()
    return _affine("batch_norm", x, y, weight, bias, (1,))


def batch_norm_train(
    x: TensorLike, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch_norm` by the statistics of x itself: (result, mean [c], var [c]).

    Both statistics are at least float32. The variance is the one that normalises, divided by the
    count; PyTorch keeps its running average of count / (count − 1) times that.

    Composed: mean and `var` over all dims but the second, then `batch_norm`.
    """
    x = _floating("batch_norm_train", x, 2)
    axes, wide = (0, *range(2, x.ndim)), x.astype(x.dtype.compute)
    mean, var = wide.mean(axes), wide.var(axes)
    return batch_norm(x, mean, var, weight, bias, eps), mean, var


def _standard(x: Tensor, axes: Axes, eps: float) -> Tensor:
    wide = x.astype(x.dtype.compute)  # squares of narrow floats overflow early
    centred = wide - wide.mean(axes, keepdims=True)
    return centred * (centred.square().mean(axes, keepdims=True) + eps).rsqrt()


def _floating(op: str, x: TensorLike, least: int) -> Tensor:
    x = as_tensor(x)
    if not x.dtype.is_float or x.ndim < least:
        raise TypeError(f"{op}: needs a floating dtype and {least} dims or more, got {describe(x)}")
    return x


def _last(op: str, x: TensorLike, shape: NormShape) -> tuple[Tensor, Axes]:
    sizes = as_shape(op, shape)
    x = _floating(op, x, len(sizes))
    if not sizes or x.shape[-len(sizes) :] != sizes:
        raise ValueError(f"{op}: {describe(x)} does not end in {list(sizes)}")
    return x, tuple(range(x.ndim - len(sizes), x.ndim))


def _affine(op: str, x: Tensor, y: Tensor, weight: Maybe, bias: Maybe, axes: Axes) -> Tensor:
    """y · weight + bias, which lie along these axes, in the dtype of x."""
    y = y if weight is None else y * _vector(op, x, weight, axes)
    y = y if bias is None else y + _vector(op, x, bias, axes)
    return y.astype(x.dtype)


def _vector(op: str, x: Tensor, given: TensorLike, axes: Axes) -> Tensor:
    v = as_tensor(given)
    if v.shape != tuple(x.shape[a] for a in axes):
        raise ValueError(f"{op}: {describe(v)} does not fit {describe(x)}")
    return v.astype(v.dtype.compute).reshape(*v.shape, *(1,) * (x.ndim - 1 - axes[-1]))
