"""Pooling of any rank: a window view of every spatial dim, and a reduction over the windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import TypeAlias

import numpy as np

from lambent.functional.arithmetic import where
from lambent.functional.operands import TensorLike, as_tensor, constant
from lambent.functional.spatial import PerDim, each, of_rank, resize, windows
from lambent.graph.dim import Size, exact
from lambent.graph.dtypes import DType
from lambent.graph.prove import maximum, minimum
from lambent.graph.tensor import Tensor, at_least, describe, iota

OutputSize: TypeAlias = "int | Sequence[int | None] | None"
Numbers: TypeAlias = "tuple[PerDim, PerDim | None, PerDim, PerDim]"
"""Of a pool: kernel size, stride, padding and dilation."""


def max_pool(
    rank: int,
    x: TensorLike,
    kernel_size: PerDim,
    stride: PerDim | None = None,
    padding: PerDim = 0,
    dilation: PerDim = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of every window of the last dims: […, *size] → […, *size'].

    Composed: pad with −inf (of integers, the least), a window view of every dim, `max_reduce`.
    For each dim, size' = (size + 2 · padding − dilation · (kernel − 1) − 1) // stride + 1; with
    `ceil_mode` a last window that is only partly inside counts too, if it starts before the right
    padding.

    Args:
        stride: by default the kernel size.
        padding: at most half of the window's span, as in PyTorch.

    Raises:
        TypeError, ValueError: numbers out of range, or a window larger than the padded dim.
    """
    x, numbers = as_tensor(x), (kernel_size, stride, padding, dilation)
    y, _ = _windows(f"max_pool{rank}d", x, numbers, rank, ceil_mode, lowest(x.dtype))
    return y.max(tuple(range(-rank, 0)))


