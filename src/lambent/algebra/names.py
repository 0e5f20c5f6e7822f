"""Axis names: which dims of which nodes count the same index, by a union-find over dims.

Names can never make a result wrong, they only decide what is shared: `translate` reads a node at an
index, and a name is the index at which a node is at home. An axis may be cut in (outer, inner), so
that aligned reshapes cost no division; a dim is the ordered tuple of the axes below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lambent.graph.dim import Size, exact
from lambent.graph.node import Node
from lambent.graph.ops import REDUCE, VIEWS
from lambent.graph.views import reshape_groups

DimAxes = tuple[tuple[int, ...], ...]
"""For every dim of a node, its axes, outermost first (none for a dim of size 1)."""

Pair = tuple[Sequence[int], Sequence[int]]


class _Names:
    """The union-find. The users of an axis are the nodes that have it, none of them twice."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._parent: list[int] = []
        self._cut: list[tuple[int, int] | None] = []
        self._users: list[set[Node]] = []
        self.extent: list[Size] = []
        self.dims = {n: [[self._new(e, {n})] if e != 1 else [] for e in n.shape] for n in nodes}

    def _new(self, extent: Size, users: set[Node]) -> int:
        self._parent.append(len(self._parent))
        self._cut.append(None)
        self._users.append(set(users))
        self.extent.append(extent)
        return len(self._parent) - 1

    def _find(self, a: int) -> int:
        while self._parent[a] != a:
            self._parent[a] = a = self._parent[self._parent[a]]
        return a

    def leaves(self, axes: Sequence[int]) -> list[int]:
        """The uncut axes below these, outermost first."""
        out: list[int] = []
        for a in axes:
            root = self._find(a)
            cut = self._cut[root]
            out += self.leaves(cut) if cut else [root]
        return out

    def may_join(self, a: int, b: int) -> bool:
        return self._users[a].isdisjoint(self._users[b])

    def join(self, a: int, b: int) -> None:
        self._parent[b] = a
        self._users[a] |= self._users[b]

    def _split(self, a: int, outer: Size, inner: Size) -> list[int]:
        cut = self._new(outer, self._users[a]), self._new(inner, self._users[a])
        self._cut[a] = cut
        return list(cut)

    def unify(self, a_axes: Sequence[int], b_axes: Sequence[int]) -> None:
        """Join two lists of axes that count the same index, leaf by leaf from the innermost on."""
        left, right = self.leaves(a_axes), self.leaves(b_axes)
        while left and right:
            a, b = left.pop(), right.pop()
            m, n = self.extent[a], self.extent[b]
            if a == b:
                continue
            if not self.may_join(a, b):
                if m != n:
                    return
            elif m == n:
                self.join(a, b)
            elif (outer := exact(m, n)) is not None:
                left += self._split(a, outer, n)
                right.append(b)
            elif (outer := exact(n, m)) is not None:
                right += self._split(b, outer, m)
                left.append(a)
            else:
                return  # not aligned: the index map will say it with a division


def _edge_pairs(n: Node, source: Node) -> Iterator[Pair]:
    """Lists of dims of a node and of its source that count the same index, one to one."""
    if n.op in REDUCE:
        yield from (([i], [i if i < n.attr else i + 1]) for i in range(len(n.shape)))
    elif n.op not in VIEWS:
        yield from (([i], [i]) for i in range(len(n.shape)))
    elif n.op == "permute":
        yield from (([i], [p]) for i, p in enumerate(n.attr))
    elif n.op == "reshape":
        for i0, i1, j0, j1 in reshape_groups(source.shape, n.shape):
            yield range(j0, j1), range(i0, i1)
    elif n.op == "window":
        dim, _, _, dilation = n.attr
        yield from (([i], [i]) for i in range(len(source.shape)) if i != dim)
        if n.shape[dim] == 1 and dilation == 1:  # one window: the dim itself
            yield [len(source.shape)], [dim]
    else:
        yield from (([i], [i]) for i in range(len(n.shape)) if _kept(n, source, i))


def _kept(n: Node, source: Node, i: int) -> bool:
    """True if an expand, slice or pad leaves dim i as it is."""
    if n.op == "expand":
        return source.shape[i] == n.shape[i]
    unchanged = (0, 1, source.shape[i]) if n.op == "slice" else (0, 0)
    return tuple(n.attr[i]) == unchanged


def _reuse(names: _Names, nodes: Sequence[Node]) -> None:
    """Join axes of equal extent that no node shares, as registers are allocated."""
    axes = dict.fromkeys(
        a for n in reversed(nodes) for dim in names.dims[n] for a in names.leaves(dim)
    )
    kept: dict[Size, list[int]] = {}
    for a in axes:
        same = kept.setdefault(names.extent[a], [])
        mate = next((b for b in same if names.may_join(b, a)), None)
        if mate is None:
            same.append(a)
        else:
            names.join(mate, a)


def name_axes(
    nodes: Sequence[Node], *, deep_first: bool = True, reuse: bool = False
) -> tuple[dict[Node, DimAxes], list[Size]]:
    """Axes of every dim of every node, and the extents of the axes, by number.

    Args:
        nodes: all nodes of a graph, sources first.
        deep_first: unify along edges to computed values before those to leaves, which are free
            to read under any name.
        reuse: also join axes of equal extent that never meet in one node: fewer axes, but a factor
            that shares a name with a bound axis cannot move past it.
    """
    names = _Names(nodes)
    deep: set[Node] = set()  # a reduction at or below
    for n in nodes:
        if n.op in REDUCE or any(s in deep for s in n.srcs):
            deep.add(n)
    edges = [(n, s) for n in reversed(nodes) for s in n.srcs]
    if deep_first:
        edges.sort(key=lambda edge: edge[1] not in deep)  # stable
    for n, s in edges:
        for here, there in _edge_pairs(n, s):
            names.unify(
                [a for i in here for a in names.dims[n][i]],
                [a for i in there for a in names.dims[s][i]],
            )
    if reuse:
        _reuse(names, nodes)
    number: dict[int, int] = {}
    home: dict[Node, DimAxes] = {}
    for n in reversed(nodes):
        leaves = [names.leaves(dim) for dim in names.dims[n]]
        home[n] = tuple(tuple(number.setdefault(a, len(number)) for a in dim) for dim in leaves)
    return home, [names.extent[a] for a in number]
