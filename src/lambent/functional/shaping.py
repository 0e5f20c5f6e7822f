"""Views by their NumPy and PyTorch names: they move and rename elements and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from types import EllipsisType
from typing import Any

import numpy as np

from lambent.functional import operands
from lambent.functional.operands import as_axis, constant
from lambent.graph import tensor as core
from lambent.graph.dim import Dim, Size, exact
from lambent.graph.prove import maximum, minimum
from lambent.graph.tensor import Tensor, at_least, describe, view


def as_axes(op: str, x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Distinct axes in ascending order; None means all."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(as_axis(op, x, a) for a in given)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{op}: axis {axis} names one dim twice, of {describe(x)}")
    return tuple(axes)


def permute(x: Tensor, *axes: Any) -> Tensor:
    """Dim i of the result is dim axes[i] of x."""
    given = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
    order = tuple(as_axis("permute", x, a) for a in given)
    return view("permute", x, order)


def transpose(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """Swap two dims."""
    a, b = as_axis("transpose", x, axis0), as_axis("transpose", x, axis1)
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return view("permute", x, tuple(order))


def moveaxis(x: Tensor, source: int, destination: int) -> Tensor:
    """Move one dim to another place; the others keep their order."""
    a, b = as_axis("moveaxis", x, source), as_axis("moveaxis", x, destination)
    order = [i for i in range(x.ndim) if i != a]
    order.insert(b, a)
    return view("permute", x, tuple(order))


def mT(x: Tensor) -> Tensor:
    """The last two dims swapped: the transpose of every matrix.

    Raises:
        ValueError: fewer than two dims.
    """
    if x.ndim < 2:
        raise ValueError(f"mT: needs at least 2 dims, got {describe(x)}")
    return transpose(x, -1, -2)


def T(x: Tensor) -> Tensor:
    """The dims in reverse order."""
    return view("permute", x, tuple(reversed(range(x.ndim))))


def expand(x: Tensor, *shape: Any) -> Tensor:
    """PyTorch's expand: `broadcast_to` where −1 keeps the size of x."""
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    extra = len(given) - x.ndim
    if extra < 0:
        raise ValueError(f"expand: {describe(x)} has more dims than {list(given)}")
    keep = [isinstance(s, int) and s == -1 for s in given]
    if any(keep[:extra]):
        raise ValueError(f"expand: -1 in a new leading dim of {list(given)}, for {describe(x)}")
    return operands.broadcast_to(
        x, [x.shape[i - extra] if keep[i] else s for i, s in enumerate(given)]
    )


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The same elements in row-major order; one size may be −1.

    Raises:
        ValueError: another number of elements, or −1 does not come out even.
    """
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return view("reshape", x, _without_hole(f"reshape of {describe(x)}", x.size, given))


def _without_hole(op: str, size: Size, given: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes, with a −1 among them replaced by what makes their product the given size."""
    holes = [i for i, s in enumerate(given) if isinstance(s, int) and s == -1]
    known = core.as_shape(op, tuple(1 if i in holes else s for i, s in enumerate(given)))
    if not holes:
        return known
    if len(holes) > 1:
        raise ValueError(f"{op}: only one size may be -1, got {list(given)}")
    rest = exact(size, prod(known))
    if rest is None:
        raise ValueError(f"{op}: {size} elements do not divide into {list(given)}")
    return (*known[: holes[0]], rest, *known[holes[0] + 1 :])


def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Join the dims from start to end (inclusive) into one; a scalar becomes (1,)."""
    if x.ndim == 0:
        return view("reshape", x, (1,))
    a, b = as_axis("flatten", x, start_axis), as_axis("flatten", x, end_axis)
    if a > b:
        raise ValueError(f"flatten: axis {start_axis} is after {end_axis} in {describe(x)}")
    return view("reshape", x, (*x.shape[:a], prod(x.shape[a : b + 1]), *x.shape[b + 1 :]))


def unflatten(x: Tensor, axis: int, sizes: Sequence[Size]) -> Tensor:
    """Split one dim into several; one of the sizes may be −1."""
    axis = as_axis("unflatten", x, axis)
    part = _without_hole(f"unflatten of {describe(x)}", x.shape[axis], sizes)
    return view("reshape", x, (*x.shape[:axis], *part, *x.shape[axis + 1 :]))


def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Drop dims of size 1: all, or the given ones (a given dim of another size stays).

    A symbolic dim is never taken for 1.
    """
    axes = as_axes("squeeze", x, axis)
    return view("reshape", x, tuple(s for i, s in enumerate(x.shape) if i not in axes or s != 1))


