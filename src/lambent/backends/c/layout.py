"""Which axis is innermost: strides of index expressions, layout of arrays, lanes of a loop.

A vector runs along one axis, the lane axis of a loop. `Layout` holds what that choice needs: the
strides of every load and store, a vote on the inner axis of every named array, and the cost of a
value along an axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lambent.backends.c.prelude import CODES
from lambent.backends.c.target import Target
from lambent.graph.dim import Size, axis, exact, representative, values_in
from lambent.graph.dtypes import DType
from lambent.graph.prove import Prover, substitute
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Index,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    index_axes,
    operands,
    statements,
    values,
)  # fmt: skip

SLOW = {"exp2": 8.0, "log2": 10.0, "sin": 10.0, "mod": 12.0, "sqrt": 3.0, "recip": 3.0}


@dataclass(frozen=True, slots=True)
class Array:
    """A tile in memory: the stride, in elements, of every axis that it has; `inner` has stride 1.

    panel: (axis, width): that axis is cut in panels of `width`, `strides[axis]` apart; in a panel
    it has stride 1.
    """

    name: str
    code: str
    strides: dict[int, int]
    inner: int | None
    size: int
    panel: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index leads: (expression, needs clamping, extent, stride) of each dim."""

    dims: tuple[tuple[Size, bool, Size, Size], ...]
    flat: Size  # the offset where nothing is clamped

    def slope(self, i: int) -> Size | None:
        """The stride along an axis; None where it is not constant or the index may be clamped."""
        if any(clamp and i in index_axes(e) for e, clamp, _, _ in self.dims):
            return None
        return slope(self.flat, i)


def slope(size: Size, i: int) -> Size | None:
    """The coefficient of axis i in an expression that is linear in it, else None."""
    if i not in index_axes(size):
        return 0
    if any(i in v.axes for v in values_in(size)):
        return None
    following = substitute(
        size, lambda a: axis(i) + 1 if a.kind == "axis" and a.args[0] == i else None
    )
    step = following - size
    return None if i in index_axes(step) else step


