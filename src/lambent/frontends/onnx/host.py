"""Operators that the host runs, in NumPy: what static graphs of twelve primitives say badly.

They cannot say results of sizes that depend on data. Sorts, running sums and writes to places that
data tells they say by comparing all pairs: long ones are the host's. A call stands beside the
graph: its operands are values of it, and its results are inputs of what comes after (see `staged`).
A size that only the data tells is a symbol from 0 to the most there can be.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import HostWarning
from lambent.frontends.onnx.known import Known, Value, as_tensor, evaluated
from lambent.frontends.onnx.node import At, one
from lambent.frontends.onnx.read import Array
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType
from lambent.graph.prove import bounds
from lambent.graph.tensor import Tensor

LONG = 1024
"""Lines longer than this are the host's where as primitives they take the square of it."""

MOST = 1 << 24
"""The largest size that a symbol for a count may have."""

Results = list[tuple[Sequence[Size], DType]]


@dataclass(frozen=True, slots=True)
class Hosted:
    """How the host runs an operator.

    run:   (attributes, *operands) → results, in NumPy; None for an operand that is left out.
    shape: (attributes, new symbol, *operands) → shape and dtype of every result; the symbol is
           made by `new(most)`.
    cost:  what it costs beside copying operands and results.
    always: whether it is the host's even where the graph could say it.
    """

    run: Callable[..., Sequence[Array]]
    shape: Callable[..., Results]
    cost: str
    always: Callable[[At, Sequence[Value | None]], bool] = lambda at, operands: False


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One node that the host runs. `results` are inputs that stand for what it computes."""

    where: str
    hosted: Hosted
    at: At
    operands: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]

    def run(self, arrays: Sequence[Array | None]) -> list[Array]:
        """The results, of the dtypes that the graph expects."""
        found = self.hosted.run(self.at, *arrays)
        return [
            np.ascontiguousarray(a, t.dtype.numpy)
            for a, t in zip(found, self.results, strict=False)
        ]


def call(where: str, op: str, at: At, operands: Sequence[Value | None], number: int) -> Call:
    """A node as a call; `number` is how many there are before it."""
    hosted = HOSTED[op]
    tensors = tuple(None if v is None else as_tensor(v) for v in operands)

    def new(most: Size) -> Dim:
        return _symbol(f"{op}_{number}", min(int(bounds(most)[1]), MOST))

    made = hosted.shape(at, new, *tensors)
    results = tuple(
        lt.input(f"{op} {number}.{i}", shape, dtype) for i, (shape, dtype) in enumerate(made)
    )
    return Call(where, hosted, at, tensors, results)


def is_left(where: str, op: str, at: At, operands: Sequence[Value | None], may: bool) -> bool:
    """Whether the host gets what primitives can say, but slowly; a warning where it `may` not."""
    hosted = HOSTED.get(op)
    if hosted is None or not hosted.always(at, operands):
        return False
    if not may:
        warnings.warn(
            f"{where}: as a graph it takes each pair of elements of a line; lambent.compile_onnx "
            f"leaves it to the host, for {hosted.cost}",
            HostWarning,
            stacklevel=2,
        )
    return may


def _symbol(name: str, most: int) -> Dim:
    i = 1
    while True:
        try:
            return Dim(name if i == 1 else f"{name}_{i}", 0, most)
        except ValueError:  # another model has it with another range
            i += 1


# ---- the operators ---------------------------------------------------------------------------


def _nonzero(at: At, x: Array) -> list[Array]:
    return [np.stack(np.nonzero(np.atleast_1d(x)))]


def _nonzero_shape(at: At, new: Any, x: Tensor) -> Results:
    return [((max(1, x.ndim), new(prod(x.shape))), lt.int64)]


def _compress(at: At, x: Array, condition: Array) -> list[Array]:
    return [np.compress(condition, x, at.get("axis"))]


def _compress_shape(at: At, new: Any, x: Tensor, condition: Tensor) -> Results:
    axis, count = at.get("axis"), new(condition.shape[0])
    if axis is None:
        return [((count,), x.dtype)]
    axis %= x.ndim
    return [((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)]


def _unique(at: At, x: Array) -> list[Array]:
    axis = at.get("axis")
    values, first, back, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not at["sorted"]:
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, back = first[order], counts[order], np.argsort(order)[back.reshape(-1)]
    return [values, first, back.reshape(-1), counts]


def _unique_shape(at: At, new: Any, x: Tensor) -> Results:
    axis = at.get("axis")
    along = prod(x.shape) if axis is None else x.shape[axis]
    n = new(along)
    values: tuple[Size, ...] = (n,)
    if axis is not None:
        values = (*x.shape[: axis % x.ndim], n, *x.shape[axis % x.ndim + 1 :])
    rest: Results = [((n,), lt.int64), ((along,), lt.int64), ((n,), lt.int64)]
    return [(values, x.dtype), *rest]


def _top_k(at: At, x: Array, k: Array) -> list[Array]:
    """Equal values by their place, the first one first."""
    axis, count = at["axis"], x.shape[at["axis"]]
    if at.get("largest", 1):
        order = count - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    order = np.take(order, np.arange(int(k.reshape(-1)[0])), axis)
    return [np.take_along_axis(x, order, axis), order]


def _top_k_shape(at: At, new: Any, x: Tensor, k: Tensor) -> Results:
    (number,) = lt.evaluate([k], {})
    axis = at["axis"] % x.ndim
    shape = (*x.shape[:axis], int(one(number.tolist())), *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, lt.int64)]


def _is_long(at: At, operands: Sequence[Value | None]) -> bool:
    x = operands[0]
    return isinstance(x, Tensor) and bounds(x.shape[at["axis"]])[1] > LONG


def _cumulated(at: At, x: Array, axis: Array) -> list[Array]:
    a = int(axis.reshape(-1)[0])
    x = np.flip(x, a) if at["reverse"] else x
    out = np.cumsum(x, a, x.dtype)
    if at["exclusive"]:
        out = np.roll(out, 1, a)
        np.moveaxis(out, a, 0)[0] = 0
    return [np.flip(out, a) if at["reverse"] else out]


def _cumulates_much(at: At, operands: Sequence[Value | None]) -> bool:
    x, axis = operands[:2]
    (known,) = evaluated([axis]) if axis is not None else (None,)
    if not (isinstance(x, Tensor) and isinstance(known, Known)):
        return False
    return bounds(x.shape[int(one(known.array.tolist()))])[1] > LONG


def _like(at: At, new: Any, x: Tensor, *more: Any) -> Results:
    return [(x.shape, x.dtype)]


WRITES: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum
}  # fmt: skip


def _written(at: At, x: Array, places: tuple[Array, ...], updates: Array) -> list[Array]:
    out, how = x.copy(), at.get("reduction", "none")
    if how == "none":
        out[places] = updates
    else:
        WRITES[how].at(out, places, updates)
    return [out]


def _scattered(at: At, x: Array, indices: Array, updates: Array) -> list[Array]:
    places: list[Array] = [*np.indices(indices.shape, sparse=True)]
    places[at["axis"]] = indices
    return _written(at, x, tuple(places), updates)


def _scattered_nd(at: At, x: Array, indices: Array, updates: Array) -> list[Array]:
    return _written(at, x, tuple(np.moveaxis(indices, -1, 0)), updates)


def _writes_much(at: At, operands: Sequence[Value | None]) -> bool:
    """Whether places times writes, of a line or of all, are more than of a long line."""
    x, indices = operands[:2]
    if not (isinstance(x, Tensor) and isinstance(indices, Tensor)):
        return False
    axis, dims = at.get("axis"), indices.shape[-1] if indices.ndim else 0
    if axis is not None:
        places, writes = x.shape[axis], indices.shape[axis]
    else:
        places = prod(x.shape[:dims]) if isinstance(dims, int) else prod(x.shape)
        writes = prod(indices.shape[:-1])
    return bounds(places)[1] * bounds(writes)[1] > LONG * LONG


def _suppressed(
    at: At, boxes: Array, scores: Array, most: Array | None = None, overlap: Array | None = None,
    least: Array | None = None,
) -> list[Array]:  # fmt: skip
    """Non-maximum suppression: of boxes that overlap too much only the best stays."""
    number, limit = (0.0 if a is None else float(a.reshape(-1)[0]) for a in (most, overlap))
    low, high = _corners(boxes.astype(np.float64), bool(at["center_point_box"]))
    found: list[tuple[int, int, int]] = []
    for b, c in np.ndindex(scores.shape[:2]):
        order = np.argsort(-scores[b, c], kind="stable")
        if least is not None:
            order = order[scores[b, c][order] > least.reshape(-1)[0]]
        kept = 0
        while kept < number and order.size:
            best, order = order[0], order[1:]
            found.append((b, c, int(best)))
            kept += 1
            order = order[_shares(low[b], high[b], best, order) <= limit]
    return [np.array(found, np.int64).reshape(-1, 3)]


def _corners(boxes: Array, centred: bool) -> tuple[Array, Array]:
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _shares(low: Array, high: Array, one: int, others: Array) -> Array:
    """What a box and each of the others have in common, of what they cover together."""
    both = np.minimum(high[one], high[others]) - np.maximum(low[one], low[others])
    common = np.prod(np.maximum(both, 0.0), -1)
    areas = np.prod(high - low, -1)
    union = areas[one] + areas[others] - common
    shares: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def _suppressed_shape(at: At, new: Any, boxes: Tensor, scores: Tensor, *more: Any) -> Results:
    return [((new(prod(scores.shape)), 3), lt.int64)]


HOSTED: dict[str, Hosted] = {
    "Compress": Hosted(_compress, _compress_shape, "one pass"),
    "CumSum": Hosted(_cumulated, _like, "one pass", _cumulates_much),
    "NonMaxSuppression": Hosted(
        _suppressed, _suppressed_shape, "a sort of each class, and a pass for each box that stays"
    ),
    "NonZero": Hosted(_nonzero, _nonzero_shape, "one pass"),
    "ScatterElements": Hosted(
        _scattered, _like, "a pass, and one over what is written", _writes_much
    ),
    "ScatterND": Hosted(_scattered_nd, _like, "a pass, and one over what is written", _writes_much),
    "TopK": Hosted(_top_k, _top_k_shape, "a sort of each line", _is_long),
    "Unique": Hosted(_unique, _unique_shape, "a sort"),
}
"""By operator; all are of the main domain."""
