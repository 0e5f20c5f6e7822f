"""Rows of ATen's reductions, sorts and scans: name → meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lambent as lt
from lambent.frontends.torch.values import Unsupported
from lambent.functional.reducing import Axes
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor

Row = Callable[..., Any]
LONGEST_SORT, LONGEST_SCAN = 64, 1024
"""Beyond these sizes what is composed costs too much: n² comparisons, n² products a line."""


def _axes(x: Tensor, dims: Any) -> Axes:
    """All dims where none is named."""
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return None
    return dims if isinstance(dims, int) else list(dims)


def reduction(f: Row) -> Row:
    """f over some dims; a scalar is reduced over none."""

    def row(x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        x = x if dtype is None else x.astype(dtype)
        if x.ndim == 0:
            return f(x.reshape(1), 0, False)  # type: ignore[no-any-return]
        return f(x, _axes(x, dims), keepdim)  # type: ignore[no-any-return]

    return row


def picking(f: Row, where: Row) -> Row:
    """Values and indices along a dim; of the whole tensor the value alone."""

    def row(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return f(x) if x.ndim else x
        if x.ndim == 0:
            return x, lt.zeros((), dtype=lt.int64)
        return f(x, dim, keepdim), where(x, dim, keepdim)

    return row


def _place(where: Row) -> Row:
    def row(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if x.ndim == 0:
            return lt.zeros((), dtype=lt.int64)
        return where(x, dim, keepdim)  # type: ignore[no-any-return]

    return row


def _variance(f: Row) -> Row:
    def row(x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        less = 1 if correction is None else correction
        if x.ndim == 0:
            return f(x.reshape(1), 0, False, less)
        return f(x, _axes(x, dims), keepdim, less)

    return row


def _var_mean(x: Tensor, axes: Any, keepdim: bool, correction: Any) -> tuple[Tensor, Tensor]:
    return lt.var(x, axes, keepdim, correction), lt.mean(x, axes, keepdim)


def _vector_norm(
    x: Tensor, order: Any = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x = lt.abs(x if dtype is None else x.astype(dtype))
    if x.ndim == 0:
        x, dims, keepdim = x.reshape(1), 0, False
    axes = _axes(x, dims)
    if math.isinf(order):
        return (lt.max if order > 0 else lt.min)(x, axes, keepdim)
    if order == 0:
        return lt.sum(lt.not_equal(x, 0).astype(x.dtype), axes, keepdim)
    if order == 1:
        return lt.sum(x, axes, keepdim)
    if order == 2:
        return lt.sqrt(lt.sum(x * x, axes, keepdim))
    return lt.pow(lt.sum(lt.pow(x, float(order)), axes, keepdim), 1.0 / float(order))


# ---- sorts and scans: short ones only ----------------------------------------------------------


def _short(op: str, size: Size, longest: int, cost: str) -> None:
    if not isinstance(size, int) or size > longest:
        raise Unsupported(f"{op} of {size} elements, where composed of primitives {cost}")


def _sortable(x: Tensor, dim: int) -> None:
    _short("a sort", x.shape[dim], LONGEST_SORT, "all pairs are compared")


def _sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, lt.zeros((), dtype=lt.int64)
    _sortable(x, dim)
    return lt.sort(x, dim, descending)


def _topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, lt.zeros((), dtype=lt.int64)
    _sortable(x, dim)
    return lt.topk(x, k, dim, largest)


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, lt.zeros((), dtype=lt.int64)
    _sortable(x, dim)
    return _pick(lt.sort(x, dim), dim, k - 1, keepdim)


def _pick(
    ranked: tuple[Tensor, Tensor], dim: int, place: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    values, indices = (r.moveaxis(dim, -1)[..., place : place + 1] for r in ranked)
    both = values.moveaxis(-1, dim), indices.moveaxis(-1, dim)
    return both if keepdim else (both[0].squeeze(dim), both[1].squeeze(dim))


def _cumulative(f: Row) -> Row:
    def row(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        x = x if dtype is None else x.astype(dtype)
        if x.ndim == 0:
            return x
        _short("a scan", x.shape[dim], LONGEST_SCAN, "every prefix is computed anew")
        return f(x, dim)  # type: ignore[no-any-return]

    return row


def _prefixes(x: Tensor, dim: int, neutral: Any) -> Tensor:
    """[…, n] → […, n, n]: row i holds x up to i, then the neutral value."""
    n = x.shape[dim]
    last = x.moveaxis(dim, -1).unsqueeze(-2)
    return lt.where(lt.tri(n, n), last, neutral)


def _cumprod(x: Tensor, dim: int) -> Tensor:
    one = lt.constant(1, x.dtype)
    return lt.prod(_prefixes(x, dim, one), -1).moveaxis(-1, dim)


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return lt.logsumexp(_prefixes(x, dim, -math.inf), -1).moveaxis(-1, dim)


def _running(largest: bool) -> Row:
    """Largest or smallest so far, and the last place where it was met; NaN, once met, stays."""

    def row(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x, lt.zeros((), dtype=lt.int64)
        _short("a scan", x.shape[dim], LONGEST_SCAN, "every prefix is computed anew")
        if not x.dtype.is_float:
            raise Unsupported("a running maximum of integers")
        neutral = -math.inf if largest else math.inf
        upto = _prefixes(x, dim, neutral)
        best = lt.max(upto, -1, keepdims=True) if largest else lt.min(upto, -1, keepdims=True)
        n = x.shape[dim]
        hit = (lt.equal(upto, best) | (lt.isnan(upto) & lt.isnan(best))) & lt.tri(n, n)
        place = lt.max(hit * lt.arange(n), -1)
        return best.squeeze(-1).moveaxis(-1, dim), place.moveaxis(-1, dim)

    return row


ROWS: dict[str, Row] = {
    "all": reduction(lt.all),
    "amax": reduction(lt.max),
    "amin": reduction(lt.min),
    "any": reduction(lt.any),
    "argmax": _place(lt.argmax),
    "argmin": _place(lt.argmin),
    "cummax": _running(True),
    "cummin": _running(False),
    "cumprod": _cumulative(_cumprod),
    "cumsum": _cumulative(lt.cumsum),
    "kthvalue": _kthvalue,
    "linalg_vector_norm": _vector_norm,
    "logcumsumexp": _cumulative(_logcumsumexp),
    "logsumexp": reduction(lt.logsumexp),
    "max": picking(lt.max, lt.argmax),
    "mean": reduction(lt.mean),
    "min": picking(lt.min, lt.argmin),
    "prod": reduction(lt.prod),
    "sort": _sort,
    "std": _variance(lt.std),
    "sum": reduction(lt.sum),
    "topk": _topk,
    "var": _variance(lt.var),
    "var_mean": _variance(_var_mean),
}
