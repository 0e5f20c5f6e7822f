"""Rows of ATen's views, joins, gathers, scatters and creation ops: name → meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lambent as lt
from lambent.frontends.torch.values import Unsupported
from lambent.functional.operands import as_tensor
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, iota

Row = Callable[..., Any]


# ---- views -----------------------------------------------------------------------------------


def _expand(x: Tensor, shape: Sequence[Size], implicit: bool = False) -> Tensor:
    return lt.expand(x, list(shape))


def _slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return x[_at(x, dim, slice(start, end, step))]


def _at(x: Tensor, dim: int, key: Any) -> tuple[Any, ...]:
    """The index that is `key` at a dim and everything at the others."""
    return (slice(None),) * (dim % x.ndim) + (key,)


def _split(x: Tensor, size: Size, dim: int = 0) -> list[Tensor]:
    return lt.split(x, size, dim)


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    n = x.shape[dim]
    if not isinstance(n, int):
        raise Unsupported(f"as many results as the symbolic size {n} says")
    return [x[_at(x, dim, i)] for i in range(n)]


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = x.shape[a], x.shape[b]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        raise Unsupported("a diagonal of symbolic sizes")
    down, right = max(-offset, 0), max(offset, 0)
    n = max(min(rows - down, columns - right), 0)
    x = x.moveaxis(a, -1).moveaxis(b if b < a else b - 1, -1)
    return lt.diagonal(x[..., down : down + n, right : right + n], -2, -1)


def _repeat(x: Tensor, repeats: Sequence[Size]) -> Tensor:
    return lt.tile(x, list(repeats)) if repeats else x


def _as_strided(
    x: Tensor, shape: Sequence[Size], stride: Sequence[int], offset: int | None = None, *,
    metas: Sequence[Any],
) -> Tensor:  # fmt: skip
    """Elements of x, which lies in memory in order, at offset + Σ index · stride."""
    return x.flatten().take(_places(metas[0], shape, stride, offset))


def _as_strided_scatter(
    x: Tensor, src: Tensor, shape: Sequence[Size], stride: Sequence[int],
    offset: int | None = None, *, metas: Sequence[Any],
) -> Tensor:  # fmt: skip
    places = _places(metas[0], shape, stride, offset).flatten()
    return lt.scatter(x.flatten(), 0, places, src.flatten()).reshape(x.shape)


def row_major(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _places(x: Any, shape: Sequence[Size], stride: Sequence[int], offset: int | None) -> Tensor:
    """Where in memory the elements of a view of x lie; x is as PyTorch knows it."""
    if not all(isinstance(n, int) for n in (*x.shape, *shape, *stride, offset or 0)):
        raise Unsupported("as_strided with symbolic sizes")
    if not x.is_contiguous() or x.storage_offset():
        raise Unsupported("as_strided of what does not lie in memory in order")
    place = lt.constant(offset or 0, "int64", shape)
    for i, (n, step) in enumerate(zip(shape, stride, strict=True)):
        place = place + (iota(n) * step).reshape(n, *(1,) * (len(shape) - 1 - i))
    return place


# ---- joins and pads --------------------------------------------------------------------------


def _cat(xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    """As PyTorch still allows, a vector of no elements joins anything."""
    full = [x for x in xs if x.shape != (0,)]
    return lt.concat(full or xs[:1], dim) if len(full) != 1 else full[0]


def _pad(x: Tensor, pads: Sequence[Size], value: Any = 0, mode: str = "constant") -> Tensor:
    """`pads` is (low, high) of the last dim, then of the one before, …"""
    pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)][::-1]
    return lt.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, mode, value)


def _padding(mode: str) -> Row:
    return lambda x, pads: _pad(x, pads, mode=mode)


def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return lt.flip(x, list(dims)) if dims else x


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return lt.roll(x.flatten(), shifts[0], 0).reshape(x.shape)
    return lt.roll(x, list(shifts), list(dims))


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """x with a slice of one dim replaced: src laid into zeros, and a mask that says where."""
    n = x.shape[dim % x.ndim]
    if not isinstance(n, int) or isinstance(start, lt.Dim) or isinstance(end, lt.Dim):
        return _spread_slice(x, src, dim, start, n)
    first, last, _ = slice(start, end, step).indices(n)
    place = iota(n) - first
    inside = (place >= 0) & (iota(n) < last) & lt.equal(place % step, 0)
    if src.shape[dim] == 0:
        return x
    values = lt.take(src, lt.clip(place // step, 0, src.shape[dim] - 1), dim)
    return lt.where(inside.reshape(n, *(1,) * (x.ndim - 1 - dim % x.ndim)), values, x)


def _spread_slice(x: Tensor, src: Tensor, dim: int, start: Any, n: Size) -> Tensor:
    """The same with a symbolic place and step 1: padding says where."""
    low = 0 if start is None else start
    at = dim % x.ndim
    pads = [(low, n - low - src.shape[i]) if i == at else (0, 0) for i in range(x.ndim)]
    inside = lt.pad(lt.full(src.shape, True), pads)
    return lt.where(inside, lt.pad(src, pads), x)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    n = x.shape[dim]
    hit = lt.equal(iota(n), index + n if isinstance(index, int) and index < 0 else index)
    hit = hit.reshape(n, *(1,) * (x.ndim - 1 - dim % x.ndim))
    return lt.where(hit, src.unsqueeze(dim % x.ndim), x)


def _diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = x.shape[a], x.shape[b]
    down, right = max(-offset, 0), max(offset, 0)
    moved = x.moveaxis(a, -1).moveaxis(b if b < a else b - 1, -1)
    hit = lt.equal(iota(rows).unsqueeze(-1) - down, iota(columns) - right)
    hit = hit & (iota(rows).unsqueeze(-1) >= down) & (iota(columns) >= right)
    wide = lt.pad(src, [(0, 0)] * (src.ndim - 1) + [(down, rows - down - src.shape[-1])])
    out = lt.where(hit, wide.unsqueeze(-1), moved)
    return out.moveaxis(-1, b if b < a else b - 1).moveaxis(-1, a)


# ---- gathers and scatters --------------------------------------------------------------------


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    keys = [slice(None) if i is None else _no_mask(i) for i in indices]
    return x[tuple(keys)]


def _no_mask(index: Tensor) -> Tensor:
    if index.dtype == lt.bool_:
        raise Unsupported("an index that is a mask: the size of the result depends on data")
    return index


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The indexed dims moved to the front and joined, then a scatter of rows."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == lt.bool_:
        mask = indices[0]
        if values.size != 1 or accumulate:
            raise Unsupported("an index that is a mask: how many values it takes depends on data")
        return lt.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim)), values, x)
    axes = [i for i, index in enumerate(indices) if index is not None]
    places = [_no_mask(index) for index in indices if index is not None]
    rest = [i for i in range(x.ndim) if i not in axes]
    order = [*axes, *rest]
    moved = x.permute(order)
    sizes, inner = moved.shape[: len(axes)], moved.shape[len(axes) :]
    places = [i + (i < 0) * lt.constant(n, "int64") for i, n in zip(places, sizes, strict=True)]
    row = sum((p * s for p, s in zip(places, map(_dim, row_major(sizes)), strict=True)), start=0)
    row = as_tensor(row)
    count, rows, width = math.prod(row.shape), math.prod(sizes), math.prod(inner)
    apart = axes[-1] - axes[0] >= len(axes)
    before = 0 if apart else axes[0]
    picked = (*x.shape[:before], *row.shape, *(x.shape[i] for i in rest[before:]))
    new = lt.broadcast_to(values, picked).permute(
        *range(before, before + row.ndim), *range(before), *range(before + row.ndim, len(picked))
    )
    write = lt.scatter_add if accumulate else lt.scatter
    flat = moved.reshape(rows, width)
    lines = row.reshape(count, 1).broadcast_to(count, width)
    out = write(flat, 0, lines, new.reshape(count, width)).reshape(moved.shape)
    return out.permute([order.index(i) for i in range(x.ndim)])


def _dim(size: Size) -> Any:
    return lt.constant(size, "int64") if isinstance(size, lt.Dim) else size


def _embedding(table: Tensor, ids: Tensor, *rest: Any) -> Tensor:
    return lt.embedding(ids, table)


def _gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if x.ndim == 0:
        return x.broadcast_to(index.shape)
    return lt.gather(x, dim, index)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.ndim == 0:
        return x
    return lt.take(x, index.reshape(1) if index.ndim == 0 else index, dim)


def _scatter(write: Row) -> Row:
    def row(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None) -> Tensor:
        if reduce == "add":
            return as_tensor(_scatter(lt.scatter_add)(x, dim, index, src))
        if reduce is not None:
            raise Unsupported(f"scatter that combines by {reduce}")
        if x.ndim == 0 or index.ndim == 0:
            line = as_tensor(src).astype(x.dtype)
            out = write(x.reshape(1), 0, index.reshape(1), line.reshape(1))
            return as_tensor(out.reshape(x.shape))
        return as_tensor(write(x, dim, index, src))

    return row


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Sums and means, by scatter_add of the values and of ones."""
    if reduce not in ("sum", "mean") or x.ndim == 0 or not x.dtype.is_float:
        raise Unsupported(f"scatter that combines {x.dtype} by {reduce}")
    ones = lt.ones(index.shape, dtype=x.dtype)
    count = lt.scatter_add(lt.zeros_like(x), dim, index, ones)
    kept = x if include_self else lt.where(count > 0, 0.0, x)
    total = lt.scatter_add(kept, dim, index, src)
    if reduce == "sum":
        return total
    return total / lt.maximum(count + 1.0 if include_self else count, 1.0)


