"""Rows of ATen's products, convolutions, pools, norms and attention: name → meaning.

An op that PyTorch gives several results returns as many; a result that our composition does not
have is None, and a graph that reads it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lambent as lt
from lambent.frontends.torch.values import Unsupported
from lambent.functional.pool import max_pool_indices
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor

Row = Callable[..., Any]
Maybe = Tensor | None


# ---- products --------------------------------------------------------------------------------


def _scaled(x: Tensor, factor: Any) -> Tensor:
    return x if factor == 1 else x * factor


def _added(product: Row) -> Row:
    """beta · x + alpha · product; with beta 0 x is not read, whatever it holds."""

    def row(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        out = _scaled(product(a, b), alpha)
        return out if beta == 0 else _scaled(x, beta) + out

    return row


def _addbmm(a: Tensor, b: Tensor) -> Tensor:
    return lt.matmul(a, b).sum(0, dtype=a.dtype)


def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    """Distances of all pairs of rows."""
    apart = lt.abs(x.unsqueeze(-2) - y.unsqueeze(-3))
    if p == 2:
        return lt.sqrt(lt.sum(apart * apart, -1))
    if p == 1:
        return lt.sum(apart, -1)
    if p == 0:
        return lt.sum(lt.not_equal(apart, 0).astype(x.dtype), -1)
    if math.isinf(p):
        return lt.max(apart, -1)
    return lt.pow(lt.sum(lt.pow(apart, float(p)), -1), 1 / float(p))


# ---- convolutions and pools ------------------------------------------------------------------


def _convolution(
    x: Tensor, weight: Tensor, bias: Maybe, stride: Sequence[Size], padding: Sequence[Size],
    dilation: Sequence[Size], transposed: bool, output_padding: Sequence[Size], groups: int,
) -> Tensor:  # fmt: skip
    rank = weight.ndim - 2
    stride, padding, dilation, more = (
        each(v, rank) for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        back = (lt.conv_transpose1d, lt.conv_transpose2d, lt.conv_transpose3d)[rank - 1]
        out: Tensor = back(x, weight, bias, stride, padding, more, groups, dilation)
    else:
        conv = (lt.conv1d, lt.conv2d, lt.conv3d)[rank - 1]
        out = conv(x, weight, bias, stride, padding, dilation, groups)
    return out


def each(given: Any, rank: int) -> tuple[Any, ...]:
    """One number for each spatial dim; PyTorch lets a single one stand for all."""
    sizes = tuple(given) if isinstance(given, Sequence) else (given,)
    return sizes * rank if len(sizes) == 1 else sizes


def _avg_pool(rank: int) -> Row:
    pool = (lt.avg_pool1d, lt.avg_pool2d, lt.avg_pool3d)[rank - 1]

    def row(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        kernel, padding = each(kernel, rank), each(padding, rank)
        stride = each(stride, rank) if stride else None
        if divisor_override is not None:
            if ceil_mode:
                raise Unsupported("an average pool with ceil_mode and its own divisor")
            factor = float(math.prod(kernel)) / divisor_override
            return lt.mul(pool(x, kernel, stride, padding), factor)
        return pool(x, kernel, stride, padding, ceil_mode, count_include_pad)

    return row


def _max_pool(rank: int) -> Row:
    pool = (lt.max_pool1d, lt.max_pool2d, lt.max_pool3d)[rank - 1]

    def row(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
        numbers = (kernel, each(stride, rank) if stride else None, padding, dilation, ceil_mode)
        return pool(x, *numbers), max_pool_indices(rank, x, *numbers)

    return row


# ---- norms -----------------------------------------------------------------------------------


def _layer_norm(
    x: Tensor, shape: Sequence[Size], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean, scale = _moments(x, axes, eps)
    return lt.layer_norm(x, tuple(shape), weight, bias, eps), mean, scale


def _moments(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / √(var + eps), with dims of size 1."""
    wide = x.astype(x.dtype.compute)
    return wide.mean(axes, keepdims=True), lt.rsqrt(wide.var(axes, keepdims=True) + eps)


def _group_norm(
    x: Tensor, weight: Maybe, bias: Maybe, n: Size, c: Size, hw: Size, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(n, groups, -1)
    mean, scale = _moments(grouped, (2,), eps)
    out = lt.group_norm(x, groups, weight, bias, eps)
    return out, mean.reshape(n, groups), scale.reshape(n, groups)


def _batch_norm_given(
    x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = lt.zeros((0,), dtype=x.dtype)
    return lt.batch_norm(x, mean, var, weight, bias, eps), nothing, nothing


def _batch_norm_own(
    x: Tensor, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    training: bool, momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """The result, the saved mean and 1 / √(var + eps), and the new running statistics."""
    if not training:
        if running_mean is None or running_var is None:
            raise Unsupported("a batch norm without statistics")
        fixed = _batch_norm_given(x, weight, bias, running_mean, running_var, momentum, eps)
        return (*fixed, running_mean, running_var)
    out, mean, var = lt.batch_norm_train(x, weight, bias, eps)
    n = math.prod(s for i, s in enumerate(x.shape) if i != 1)
    if isinstance(n, lt.Dim):
        raise Unsupported("a batch norm that learns, over a symbolic size")
    unbiased = var * (n / max(n - 1, 1))
    new = tuple(
        None if old is None else old * (1 - momentum) + own * momentum
        for old, own in ((running_mean, mean), (running_var, unbiased))
    )
    return out, mean, lt.rsqrt(var + eps), *new


# ---- attention -------------------------------------------------------------------------------


def _softmax(f: Row) -> Row:
    def row(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
        if x.ndim == 0:
            return f(x.reshape(1), 0).reshape(())  # type: ignore[no-any-return]
        wide = x.astype(x.dtype.compute)
        return f(wide, dim).astype(x.dtype)  # type: ignore[no-any-return]

    return row


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Maybe = None, scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """The second result, which only a backward pass reads, is not computed."""
    if dropout:
        raise Unsupported("attention with dropout: random numbers")
    return lt.attention(q, k, v, attn_mask, causal, scale), None


def _dropout(x: Tensor, p: float, train: bool | None = None) -> tuple[Tensor, Tensor]:
    if train is not False and p > 0:
        raise Unsupported("dropout: random numbers")
    return x, lt.ones(x.shape, dtype=lt.bool_)


ROWS: dict[str, Row] = {
    "_adaptive_avg_pool2d": lambda x, size: lt.adaptive_avg_pool2d(x, list(size)),
    "_adaptive_avg_pool3d": lambda x, size: lt.adaptive_avg_pool3d(x, list(size)),
    "_cdist_forward": _cdist,
    "_log_softmax": _softmax(lt.log_softmax),
    "_native_batch_norm_legit_functional": _batch_norm_own,
    "_native_batch_norm_legit_no_training": _batch_norm_given,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_softmax": _softmax(lt.softmax),
    "adaptive_max_pool2d": lambda x, size: (lt.adaptive_max_pool2d(x, list(size)), None),
    "adaptive_max_pool3d": lambda x, size: (lt.adaptive_max_pool3d(x, list(size)), None),
    "addbmm": _added(_addbmm),
    "addmm": _added(lt.matmul),
    "addmv": _added(lt.matmul),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "avg_pool3d": _avg_pool(3),
    "baddbmm": _added(lt.matmul),
    "bmm": lt.matmul,
    "convolution": _convolution,
    "dot": lt.matmul,
    "max_pool2d_with_indices": _max_pool(2),
    "max_pool3d_with_indices": _max_pool(3),
    "mm": lt.matmul,
    "mv": lt.matmul,
    "native_dropout": _dropout,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
}
