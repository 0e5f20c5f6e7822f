"""Tensors from nothing: constants repeated by a view, and arithmetic on `iota`."""

from __future__ import annotations

import math

from lambent.functional.arithmetic import where
from lambent.functional.operands import cast, constant
from lambent.graph import tensor as core
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType, as_dtype, float32, int64
from lambent.graph.prove import maximum
from lambent.graph.tensor import DTypeLike, Scalar, Tensor, iota, view


def full(shape: object, value: Scalar, dtype: DTypeLike = None) -> Tensor:
    """The value everywhere: a constant, repeated by a view."""
    return constant(value, dtype, core.as_shape("full", shape))


def zeros(*shape: object, dtype: DTypeLike = float32) -> Tensor:
    """0 everywhere."""
    return constant(0, dtype, core.as_shape("zeros", *shape))


def ones(*shape: object, dtype: DTypeLike = float32) -> Tensor:
    """1 everywhere."""
    return constant(1, dtype, core.as_shape("ones", *shape))


def full_like(x: Tensor, value: Scalar, dtype: DTypeLike = None) -> Tensor:
    """The value in the shape (and, unless given, the dtype) of x."""
    return constant(value, x.dtype if dtype is None else dtype, x.shape)


def zeros_like(x: Tensor, dtype: DTypeLike = None) -> Tensor:
    """0 in the shape and dtype of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Tensor, dtype: DTypeLike = None) -> Tensor:
    """1 in the shape and dtype of x."""
    return full_like(x, 1, dtype)


def arange(
    start: float | Size,
    stop: float | Size | None = None,
    step: float | int = 1,
    dtype: DTypeLike = None,
) -> Tensor:
    """start, start + step, … before stop: `iota · step + start`. int64, or float32 with any float.

    Raises:
        ValueError: a step of 0, or a symbolic length with a float.
    """
    low, high = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange: the step must not be 0")
    if isinstance(low, float) or isinstance(high, float) or isinstance(step, float):
        if isinstance(low, Dim) or isinstance(high, Dim):
            raise ValueError(f"arange({low}, {high}, {step}): a symbolic length needs integers")
        kind = as_dtype(float32 if dtype is None else dtype)
        index = cast(iota(max(0, math.ceil((high - low) / step))), _floating(kind))
        return cast(index * float(step) + float(low), kind)
    span = high - low if step > 0 else low - high
    index = iota(maximum(0, -(-span // abs(step))))
    index = index if step == 1 else index * step
    return cast(index if low == 0 else index + low, int64 if dtype is None else dtype)


def _floating(dtype: DType) -> DType:
    return dtype if dtype.is_float else float32


def linspace(start: float, stop: float, n: int, dtype: DTypeLike = float32) -> Tensor:
    """n evenly spaced numbers, both ends exact: counted from the nearer end.

    Raises:
        TypeError: n is no int.
    """
    (count,) = core.as_shape("linspace", n)
    kind = as_dtype(dtype)
    if not isinstance(count, int) or not kind.is_float:
        raise TypeError(f"linspace: needs an int and a floating dtype, got {n!r} and {kind}")
    if count < 2:
        return constant(start, kind, (count,))
    step = (stop - start) / (count - 1)
    i = cast(iota(count), kind)
    below = i * step + float(start)
    return where(i < count / 2, below, float(stop) - (float(count - 1) - i) * step)


def eye(n: Size, m: Size | None = None, dtype: DTypeLike = float32) -> Tensor:
    """The identity matrix (n, m): `i == j` of two iotas."""
    return cast(view("reshape", iota(n), (n, 1)) == iota(n if m is None else m), dtype)


def tri(n: Size, m: Size, diagonal: int = 0) -> Tensor:
    """True at and below a diagonal: `j < i + diagonal + 1` of two iotas, bool (n, m)."""
    return iota(m) < view("reshape", iota(n), (n, 1)) + (diagonal + 1)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of every matrix, 0 above the diagonal: a product with `tri`."""
    return _triangle("tril", x, diagonal) * x


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of every matrix, 0 below the diagonal."""
    return ~_triangle("triu", x, diagonal - 1) * x


def _triangle(op: str, x: Tensor, diagonal: int) -> Tensor:
    if x.ndim < 2:
        raise ValueError(f"{op}: needs at least 2 dims, got {core.describe(x)}")
    return tri(x.shape[-2], x.shape[-1], diagonal)
