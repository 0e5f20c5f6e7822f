"""Cutting a graph where little crosses, so that equal layers are searched once.

Values that hold a reduction over something that an input decides are *heavy*; all others (masks,
positions, whatever weights alone decide) are cheap and are computed again in every segment (where
there are no sums at all, whatever inputs decide is heavy). Between
two heavy nodes the heavy values still needed later are what crosses: usually the residual stream.
What a backward pass needs of the forward pass is stored where it is a sum, and else made again.
Cuts are made where the pieces repeat, and where a piece would grow too large. A value that crosses
is an input of the next segment, and taken for finite as inputs are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lambent.graph.node import Node, Weight, above, make, topo
from lambent.graph.ops import REDUCE, VIEWS


@dataclass(frozen=True, slots=True)
class Segment:
    """A graph of its own: `outputs` over inputs x0, x1, … and weights w0, w1, …

    `key` is equal for segments that differ only in the names of inputs and the contents of weights.
    """

    key: str
    outputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """Where a segment is in the graph: its outputs, and what stands for its inputs and weights."""

    key: str
    outputs: tuple[Node, ...]
    inputs: tuple[Node, ...]
    weights: tuple[Node, ...]


Cut = tuple[tuple[Instance, ...], list[Segment]]


def cut(outputs: Sequence[Node], limit: int = 16, again: bool = False) -> Cut:
    """The graph in segments, in order, and each distinct segment once.

    Args:
        outputs: of the graph; those that nothing heavy leads to go to the last segment.
        limit: reductions in one segment; the graph is cut where it has more.
        again: a backward pass computes the sums of the forward pass again.
    """
    pieces = _Cutter(tuple(dict.fromkeys(outputs)), limit, again).pieces()
    found = [abstract(results, leaves) for leaves, results in pieces]
    segments = {segment.key: segment for _, segment in found}
    return tuple(instance for instance, _ in found), list(segments.values())


class _Cutter:
    """Heavy nodes in order, and what crosses behind each. A cut is the position of a heavy node.

    In order: what the number of fewest reductions in a row needs (of training the loss), what other
    reductions need (a backward pass; by reductions in a row), and the rest (an optimizer's steps).
    What a later part needs of an earlier one crosses without being counted.
    """

    def __init__(self, outputs: tuple[Node, ...], limit: int, again: bool) -> None:
        self.outputs, self.limit = outputs, limit
        nodes = topo(outputs)
        varies = above(nodes, lambda n: any(s.op == "input" for s in n.srcs))
        heavy = above(nodes, lambda n: n.op in REDUCE and n in varies) or varies
        depth = dict.fromkeys(nodes, 0)
        for n in heavy:
            depth[n] = max(depth[s] for s in n.srcs) + (n.op in REDUCE)
        sums = sorted((n for n in heavy if n.op in REDUCE), key=depth.__getitem__)
        losses = sorted((n for n in outputs if n in heavy and not n.shape), key=depth.__getitem__)
        first = topo(losses[:1] or outputs)
        part = dict.fromkeys(nodes, 2) | dict.fromkeys(topo(sums), 1) | dict.fromkeys(first, 0)
        order = sorted(dict.fromkeys((*first, *topo(sums), *nodes)), key=part.__getitem__)
        self.heavy = [n for n in order if n in heavy and n.op not in VIEWS]
        self.kept = {n for n in self.heavy if n.op in REDUCE and part[n] >= again}
        self.end = len(self.heavy) - 1
        self.position = {n: i for i, n in enumerate(self.heavy)}
        reads = [(_base(s), i, n) for i, n in enumerate(self.heavy) for s in n.srcs]
        last = {s: i for s, i, n in reads if part[s] == part[n]}
        others = {s for s, _, n in reads if n.op not in REDUCE} | {_base(n) for n in outputs}
        self.summed = {s for s, _, _ in reads} - others
        self.crossing: dict[int, tuple[Node, ...]] = {-1: ()}
        for i, n in enumerate(self.heavy):
            self.crossing[i] = tuple(x for x in (*self.crossing[i - 1], n) if last.get(x, -1) > i)

    def pieces(self) -> list[tuple[set[Node], list[Node]]]:
        """(what crosses into it, its results) of each segment, in order."""
        if not self.heavy:
            return [(set(), [*self.outputs])]
        cuts = [-1, self.end]
        for width in range(1, 1 + max(map(len, self.crossing.values()))):
            if all(self._size(a, b) <= self.limit for a, b in itertools.pairwise(cuts)):
                break
            little = [i for i in range(self.end) if len(self.crossing[i]) <= width]
            sites = [i for i in little if self.summed.isdisjoint(self.crossing[i])]
            cuts = self._repeating([-1, *sites, self.end])
        return [piece for piece in self._pieces(cuts) if piece[1]]

    def _pieces(self, cuts: list[int]) -> list[tuple[set[Node], list[Node]]]:
        """Of what a later part needs `kept` is stored; all else is computed again."""
        kept = self.kept.union(*(self.crossing[i] for i in cuts))
        needed, found = dict.fromkeys(self.outputs), []
        for start, end in reversed([*itertools.pairwise(cuts)]):
            leaves = {n for n in self.heavy[: start + 1] if n in kept}
            mine = [n for n in needed if start < self.position.get(_base(n), self.end) <= end]
            found.append((leaves, sorted(mine, key=lambda n: self.position.get(n, self.end))))
            needed |= dict.fromkeys(n for n in topo(mine, leaves) if n in leaves)
        return found[::-1]

    def _size(self, start: int, end: int) -> int:
        inside = self.heavy[start + 1 : end + 1]
        return sum(n.op in REDUCE for n in inside) + len({*inside} & {*self.outputs})

    def _repeating(self, sites: list[int]) -> list[int]:
        """Cuts at runs of equal pieces and where nothing crosses; where a piece is too large also
        where least crosses inside of it, and where a run goes on that was cut there."""
        keys = [abstract(results, leaves)[0].key for leaves, results in self._pieces(sites)]
        starts = _runs(keys)
        out = [-1]
        for i, here in enumerate(sites[:-1]):
            if here > out[-1] and (sites[starts.get(i, -1)] in out or not self.crossing[here]):
                out.append(here)
            while self._size(out[-1], sites[i + 1]) > self.limit and here > out[-1]:
                inside = [j for j in sites[1 : i + 1] if j > out[-1]]
                out.append(min(inside, key=lambda j: (len(self.crossing[j]), -j)))
        return [*out, self.end]


def _base(n: Node) -> Node:
    """What a view looks at: it crosses a cut, and the view is taken again behind."""
    return _base(n.srcs[0]) if n.op in VIEWS else n


def _runs(keys: list[str], first: int = 0) -> dict[int, int]:
    """Where equal runs of pieces start and end: the most pieces, the shortest runs; then beside.
    To each the place that must be cut, too: the start, or where one ends that is not whole, the
    place a run before."""
    best = (0, -1, 0, 0)  # pieces, −period, −first, end of what goes on
    for period in range(1, len(keys) // 2 + 1):
        run = 0
        for i in range(len(keys) - period):
            run = run + 1 if keys[i] == keys[i + period] else 0
            covered = (run // period + 1) * period if run >= period else 0
            best = max(best, (covered, -period, run - i - 1, i + period + 1))
    covered, period, start, end = best[0], -best[1], -best[2], best[3]
    if not covered:
        return {}
    inside = {first + end: first + end - period}
    inside |= {first + i: 0 for i in range(start, start + covered + 1, period)}
    return inside | _runs(keys[:start], first) | _runs(keys[end:], first + end)


def abstract(results: Sequence[Node], leaves: Collection[Node] = ()) -> tuple[Instance, Segment]:
    """A piece, and the same as a graph of its own: what it reads is named in the order of reading.

    leaves: values that are inputs of the piece.
    """
    new: dict[Node, Node] = {}
    place: dict[Node, int] = {}
    inputs: list[Node] = []
    weights: list[Node] = []
    lines = []
    for n in topo(results, leaves):
        op, srcs, attr, told = n.op, n.srcs, n.attr, n.attr
        if n in leaves or n.op == "input":
            op, srcs, attr, told = "input", (), f"x{len(inputs)}", ""
            inputs.append(n)
        elif n.op == "weight":
            attr = Weight(f"w{len(weights)}", n.attr.array)
            told = n.dtype.is_float and n.attr.finite
            weights.append(n)
        lines.append(repr((op, told, [place[s] for s in srcs], n.dtype, n.shape)))
        place[n] = len(place)
        new[n] = make(op, [new[s] for s in srcs], n.shape, n.dtype, attr)
    lines.append(repr([place[n] for n in results]))
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    instance = Instance(key, tuple(results), tuple(inputs), tuple(weights))
    return instance, Segment(key, tuple(new[n] for n in results))
