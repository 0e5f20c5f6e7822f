"""Cutting a graph where little crosses, so that equal layers are searched once.

Values that hold a reduction over something that an input decides are *heavy*; all others (masks,
positions, whatever weights alone decide) are cheap and are computed again in every segment. Between
two heavy nodes the heavy values still needed later are what crosses: usually the residual stream.
Cuts are made where the pieces repeat, and where a piece would grow too large. A value that crosses
is an input of the next segment, and taken for finite as inputs are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lambent.algebra.saturate import is_finite
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


def cut(outputs: Sequence[Node], limit: int = 16) -> tuple[tuple[Instance, ...], list[Segment]]:
    """The graph in segments, in order, and each distinct segment once.

    Args:
        outputs: of the graph; those that nothing heavy leads to go to the last segment.
        limit: reductions in one segment; the graph is cut where it has more.
    """
    pieces = _Cutter(tuple(dict.fromkeys(outputs)), limit).pieces()
    found = [abstract(results, leaves) for leaves, results in pieces]
    segments = {segment.key: segment for _, segment in found}
    return tuple(instance for instance, _ in found), list(segments.values())


class _Cutter:
    """Heavy nodes in order, and what crosses behind each. A cut is the position of a heavy node."""

    def __init__(self, outputs: tuple[Node, ...], limit: int) -> None:
        self.outputs, self.limit = outputs, limit
        nodes = topo(outputs)
        varies = above(nodes, lambda n: n.op == "input")
        heavy = above(nodes, lambda n: n.op in REDUCE and n in varies)
        self.heavy = [n for n in heavy if n.op not in VIEWS]
        self.end = len(self.heavy) - 1
        self.position = {n: i for i, n in enumerate(self.heavy)}
        reads = [(_base(s), i, n.op in REDUCE) for i, n in enumerate(self.heavy) for s in n.srcs]
        reads += [(_base(n), self.end, False) for n in outputs]
        last = {s: i for s, i, _ in reads}
        self.summed = {s for s, _, _ in reads} - {s for s, _, reduced in reads if not reduced}
        self.crossing: dict[int, tuple[Node, ...]] = {-1: ()}
        for i, n in enumerate(self.heavy):
            self.crossing[i] = tuple(x for x in (*self.crossing[i - 1], n) if last.get(x, -1) > i)

    def pieces(self) -> list[tuple[tuple[Node, ...], tuple[Node, ...]]]:
        """(what crosses into it, its results) of each segment, in order."""
        if not self.heavy:
            return [((), self.outputs)]
        cuts = [-1, self.end]
        for width in range(1, 1 + max(map(len, self.crossing.values()))):
            if all(self._size(a, b) <= self.limit for a, b in itertools.pairwise(cuts)):
                break
            sites = [i for i in range(self.end) if self._may_cut(i, width)]
            cuts = self._repeating([-1, *sites, self.end])
        return [p for a, b in itertools.pairwise(cuts) if (p := self._piece(a, b))[1]]

    def _piece(self, start: int, end: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        passed = [n for n in self.crossing[end] if self.position[n] > start]
        given = [n for n in self.outputs if start < self.position.get(n, self.end) <= end]
        return self.crossing[start], tuple(dict.fromkeys((*passed, *given)))

    def _may_cut(self, i: int, width: int) -> bool:
        """Whether little crosses there, and nothing that only reductions read, as a product."""
        return len(self.crossing[i]) <= width and self.summed.isdisjoint(self.crossing[i])

    def _size(self, start: int, end: int) -> int:
        return sum(n.op in REDUCE for n in self.heavy[start + 1 : end + 1])

    def _repeating(self, sites: list[int]) -> list[int]:
        """Cuts at a run of equal pieces, the longest there is; more where a piece is too large."""
        pieces = [self._piece(a, b) for a, b in itertools.pairwise(sites)]
        starts = _run([abstract(results, leaves)[0].key for leaves, results in pieces])
        out = [-1]
        for i, here in enumerate(sites[:-1]):
            wanted = i in starts or self._size(out[-1], sites[i + 1]) > self.limit
            if wanted and here > out[-1]:
                out.append(here)
        return [*out, self.end]


def _base(n: Node) -> Node:
    """What a view looks at: it crosses a cut, and the view is taken again behind."""
    return _base(n.srcs[0]) if n.op in VIEWS else n


def _run(keys: list[str]) -> range:
    """Where equal runs of pieces start and the last ends: the most pieces, the shortest runs."""
    best = (0, -1, 0)  # pieces, −period, −first
    for period in range(1, len(keys) // 2 + 1):
        run = 0
        for i in range(len(keys) - period):
            run = run + 1 if keys[i] == keys[i + period] else 0
            covered = (run // period + 1) * period if run >= period else 0
            best = max(best, (covered, -period, run - i - 1))
    covered, period, first = best[0], -best[1], -best[2]
    return range(first, first + covered + 1, period) if covered else range(0)


def abstract(results: Sequence[Node], leaves: Sequence[Node] = ()) -> tuple[Instance, Segment]:
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
            told = n.dtype.is_float and is_finite(n.attr)
            weights.append(n)
        lines.append(repr((op, told, [place[s] for s in srcs], n.dtype, n.shape)))
        place[n] = len(place)
        new[n] = make(op, [new[s] for s in srcs], n.shape, n.dtype, attr)
    lines.append(repr([place[n] for n in results]))
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    instance = Instance(key, tuple(results), tuple(inputs), tuple(weights))
    return instance, Segment(key, tuple(new[n] for n in results))