def unsqueeze(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert dims of size 1, at these axes of the result (NumPy's expand_dims)."""
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = {as_axis("unsqueeze", x, a, extra=len(given)) for a in given}
    if len(axes) != len(given):
        raise ValueError(f"unsqueeze: axis {axis} names one dim twice, of {describe(x)}")
    rest = iter(x.shape)
    shape = tuple(1 if i in axes else next(rest) for i in range(x.ndim + len(axes)))
    return view("reshape", x, shape)


def flip(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverse the order along the given axes (all by default)."""
    axes = as_axes("flip", x, axis)
    parts = [(s - 1, -1, s) if i in axes and s != 0 else (0, 1, s) for i, s in enumerate(x.shape)]
    return view("slice", x, tuple(parts)) if axes else x


def pad(x: Tensor, pads: Sequence[tuple[Size, Size]], value: bool | int | float = 0) -> Tensor:
    """Surround x by a value: `pads` is (low, high) for every dim, as in NumPy.

    A view that reads 0 outside; another value v is added as `outside · v`, where `outside` is the
    complement of padded ones, so that infinities and NaN stay where they belong.

    Raises:
        ValueError: a pad that may be negative (cut with a slice instead), or not one per dim.
    """
    if len(pads) != x.ndim:
        raise ValueError(f"pad: {len(pads)} pairs for the {x.ndim} dims of {describe(x)}")
    attr = tuple((core.as_size("pad", low), core.as_size("pad", high)) for low, high in pads)
    if all(p == (0, 0) for p in attr):
        return x
    shape = tuple(low + s + high for s, (low, high) in zip(x.shape, attr, strict=True))
    if prod(x.shape) == 0:
        return constant(value, x.dtype, shape)
    fill = constant(value, x.dtype)
    out = view("pad", x, attr)
    if fill.node is constant(0, x.dtype).node:
        return out
    inside = view("pad", constant(True, shape=x.shape), attr)
    return out + ~inside * fill


def window(x: Tensor, axis: int, size: Size, stride: Size = 1, dilation: Size = 1) -> Tensor:
    """Sliding windows along an axis: it then counts windows, and a new last dim runs within one.

    Raises:
        ValueError: a size, stride or dilation below 1, or a window that may exceed the axis.
    """
    return view("window", x, (as_axis("window", x, axis), size, stride, dilation))


# ---- indexing --------------------------------------------------------------------------------


def length(x: Tensor) -> int:
    """The first size, which must not be symbolic."""
    if not x.shape or not isinstance(x.shape[0], int):
        raise TypeError(f"len() of {describe(x)}: the first dim is missing or symbolic")
    return x.shape[0]


def iterate(x: Tensor) -> Iterator[Tensor]:
    """x[0], x[1], … along the first dim."""
    return (getitem(x, i) for i in range(length(x)))


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key] as in NumPy: integers, slices of any step, None, Ellipsis, integer tensors or arrays.

    Slices clamp as in Python, also at symbolic sizes. Tensors and arrays become gathers.

    Raises:
        IndexError: too many indices, or one out of range (or not proved in range).
        TypeError: for something that is no index; a mask has no static shape, so use `where`.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, (Tensor, np.ndarray, list)) for k in keys):
        from lambent.functional.indexing import advanced_getitem  # it builds on this module

        return advanced_getitem(x, keys)
    parts: list[tuple[Size, int, Size]] = []
    shape: list[Size] = []
    for k in expand_ellipsis(x, keys):
        if k is None:
            shape.append(1)
            continue
        size = x.shape[len(parts)]
        if isinstance(k, slice):
            parts.append(_range(x, k, size))
            shape.append(parts[-1][2])
        else:
            parts.append((_position(x, k, size), 1, 1))
    plain = all(p == (0, 1, s) for p, s in zip(parts, x.shape, strict=True))
    return view("reshape", x if plain else view("slice", x, tuple(parts)), tuple(shape))


def expand_ellipsis(x: Tensor, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with Ellipsis spelled out as full slices, one key a dim beside the Nones."""
    used = sum(1 for k in keys if k is not None and not isinstance(k, EllipsisType))
    dots = [i for i, k in enumerate(keys) if isinstance(k, EllipsisType)]
    if used > x.ndim or len(dots) > 1:
        raise IndexError(f"getitem: {used} indices and {len(dots)} ellipses for {describe(x)}")
    at = dots[0] if dots else len(keys)
    full = [slice(None)] * (x.ndim - used)
    return [*keys[:at], *full, *keys[at + 1 :]]


def _position(x: Tensor, k: Any, size: Size) -> Size:
    if isinstance(k, np.integer):
        k = int(k)
    if not isinstance(k, (int, Dim)) or isinstance(k, bool):
        raise TypeError(f"getitem: {k!r} is no index of {describe(x)}; a mask needs where(…)")
    at = k + size if isinstance(k, int) and k < 0 else k
    if not (at_least(at, 0) and at_least(size - 1 - at, 0)):
        raise IndexError(f"getitem: index {k} is not in range of the size {size} of {describe(x)}")
    return at


def _range(x: Tensor, s: slice, size: Size) -> tuple[Size, int, Size]:
    """(start, step, count) of a slice, clamped as in Python."""
    step = 1 if s.step is None else s.step
    if not isinstance(step, (int, np.integer)) or step == 0:
        raise TypeError(f"getitem: the step of {s} must be an int, and not 0, for {describe(x)}")
    step = int(step)
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = _clamp(x, s.start, size, low, high, low if step > 0 else high)
    stop = _clamp(x, s.stop, size, low, high, high if step > 0 else low)
    span = stop - start if step > 0 else start - stop
    count = maximum((span + abs(step) - 1) // abs(step), 0)
    return (
        (0, 1, size) if count == size and step == 1 else (0 if count == 0 else start, step, count)
    )


def _clamp(x: Tensor, k: Any, size: Size, low: Size, high: Size, default: Size) -> Size:
    if k is None:
        return default
    if isinstance(k, np.integer):
        k = int(k)
    if not isinstance(k, (int, Dim)) or isinstance(k, bool):
        raise TypeError(f"getitem: {k!r} is no bound of a slice of {describe(x)}")
    if isinstance(k, Dim) and not at_least(k, 0):
        raise IndexError(f"getitem: the bound {k} may be negative, in a slice of {describe(x)}")
    at = k + size if isinstance(k, int) and k < 0 else k
    return minimum(maximum(at, low), high)
