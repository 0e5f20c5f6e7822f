"""Which axis is innermost: strides of index expressions, layout of arrays, lanes of a loop.

A vector runs along one axis, the lane axis of a loop. `Layout` holds what that choice needs: the
strides of every load and store, a vote on the inner axis of every named array, and the cost of a
value along an axis.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lambent.backends.c.target import Target
from lambent.backends.roles import slope, within
from lambent.graph.dim import Size, exact, representative, values_in
from lambent.graph.prove import Prover, bounds
from lambent.kernel import tile as ir
from lambent.kernel.tile import operands, statements, values

POWERS = tuple(1 << n for n in range(9))
SLOW = {"exp2": 8.0, "log2": 10.0, "sin": 10.0, "mod": 12.0, "sqrt": 3.0, "recip": 3.0}


Side = tuple[ir.Value, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index leads: `flat` is the offset, in elements, of what is clamped into the buffer.

    inside: nothing needs clamping. border: (offset of the other dims, index, extent) of a last dim
    that needs it. bare: extents that must not be 0.
    """

    flat: Size
    inside: bool
    border: tuple[Size, Size, Size] | None
    bare: tuple[Size, ...]


class Layout:
    """The choices for one program; made once, before any text."""

    def __init__(self, program: ir.TileProgram, target: Target) -> None:
        self.program, self.lanes, kernel = program, target.lanes, program.kernel
        self.buffers = {b.name: b for b in (*(o.buffer for o in kernel.outputs), *kernel.inputs)}
        self.prover = Prover({i: a.extent for i, a in program.axes.items()})
        self._axes: dict[int, tuple[ir.Value, frozenset[int]]] = {}
        self._places: dict[tuple[type, str, tuple[Size, ...]], Place] = {}
        self.looped = frozenset(s.axis for s in statements(program.body) if isinstance(s, ir.For))
        axes, cut = program.axes.items(), self.looped
        self.count = {i: max(1, min(a.tile, representative(a.extent))) for i, a in axes}
        """About how many indices of an axis a tile has."""
        self.unit = frozenset(i for i, a in axes if a.extent == 1 or (i in cut and a.tile == 1))
        self.inner: dict[str, int | None] = {}
        self._elect()

    # ---- axes ----

    def upper(self, i: int) -> int:
        """The most indices that a tile of an axis has."""
        return min(self.program.axes[i].tile, bounds(self.program.axes[i].extent)[1])

    def lengths(self, i: int) -> frozenset[int]:
        """How many indices the tiles of an axis can have; of symbolic ones, some hundred cases."""
        a = self.program.axes[i]
        if exact(a.extent, a.tile) is not None:
            return frozenset({a.tile})
        if isinstance(a.extent, int):
            return frozenset({min(a.tile, a.extent), a.extent % a.tile})
        tile = a.tile if i in self.looped else 0
        step = max(n for n in POWERS if tile % n == 0 and exact(a.extent, n) is not None)
        return frozenset(range(0, min(self.upper(i), POWERS[-1] * step) + 1, step))

    def axes(self, v: ir.Value) -> frozenset[int]:
        """The axes that a value depends on and that have more than one index in a tile."""
        if id(v) not in self._axes:
            self._axes[id(v)] = (v, ir.axes_of(v, map(self.axes, operands(v))) - self.unit)
        return self._axes[id(v)][1]

    # ---- places in memory ----

    def place(self, at: ir.Load | ir.Store) -> Place:
        """The place of a Load, or of a Store, which is never outside."""
        key = (type(at), at.buffer, at.index)
        if key not in self._places:
            shape, apply = self.buffers[at.buffer].shape, self.prover.apply
            dims, inside = list(zip(at.index, shape, strict=True)), isinstance(at, ir.Store)
            kept = [e if inside else apply("max", apply("min", e, n - 1), 0) for e, n in dims]
            stride: Size = 1
            flat: Size = 0
            for e, n in zip(reversed(kept), reversed(shape), strict=True):
                flat, stride = flat + e * stride, stride * n
            moved = [n for (e, n), k in zip(dims, kept, strict=True) if e != k]
            bare = tuple(n for n in moved if self.prover.interval(n)[0] < 1)
            edge = bool(kept) and kept[-1] != at.index[-1]
            border = (flat - kept[-1], at.index[-1], shape[-1]) if edge else None
            self._places[key] = Place(flat, not moved, border, bare)
        return self._places[key]

    def step(self, flat: Size, i: int) -> Size | None:
        """The slope along an axis inside of any vector: those of a tile start at its multiples."""
        a = self.program.axes[i]
        starts = i not in self.looped or a.tile % self.lanes == 0
        return slope(within(flat, i, self.lanes) if starts else flat, i)

    def near(self, v: ir.Value) -> frozenset[int]:
        """The axes along which a Load or a Ref has its neighbours in memory."""
        if isinstance(v, ir.Load):
            flat = self.place(v).flat
            return frozenset(i for i in self.axes(v) if self.step(flat, i) == 1)
        inner = self.inner.get(v.name) if isinstance(v, ir.Ref) else None
        return frozenset() if inner is None else frozenset({inner})

    def sides(self, dot: ir.Dot) -> tuple[Side, Side]:
        """Both operands of a Dot, each with the axes of the result that it alone has."""
        a, b = self.axes(dot.a) - dot.axes, self.axes(dot.b) - dot.axes
        return (dot.a, a - b), (dot.b, b - a)

    # ---- the inner axis of arrays ----

    def _elect(self) -> None:
        """In the order of the program: what a value reads has its inner axis before."""
        every = list(statements(self.program.body))
        made = {s.name: s.ref.axes - self.unit for s in every if isinstance(s, ir.Let | ir.Var)}
        votes: dict[tuple[str, int], float] = defaultdict(float)
        for name, i, weight in (vote for s in every for vote in self._votes(s)):
            votes[name, i] += weight
        for name, axes in made.items():
            own = (s for s in every if isinstance(s, ir.Let | ir.Accumulate) and s.name == name)
            for i, weight in (vote for s in own for vote in self._own(s)):
                votes[name, i] += weight
            rank = {
                i: (self.count[i] >= self.lanes, votes[name, i], self.count[i], i) for i in axes
            }
            self.inner[name] = max(rank, key=lambda i: rank[i], default=None)

    def _own(self, s: ir.Let | ir.Accumulate) -> Iterator[tuple[int, float]]:
        """(axis, weight) for the axes along which what a statement reads lies."""
        for v in elementwise(s.value):
            yield from ((i, 1.0) for i in self.near(v))
            for x, own in self.sides(v) if isinstance(v, ir.Dot) else ():
                yield from ((i, 2.5 if i in self.near(x) else 1.0) for i in own)

    def _votes(self, s: ir.Stmt) -> Iterator[tuple[str, int, float]]:
        """(array, axis, weight) for the axes along which a statement likes to read."""
        for v in (v for value in operands(s) for v in values(value)):
            if isinstance(v, ir.Reduce):
                along = frozenset[int]().union(*map(self.near, elementwise(v.arg))) or v.axes
                yield from ((r.name, i, 2.0) for r in refs(v.arg) for i in along & r.axes)
            if isinstance(v, ir.Dot):
                a, b = self.sides(v)
                for (x, own), (y, other) in ((a, b), (b, a)):
                    if isinstance(x, ir.Ref):
                        beside = bool(self.near(y) & other)
                        yield from ((x.name, i, 0.2 if beside else 1.0) for i in own)
                        yield from ((x.name, i, 0.5) for i in v.axes)
        if isinstance(s, ir.Store):
            place = self.place(s)
            for ref in refs(s.value):
                yield from ((ref.name, i, 2.0) for i in ref.axes if slope(place.flat, i) == 1)

    # ---- the lane axis of loops ----

    def lane(self, value: ir.Value, among: Iterable[int], put: frozenset[int]) -> int | None:
        """The cheapest lane axis for computing a value; `put` are those that are cheap to store."""
        stores = self.indices(self.axes(value) | put)

        def rank(i: int | None) -> tuple[float, bool, int]:
            cost = self.cost(value, i) + stores * (self._width(i) if i in put else 1.0)
            return cost, i is not None and i not in put, -1 if i is None else i

        return min([None, *sorted(set(among) - self.unit)], key=rank)

    def indices(self, axes: Iterable[int]) -> float:
        """About how many elements a tile over these axes has."""
        return math.prod(self.count[i] for i in axes)

    def _width(self, i: int | None) -> float:
        """Vectors per element along an axis, if there is one."""
        n = 1 if i is None else self.count[i]
        return -(-n // self.lanes) / n

    def cost(self, v: ir.Value, lane: int | None) -> float:
        """About how many instructions a value takes in all, in vectors along a lane axis."""
        lane = lane if lane in self.axes(v) else None
        times, width = self.indices(self.axes(v)), self._width(lane)
        match v:
            case ir.Load() | ir.Ref():
                return times * (width if lane in self.near(v) else 1.5)
            case ir.Reduce(axes=axes, arg=arg):
                ways = [None, *sorted(axes - self.unit)] if lane is None else [lane]
                inside = self.indices(self.axes(arg))
                least = min(self.cost(arg, i) + inside * self._width(i) for i in ways)
                return least + times * 4 * (lane is None)
            case ir.Map(op=op, dtype=dtype):
                slow = op in SLOW and (dtype.name == "float64" or op == "mod")
                here = times * SLOW.get(op, 1.0) * (1.0 if slow else width)
                return here + sum(self.cost(x, lane) for x in v.args)
        return 0.0


def reads(body: Iterable[ir.Stmt]) -> Iterator[str]:
    """The names that statements read, once for every reading."""
    for node in _nodes(body):
        if isinstance(node, ir.Ref):
            yield node.name
        yield from (ref.name for e in ir.indices(node) for ref in values_in(e))


def loads(body: Iterable[ir.Stmt]) -> frozenset[str]:
    """The buffers that statements read."""
    return frozenset(node.buffer for node in _nodes(body) if isinstance(node, ir.Load))


def _nodes(body: Iterable[ir.Stmt]) -> Iterator[ir.Stmt | ir.Value]:
    """The statements, those inside of them, and their values with all parts."""
    for s in statements(body):
        yield s
        for value in operands(s):
            yield from values(value)


def elementwise(value: ir.Value) -> Iterator[ir.Value]:
    """The value and the parts of it that are read element by element: not below a Reduce or Dot."""
    todo = [value]
    for v in todo:
        yield v
        todo += v.args if isinstance(v, ir.Map) else ()


def refs(value: ir.Value) -> list[ir.Ref]:
    return [v for v in elementwise(value) if isinstance(v, ir.Ref)]