def _bucketize(x: Tensor, bounds: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many of the bounds, which ascend, lie before x."""
    x = x.unsqueeze(-1)
    before = bounds <= x if right else bounds < x
    return before.sum(-1)


def _searchsorted(
    bounds: Tensor, x: Tensor, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if sorter is not None:
        raise Unsupported("searchsorted with a sorter")
    right = right or side == "right"
    return _bucketize(x, bounds.unsqueeze(-2) if bounds.ndim > 1 else bounds, right=right)


# ---- creation --------------------------------------------------------------------------------


def _full(shape: Sequence[Size], value: Any, dtype: Any = None) -> Tensor:
    return lt.broadcast_to(_number(value, dtype), tuple(shape))


def _number(value: Any, dtype: Any) -> Tensor:
    x = as_tensor(value)
    return x if dtype is None else x.astype(dtype)


def _full_like(x: Tensor, value: Any, dtype: Any = None) -> Tensor:
    return _full(x.shape, value, x.dtype if dtype is None else dtype)


def _filled(value: int) -> Row:
    """zeros, ones and what is not written yet, which may hold anything: here 0."""
    return lambda shape, *rest, dtype=None: _full(shape, value, dtype or lt.float32)


def _like(value: int) -> Row:
    return lambda x, dtype=None: _full_like(x, value, dtype)


def _arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    if end is None:
        start, end = 0, start
    return lt.arange(start, end, step, dtype)


def _eye(n: Size, m: Size | None = None, dtype: Any = None) -> Tensor:
    return lt.eye(n, m, dtype or lt.float32)


def _linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Tensor:
    if isinstance(start, Tensor) or isinstance(end, Tensor):
        raise Unsupported("linspace between tensors")
    return lt.linspace(start, end, steps, dtype or lt.float32)


def _same(x: Tensor, *rest: Any, dtype: Any = None) -> Tensor:
    return x if dtype is None else x.astype(dtype)


def _reshape(x: Tensor, shape: Any) -> Tensor:
    return lt.reshape(x, list(shape))


def _squeeze(x: Tensor, dims: Any = None) -> Tensor:
    if x.ndim == 0:
        return x
    return lt.squeeze(x, dims if dims is None or isinstance(dims, int) else list(dims))


def _transposed(x: Tensor, dim0: int = 0, dim1: int = 1) -> Tensor:
    return lt.transpose(x, dim0, dim1) if x.ndim > 1 else x


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    return x.reshape(1).unfold(0, size, step)[0] if x.ndim == 0 else x.unfold(dim, size, step)


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return lt.where(mask, as_tensor(value).astype(x.dtype), x)


ROWS: dict[str, Row] = {
    "_reshape_alias": lambda x, shape, stride: _reshape(x, shape),
    "_to_copy": _same,
    "_unsafe_view": _reshape,
    "alias": _same,
    "arange": _arange,
    "as_strided": _as_strided,
    "as_strided_scatter": _as_strided_scatter,
    "bucketize": _bucketize,
    "cat": _cat,
    "clone": _same,
    "constant_pad_nd": _pad,
    "copy": lambda x, src, non_blocking=False: src.astype(x.dtype).broadcast_to(x.shape),
    "detach": _same,
    "diagonal": _diagonal,
    "diagonal_scatter": _diagonal_scatter,
    "embedding": _embedding,
    "empty": _filled(0),
    "empty_like": _like(0),
    "empty_permuted": _filled(0),
    "empty_strided": _filled(0),
    "expand": _expand,
    "eye": _eye,
    "fill": lambda x, value: _full_like(x, value),
    "flip": _flip,
    "full": _full,
    "full_like": _full_like,
    "gather": _gather,
    "index": _index,
    "index_put": _index_put,
    "index_select": _index_select,
    "lift": _same,
    "lift_fresh": _same,
    "lift_fresh_copy": _same,
    "linspace": _linspace,
    "masked_fill": _masked_fill,
    "narrow_copy": lambda x, dim, start, length: _slice(x, dim, start, start + length),
    "ones": _filled(1),
    "ones_like": _like(1),
    "permute": lambda x, dims: lt.permute(x, list(dims)) if x.ndim else x,
    "reflection_pad1d": _padding("reflect"),
    "reflection_pad2d": _padding("reflect"),
    "reflection_pad3d": _padding("reflect"),
    "repeat": _repeat,
    "replication_pad1d": _padding("replicate"),
    "replication_pad2d": _padding("replicate"),
    "replication_pad3d": _padding("replicate"),
    "roll": _roll,
    "scalar_tensor": lambda value, dtype=None: _number(value, dtype or lt.float32),
    "scatter": _scatter(lt.scatter),
    "scatter_add": _scatter(lt.scatter_add),
    "scatter_reduce": _scatter_reduce,
    "searchsorted": _searchsorted,
    "select": lambda x, dim, index: x[_at(x, dim, index)],
    "select_scatter": _select_scatter,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "split": _split,
    "split_with_sizes": lambda x, sizes, dim=0: lt.split(x, list(sizes), dim),
    "squeeze": _squeeze,
    "stack": lambda xs, dim=0: lt.stack(xs, dim),
    "t": _transposed,
    "transpose": _transposed,
    "tril": lambda x, diagonal=0: lt.tril(x, diagonal),
    "triu": lambda x, diagonal=0: lt.triu(x, diagonal),
    "unbind": _unbind,
    "unfold": _unfold,
    "unsqueeze": lambda x, dim: lt.unsqueeze(x, dim),
    "view": _reshape,
    "where": lambda c, x, y: lt.where(c, x, y),
    "zeros": _filled(0),
    "zeros_like": _like(0),
}

WITH_METAS = frozenset([_as_strided, _as_strided_scatter])
"""Rows that take `metas`, what PyTorch knows of their operands."""
