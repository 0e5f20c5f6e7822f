"""What convolution and pooling share: arguments per spatial dim, padding with signs, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from lambent.graph.dim import Dim, Size
from lambent.graph.tensor import Tensor, at_least, describe, reduce, reshape, view

PerDim: TypeAlias = "Size | Sequence[Size]"
"""One number for all spatial dims, or one for each."""


def each(op: str, what: str, value: PerDim, rank: int, least: int = 1) -> tuple[Size, ...]:
    """One size per spatial dim, each at least `least`.

    Raises:
        TypeError, ValueError: another count, no integer, or too small.
    """
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    given = tuple(int(v) if isinstance(v, np.integer) else v for v in given)
    if any(isinstance(v, bool) or not isinstance(v, (int, Dim)) for v in given):
        raise TypeError(f"{op}: {what} must be an integer or one per spatial dim, not {value!r}")
    if len(given) != rank or not all(at_least(v, least) for v in given):
        raise ValueError(f"{op}: {what} must be {rank} integers >= {least}, not {value!r}")
    return given


def batched(op: str, x: Tensor, rank: int) -> tuple[Tensor, bool]:
    """x as [n, c, *spatial], and whether it came without n.

    Raises:
        ValueError: x has neither rank + 1 nor rank + 2 dims.
    """
    if x.ndim == rank + 2:
        return x, True
    if x.ndim != rank + 1:
        raise ValueError(
            f"{op}: needs [n, c, *{rank} spatial dims] or the same without n, got {describe(x)}"
        )
    return reshape(x, (1, *x.shape)), False


def unbatched(x: Tensor, had_batch: bool) -> Tensor:
    """Undo `batched`."""
    return x if had_batch else reshape(x, x.shape[1:])


def resize(x: Tensor, pads: Sequence[tuple[Size, Size]]) -> Tensor:
    """Add zeros before and after the last dims; a negative number of them crops instead."""
    first = x.ndim - len(pads)
    for axis, ends in enumerate(pads, first):
        low, high = (-e if at_least(-e, 1) else 0 for e in ends)  # what is cropped
        if (low, high) != (0, 0):
            x = view("slice", x, _at(x, axis, (low, 1, x.shape[axis] - low - high)))
    grown = tuple((0 if at_least(-a, 0) else a, 0 if at_least(-b, 0) else b) for a, b in pads)
    if all(ends == (0, 0) for ends in grown):
        return x
    return view("pad", x, (*((0, 0),) * first, *grown))


def _at(x: Tensor, axis: int, part: tuple[Size, int, Size]) -> tuple[tuple[Size, int, Size], ...]:
    return tuple(part if i == axis else (0, 1, n) for i, n in enumerate(x.shape))


def windows(
    op: str, x: Tensor, size: Sequence[Size], stride: Sequence[Size], dilation: Sequence[Size]
) -> Tensor:
    """[…, *spatial] → […, *positions, *size]: a window view of each of the last dims.

    Raises:
        ValueError: a window may be larger than its (padded) dim.
    """
    first = x.ndim - len(size)
    for axis, parts in enumerate(zip(size, stride, dilation, strict=True), first):
        k, _, d = parts
        if not at_least(x.shape[axis] - (k - 1) * d - 1, 0):
            raise ValueError(
                f"{op}: the window {k} with dilation {d} spans {(k - 1) * d + 1}, more than the "
                f"{x.shape[axis]} padded positions of dim {axis} of {describe(x)}"
            )
        x = view("window", x, (axis, *parts))
    return x


def flip(x: Tensor, rank: int) -> Tensor:
    """The last `rank` dims backwards."""
    parts = [(0, 1, n) if i < x.ndim - rank else (n - 1, -1, n) for i, n in enumerate(x.shape)]
    return view("slice", x, tuple(parts))


def reduce_last(op: str, x: Tensor, count: int) -> Tensor:
    """`sum_reduce` or `max_reduce` over the last `count` dims."""
    for _ in range(count):
        x = reduce(op, x, -1)
    return x
