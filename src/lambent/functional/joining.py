"""Putting tensors together and taking them apart: concat, stack, split, repeat, tile, roll."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lambent.functional import operands
from lambent.functional.operands import TensorLike, as_axis
from lambent.functional.shaping import flatten, unsqueeze
from lambent.graph import tensor as core
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, describe, view


def concat(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Join along an axis: the sum of the pieces, each padded with zeros (of bools: `or`).

    Raises:
        ValueError: nothing to join, or other dims that differ.
    """
    if not tensors:
        raise ValueError("concat: needs at least one tensor")
    xs = operands.promoted(*tensors)
    axis = as_axis("concat", xs[0], axis)
    for x in xs:
        if _others(x, axis) != _others(xs[0], axis) or x.ndim != xs[0].ndim:
            raise ValueError(f"concat: {describe(*xs)} differ outside axis {axis}")
    xs = tuple(x for x in xs if x.shape[axis] != 0) or xs[:1]
    after = sum((x.shape[axis] for x in xs), start=0)
    before: Size = 0
    out: Tensor | None = None
    for x in xs:
        size = x.shape[axis]
        after = after - size
        pads = tuple((before, after) if i == axis else (0, 0) for i in range(x.ndim))
        piece = x if len(xs) == 1 else view("pad", x, pads)
        out = piece if out is None else out + piece
        before = before + size
    assert out is not None
    return out


def _others(x: Tensor, axis: int) -> tuple[Size, ...]:
    return x.shape[:axis] + x.shape[axis + 1 :]


def stack(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Join along a new axis: `concat` of the tensors with a dim of size 1 inserted.

    Raises:
        ValueError: nothing to join, or shapes that differ.
    """
    xs = operands.promoted(*tensors) if tensors else ()
    if any(x.shape != xs[0].shape for x in xs):
        raise ValueError(f"stack: {describe(*xs)} differ in shape")
    return concat([unsqueeze(x, axis) for x in xs], axis)


def split(x: Tensor, sizes: Size | Sequence[Size], axis: int = 0) -> list[Tensor]:
    """Pieces of one size each (the last may be smaller), or of the given sizes: slices.

    Raises:
        ValueError: sizes that do not add up, or one size of a symbolic axis.
    """
    axis = as_axis("split", x, axis)
    n = x.shape[axis]
    if isinstance(sizes, Sequence):
        parts = [core.as_size("split", s) for s in sizes]
    elif isinstance(n, int) and isinstance(sizes, int) and sizes > 0:
        parts = [min(sizes, n - i) for i in range(0, n, sizes)] or [0]
    else:
        raise ValueError(f"split: {describe(x)} into pieces of {sizes}: list the sizes of all")
    if sum(parts, start=0) != n:
        raise ValueError(f"split: {parts} do not add up to {n}, axis {axis} of {describe(x)}")
    out: list[Tensor] = []
    start: Size = 0
    for size in parts:
        key = tuple((start, 1, size) if i == axis else (0, 1, s) for i, s in enumerate(x.shape))
        out.append(view("slice", x, key))
        start = start + size
    return out


def chunk(x: Tensor, chunks: int, axis: int = 0) -> list[Tensor]:
    """At most `chunks` pieces of equal size (the last may be smaller): slices.

    Raises:
        ValueError: no chunks, or a symbolic axis that does not divide by them.
    """
    axis = as_axis("chunk", x, axis)
    n = x.shape[axis]
    if chunks < 1:
        raise ValueError(f"chunk: needs at least 1 chunk, got {chunks}")
    if isinstance(n, int):
        return split(x, max(1, -(-n // chunks)), axis)
    if n % chunks != 0:
        raise ValueError(f"chunk: {n} of {describe(x)} does not divide by {chunks}")
    return split(x, [n // chunks] * chunks, axis)


def repeat(x: Tensor, repeats: Size, axis: int | None = None) -> Tensor:
    """Each element `repeats` times in a row (NumPy's repeat): expand and reshape."""
    x = flatten(x) if axis is None else x
    axis = 0 if axis is None else as_axis("repeat", x, axis)
    repeats = core.as_size("repeat", repeats)
    wide = unsqueeze(x, axis + 1)
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    joined = (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :])
    return view("reshape", view("expand", wide, shape), joined)


def tile(x: Tensor, repeats: Size | Sequence[Size]) -> Tensor:
    """The whole tensor repeated along each dim (NumPy's tile): expand and reshape."""
    given = tuple(repeats) if isinstance(repeats, Sequence) else (repeats,)
    counts = (1,) * (x.ndim - len(given)) + tuple(core.as_size("tile", r) for r in given)
    sizes = (1,) * (len(counts) - x.ndim) + x.shape
    pairs = list(zip(counts, sizes, strict=True))
    spread = view("reshape", x, tuple(s for _, size in pairs for s in (1, size)))
    wide = operands.broadcast_to(spread, tuple(s for pair in pairs for s in pair))
    return view("reshape", wide, tuple(r * s for r, s in pairs))


def roll(x: Tensor, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Tensor:
    """Shift along axes, what falls off coming in again: `concat` of the two parts.

    Raises:
        ValueError: another number of shifts than axes, or a symbolic axis.
    """
    if axis is None:
        if isinstance(shift, Sequence):
            raise ValueError("roll: several shifts need as many axes")
        return view("reshape", roll(flatten(x), shift, 0), x.shape)
    shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,)
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes of {describe(x)}")
    for amount, a in zip(shifts, axes, strict=True):
        a = as_axis("roll", x, a)
        n = x.shape[a]
        if not isinstance(n, int):
            raise ValueError(f"roll: axis {a} of {describe(x)} is symbolic; concat two slices")
        if n and int(np.mod(amount, n)):
            cut = n - int(np.mod(amount, n))
            head, tail = split(x, [cut, n - cut], a)
            x = concat([tail, head], a)
    return x
