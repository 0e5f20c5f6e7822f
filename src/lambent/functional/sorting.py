"""Sorting by counting: where an element goes is how many elements go before it."""

from __future__ import annotations

from lambent.functional.indexing import masked_sum
from lambent.functional.operands import TensorLike, as_axis, as_tensor
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, as_size, at_least, describe, iota


def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values and the int64 indices they came from, as `torch.sort(stable=True)`.

    Equal elements keep their order, in both directions. NaN is larger than everything.

    Composed: rank_i = Σ_j (x_j is before x_i), by `less_than` and the positions where equal; then
    value_r = Σ_i (rank_i == r) · x_i. This compares all pairs: n² work for each line of n, meant
    for short axes.

    Raises:
        IndexError: no such axis.
    """
    x = as_tensor(x)
    axis = as_axis("sort", x, axis)
    return _first(x, axis, x.shape[axis], descending)


def argsort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The indices (int64) that sort x along an axis: the second part of `sort`, at its cost."""
    return sort(x, axis, descending)[1]


def topk(x: TensorLike, k: Size, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) along an axis, in order, and their indices (int64).

    Of equal elements the first wins. NaN counts as the largest. Composed as `sort`: n² comparisons
    and n · k products for each line.

    Raises:
        ValueError: k may be more than there are.
    """
    x = as_tensor(x)
    axis, k = as_axis("topk", x, axis), as_size("topk", k)
    if not at_least(x.shape[axis] - k, 0):
        raise ValueError(f"topk: k={k} of the {x.shape[axis]} along axis {axis} of {describe(x)}")
    return _first(x, axis, k, largest)


def _first(x: Tensor, axis: int, count: Size, descending: bool) -> tuple[Tensor, Tensor]:
    x = x.moveaxis(axis, -1)
    n = iota(x.shape[-1])
    mine, other = x.unsqueeze(-1), x.unsqueeze(-2)
    low, high = (mine, other) if descending else (other, mine)
    before = _below(low, high) | (~_below(high, low) & (n < n.unsqueeze(-1)))
    rank = before.sum(-1)
    hits = rank.unsqueeze(-2) == iota(count).unsqueeze(-1)  # […, place, element]
    values, indices = masked_sum(hits, x.unsqueeze(-2)), masked_sum(hits, n)
    return values.moveaxis(-1, axis), indices.moveaxis(-1, axis)


def _below(a: Tensor, b: Tensor) -> Tensor:
    """a < b with NaN above all numbers."""
    return (a < b) | (b.isnan() & ~a.isnan()) if a.dtype.is_float else a < b
