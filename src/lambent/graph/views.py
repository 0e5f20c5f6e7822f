"""The six views: shape rules and index maps. A view computes nothing, it only renames indices.

    op       attr                                   result
    permute  perm                                   dim i is dim perm[i] of the source
    expand   target shape                           dims of the literal size 1 repeat
    reshape  target shape                           same elements in row-major order
    slice    (start, step, count) of every dim      step may be negative
    pad      (low, high) of every dim               sizes >= 0
    window   (dim, size, stride, dilation)          the window becomes a new last dim

A symbol is never 1 for expanding, and two sizes are equal iff their normal forms are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from lambent.graph.dim import Refused, Size, axis
from lambent.graph.node import Node
from lambent.graph.ops import REDUCE, VIEWS
from lambent.graph.prove import SYMBOLS_ONLY, Prover, maximum

Shape = tuple[Size, ...]


def view_shape(op: str, shape: Shape, attr: Any) -> Shape:
    """The shape of a view of something of this shape.

    Raises:
        ValueError: the view is illegal; `Refused`, a ValueError, where it is not proved legal for
            every size in range (`assume` declares what a proof lacks).
    """
    if op not in _SHAPES:
        raise ValueError(f"{op}: not a view; the views are {', '.join(VIEWS)}")
    try:
        if op in ("slice", "pad") and len(attr) != len(shape):
            raise ValueError(f"{len(attr)} entries for {len(shape)} dims")
        out = _SHAPES[op](shape, attr)
        for size in out:
            _need(size, f"the size {size} must be >= 0")
        return out
    except (ValueError, TypeError) as reason:
        kind = Refused if isinstance(reason, Refused) else ValueError
        raise kind(f"{op} of shape {shape} with {attr}: {reason}") from None


def _permute(shape: Shape, perm: Sequence[int]) -> Shape:
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"not a permutation of 0 … {len(shape) - 1}")
    return tuple(shape[p] for p in perm)


def _expand(shape: Shape, target: Shape) -> Shape:
    if len(target) != len(shape):
        raise ValueError(f"the target has {len(target)} dims, the source {len(shape)}")
    for i, (old, new) in enumerate(zip(shape, target, strict=True)):
        if old != 1 and old != new:
            raise ValueError(f"dim {i}: {old} is neither 1 nor {new}")
    return tuple(target)


def _reshape(shape: Shape, target: Shape) -> Shape:
    if prod(shape) != prod(target):
        raise ValueError(f"{prod(shape)} elements do not fill {prod(target)}")
    return tuple(target)


def _slice(shape: Shape, parts: Sequence[tuple[Size, int, Size]]) -> Shape:
    for i, (size, (start, step, count)) in enumerate(zip(shape, parts, strict=True)):
        if not isinstance(step, int) or step == 0:
            raise ValueError(f"dim {i}: the step must be an int, and not 0")
        if count != 0:  # an empty slice reads nothing, wherever it starts
            index, inside = start + axis(0) * step, Prover((count,))
            _need(index, f"dim {i}: reads below 0", inside)
            _need(size - 1 - index, f"dim {i}: reads beyond its size {size}", inside)
    return tuple(count for _, _, count in parts)


def _pad(shape: Shape, pads: Sequence[tuple[Size, Size]]) -> Shape:
    for pad in itertools.chain(*pads):
        _need(pad, "a pad must be >= 0")
    return tuple(low + size + high for size, (low, high) in zip(shape, pads, strict=True))


def _window(shape: Shape, attr: tuple[int, Size, Size, Size]) -> Shape:
    dim, size, stride, dilation = attr
    if not 0 <= dim < len(shape):
        raise ValueError(f"there is no dim {dim}")
    for what, number in (("size", size), ("stride", stride), ("dilation", dilation)):
        _need(number - 1, f"the {what} must be >= 1")
    room = shape[dim] - (size - 1) * dilation - 1
    _need(room, f"the window is larger than dim {dim}")
    return (*shape[:dim], room // stride + 1, *shape[dim + 1 :], size)


_SHAPES: dict[str, Callable[[Shape, Any], Shape]] = dict(
    zip(VIEWS, (_permute, _expand, _reshape, _slice, _pad, _window), strict=True)
)


def _need(e: Size, reason: str, prover: Prover = SYMBOLS_ONLY) -> None:
    """Go on only if e >= 0 is proved."""
    if prover.ge0(e):
        return
    if isinstance(e, int) or prover.ge0(-e - 1):
        raise ValueError(reason)
    raise Refused(f"{reason}; {e} >= 0 is not proved (assume(…) declares a fact)")


def reshape_groups(a: Shape, b: Shape) -> list[tuple[int, int, int, int]]:
    """Runs a[i0:i1] and b[j0:j1] of equal products, as short as can be, as (i0, i1, j0, j1).

    Shapes without elements are one single group.

    Raises:
        Refused: the products of a and b differ.
    """
    if prod(a) != prod(b):
        raise Refused(f"reshape of {a} to {b}: the numbers of elements differ")
    if prod(a) == 0:
        return [(0, len(a), 0, len(b))]
    groups = []
    i = j = 0
    while i < len(a) or j < len(b):  # a run is empty only where nothing is left
        ends = itertools.product(
            range(min(i + 1, len(a)), len(a) + 1), range(min(j + 1, len(b)), len(b) + 1)
        )
        equal = (end for end in ends if prod(a[i : end[0]]) == prod(b[j : end[1]]))
        i1, j1 = min(equal, key=lambda end: (sum(end), end))
        groups.append((i, i1, j, j1))
        i, j = i1, j1
    return groups


def view_index(
    op: str, attr: Any, source: Shape, shape: Shape, index: Shape, prover: Prover
) -> tuple[Shape, tuple[tuple[Size, Size], ...]]:
    """The index into the source of a view, and where it is valid.

    Args:
        source, shape: of the view's operand and of the view.
        index: one expression per dim of the view.
        prover: knows the extents of the axes in the index.

    Returns:
        One expression per dim of the source, and conditions (e, n): the view reads its source
        only where 0 <= e < n for all of them (a pad has conditions, no other view).
    """
    if op == "permute":
        return tuple(index[attr.index(i)] for i in range(len(source))), ()
    if op == "expand":
        return tuple(0 if n == 1 else e for n, e in zip(source, index, strict=True)), ()
    if op == "reshape":
        return _reshape_index(source, shape, index, prover), ()
    if op == "slice":
        parts = zip(index, attr, strict=True)
        return tuple(start + e * step for e, (start, step, _) in parts), ()
    if op == "pad":
        inner = tuple(e - low for e, (low, _) in zip(index, attr, strict=True))
        dims = zip(inner, source, attr, strict=True)
        return inner, tuple((e, n) for e, n, pads in dims if tuple(pads) != (0, 0))
    if op == "window":
        dim, _, stride, dilation = attr
        read = index[dim] * stride + index[-1] * dilation
        return (*index[:dim], read, *index[dim + 1 : -1]), ()
    raise ValueError(f"{op}: not a view; the views are {', '.join(VIEWS)}")


def source_index(
    n: Node, index: Shape, bound: Size, prover: Prover
) -> tuple[Shape, tuple[tuple[Size, Size], ...]]:
    """The index at which a node reads its operands, and where that is valid.

    bound: the index along the axis that a reduction drops.
    """
    if n.op in VIEWS:
        return view_index(n.op, n.attr, n.srcs[0].shape, n.shape, index, prover)
    return (*index[: n.attr], bound, *index[n.attr :]) if n.op in REDUCE else index, ()


def _reshape_index(source: Shape, shape: Shape, index: Shape, prover: Prover) -> Shape:
    out: list[Size] = [0] * len(source)
    for i0, i1, j0, j1 in reshape_groups(source, shape):
        linear: Size = 0
        for j in range(j0, j1):
            linear = linear * shape[j] + index[j]
        inner: Size = 1
        dims = [i for i in range(i0, i1) if source[i] != 1]
        for i in reversed(dims):
            # Where a size may be 0 there is nothing to read then, but no division by 0 either.
            digit = prover.div(linear, maximum(inner, 1))
            out[i] = digit if i == dims[0] else prover.mod(digit, maximum(source[i], 1))
            inner = inner * source[i]
    return tuple(out)
