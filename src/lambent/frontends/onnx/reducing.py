"""Reductions, running sums, softmax and norms over axes, products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import lambent as lt
from lambent.frontends.onnx.known import Known, known
from lambent.frontends.onnx.node import At, Row, of, one
from lambent.functional.operands import as_axis, constant
from lambent.functional.pool import lowest
from lambent.graph.tensor import Tensor

Reduce = Callable[[Tensor, Sequence[int], bool], Tensor]


def _reduced(f: Reduce, empty: Callable[[Tensor], Any] = lambda x: 0) -> Callable[..., Tensor]:
    """A reduction over axes; `empty` is its value where there is nothing to reduce."""

    def build(at: At, x: Tensor, axes: Any = None) -> Tensor:
        chosen = at.numbers("axes", axes)
        if not chosen:
            if at.get("noop_with_empty_axes", 0):
                return f(x, (), True) if f in _OF_EACH else x
            chosen = list(range(x.ndim))
        keep = bool(at["keepdims"])
        if 0 in (x.shape[a] for a in chosen):
            zero = x.sum(chosen, keepdims=keep, dtype=x.dtype if x.dtype != lt.bool_ else None)
            return constant(empty(x), x.dtype, zero.shape)
        return f(x, chosen, keep)

    return build


def _sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return x.sum(axes, keep, x.dtype)


def _sum_square(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


def _l1(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return _sum(abs(x), axes, keep)


def _l2(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return _sum_square(x, axes, keep).sqrt()


def _log_sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return _sum(x, axes, keep).log()


def _log_sum_exp(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return lt.logsumexp(x, axes, keep)


def _mean(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return x.mean(axes, keep)


def _max(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return x.max(axes, keep)


def _min(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return x.min(axes, keep)


def _product(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return x.prod(axes, keep)


_OF_EACH = (_sum_square, _l1, _l2, _log_sum, _log_sum_exp)
"""Reductions that do something to an element even where no axis is reduced."""


def _highest(x: Tensor) -> Any:
    return -lowest(x.dtype) if x.dtype.is_float else -1 - int(lowest(x.dtype))


def _product_of_sizes(at: At, x: Known, axes: Known | None = None) -> Known | None:
    whole = x.array.ndim == 1 and (axes is None or axes.array.tolist() in ([0], [-1]))
    if not whole or at.get("axes", [0]) != [0]:
        return None
    total = prod(x.array.tolist())
    return known([total] if at["keepdims"] else total, x.dtype)


def _cumulated(at: At, x: Tensor, axis: Any) -> Tensor:
    axis = as_axis("CumSum", x, one(axis))
    if at["reverse"]:
        x = x.flip(axis)
    out = lt.cumsum(x, axis, x.dtype)
    out = out - x if at["exclusive"] and not x.dtype.is_float else out
    if at["exclusive"] and x.dtype.is_float:
        rest = [(1, 0) if a == axis else (0, 0) for a in range(x.ndim)]
        out = out.pad(rest)[(slice(None),) * axis + (slice(0, x.shape[axis]),)]
    return out.flip(axis) if at["reverse"] else out


def _normalised(f: Callable[[Tensor, int], Tensor]) -> Callable[[At, Tensor], Tensor]:
    """Before opset 13 all dims from the axis on are taken as one."""

    def build(at: At, x: Tensor) -> Tensor:
        if at.version >= 13:
            return f(x, at["axis"])
        axis = as_axis("Softmax", x, at["axis"])
        return f(x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])), -1).reshape(x.shape)

    return build


def _lp_normalization(at: At, x: Tensor) -> Tensor:
    at.need(at["p"] in (1, 2), f"p={at['p']}: 1 or 2")
    norm = (_l1 if at["p"] == 1 else _l2)(x, [at["axis"]], True)
    return lt.where(norm == 0, 0.0, x / norm)


# ---- products --------------------------------------------------------------------------------


def _gemm(at: At, a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
    at.need(a.ndim == b.ndim == 2, f"matrices of {a.ndim} and {b.ndim} dims")
    y = (a.mT if at["transA"] else a) @ (b.mT if at["transB"] else b)
    y = y if at["alpha"] == 1 else y * _scalar(at["alpha"], y)
    if c is None:
        return y
    return y + (c if at["beta"] == 1 else c * _scalar(at["beta"], c))


def _scalar(number: float, like: Tensor) -> float | int:
    return number if like.dtype.is_float else int(number)


def _det(x: Tensor) -> Tensor:
    """Leibniz: n! products, so small matrices alone."""
    n = x.shape[-1]
    if x.shape[-2] != n or not isinstance(n, int) or n > 4:
        raise ValueError(f"a matrix of {x.shape[-2]} × {n}: it must be square and at most 4 × 4")
    if n == 1:
        return x[..., 0, 0]
    out = constant(0.0, x.dtype)
    for i in range(n):
        minor = lt.concat([x[..., 1:, :i], x[..., 1:, i + 1 :]], axis=-1)
        term = x[..., 0, i] * _det(minor)
        out = out - term if i % 2 else out + term
    return out


ROWS: dict[str, Row] = {
    "CumSum": Row(
        _cumulated,
        static=(1,),
        note="n² products a line; the host sums lines of more than 1024 (`compile_onnx`)",
    ),
    "Det": of(_det, note="matrices up to 4 × 4"),
    "Einsum": Row(lambda at, *xs: lt.einsum(at["equation"], *xs)),
    "Gemm": Row(_gemm),
    "LogSoftmax": Row(_normalised(lt.log_softmax)),
    "LpNormalization": Row(_lp_normalization),
    "MatMul": of(lt.matmul),
    "ReduceL1": Row(_reduced(_l1), static=(1,)),
    "ReduceL2": Row(_reduced(_l2), static=(1,)),
    "ReduceLogSum": Row(_reduced(_log_sum, lambda x: lowest(x.dtype)), static=(1,), until=28),
    "ReduceLogSumExp": Row(
        _reduced(_log_sum_exp, lambda x: lowest(x.dtype)), static=(1,), until=28
    ),
    "ReduceMax": Row(_reduced(_max, lambda x: lowest(x.dtype)), static=(1,)),
    "ReduceMean": Row(_reduced(_mean, lambda x: float("nan")), static=(1,)),
    "ReduceMin": Row(_reduced(_min, _highest), static=(1,)),
    "ReduceProd": Row(_reduced(_product, lambda x: 1), static=(1,), fold=_product_of_sizes),
    "ReduceSum": Row(_reduced(_sum), static=(1,)),
    "ReduceSumSquare": Row(_reduced(_sum_square), static=(1,)),
    "Softmax": Row(_normalised(lt.softmax)),
}
