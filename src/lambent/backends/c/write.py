"""Values → memory: the loops that compute a value and write it to a tile or a buffer.

A reduction that varies along the lane axis is computed in blocks of accumulators, `vectors` along
the lane axis and, for a Dot (see `dot`), `rows` of them; they stay in registers until the whole
expression around the reduction is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from lambent.backends.c.emit import Array, Emitter, Local
from lambent.backends.c.expr import BITS, Expr, kind, least, written
from lambent.backends.c.layout import elementwise
from lambent.backends.c.prelude import CODES, STORAGE
from lambent.backends.roles import slope
from lambent.graph.dim import axis
from lambent.graph.prove import bounds
from lambent.kernel.tile import Index, Load, Map, Reduce, Ref, Store, Value, axes_of, values

COLUMNS = 8  # vectors of a block of columns
CHAINS = 4  # accumulators along the lane axis: they hide the latency of the operation
Cells = list[dict[int, Local]]


@dataclass(frozen=True, slots=True)
class Spot:
    """Where values go: the offset at local indices of the axes, which are sorted outermost first.

    near: the axes along which neighbours are neighbours in memory. tile: it has room for whole
    vectors along them. stream: whole vectors are written past the caches.
    """

    code: str
    pointer: str
    offset: Callable[[Mapping[int, Local]], str]
    axes: Sequence[int]
    near: frozenset[int]
    tile: bool
    stream: bool = False

    @property
    def whole(self) -> str:
        """The C function that stores a whole vector."""
        return f"{'stn' if self.stream else 'st'}_{self.code}"

    def at(self, idx: Mapping[int, Local]) -> str:
        return f"{self.pointer} + {self.offset(idx)}"


@dataclass(frozen=True, slots=True)
class Block:
    """Accumulators of a reduction: `vectors` along the lane axis, heights[0] along the rows.

    heights: what is tried for the rows that remain. outer: axes looped around the rows.
    """

    lane: int
    vectors: int
    rows: int | None = None
    heights: Sequence[int] = (1,)
    outer: Sequence[int] = ()


def tile_spot(out: Emitter, array: Array) -> Spot:
    """All elements of a tile."""
    axes = sorted(array.strides, key=lambda i: (i == array.inner, -array.strides[i], i))
    near = frozenset(i for i in axes if i == array.inner)
    return Spot(array.code, array.name, partial(out.offset, array), axes, near, True)


def buffer_spot(out: Emitter, s: Store) -> Spot:
    """The elements that a Store writes, over the axes of its index and of its value."""
    flat = out.layout.place(s).flat
    every = out.layout.axes(s.value) | out.layout.axes(Load(s.buffer, s.index, s.value.dtype))
    steps = {i: slope(flat, i) for i in every}
    size = {i: abs(bounds(step)[1]) for i, step in steps.items() if step is not None}
    axes = sorted(every, key=lambda i: (-size.get(i, 0), i))
    code, near = CODES[out.layout.buffers[s.buffer].dtype.name], (i for i in axes if steps[i] == 1)
    offset, stream = partial(out.size, flat), bool(out.options.get("stream"))
    return Spot(code, out.pointers[s.buffer], offset, axes, frozenset(near), False, stream)


def write(out: Emitter, spot: Spot, value: Value) -> None:
    """The value at every index of the spot's axes; its Dots are written by `dot`."""
    layout, upper = out.layout, out.layout.upper
    match value:
        case Map("add", (Ref() as old, Reduce() as v)) if hit := chosen(v, spot.axes):
            return _scattered(out, spot, old, v, *hit)

    def span(i: int) -> int:
        """Elements from the first to the last of an axis, where the most are read over."""
        loads = (layout.place(v).flat for v in values(value) if isinstance(v, Load))
        steps = (bounds(step)[1] for e in loads if (step := slope(e, i)) is not None)
        return layout.count[i] * max(map(abs, steps), default=0)

    lane = layout.lane(value, spot.axes, spot.near)
    sums = [v for v in elementwise(value) if isinstance(v, Reduce)]
    squares: list[int] = []  # axes to write along where reading goes along another
    if lane is not None and lane not in spot.near and spot.code == "f32":
        squares = [i for i in sorted(spot.near) if min(upper(i), upper(lane)) >= out.lanes]
    with out.block("", barrier=True):
        if lane is not None and squares:
            _transposed(out, spot, value, lane, squares[0])
        elif lane in spot.near and sums and all(lane in layout.axes(v) for v in sums):
            rest = [i for i in spot.axes if i != lane]
            many = max(1, min(COLUMNS, upper(lane) // out.lanes))
            heights = halves(min([COLUMNS // many, *map(upper, rest[-1:])]))
            block = Block(lane, many, rest.pop() if rest else None, heights)
            out.nest(rest, None, lambda: blocks(out, spot, value, sums[0], block))
        else:
            axes = sorted(spot.axes, key=span, reverse=True) if sums and lane is None else spot.axes
            out.nest(axes, lane, lambda: put(out, spot, out.value(value)))


def put(out: Emitter, spot: Spot, e: Expr) -> None:
    """An expression written here: a vector (its live lanes) or one element."""
    scope, code, t = out.scope, spot.code, STORAGE[spot.code][1]
    text, where = written(e, t, scope.lane is not None), spot.at(scope.idx)
    if scope.lane is None or scope.lane in spot.near:
        part = scope.tail and not spot.tile
        how = f"put_{code}" if scope.lane is None else f"stt_{code}" if part else spot.whole
        out.line(f"{how}({where}, {text}{f', {scope.tail}' if part else ''});")
    else:
        name, live = out.fresh("x"), scope.tail or str(out.lanes)
        out.line(f"const v{t} {name} = {text};")
        each = spot.at(out.lane_index(scope.lane))
        out.line(f"for (i64 z = 0; z < {live}; z++) put_{code}({each}, {name}[z]);")


# ---- reductions ----


def halves(height: int) -> Sequence[int]:
    """Heights of blocks that cover any number of rows."""
    return tuple(dict.fromkeys((max(1, height), max(1, height // 2), 1)))


def blocks(out: Emitter, spot: Spot, value: Value, v: Reduce, block: Block) -> None:
    """The value, whose reduction v varies along the lane axis, block by block."""
    w, lane = out.lanes, block.lane

    def rows(then: Callable[[Cells], None]) -> None:
        if (i := block.rows) is None:
            return then([{}])
        down = partial(out.pieces, i, block.heights, 1, lambda at, _: then([{i: x} for x in at]))
        out.nest(block.outer, None, down)

    def one(rows: Cells, at: list[Local], tail: str | None) -> None:
        cells = [row | {lane: x} for row in rows for x in at]
        for cell, e in zip(cells, across(out, v, cells, lane, tail), strict=True):
            with out.at(cell, lane, tail):
                out.value(v, known=e)
                put(out, spot, out.value(value))

    out.pieces(lane, (block.vectors * w, w), w, lambda at, t: rows(lambda row: one(row, at, t)))


def reduced(out: Emitter, v: Reduce) -> Expr:
    """The reduction at the current place."""
    layout, scope = out.layout, out.scope
    if scope.lane in layout.axes(v):
        return across(out, v, [{}], scope.lane, scope.tail)[0]
    axes = sorted(v.axes - layout.unit, key=lambda i: layout.count[i])
    lane = layout.lane(v.arg, axes, frozenset())
    if lane is None:
        return across(out, v, [{}], None, None)[0]
    chains = max(1, min(CHAINS, layout.count[lane] // out.lanes))
    acc = _start(out, v, chains, True)

    def piece(at: list[Local], tail: str | None) -> None:
        for e, x in zip(acc, at, strict=False):
            with out.at({lane: x}, lane, tail):
                _combine(out, v, e, tail)

    along = partial(out.pieces, lane, (chains * out.lanes, out.lanes), out.lanes, piece)
    out.nest([i for i in axes if i != lane], None, along)
    function = f"{v.op}_{acc[0].t}"
    total = reduce(lambda x, y: f"vr{function}({x}, {y})", (e.text for e in acc))
    return Expr(f"h{function}({total})", acc[0].t, False)


def across(out: Emitter, v: Reduce, cells: Cells, lane: int | None, tail: str | None) -> list[Expr]:
    """The reduction at several places, as vectors along a lane axis, in one pass over its axes."""
    acc, layout = _start(out, v, len(cells), lane is not None), out.layout

    def step() -> None:
        for cell, e in zip(cells, acc, strict=True):
            with out.at(cell, lane, tail):
                _combine(out, v, e)

    scalars = [x for x in elementwise(v.arg) if lane not in layout.axes(x)]
    near = {i for x in scalars for i in layout.near(x)}
    order = sorted(v.axes - layout.unit, key=lambda i: (i in near, layout.count[i], i))
    out.nest(order, None, step)
    return acc


def _start(out: Emitter, v: Reduce, n: int, vector: bool) -> list[Expr]:
    """Accumulators that hold what a reduction of nothing gives."""
    t = kind(v.dtype)
    acc = [Expr(out.fresh("r"), t, vector) for _ in range(n)]
    for e in acc:
        out.line(f"{'v' if vector else ''}{t} {e.text} = {written(least(v.op, t), t, vector)};")
    return acc


def _combine(out: Emitter, v: Reduce, acc: Expr, live: str | None = None) -> None:
    """acc := op(acc, the argument here), in the live lanes."""
    t, name = acc.t, acc.text
    if isinstance(v.arg, Map) and v.arg.op == "pairs":
        x, y = (written(out.value(a), t, acc.vector) for a in v.arg.args)
        return out.line(f"{name} = vdot_pair({name}, {x}, {y});")
    text = written(out.value(v.arg), t, acc.vector)
    if live:
        mask = f"CV(IOTA < (vi32)((i32){live}), vi{BITS[t]})"
        text = f"({mask} ? {text} : {written(least(v.op, t), t, True)})"
    if v.op == "sum" and t != "m":
        out.line(f"{name} += {text};")
    else:
        out.line(f"{name} = {'v' if acc.vector else ''}r{v.op}_{t}({text}, {name});")


# ---- scattering ----


def chosen(v: Value, among: Iterable[int]) -> tuple[int, Value, Value] | None:
    """(i, e, x) of a sum of mask(i == e, x) for one of these axes that e does not have."""
    match v:
        case Reduce("sum", _, Map("mask", (Map("eq", (a, b)), x))):
            for one, e in ((a, b), (b, a)):
                for i in among:
                    if isinstance(one, Index) and one.index == axis(i) and i not in axes_of(e):
                        return i, e, x
    return None


def _scattered(
    out: Emitter, spot: Spot, old: Ref, v: Reduce, i: int, e: Value, x: Value
) -> None:  # fmt: skip
    """old + Σ mask(i == e, x): no loop over i, as x is added where e says, if it is in the tile."""
    layout, new = out.layout, Map("add", (old, x), v.dtype)
    outer = v.axes - layout.unit | layout.axes(e)
    inner = [j for j in spot.axes if j != i and j not in outer]

    def add() -> None:
        at, here = out.fresh("p"), out.value(e).text
        out.line(f"const i64 {at} = (i64){here} - {out.origin.get(i, '0')};")
        with out.block(f"if ({at} >= 0 && {at} < {out.length[i]})", {i: Local(at)}):
            lane = layout.lane(x, inner, spot.near)
            out.nest(inner, lane, lambda: put(out, spot, out.value(new)))

    with out.block("", barrier=True):
        out.nest(sorted(outer, key=lambda j: (layout.count[j], j)), None, add)


# ---- transposing ----


def _transposed(out: Emitter, spot: Spot, value: Value, lane: int, near: int) -> None:
    """Read along one axis, write along another: squares are transposed in registers."""
    w, u, x = out.lanes, out.fresh("u"), out.fresh("u")

    def piece(rows: list[Local], columns: list[Local]) -> None:
        (j, k), sizes = (rows[0], columns[0]), ((u, len(rows)), (x, len(columns)))
        row, column = {near: Local(f"({j} + {u})")}, {lane: Local(f"({k} + {x})")}
        down, along = (f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in sizes)
        if len(rows) * len(columns) < w * w:
            with out.block(down, row), out.block(along, column):
                return put(out, spot, out.value(value))
        q = out.fresh("q")
        out.line(f"vf32 {q}[{w}];")
        with out.block(down, {**row, lane: k}, lane):
            out.line(f"{q}[{u}] = {written(out.value(value), 'f32', True)};")
        out.line(f"transpose({q});")
        with out.block(along, {near: j, **column}):
            out.line(f"{spot.whole}({spot.at(out.scope.idx)}, {q}[{x}]);")

    def band(rows: list[Local], _: object) -> None:
        out.pieces(lane, (w, 1), 1, lambda columns, _: piece(rows, columns))

    rest = [i for i in spot.axes if i not in (lane, near)]
    out.nest(rest, None, lambda: out.pieces(near, (w, 1), 1, band))
