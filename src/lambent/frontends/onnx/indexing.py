"""Operators that read and write at indices, order elements, or look for them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.known import Known, known
from lambent.frontends.onnx.node import At, Row, one
from lambent.functional.indexing import masked_sum
from lambent.functional.operands import as_axis, constant
from lambent.functional.pool import lowest
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, as_size, at_least

# ---- reading ---------------------------------------------------------------------------------


def _gather(at: At, x: Tensor, indices: Tensor) -> Tensor:
    return lt.take(x, indices, at["axis"])


def _gather_known(at: At, x: Known, indices: Known) -> Known | None:
    if indices.symbolic:
        return None
    return known(np.take(x.array, indices.array, at["axis"]), x.dtype)


def _gather_elements(at: At, x: Tensor, indices: Tensor) -> Tensor:
    return lt.gather(x, at["axis"], indices)


def _gather_nd(at: At, x: Tensor, indices: Tensor) -> Tensor:
    """The indexed dims as one, and the tuples of indices as positions in it."""
    batch = at.get("batch_dims", 0)
    at.need(0 <= batch < min(x.ndim, indices.ndim), f"batch_dims={batch}")
    lead, rest = x.shape[:batch], indices.shape[batch:-1]
    flat, position, after = _flattened(at, x, indices, batch)
    flat = flat.reshape(prod(lead), flat.shape[batch], prod(after))
    position = position.reshape(prod(lead), prod(rest))
    hits = position.unsqueeze(-1) == lt.iota(flat.shape[1])
    out = masked_sum(hits.unsqueeze(2), flat.mT.unsqueeze(1))
    return out.reshape(*lead, *rest, *after)


def _flattened(
    at: At, x: Tensor, indices: Tensor, batch: int
) -> tuple[Tensor, Tensor, tuple[Size, ...]]:
    """x with the dims that the last dim of the indices addresses as one; where they point to in it;
    and the dims behind them."""
    depth = indices.shape[-1]
    at.need(isinstance(depth, int), "the size of the last dim of the indices is symbolic")
    assert isinstance(depth, int)
    at.need(0 < depth <= x.ndim - batch, f"{depth} indices for {x.ndim - batch} dims")
    sizes, after = x.shape[batch : batch + depth], x.shape[batch + depth :]
    position = constant(0, lt.int64)
    for i, size in enumerate(sizes):
        index = indices[..., i].astype("int64")
        n = constant(size, lt.int64)
        position = position * n + lt.where(index < 0, index + n, index)
    return x.reshape(*x.shape[:batch], prod(sizes), *after), position, after


def _one_hot(at: At, indices: Tensor, depth: Any, values: Tensor) -> Tensor:
    depth = one(depth)
    size = as_size("OneHot", int(depth) if isinstance(depth, float) else depth)
    index = indices.astype("int64")
    index = lt.where(index < 0, index + constant(size, lt.int64), index)
    hits = index.unsqueeze(-1) == lt.iota(size)
    axis = at["axis"]
    out = lt.where(hits, values[1], values[0])
    return out if axis == -1 else out.moveaxis(-1, axis)


def _compress(at: At, x: Tensor, condition: Any) -> Tensor:
    keep = [i for i, c in enumerate(condition) if c]
    axis = at.get("axis")
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    size = x.shape[axis]
    at.need(not keep or at_least(size - 1 - keep[-1], 0), "it is longer than x")
    return lt.take(x, np.array(keep, np.int64), axis)


# ---- writing ---------------------------------------------------------------------------------

_Fold = Callable[[Tensor, Tensor, Tensor], Tensor]


def _added(hits: Tensor, values: Tensor, old: Tensor) -> Tensor:
    return old + masked_sum(hits, values)


def _last_written(hits: Tensor, values: Tensor, old: Tensor) -> Tensor:
    turn = lt.iota(hits.shape[-1])
    winner = (hits * (turn + 1)).max(-1)
    return lt.where(winner > 0, masked_sum((winner - 1).unsqueeze(-1) == turn, values), old)


def _multiplied(hits: Tensor, values: Tensor, old: Tensor) -> Tensor:
    return old * lt.where(hits, values, 1).prod(-1).astype(old.dtype)


def _largest(hits: Tensor, values: Tensor, old: Tensor) -> Tensor:
    least = constant(lowest(old.dtype), old.dtype)
    return lt.maximum(old, lt.where(hits, values, least).max(-1))


def _smallest(hits: Tensor, values: Tensor, old: Tensor) -> Tensor:
    if old.dtype.is_float:
        return -_largest(hits, -values, -old)
    return ~_largest(hits, ~values, ~old)


_REDUCTIONS: dict[str, _Fold] = {
    "none": _last_written,
    "add": _added,
    "mul": _multiplied,
    "max": _largest,
    "min": _smallest,
}
"""What becomes of an old value […] and the values [… , m] that are written there where it hits."""


def _reduction(at: At, updates: Tensor) -> _Fold:
    name = at.get("reduction", "none")
    at.need(name in _REDUCTIONS, f"the reduction {name!r} is not known")
    at.need(updates.shape[-1] != 0, "nothing to write")
    return _REDUCTIONS[name]


def _scatter_elements(at: At, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = as_axis("ScatterElements", x, at["axis"])
    at.need(indices.shape == updates.shape and indices.ndim == x.ndim, "indices and updates differ")
    name = at.get("reduction", "none")
    if name in ("none", "add"):
        write = lt.scatter if name == "none" else lt.scatter_add
        return write(x, axis, indices, updates)
    lines, values = x.moveaxis(axis, -1), updates.moveaxis(axis, -1)
    at.need(lines.shape[:-1] == values.shape[:-1], f"{name} of a part of the other dims")
    index = indices.moveaxis(axis, -1).astype("int64")
    index = lt.where(index < 0, index + constant(x.shape[axis], lt.int64), index)
    hits = index.unsqueeze(-2) == lt.iota(x.shape[axis]).unsqueeze(-1)
    return _reduction(at, values)(hits, values.unsqueeze(-2), lines).moveaxis(-1, axis)


def _scatter_nd(at: At, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    flat, position, after = _flattened(at, x, indices, 0)
    places, width = position.size, prod(after)
    at.need(updates.shape == (*indices.shape[:-1], *after), "the updates do not fit the indices")
    old = flat.reshape(flat.shape[0], width)
    hits = position.reshape(places) == lt.iota(flat.shape[0]).unsqueeze(-1)  # [place of x, written]
    values = updates.reshape(places, width).mT
    new = _reduction(at, values)(hits.unsqueeze(1), values.unsqueeze(0), old)
    return new.reshape(x.shape)


def _tensor_scatter(at: At, x: Tensor, update: Tensor, start: Tensor | None) -> Tensor:
    """The update as rows of x along an axis, from a start of each batch on."""
    axis = as_axis("TensorScatter", x, at["axis"])
    at.need(axis > 0, "the axis is the batch")
    n, count = x.shape[axis], update.shape[axis]
    first = lt.zeros(x.shape[0], dtype="int64") if start is None else start.astype("int64")
    place = lt.iota(n) - first.unsqueeze(-1)  # in the update, [batch, n]
    if at["mode"] == "circular":
        place = place % constant(n, lt.int64)
    hits = place.unsqueeze(-1) == lt.iota(count)
    lines, values = x.moveaxis(axis, -1), update.moveaxis(axis, -1)
    hits = hits.reshape(hits.shape[0], *(1,) * (x.ndim - 2), n, count)
    return _last_written(hits, values.unsqueeze(-2), lines).moveaxis(-1, axis)


# ---- order -----------------------------------------------------------------------------------


def _top_k(at: At, x: Tensor, k: Any) -> list[Tensor]:
    largest = bool(at.get("largest", 1))
    return list(lt.topk(x, one(k), at["axis"], largest))


def _arg(find: Callable[..., Tensor]) -> Callable[[At, Tensor], Tensor]:
    def build(at: At, x: Tensor) -> Tensor:
        axis = as_axis("ArgMax", x, at["axis"])
        if not at.get("select_last_index", 0):
            return find(x, axis, keepdims=bool(at["keepdims"]))
        back = find(x.flip(axis), axis, keepdims=bool(at["keepdims"]))
        return constant(x.shape[axis] - 1, lt.int64) - back

    return build


def _hardmax(at: At, x: Tensor) -> Tensor:
    if at.version < 13:
        axis = as_axis("Hardmax", x, at["axis"])
        flat = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
        return _hot(flat, -1).reshape(x.shape)
    return _hot(x, at["axis"])


def _hot(x: Tensor, axis: int) -> Tensor:
    first = x.argmax(axis)
    return lt.one_hot(first, x.shape[axis], x.dtype).moveaxis(-1, axis)


# ---- of known values alone -------------------------------------------------------------------


_MANY = "more than 2²⁰ are the host's (`compile_onnx`)"
_HOST = "where its values are known; else it is the host's (`compile_onnx`): sizes depend on data"


def _nonzero(at: At, x: Any) -> Known:
    return known(np.stack(np.nonzero(np.atleast_1d(np.asarray(x)))).astype(np.int64))


ROWS: dict[str, Row] = {
    "ArgMax": Row(_arg(lt.argmax)),
    "ArgMin": Row(_arg(lt.argmin)),
    "Compress": Row(_compress, static=(1,), until=28, note=_HOST),
    "Gather": Row(_gather, fold=_gather_known),
    "GatherElements": Row(_gather_elements),
    "GatherND": Row(_gather_nd),
    "Hardmax": Row(_hardmax),
    "NonZero": Row(_nonzero, static=(0,), note=_HOST),
    "OneHot": Row(_one_hot, static=(1,), until=28),
    "Scatter": Row(_scatter_elements, since=9, note="n · m comparisons a line"),
    "ScatterElements": Row(_scatter_elements, note=f"n · m comparisons a line; {_MANY}"),
    "ScatterND": Row(_scatter_nd, note=f"n · m comparisons; {_MANY}"),
    "TensorScatter": Row(_tensor_scatter, until=24),
    "TopK": Row(
        _top_k,
        static=(1,),
        until=24,
        note="n² comparisons a line; the host sorts lines of more than 1024 (`compile_onnx`)",
    ),
}
