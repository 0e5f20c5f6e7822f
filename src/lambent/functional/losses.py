"""Losses, named and reduced as in PyTorch; narrow floats are taken as float32, and so come out."""

from __future__ import annotations

import math

from lambent.functional.arithmetic import abs, equal, not_equal, where
from lambent.functional.indexing import masked_sum
from lambent.functional.mathematics import as_float, exp, log, softplus
from lambent.functional.operands import TensorLike, as_axis, as_tensor, cast
from lambent.functional.reducing import logsumexp, mean, sum
from lambent.graph.tensor import Tensor, describe, iota


def mse_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """(x − target)². Shapes must be equal.

    Raises:
        ValueError: other shapes, or no such reduction ("mean", "sum", "none"): as all losses.
    """
    x, y = _pair("mse_loss", x, target)
    return _reduced("mse_loss", (x - y) * (x - y), reduction)


def huber_loss(
    x: TensorLike, target: TensorLike, delta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """d²/2 where |d| = |x − target| is below delta, else delta · (|d| − delta/2)."""
    x, y = _pair("huber_loss", x, target)
    far = abs(x - y)
    loss = where(far < delta, far * far * 0.5, (far - delta / 2) * delta)
    return _reduced("huber_loss", loss, reduction)


def binary_cross_entropy_with_logits(
    x: TensorLike, target: TensorLike, reduction: str = "mean"
) -> Tensor:
    """−t · log σ(x) − (1 − t) · log(1 − σ(x)), without overflow: `softplus(x) − x · t`."""
    x, t = _pair("binary_cross_entropy_with_logits", x, target)
    return _reduced("binary_cross_entropy_with_logits", softplus(x) - x * t, reduction)


def kl_div(
    x: TensorLike, target: TensorLike, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """t · (log t − x) for log probabilities x and probabilities t, 0 where t is 0.

    Args:
        reduction: also "batchmean": the sum over the size of the first dim, the mathematical value.
        log_target: the target holds log t.
    """
    x, t = _pair("kl_div", x, target)
    if log_target:
        loss = exp(t) * (t - x)
    else:
        loss = t * log(where(t > 0, t, 1.0)) - t * x
    if reduction == "batchmean":
        return sum(loss) / x.shape[0]
    return _reduced("kl_div", loss, reduction)


def nll_loss(
    x: TensorLike,
    target: TensorLike,
    ignore_index: int = -100,
    reduction: str = "mean",
    axis: int | None = None,
) -> Tensor:
    """−x at the target class, for log probabilities x. Arguments as for `cross_entropy`."""
    x, axis = _classes("nll_loss", x, axis)
    picked, valid = _picked("nll_loss", x, as_tensor(target), axis, ignore_index)
    return _of_valid("nll_loss", -picked, valid, reduction)


def cross_entropy(
    x: TensorLike,
    target: TensorLike,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int | None = None,
) -> Tensor:
    """log Σ e^x − x[target]: of logits, without the probabilities or their logarithms.

    Args:
        x: [n, classes, …] or [classes]; or any shape with the classes along `axis`.
        target: integers, x's shape without the classes; or probabilities, in x's shape.
        ignore_index: targets that count neither in the sum nor in the mean. Any other target out of
            range gives NaN, as a graph cannot raise.
        label_smoothing: the share of the target that is spread evenly over all classes.

    Raises:
        TypeError, ValueError: shapes that do not fit, a smoothing out of 0 … 1, no such reduction.
    """
    x, axis = _classes("cross_entropy", x, axis)
    target = as_tensor(target)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy: label_smoothing {label_smoothing} is not in 0 … 1")
    total, even = logsumexp(x, axis), label_smoothing * mean(x, axis) if label_smoothing else 0.0
    if target.dtype.is_float:
        x, t = _pair("cross_entropy", x, target)
        loss = sum(t * (total.unsqueeze(axis) - x), axis) * (1 - label_smoothing)
        loss = loss + (total * label_smoothing - even) if label_smoothing else loss
        return _reduced("cross_entropy", loss, reduction)
    picked, valid = _picked("cross_entropy", x, target, axis, ignore_index)
    loss = total - picked * (1 - label_smoothing) - even
    return _of_valid("cross_entropy", loss, valid, reduction)


def _classes(op: str, x: TensorLike, axis: int | None) -> tuple[Tensor, int]:
    x = as_float(x)
    axis = (1 if x.ndim > 1 else 0) if axis is None else axis
    return cast(x, x.dtype.compute), as_axis(op, x, axis)


def _pair(op: str, x: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    x, y = as_float(x), as_tensor(target)
    if x.shape != y.shape:
        raise ValueError(f"{op}: {describe(x)} and target {describe(y)} differ in shape")
    return cast(x, x.dtype.compute), cast(y, x.dtype.compute)


def _picked(
    op: str, x: Tensor, target: Tensor, axis: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """x at the target class (NaN out of range), and whether a target is not to be ignored."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if not target.dtype.is_integer:
        raise TypeError(f"{op}: the target must be integers, got {describe(target)}")
    if target.shape != shape:
        raise ValueError(f"{op}: {describe(x)} with classes along dim {axis} needs a target of "
                         f"shape {list(shape)}, got {describe(target)}")  # fmt: skip
    target, classes = cast(target, "int64"), x.shape[axis]
    places = iota(classes).reshape(*(1,) * axis, classes, *(1,) * (x.ndim - 1 - axis))
    picked = masked_sum(equal(places, target.unsqueeze(axis)), x, axis)
    valid = not_equal(target, ignore_index)
    lost = (target < 0) | (target >= classes)
    return where(lost & valid, math.nan, picked), valid


def _of_valid(op: str, loss: Tensor, valid: Tensor, reduction: str) -> Tensor:
    """Losses reduced over the targets that are not ignored."""
    kept = valid * loss
    if reduction == "mean":
        return sum(kept) / sum(cast(valid, loss.dtype))
    return _reduced(op, kept, reduction)


def _reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return {"mean": mean, "sum": sum}[reduction](loss) if reduction != "none" else loss
