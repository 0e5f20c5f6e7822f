"""Padding by what is inside: the constant mode is a view, the others join slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lambent.functional.joining import concat
from lambent.functional.operands import TensorLike, as_tensor
from lambent.functional.spatial import resize
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, as_size, describe, view


def pad(
    x: TensorLike,
    pads: Sequence[tuple[Size, Size]],
    mode: str = "constant",
    value: bool | int | float = 0,
) -> Tensor:
    """Add `pads` = ((low, high), …), one pair a dim as in NumPy, before and after each dim.

    Modes: "constant" (`value`; a negative number crops), "reflect" (without the edge: 2 1 | 0 1 2),
    "replicate" (the edge: 0 0 | 0 1 2), "circular" (the other end: 1 2 | 0 1 2).

    Composed: constant 0 is a view, other constants add a masked constant; the other modes `concat`
    slices of x, backwards for reflect, one dim after the other.

    Raises:
        ValueError: an unknown mode, not one pair a dim, or more than the mode can give: reflect
            has size − 1 and circular has size elements to add, replicate needs one.
    """
    x = as_tensor(x)
    if len(pads) != x.ndim:
        raise ValueError(f"pad: {len(pads)} pairs for the {x.ndim} dims of {describe(x)}")
    if mode == "constant":
        return resize(x, pads, value)
    if mode not in _ENDS:
        raise ValueError(f"pad: mode {mode!r} is none of constant, {', '.join(_ENDS)}")
    for axis, (low, high) in enumerate(pads):
        low, high = as_size("pad", low), as_size("pad", high)
        if (low, high) != (0, 0):
            try:
                before, after = _ENDS[mode](x.moveaxis(axis, 0), low, high)
            except ValueError as reason:
                raise ValueError(
                    f"pad: {mode} by ({low}, {high}) at dim {axis} of {describe(x)}: {reason}"
                ) from reason
            x = concat([before, x.moveaxis(axis, 0), after]).moveaxis(0, axis)
    return x


def _reflect(x: Tensor, low: Size, high: Size) -> tuple[Tensor, Tensor]:
    return _slice(x, 1, low).flip(0), _slice(x, x.shape[0] - 1 - high, high).flip(0)


def _replicate(x: Tensor, low: Size, high: Size) -> tuple[Tensor, Tensor]:
    first, last = _slice(x, 0, 1), _slice(x, x.shape[0] - 1, 1)
    return first.broadcast_to(low, *x.shape[1:]), last.broadcast_to(high, *x.shape[1:])


def _circular(x: Tensor, low: Size, high: Size) -> tuple[Tensor, Tensor]:
    return _slice(x, x.shape[0] - low, low), _slice(x, 0, high)


_ENDS: dict[str, Callable[[Tensor, Size, Size], tuple[Tensor, Tensor]]] = {
    "reflect": _reflect,
    "replicate": _replicate,
    "circular": _circular,
}


def _slice(x: Tensor, start: Size, count: Size) -> Tensor:
    """`count` rows from `start` on; unlike x[a:b] it refuses what is not there."""
    return view("slice", x, ((start, 1, count), *((0, 1, n) for n in x.shape[1:])))
