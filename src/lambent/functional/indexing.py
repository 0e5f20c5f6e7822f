"""Gathers and scatters: one-hot comparisons and sums, which become indexed loads and writes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from lambent.functional.arithmetic import where
from lambent.functional.operands import (
    TensorLike,
    as_axis,
    as_tensor,
    broadcast_shapes,
    constant,
)
from lambent.functional.shaping import expand_ellipsis, getitem
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import bool_, int8, int64
from lambent.graph.tensor import DTypeLike, Tensor, as_size, describe, iota, view
from lambent.graph.views import Shape

_ARRAYS = (Tensor, np.ndarray)
_Write: TypeAlias = tuple[Tensor, int, Tensor, Tensor]


# ---- reading ---------------------------------------------------------------------------------


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """x[…, indices, …]: NumPy's take. Shape: the axis is replaced by all dims of `indices`.

    Composed: Σ_n (iota(n) == i) · x[n]. Negative indices count from the end; beyond that, on both
    sides, the value is 0. Without an axis x is flattened.

    Raises:
        TypeError, IndexError: indices that are not integers; no such axis.
    """
    x = as_tensor(x)
    x, axis = (x.flatten(), 0) if axis is None else (x, as_axis("take", x, axis))
    return _take(x, _wrapped(_index("take", indices), x.shape[axis]), axis)


def embedding(ids: TensorLike, table: TensorLike) -> Tensor:
    """Rows of a table: ids […] and [n, d] → […, d].

    Composed: Σ_n (iota(n) == id) · table[n]. An id outside of 0 … n − 1 gives zeros.

    Raises:
        TypeError: ids that are not integers.
    """
    return _take(as_tensor(table), _index("embedding", ids), 0)


def index_select(x: TensorLike, axis: int, index: TensorLike) -> Tensor:
    """`take` along an axis by a vector of indices (PyTorch's argument order)."""
    return take(x, index, axis)


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    """out[…, m, …] = x[…, indices[…, m, …], …]: NumPy's, with broadcasting of the other dims.

    Composed: Σ_n (iota(n) == indices[…, m, …]) · x[…, n, …]. Negative indices count from the end;
    beyond that the value is 0.

    Raises:
        TypeError, ValueError: indices that are not integers; another number of dims.
    """
    x, index = as_tensor(x), _index("take_along_axis", indices)
    axis = _same_rank("take_along_axis", x, index, axis)
    hits = _hits(_wrapped(index.moveaxis(axis, -1), x.shape[axis]), x.shape[axis])
    return masked_sum(hits, x.moveaxis(axis, -1).unsqueeze(-2)).moveaxis(-1, axis)


def gather(x: TensorLike, axis: int, index: TensorLike) -> Tensor:
    """PyTorch's gather: `take_along_axis` where `index` may cover only the start of other dims."""
    x, index = as_tensor(x), _index("gather", index)
    axis = _same_rank("gather", x, index, axis)
    return take_along_axis(_crop("gather", x, index.shape, axis), index, axis)


def one_hot(ids: TensorLike, classes: Size, dtype: DTypeLike = int64) -> Tensor:
    """[…] → […, classes]: 1 at the id, else 0; an id out of range gives zeros. iota == id, cast."""
    return _hits(_index("one_hot", ids), as_size("one_hot", classes)).astype(dtype)


def advanced_getitem(x: Tensor, keys: tuple[Any, ...]) -> Tensor:
    """x[keys] with integer tensors, arrays or lists among the keys, by NumPy's rules.

    Composed: one Σ_n (iota(n) == i) · x[n] for each index array. Negative indices count from the
    end; beyond that the value is 0 for tensors, and an error for arrays at a known size.

    Raises:
        TypeError, IndexError: arrays that are not integers; an array out of range.
    """
    keys = tuple(np.asarray(k) if isinstance(k, list) else k for k in keys)
    full = expand_ellipsis(x, keys)
    x = getitem(x, tuple(slice(None) if isinstance(k, _ARRAYS) else k for k in full))
    axes: list[int] = []  # of x, that arrays index
    index: list[Tensor] = []
    fancy: list[int] = []  # keys that NumPy counts as index arrays: integers too
    first = axis = 0  # dims of x before the first of them, and before this key
    for i, key in enumerate(full):
        integer = isinstance(key, (int, np.integer, Dim))
        if integer or isinstance(key, _ARRAYS):
            first = axis if not fancy else first
            fancy.append(i)
        if isinstance(key, _ARRAYS):
            _check_range(x, key, x.shape[axis])
            index.append(_wrapped(_index("getitem", key), x.shape[axis]))
            axes.append(axis)
        axis += not integer
    shape = broadcast_shapes("getitem", *(i.shape for i in index))
    n = len(shape)
    out = x.permute(*axes, *(a for a in range(x.ndim) if a not in axes))
    out = out.reshape(*(1,) * n, *out.shape)
    for each in index:
        hits = _hits(each.broadcast_to(shape), out.shape[n])
        out = masked_sum(hits.reshape(*hits.shape, *(1,) * (out.ndim - hits.ndim)), out, n)
    if fancy[-1] - fancy[0] >= len(fancy):  # apart: NumPy puts their dims first
        return out
    return out.permute(*range(n, n + first), *range(n), *range(n + first, out.ndim))


# ---- writing ---------------------------------------------------------------------------------


def scatter(x: TensorLike, axis: int, index: TensorLike, src: TensorLike) -> Tensor:
    """x with x[…, index[…, m, …], …] = src[…, m, …], as PyTorch; of equal indices the last m wins.

    `index` may cover only the start of the other dims; `src` may be larger than it, or one number.
    Negative indices count from the end; beyond that nothing is written.

    Composed: w = max_m (index_m == n) · (m + 1) is who wins, then Σ_m (w − 1 == m) · src_m where
    w > 0, else x: n · m comparisons for each line.

    Raises:
        TypeError, ValueError: indices that are not integers; shapes that do not go together.
    """
    x, axis, hits, values = _writes("scatter", x, axis, index, src)
    if hits.shape[-1] == 0:
        return x
    turn = iota(hits.shape[-1])
    winner = (hits * (turn + 1)).max(-1)
    new = masked_sum((winner - 1).unsqueeze(-1) == turn, values)
    lines = x.moveaxis(axis, -1)
    winner, new = _grow(winner, lines.shape), _grow(new, lines.shape)
    return where(winner > 0, new, lines).moveaxis(-1, axis)


def scatter_add(x: TensorLike, axis: int, index: TensorLike, src: TensorLike) -> Tensor:
    """x with x[…, index[…, m, …], …] += src[…, m, …], as PyTorch; equal indices add up.

    Composed: x + Σ_m (index_m == n) · src_m. Indices and shapes as for `scatter`.
    """
    x, axis, hits, values = _writes("scatter_add", x, axis, index, src)
    added = _grow(masked_sum(hits, values), x.moveaxis(axis, -1).shape)
    return x + added.moveaxis(-1, axis)


def index_add(x: TensorLike, axis: int, index: TensorLike, source: TensorLike) -> Tensor:
    """x with x[…, index[m], …] += source[…, m, …] for a vector of indices: as `scatter_add`."""
    x, index, source = as_tensor(x), _index("index_add", index), as_tensor(source)
    axis = as_axis("index_add", x, axis)
    if index.ndim != 1 or source.ndim != x.ndim:
        raise ValueError(f"index_add: x, index, source are {describe(x, index, source)}")
    spread = index.reshape(-1, *(1,) * (x.ndim - 1 - axis)).broadcast_to(source.shape)
    return scatter_add(x, axis, spread, source)


def _writes(op: str, x: TensorLike, axis: int, index: TensorLike, src: TensorLike) -> _Write:
    """x, its axis, hits […, n, m] (index_m == n) and the values to write […, 1, m]."""
    x, index = as_tensor(x), _index(op, index)
    axis = _same_rank(op, x, index, axis)
    src = as_tensor(src, x.dtype).astype(x.dtype)
    src = src.broadcast_to(index.shape) if src.ndim == 0 else src
    if src.ndim != x.ndim:
        raise ValueError(f"{op}: src must have {x.ndim} dims or none, got {describe(src)}")
    _crop(op, x, index.shape, axis)
    values = _crop(op, src, index.shape).moveaxis(axis, -1).unsqueeze(-2)
    lines = _wrapped(index.moveaxis(axis, -1), x.shape[axis]).unsqueeze(-2)
    return x, axis, lines == iota(x.shape[axis]).unsqueeze(-1), values


# ---- shared ----------------------------------------------------------------------------------


def masked_sum(mask: Tensor, x: Tensor, axis: int = -1) -> Tensor:
    """Σ mask · x over an axis, in the dtype of x; of bools it is true where any is."""
    if x.dtype == bool_:
        return masked_sum(mask, x.astype(int8), axis) > 0
    return (mask * x).sum(axis, dtype=x.dtype)


def _index(op: str, index: TensorLike) -> Tensor:
    index = as_tensor(index)
    if not index.dtype.is_integer and index.size != 0:
        raise TypeError(f"{op}: indices must be integers, got {describe(index)}")
    return index.astype(int64)


def _wrapped(index: Tensor, size: Size) -> Tensor:
    """Negative indices counted from the end."""
    return index + (index < 0) * constant(size, int64)


def _hits(index: Tensor, size: Size) -> Tensor:
    """[…] → […, size]: index == 0, 1, …"""
    return index.unsqueeze(-1) == iota(size)


def _take(x: Tensor, index: Tensor, axis: int) -> Tensor:
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    lines = x.moveaxis(axis, -1).reshape(*before, *(1,) * index.ndim, *after, x.shape[axis])
    hits = _hits(index, x.shape[axis])
    return masked_sum(hits.reshape(*index.shape, *(1,) * len(after), x.shape[axis]), lines)


def _same_rank(op: str, x: Tensor, index: Tensor, axis: int) -> int:
    if x.ndim != index.ndim or x.ndim == 0:
        raise ValueError(f"{op}: x and indices need equally many dims, got {describe(x, index)}")
    return as_axis(op, x, axis)


def _crop(op: str, x: Tensor, shape: Shape, but: int | None = None) -> Tensor:
    """The start of every dim, as much as `shape` says."""
    target = tuple(x.shape[i] if i == but else n for i, n in enumerate(shape))
    try:
        return view("slice", x, tuple((0, 1, n) for n in target)) if target != x.shape else x
    except ValueError as reason:
        raise ValueError(f"{op}: {describe(x)} does not cover indices {list(shape)}") from reason


def _grow(x: Tensor, shape: Shape) -> Tensor:
    """Zeros after every dim, up to `shape`."""
    return x.pad([(0, b - a) for a, b in zip(x.shape, shape, strict=True)])


def _check_range(x: Tensor, key: Any, size: Size) -> None:
    if not isinstance(key, np.ndarray) or not isinstance(size, int) or key.dtype.kind not in "iu":
        return
    if key.size and not -size <= key.min() <= key.max() < size:
        raise IndexError(f"getitem: an index is out of range of the size {size} of {describe(x)}")