class Layout:
    """The choices for one program; made once, before any text."""

    def __init__(self, program: TileProgram, target: Target, buffers: dict[str, Buffer]) -> None:
        self.program, self.lanes, self.buffers = program, target.lanes, buffers
        self.prover = Prover({i: a.extent for i, a in program.axes.items()})
        self._axes: dict[int, tuple[Value, frozenset[int]]] = {}
        self._ranges: dict[int, tuple[Value, tuple[int, int] | None]] = {}
        self._places: dict[tuple[str, tuple[Size, ...]], Place] = {}
        self.looped = frozenset(s.axis for s in statements(program.body) if isinstance(s, For))
        self.unit = frozenset(
            i
            for i, a in program.axes.items()
            if a.extent == 1 or (i in self.looped and a.tile == 1)
        )
        self.uses: Counter[str] = Counter(_names(program.body))
        self.inner: dict[str, int | None] = {}
        self._vote()

    def count(self, i: int) -> int:
        """About how many indices of an axis a tile has."""
        a = self.program.axes[i]
        usual = representative(a.extent)
        return max(1, min(a.tile, usual) if i in self.looped else usual)

    def axes(self, v: Value) -> frozenset[int]:
        """The axes that a value depends on and that have more than one index in a tile."""
        known = self._axes.get(id(v))
        if known is None:
            known = self._axes[id(v)] = (v, self._free(v) - self.unit)
        return known[1]

    def _free(self, v: Value) -> frozenset[int]:
        match v:
            case Load(index=index):
                return frozenset[int]().union(*map(index_axes, index))
            case Index(index=e):
                return index_axes(e)
            case Ref(axes=axes):
                return axes
            case Reduce(axes=axes) | Dot(axes=axes):
                return frozenset[int]().union(*map(self.axes, operands(v))) - axes
            case _:
                return frozenset[int]().union(*map(self.axes, operands(v)))

    def place(self, buffer: str, index: tuple[Size, ...], exact_: bool = False) -> Place:
        """The place of an index into a buffer; `exact_` says that it is never outside."""
        key = (buffer, index)
        if key not in self._places:
            shape = self.buffers[buffer].shape
            stride: Size = 1
            dims: list[tuple[Size, bool, Size, Size]] = []
            flat: Size = 0
            for e, extent in zip(reversed(index), reversed(shape), strict=True):
                inside = exact_ or (self.prover.ge0(e) and self.prover.ge0(extent - 1 - e))
                dims.append((e, not inside, extent, stride))
                flat, stride = flat + e * stride, stride * extent
            self._places[key] = Place(tuple(reversed(dims)), flat)
        return self._places[key]

    # ---- the inner axis of arrays ----

    def _vote(self) -> None:
        votes: dict[str, dict[int, float]] = {}
        for s in statements(self.program.body):
            if isinstance(s, (Let, Var)):
                axes = self.axes(s.value) if isinstance(s, Let) else set(s.axes) - self.unit
                votes.setdefault(s.name, dict.fromkeys(sorted(axes), 0.0))
        for s in statements(self.program.body):
            for name, i, weight in self._votes_of(s):
                if name in votes and i in votes[name]:
                    votes[name][i] += weight
        for name, by_axis in votes.items():
            ranked = sorted(
                (self.count(i) >= self.lanes, weight, self.count(i), i)
                for i, weight in by_axis.items()
            )
            self.inner[name] = ranked[-1][3] if ranked else None

    def _votes_of(self, s: Stmt) -> Iterator[tuple[str, int, float]]:
        for value in operands(s):
            yield from self._votes_in(value)
        if isinstance(s, Store):
            place = self.place(s.buffer, s.index, True)
            for ref in _refs(s.value):
                yield from ((ref.name, i, 2.0) for i in ref.axes if place.slope(i) == 1)
        if isinstance(s, (Let, Accumulate)):
            for v in elementwise(s.value):
                if isinstance(v, Load):
                    yield from ((s.name, i, 1.0) for i in self.contiguous(v))
                if isinstance(v, Dot):
                    for side in self.sides(v):
                        for i in side[1]:
                            yield s.name, i, 2.5 if i in self.contiguous(side[0]) else 1.0

    def _votes_in(self, value: Value) -> Iterator[tuple[str, int, float]]:
        for v in values(value):
            if isinstance(v, Reduce):
                yield from ((r.name, i, 2.0) for r in _refs(v.arg) for i in v.axes & r.axes)
            if isinstance(v, Dot):
                (a, own_a), (b, own_b) = self.sides(v)
                for x, own, y, other in ((a, own_a, b, own_b), (b, own_b, a, own_a)):
                    if isinstance(x, Ref):
                        beside = bool(self.contiguous(y) & other)
                        yield from ((x.name, i, 0.2 if beside else 1.0) for i in own)
                        yield from ((x.name, i, 0.5) for i in v.axes)

    def contiguous(self, v: Value) -> frozenset[int]:
        """The axes along which a load reads neighbouring elements."""
        if not isinstance(v, Load):
            return frozenset()
        place = self.place(v.buffer, v.index)
        return frozenset(i for i in self.axes(v) if slope(place.flat, i) == 1)

    def sides(self, dot: Dot) -> tuple[tuple[Value, frozenset[int]], tuple[Value, frozenset[int]]]:
        """Both operands of a Dot, each with the axes of the result that it alone has."""
        a, b = self.axes(dot.a) - dot.axes, self.axes(dot.b) - dot.axes
        return (dot.a, a - b), (dot.b, b - a)

    # ---- the lane axis of loops ----

    def lane(self, value: Value, among: Iterable[int], put: frozenset[int]) -> int | None:
        """The cheapest lane axis for computing a value; `put` are those that are cheap to store."""
        candidates: list[tuple[float, int, int | None]] = [
            (self.cost(value, None) + self._put(value, None, put), 0, None)
        ]
        for i in sorted(set(among) - self.unit):
            cost = self.cost(value, i) + self._put(value, i, put)
            candidates.append((cost, 1 - (i in put), i))
        return min(candidates, key=lambda c: (c[0], c[1], -1 if c[2] is None else c[2]))[2]

    def _put(self, value: Value, i: int | None, put: frozenset[int]) -> float:
        evaluations = self._count(self.axes(value) | put)
        return evaluations * self._width(i) if i in put else evaluations

    def _count(self, axes: Iterable[int]) -> float:
        total = 1.0
        for i in axes:
            total *= self.count(i)
        return total

    def _width(self, i: int | None) -> float:
        """Vectors per element along an axis."""
        if i is None:
            return 1.0
        n = self.count(i)
        return -(-n // self.lanes) / n

    def cost(
        self, v: Value, lane: int | None, memo: dict[tuple[int, int | None], float] | None = None
    ) -> float:
        """About how many instructions a value takes in all, in vectors along a lane axis."""
        memo = {} if memo is None else memo
        lane = lane if lane in self.axes(v) else None
        key = (id(v), lane)
        if key not in memo:
            memo[key] = 0.0  # a shared part is paid once
            memo[key] = self._cost(v, lane, memo)
            return memo[key]
        return 0.0

    def _cost(self, v: Value, lane: int | None, memo: dict[tuple[int, int | None], float]) -> float:
        times = self._count(self.axes(v))
        below = sum(self.cost(x, lane, memo) for x in operands(v))
        match v:
            case Load() | Ref():
                return times * (self._width(lane) if self._streams(v, lane) else 1.5)
            case Reduce(axes=axes, arg=arg) if lane is None:
                ways = [
                    self.cost(arg, i) + self._count(self.axes(arg)) * self._width(i)
                    for i in (None, *sorted(axes - self.unit))
                ]
                return min(ways) + times * 4
            case Reduce(arg=arg):
                return below + self._count(self.axes(arg)) * self._width(lane)
            case Map(op=op, dtype=dtype):
                slow = op in SLOW and (dtype.name == "float64" or op == "mod")
                return below + times * SLOW.get(op, 1.0) * (1.0 if slow else self._width(lane))
            case _:
                return below

    def _streams(self, v: Value, lane: int | None) -> bool:
        if lane is None:
            return False
        if isinstance(v, Ref):
            return self.inner.get(v.name) == lane
        return lane in self.contiguous(v)

    # ---- integers that fit 32 bits ----

    def small(self, v: Value) -> bool:
        """True if an int64 value made of indices can be computed in 32 bits."""
        return self._range(v) is not None

    def _range(self, v: Value) -> tuple[int, int] | None:
        if id(v) not in self._ranges:
            found = self._bounds(v) if v.dtype.name == "int64" else None
            if found and not (max(-found[0] - 1, found[1]) < 2**31):
                found = None
            self._ranges[id(v)] = (v, found)
        return self._ranges[id(v)][1]

    def _bounds(self, v: Value) -> tuple[int, int] | None:
        match v:
            case Lit(value=x):
                return int(x), int(x)
            case Index(index=e):
                return self.prover.interval(e)
            case Map(op=op, args=(x, y)) if op in ("add", "sub", "mul", "mod"):
                a, b = self._range(x), self._range(y)
                if a is None or b is None:
                    return None
                if op == "mod":
                    return (0, b[1] - 1) if b[0] > 0 else None
                f = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}[op]
                corners = [f(p, q) for p in a for q in b]
                return min(corners), max(corners)
        return None

    # ---- tiles ----

    def multiple(self, i: int, n: int) -> bool:
        """True if every tile of an axis holds a multiple of n indices."""
        a = self.program.axes[i]
        whole = exact(a.extent, n) is not None
        return whole and (i not in self.looped or a.tile % n == 0)


def _names(body: Iterable[Stmt]) -> Iterator[str]:
    """The names that statements read, once for every reading."""
    for s in statements(body):
        indices = list(s.index) if isinstance(s, Store) else []
        for value in operands(s):
            for v in values(value):
                if isinstance(v, Ref):
                    yield v.name
                indices += (
                    [*v.index] if isinstance(v, Load) else [v.index] if isinstance(v, Index) else []
                )
        yield from (ref.name for e in indices for ref in values_in(e))


def elementwise(value: Value) -> Iterator[Value]:
    """The value and the parts of it that are read element by element: not below a Reduce or Dot."""
    yield value
    if isinstance(value, Map):
        for v in value.args:
            yield from elementwise(v)


def _refs(value: Value) -> list[Ref]:
    return [v for v in elementwise(value) if isinstance(v, Ref)]


def storage(dtype: DType) -> str:
    """The storage code of a tile of that dtype: what it is computed in."""
    return CODES[dtype.compute.name]