def max_pool_indices(
    rank: int,
    x: TensorLike,
    kernel_size: PerDim,
    stride: PerDim | None = None,
    padding: PerDim = 0,
    dilation: PerDim = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Where `max_pool` found each maximum: int64 indices into the flattened last dims of x.

    Of equal elements the first wins, and a NaN is larger than all numbers. Composed: the same
    windows of `iota`, and the least of those whose element is the maximum.

    Raises:
        TypeError, ValueError: as `max_pool`.
    """
    x, numbers = as_tensor(x), (kernel_size, stride, padding, dilation)
    y, at = _numbered(rank, x, numbers, ceil_mode)
    inner = tuple(range(-rank, 0))
    largest = ~(y < y.max(inner, keepdims=True)) & (at >= 0)
    if x.dtype.is_float:
        largest = largest & (y.isnan() | ~y.isnan().any(inner, keepdims=True))
    return where(largest, at, constant(prod(x.shape[x.ndim - rank :]), at.dtype)).min(inner)


def max_pool_at(rank: int, x: Tensor, indices: Tensor, numbers: Numbers, ceil_mode: bool) -> Tensor:
    """The elements of x that `max_pool_indices` names: `max_pool`, with the gradient of PyTorch.

    Composed: of each window the sum of those whose place is the index.

    Args:
        numbers: kernel size, stride, padding and dilation.

    Raises:
        TypeError, ValueError: as `max_pool`.
    """
    y, at = _numbered(rank, x, numbers, ceil_mode)
    found = at == indices.reshape(*indices.shape, *(1,) * rank)
    return where(found, y, constant(0, x.dtype)).sum(tuple(range(-rank, 0)))


def avg_pool(
    rank: int,
    x: TensorLike,
    kernel_size: PerDim,
    stride: PerDim | None = None,
    padding: PerDim = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of every window of the last dims; sizes and numbers as for `max_pool`.

    Composed: pad with 0, a window view, `sum_reduce`, `mul` by the `recip` of the count. Where
    windows have different counts, these are the same window sums of ones.

    Args:
        count_include_pad: padding counts as zeros; what `ceil_mode` adds beyond it never does.

    Raises:
        TypeError, ValueError: as `max_pool`; not floating.
    """
    op = f"avg_pool{rank}d"
    x, numbers = _floating(op, x), (kernel_size, stride, padding, 1)
    y, dims = _windows(op, x, numbers, rank, ceil_mode, 0)
    y = y.sum(tuple(range(-rank, 0)))
    for i, (n, k, s, low, high) in enumerate(dims):
        own = low if count_include_pad else 0  # padding that counts
        if at_least(own - low, 0) and at_least(own - high, 0):
            y = y / constant(k, x.dtype)
        else:
            ones = constant(1, x.dtype, (n + 2 * own,))
            count = resize(ones, [(low - own, high - own)]).window(0, k, s).sum(-1)
            y = y / count.reshape(*count.shape, *(1,) * (rank - 1 - i))
    return y


def adaptive_avg_pool(rank: int, x: TensorLike, output_size: OutputSize) -> Tensor:
    """The means of `output_size` parts of each of the last dims: part i is ⌊i·n/o⌋ … ⌈(i+1)·n/o⌉.

    Composed: parts repeat after o / gcd(n, o), so reshape to [gcd, n / gcd]; where gcd = o it is a
    mean, else a masked sum for each part (o · n / gcd products) over the sum of the mask.

    Args:
        output_size: for all dims or for each; None keeps the size.

    Raises:
        TypeError, ValueError: not floating; an empty dim, or a symbolic one that is no multiple.
    """
    op = f"adaptive_avg_pool{rank}d"
    return _adaptive(op, rank, _floating(op, x), output_size, mean=True)


def adaptive_max_pool(rank: int, x: TensorLike, output_size: OutputSize) -> Tensor:
    """As `adaptive_avg_pool` with `max_reduce`; outside of a part counts as −inf."""
    return _adaptive(f"adaptive_max_pool{rank}d", rank, as_tensor(x), output_size, mean=False)


def unfold(x: TensorLike, axis: int, size: Size, step: Size = 1) -> Tensor:
    """Sliding windows (`torch.Tensor.unfold`), a view: the axis counts them, a last dim is inside.

    Raises:
        ValueError: a window that may be larger than the axis.
    """
    return as_tensor(x).window(axis, size, step)


def lowest(dtype: DType) -> bool | int | float:
    """The identity of max: −inf, the least integer, or False."""
    if dtype.is_float:
        return -float("inf")
    return int(np.iinfo(dtype.numpy).min) if dtype.is_integer else False


def _floating(op: str, x: TensorLike) -> Tensor:
    x = as_tensor(x)
    if not x.dtype.is_float:
        raise TypeError(f"{op}: needs a floating dtype, got {describe(x)}; cast with .astype")
    return x


def _windows(
    op: str,
    x: Tensor,
    numbers: tuple[PerDim, PerDim | None, PerDim, PerDim],
    rank: int,
    ceil_mode: bool,
    fill: bool | int | float,
) -> tuple[Tensor, list[tuple[Size, Size, Size, Size, Size]]]:
    """Windows of the padded last dims; of each (size, kernel, stride, low and high padding)."""
    kernel, stride, padding, dilation = numbers
    if x.ndim < rank:
        raise ValueError(f"{op}: needs at least {rank} dims, got {describe(x)}")
    ks = each(op, "kernel_size", kernel, rank)
    ss = ks if stride is None else each(op, "stride", stride, rank)
    ps, ds = each(op, "padding", padding, rank, 0), each(op, "dilation", dilation, rank)
    dims: list[tuple[Size, Size, Size, Size, Size]] = []
    for n, k, s, p, d in zip(x.shape[x.ndim - rank :], ks, ss, ps, ds, strict=True):
        span, high = (k - 1) * d + 1, p
        if not at_least(span - 2 * p, 0):
            raise ValueError(f"{op}: padding {p} is more than half of the window's span {span}")
        if ceil_mode:
            last = minimum((n + 2 * p - span + s - 1) // s, (n + p - 1) // s)  # window, from 0
            high = maximum(last * s + span - n - p, 0)
        dims.append((n, k, s, p, high))
    padded = resize(x, [(low, high) for *_, low, high in dims], fill)
    return windows(op, padded, ks, ss, ds), dims


def _numbered(rank: int, x: Tensor, numbers: Numbers, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """Windows of x for a maximum, and of each element its place in the flattened last dims."""
    op, spatial = f"max_pool{rank}d", x.shape[x.ndim - rank :]
    y, _ = _windows(op, x, numbers, rank, ceil_mode, lowest(x.dtype))
    place = iota(prod(spatial)).reshape(*spatial)
    return y, _windows(op, place, numbers, rank, ceil_mode, -1)[0]


def _adaptive(op: str, rank: int, x: Tensor, output_size: OutputSize, mean: bool) -> Tensor:
    given = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * rank
    if len(given) != rank or x.ndim < rank:
        raise ValueError(f"{op}: output size {output_size!r} for {rank} dims of {describe(x)}")
    for axis, count in enumerate(given, x.ndim - rank):
        n = x.shape[axis]
        if not at_least(n, 1) or (count is not None and count < 0):
            raise ValueError(f"{op}: {count} parts of dim {axis} of {describe(x)}")
        if count is not None and count != n:
            x = _parts(op, x.moveaxis(axis, -1), count, mean).moveaxis(-1, axis)
    return x


def _parts(op: str, x: Tensor, count: int, mean: bool) -> Tensor:
    """Reduce `count` parts of the last dim, which repeat `periods` times."""
    n = x.shape[-1]
    periods = gcd(n, count) if isinstance(n, int) else count
    whole = exact(n, periods)
    if whole is None:
        raise ValueError(f"{op}: {count} parts of the symbolic size {n} of {describe(x)}")
    lead, parts = x.shape[:-1], count // periods
    x = x.reshape(*lead, periods, 1, whole)
    if parts == 1:
        return (x.mean(-1) if mean else x.max(-1)).reshape(*lead, count)
    i, j = iota(parts).unsqueeze(-1), iota(whole)
    inside = (i * whole < (j + 1) * parts) & (j * parts < (i + 1) * whole)
    if mean:
        y = (inside * x).sum(-1) / inside.sum(-1).astype(x.dtype)
    else:
        y = where(inside, x, constant(lowest(x.dtype), x.dtype)).max(-1)
    return y.reshape(*lead, count)


max_pool1d, max_pool2d, max_pool3d = (of_rank(max_pool, rank) for rank in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (of_rank(avg_pool, rank) for rank in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    of_rank(adaptive_avg_pool, rank) for rank in (1, 2, 3)
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    of_rank(adaptive_max_pool, rank) for rank in (1, 2, 3)
)
