"""Axis names: which dims of which nodes count the same index, by a union-find over dims.

Names can never make a result wrong, they only decide what is shared: `translate` reads a node at an
index, and a name is the index at which a node is at home. An axis may be cut in (outer, inner), so
that aligned reshapes cost no division; a dim is the ordered tuple of the axes below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lambent.graph.dim import Size, axis, exact
from lambent.graph.node import Node, above
from lambent.graph.ops import REDUCE
from lambent.graph.prove import Prover
from lambent.graph.views import reshape_groups, source_index

DimAxes = tuple[tuple[int, ...], ...]
"""For every dim of a node, its axes, outermost first (none for a dim of size 1)."""


@dataclass(slots=True, eq=False)
class _Axis:
    """A member of the union-find. `users`: the nodes that have it, none of them twice."""

    extent: Size
    users: set[Node]
    parent: _Axis | None = None
    cut: tuple[_Axis, ...] = ()

    def joins(self, other: _Axis) -> bool:
        """Join the other axis, of equal extent, unless some node has both."""
        if not self.users.isdisjoint(other.users):
            return False
        other.parent = self
        self.users |= other.users
        return True

    def split(self, outer: Size, inner: Size) -> Sequence[_Axis]:
        self.cut = _Axis(outer, set(self.users)), _Axis(inner, set(self.users))
        return self.cut


def _leaves(axes: Sequence[_Axis]) -> list[_Axis]:
    """The uncut axes below these, outermost first."""
    out = []
    for a in axes:
        while a.parent:
            a = a.parent
        out += _leaves(a.cut) if a.cut else [a]
    return out


def _unify(left: list[_Axis], right: list[_Axis]) -> None:
    """Join two lists of leaves that count the same index, from the innermost on."""
    while left and right:
        a, b = left.pop(), right.pop()
        m, n = a.extent, b.extent
        if a is b:
            continue
        if m == n:
            a.joins(b)  # or stay two, where a node has both
            continue
        if not a.users.isdisjoint(b.users):
            return
        if (outer := exact(m, n)) is not None:
            left += a.split(outer, n)
            right.append(b)
        elif (outer := exact(n, m)) is not None:
            right += b.split(outer, m)
            left.append(a)
        else:
            return  # not aligned: the index map will say it with a division


def _same_dims(n: Node, source: Node) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Lists of dims of a node and of its source that count the same index, one to one."""
    if n.op == "reshape":
        for i0, i1, j0, j1 in reshape_groups(source.shape, n.shape):
            yield range(j0, j1), range(i0, i1)
        return
    index: tuple[Size, ...] = tuple(0 if size == 1 else axis(i) for i, size in enumerate(n.shape))
    read, _ = source_index(n, index, 0, Prover())
    for i, here in enumerate(index):
        for j, there in enumerate(read):
            if here == there and n.shape[i] == source.shape[j]:
                yield [i], [j]


def mixed_radix(axes: Sequence[int], extents: Sequence[Size]) -> Size:
    """The index that a dim of these axes counts, outermost first."""
    e: Size = 0
    for a in axes:
        e = e * extents[a] + axis(a)
    return e


def reducing(nodes: Sequence[Node]) -> dict[Node, None]:
    """Those of nodes, sources first, that are reductions or have one below."""
    return above(nodes, lambda n: n.op in REDUCE)


def name_axes(nodes: Sequence[Node], reuse: bool = False) -> tuple[dict[Node, DimAxes], list[Size]]:
    """Axes of every dim of every node, and the extents of the axes, by number.

    Dims are joined along edges to values with a reduction below before those to leaves, which are
    free to read under any name.

    Args:
        nodes: all nodes of a graph, sources first.
        reuse: also join axes of equal extent that never meet in one node, as registers are
            allocated: fewer axes, but a factor that shares a name with a bound axis cannot move
            past it.
    """
    dims = {n: [[_Axis(size, {n})] if size != 1 else [] for size in n.shape] for n in nodes}

    def leaves(n: Node, of: Sequence[int]) -> list[_Axis]:
        return _leaves([a for i in of for a in dims[n][i]])

    deep = reducing(nodes)
    edges = [(n, s) for n in reversed(nodes) for s in n.srcs]
    for n, s in sorted(edges, key=lambda edge: edge[1] not in deep):
        for here, there in _same_dims(n, s):
            _unify(leaves(n, here), leaves(s, there))
    order = dict.fromkeys(a for n in reversed(nodes) for a in leaves(n, range(len(n.shape))))
    kept: list[_Axis] = []
    for a in order:
        if not (reuse and any(b.extent == a.extent and b.joins(a) for b in kept)):
            kept.append(a)
    number = {a: i for i, a in enumerate(kept)}
    home = {n: tuple(tuple(number[a] for a in _leaves(dim)) for dim in dims[n]) for n in nodes}
    return home, [a.extent for a in kept]
