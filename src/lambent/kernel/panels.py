"""Weights in panels: what the inner loop of a product reads lies side by side in memory.

One dim of extent N is cut in panels of a width w: [.., N, ..] is stored as [N / w, .., w]. A
schedule asks for it by its option `panel`. The kernel then reads other buffers; `packing` makes
them, once, when a program is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lambent.algebra.term import Buffer, Term, Terms, walk
from lambent.graph.dim import Size, axes_in, axis
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.rewrite import outputs_of

S = TypeVar("S", bound=Size)


def dims(kernel: Kernel, width: int = 1) -> dict[str, int]:
    """The dim along which each weight can be cut: its longest axis that the reduction keeps.

    A weight that is read at several places, or that nothing sums, is left as it is.
    """
    kept: dict[str, frozenset[int]] = {}
    places: dict[str, set[tuple[Size, ...]]] = {}
    for t in walk(*(o.term for o in kernel.outputs)):
        if t.op == "in":
            places.setdefault(t.args[0], set()).add(t.args[1])
        elif t.axes:
            inner = {u for u in walk(*t.kids) if u.axes}  # what they load is theirs
            for load in walk(*t.kids, known=inner):
                if load.op == "in" and load.free & t.axes:
                    kept[load.args[0]] = kept.get(load.args[0], load.free) - t.axes
    found: dict[str, int] = {}
    for b in kernel.inputs if not kernel.weights_only else ():
        if not b.weight or b.name not in kept or len(places[b.name]) > 1:
            continue
        [index] = places[b.name]
        along = [
            (n, d)
            for d, (e, n) in enumerate(zip(index, b.shape, strict=True))
            if isinstance(n, int) and n % width == 0
            if any(e == axis(i) for i in kept[b.name] & axes_in(e))
        ]
        if along:
            found[b.name] = max(along)[1]
    return found


def panelled(kernel: Kernel, at: dict[str, int], width: int) -> Kernel:
    """The kernel on weights in panels of a width, each cut along its dim."""

    def rule(t: Term) -> Term:
        if t.op != "in" or t.args[0] not in at:
            return t
        name, index = t.args
        e = index[at[name]]
        return terms.load(name, _cut(index, at[name], e // width, e % width), t.dtype)

    terms = Terms()
    inputs = tuple(_panels(b, at[b.name], width) if b.name in at else b for b in kernel.inputs)
    return Kernel(outputs_of(kernel, terms, rule), inputs, kernel.extents)


def packing(b: Buffer, dim: int, width: int) -> Kernel:
    """The kernel that lays a weight out in panels."""
    shape = _panels(b, dim, width).shape
    index: list[Size] = [axis(i) for i in range(1, len(shape) - 1)]
    index.insert(dim, axis(0) * width + axis(len(shape) - 1))
    places = tuple(axis(i) for i in range(len(shape)))
    output = Output(
        Buffer("panels", b.dtype, shape, True, b.finite),
        places,
        Terms().load(b.name, index, b.dtype),
    )
    return Kernel((output,), (b,), dict(enumerate(shape)))


def _panels(b: Buffer, dim: int, width: int) -> Buffer:
    return replace(b, shape=_cut(b.shape, dim, b.shape[dim] // width, width))


def _cut(values: tuple[S, ...], dim: int, outer: S, inner: S) -> tuple[S, ...]:
    """A shape or an index with a dim in two: panels come first, what lies in a panel last."""
    return (outer, *values[:dim], *values[dim + 1 :], inner)
