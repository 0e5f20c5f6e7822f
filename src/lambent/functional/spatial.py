"""What convolution and pooling share: one op for every rank, padding with signs, windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeAlias

import numpy as np

from lambent.functional.shaping import pad
from lambent.graph.dim import Dim, Size
from lambent.graph.prove import maximum
from lambent.graph.tensor import Tensor, as_size, at_least, describe, view

PerDim: TypeAlias = "Size | Sequence[Size]"
"""One number for all spatial dims, or one for each."""

Sizes: TypeAlias = tuple[Size, ...]

P = ParamSpec("P")


def of_rank(op: Callable[Concatenate[int, P], Tensor], rank: int) -> Callable[P, Tensor]:
    """An op with its first parameter, the number of spatial dims, fixed: conv of 2 is conv2d."""

    def ranked(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return op(rank, *args, **kwargs)

    of_op = inspect.signature(op)
    vars(ranked)["__signature__"] = of_op.replace(parameters=[*of_op.parameters.values()][1:])
    ranked.__name__ = ranked.__qualname__ = f"{op.__name__}{rank}d"
    ranked.__doc__, ranked.__module__ = op.__doc__, op.__module__
    return ranked


def each(op: str, what: str, value: PerDim, rank: int, least: int = 1) -> Sizes:
    """One size per spatial dim, each at least `least`.

    Raises:
        TypeError, ValueError: another count, no integer, or too small.
    """
    given = (value,) * rank if isinstance(value, (int, Dim, np.integer)) else tuple(value)
    sizes = tuple(as_size(f"{op}: {what}", v) for v in given)
    if len(sizes) != rank or not all(at_least(v, least) for v in sizes):
        raise ValueError(f"{op}: {what} must be {rank} integers >= {least}, not {value!r}")
    return sizes


def resize(x: Tensor, pads: Sequence[tuple[Size, Size]], value: bool | int | float = 0) -> Tensor:
    """Add `value` before and after the last dims; a negative number of times crops instead."""
    pads = [(0, 0)] * (x.ndim - len(pads)) + list(pads)
    parts: list[tuple[Size, int, Size]] = []
    for n, (low, high) in zip(x.shape, pads, strict=True):
        start = maximum(-low, 0)
        parts.append((start, 1, n - start - maximum(-high, 0)))
    if any(part != (0, 1, n) for part, n in zip(parts, x.shape, strict=True)):
        x = view("slice", x, tuple(parts))
    return pad(x, [(maximum(low, 0), maximum(high, 0)) for low, high in pads], value)


def windows(op: str, x: Tensor, size: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """[…, *spatial] → […, *positions, *size]: a window view of each of the last dims.

    Raises:
        ValueError: a window may be larger than its (padded) dim.
    """
    for axis, (k, s, d) in enumerate(zip(size, stride, dilation, strict=True), x.ndim - len(size)):
        if not at_least(x.shape[axis] - (k - 1) * d - 1, 0):
            raise ValueError(
                f"{op}: the window {k} with dilation {d} spans {(k - 1) * d + 1}, more than the "
                f"{x.shape[axis]} padded positions of dim {axis} of {describe(x)}"
            )
        x = x.window(axis, k, s, d)
    return x
