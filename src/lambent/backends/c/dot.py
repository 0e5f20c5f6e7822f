"""Σ of products → register-blocked micro-kernels: rows × vectors of accumulators.

The lane axis is one that only operand B has; the rows run along one that only A has. Accumulators
stay in registers over the whole contraction of a tile. B is read in vectors: where it lies (it is
contiguous along the lane axis) or from panels of `vectors · LANES` columns packed here. A is read
by broadcast: where it lies, or from a tile, or from panels of whole blocks of rows.

Schedule: `block` = (rows, vectors). Options: pack_a, pack_b = 0 or 1, else strides decide;
rows_first = 1 to keep a block of rows while the columns pass, else a panel of columns is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lambent.backends.c.expr import Expr, convert, spread
from lambent.backends.c.layout import Array, elementwise, storage
from lambent.backends.c.prelude import STORAGE
from lambent.backends.c.write import Spot, put, scatter
from lambent.kernel.tile import Dot, Load, Map, Reduce, Ref, Value

if TYPE_CHECKING:
    from lambent.backends.c.render import Renderer


def summed(dot: Dot) -> Reduce:
    """The Dot as a sum of products."""
    return Reduce("sum", dot.axes, Map("mul", (dot.a, dot.b), dot.dtype))


def plain(r: Renderer, dot: Dot) -> Dot | Reduce:
    """The Dot, or a Reduce of a product where a micro-kernel would not pay."""
    (a, own_a), (b, own_b) = r.layout.sides(dot)
    product = summed(dot)
    if not (own_a or own_b) or storage(dot.dtype) == "b":
        return product
    near = [_near(r, x) for x in (a, b)]
    if (near[0] & own_a) or (near[1] & own_b):
        return dot
    along_sum = (near[0] | near[1]) & dot.axes
    shared = r.layout.axes(a) & r.layout.axes(b) - dot.axes
    if not (own_a and own_b) and along_sum:
        return product  # a matrix times a vector, in rows
    if any(r.layout.count(i) >= r.target.lanes for i in (near[0] | near[1]) & shared):
        return product
    return dot


def _near(r: Renderer, v: Value) -> frozenset[int]:
    """The axes along which an operand has its neighbours in memory."""
    if isinstance(v, Ref):
        inner = r.layout.inner[v.name]
        return frozenset() if inner is None else frozenset({inner})
    return r.layout.contiguous(v)


def _lane(r: Renderer, dot: Dot, wanted: int | None) -> int:
    sides = r.layout.sides(dot)
    if wanted is not None and wanted in sides[0][1] | sides[1][1]:
        return wanted
    ranked = sorted(
        (3 * (i in _near(r, x)) - 4 * (r.layout.count(i) < r.target.lanes), r.layout.count(i), i)
        for x, own in sides
        for i in own
    )
    return ranked[-1][2]


Sink = Callable[[Expr], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a micro-kernel reads and writes: operand A by rows, B by lanes, vectors into `sink`.

    old: what the accumulators start from, None for 0. padded: whole blocks may be written always.
    """

    r: Renderer
    a: Value
    b: Value
    rows: int | None
    lane: int
    sums: tuple[int, ...]
    old: Value | None
    sink: Sink
    padded: bool
    t: str


def into_tile(
    r: Renderer, array: Array, dot: Dot, value: Value | None = None, old: Value | None = None
) -> None:
    """array := dot, or old + dot, or `value`, an elementwise expression of the dot."""
    into_spot(r, r.tile_spot(array), dot, _lane(r, dot, array.inner), value, old, padded=True)


def into_spot(
    r: Renderer, spot: Spot, dot: Dot, lane: int, value: Value | None = None,
    old: Value | None = None, padded: bool = False,
) -> None:  # fmt: skip
    """The same at any spot. padded: there is room for whole blocks along the lane axis."""
    read = [v for x in (value, old) if x is not None for v in elementwise(x)]
    if any(isinstance(v, Load) and lane in r.layout.axes(v) for v in read):
        padded = False  # a buffer has no room behind its end

    def sink(e: Expr) -> None:
        if value is not None:  # an expression of the dot, whose own result is at hand
            r.out.scope.memo[id(dot)] = (dot, e)
            e = r.out.value(value)
        if lane in spot.near:
            put(r, spot, e)
        else:
            scatter(r, spot, e)

    multiply(r, dot, lane, frozenset(spot.axes), old, sink, padded and lane in spot.near)


def multiply(
    r: Renderer, dot: Dot, lane: int, axes: frozenset[int], old: Value | None, sink: Sink,
    padded: bool,
) -> None:  # fmt: skip
    """The dot at all indices of the axes, in blocks, given to the sink vector by vector."""
    (a, own_a), (b, own_b) = r.layout.sides(dot)
    if lane in own_a:
        a, own_a, b, own_b = b, own_b, a, own_a
    rows = max(own_a, key=lambda i: (r.layout.count(i), i)) if own_a else None
    t = STORAGE[storage(dot.dtype)][1]
    height, width = _block(r, t, rows, lane)
    near = _near(r, a)
    sums = tuple(sorted(dot.axes - r.layout.unit, key=lambda i: (i in near, r.layout.count(i), i)))
    rest_a, rest_b = sorted(own_a - {rows}), sorted(own_b - {lane})

    def body() -> None:
        packed_b = _pack_b(r, b, lane, rows, sums, height, width)
        packed_a = _pack_a(r, a, rows, lane, sums, height, width)
        whole = padded and rows is not None and isinstance(packed_b, Ref)
        k = Kernel(r, packed_a, packed_b, rows, lane, sums, old, sink, whole, t)
        r.out.nest(rest_b, None, lambda: _blocks(k, height, width, rest_a))

    with r.out.block("", barrier=True):
        r.out.nest(sorted(axes - own_a - own_b), None, body)


def _block(r: Renderer, t: str, rows: int | None, lane: int) -> tuple[int, int]:
    """Rows and vectors of the register block, no larger than the tile."""
    height, width = r.program.schedule.block
    most = -(-r.upper(lane) // r.target.lanes)
    if rows is None:
        return 1, min(most, 8 if t in ("f32", "i32") else 4)
    if t in ("f64", "i64"):
        width = max(1, width // 2)  # a vector of these is two registers
    return min(height, r.upper(rows)), min(width, most)


def _pack_b(
    r: Renderer,
    b: Value,
    lane: int,
    rows: int | None,
    sums: tuple[int, ...],
    height: int,
    width: int,
) -> Value:
    """B itself where vectors can be read from it, else panels of it."""
    wanted, usable = r.options.get("pack_b"), lane in _near(r, b)
    if isinstance(b, Load) and usable:
        place = r.layout.place(b.buffer, b.index)
        usable = place.slope(lane) == 1
        reuse = 1 if rows is None else r.layout.count(rows)
        if wanted is None and reuse >= 4 * height and sums:
            step = place.slope(sums[-1])
            wanted = int(not isinstance(step, int) or abs(step) >= 2 * r.layout.count(lane))
    if usable and not wanted:
        return b
    return _tile(r, b, (lane, width * r.target.lanes), sums, None)


def _pack_a(
    r: Renderer,
    a: Value,
    rows: int | None,
    lane: int,
    sums: tuple[int, ...],
    height: int,
    width: int,
) -> Value:
    """A itself where elements can be read from it, else a tile or panels of it."""
    wanted, usable = r.options.get("pack_a"), isinstance(a, Ref)
    if isinstance(a, Load):
        place = r.layout.place(a.buffer, a.index)
        usable = a.dtype == a.dtype.compute and not any(clamp for _, clamp, _, _ in place.dims)
        if wanted is None and sums and place.slope(sums[-1]) != 1:
            wanted = int(r.layout.count(lane) >= 4 * width * r.target.lanes)
    if usable and not wanted:
        return a
    if rows is not None and height > 1 and wanted:
        return _tile(r, a, (rows, math.lcm(height, r.target.lanes)), sums, None)
    return _tile(r, a, None, sums, sums[-1] if sums else rows)


def _tile(
    r: Renderer, v: Value, panel: tuple[int, int] | None, sums: tuple[int, ...], inner: int | None
) -> Ref:
    """A copy of an operand as a tile over its axes, but those that the loops around it bind."""
    bound = frozenset(r.out.scope.idx)
    axes = r.layout.axes(v) - bound
    outer = tuple(sorted(axes - frozenset(sums)))
    name = r.out.fresh("%pack")
    array = r.tile(name, axes, storage(v.dtype), inner, panel, (*outer, *sums))
    r.layout.inner[name] = array.inner
    r.fill(array, v)
    r.out.arrays[name] = array
    return Ref(name, axes, v.dtype)


def _blocks(k: Kernel, height: int, width: int, rest: list[int]) -> None:
    """All blocks of the result: over the lane axis, then the rows, or the other way around."""
    nest = k.r.out.nest
    if k.r.options.get("rows_first"):

        def row(h: int, i: str) -> None:
            _columns(k, width, lambda v, j, tail: _micro(k, h, v, i, j, tail))

        nest(rest, None, lambda: _rows(k, height, row))
        return

    def column(v: int, j: str, tail: str | None) -> None:
        def rows() -> None:
            _rows(k, height, lambda h, i: _micro(k, h, v, i, j, tail))

        nest(rest, None, rows)

    _columns(k, width, column)


def _columns(k: Kernel, width: int, part: Callable[[int, str, str | None], None]) -> None:
    """Over the lane axis: `width` vectors at a time, then one, then the live lanes of one."""
    out, w = k.r.out, k.r.target.lanes
    n, j = out.length[k.lane], out.fresh("j")
    out.line(f"i64 {j} = 0;")
    more = f"{j} < {n}" if k.padded else f"{j} + {width * w} <= {n}"
    with out.block(f"for (; {more}; {j} += {width * w})"):
        part(width, j, None)
    if k.padded or k.r.layout.multiple(k.lane, width * w):
        return
    if width > 1:
        with out.block(f"for (; {j} + {w} <= {n}; {j} += {w})"):
            part(1, j, None)
    if not k.r.layout.multiple(k.lane, w):
        t = out.fresh("t")
        with out.block(f"if ({j} < {n})"):
            out.line(f"const i64 {t} = {n} - {j};")
            part(1, j, t)


def _heights(k: Kernel, height: int) -> list[int]:
    """The block heights that cover every number of rows that a tile can have."""
    if k.rows is None or k.r.layout.multiple(k.rows, height):
        return [height]
    axis = k.r.program.axes[k.rows]
    if isinstance(axis.extent, int):
        tile = min(axis.tile, axis.extent) if k.rows in k.r.layout.looped else axis.extent
        rest = {tile % height, axis.extent % tile % height} - {0}
        return [height, *sorted(rest, reverse=True)]
    return sorted({height, max(1, height // 2), 1}, reverse=True)


def _rows(k: Kernel, height: int, part: Callable[[int, str], None]) -> None:
    """Over the rows: `height` at a time, then smaller blocks."""
    out = k.r.out
    if k.rows is None:
        with out.block(""):
            part(1, "")
        return
    i, m = out.fresh("i"), out.length[k.rows]
    out.line(f"i64 {i} = 0;")
    for h in _heights(k, height):
        with out.block(f"for (; {i} + {h} <= {m}; {i} += {h})"):
            part(h, i)


def _micro(k: Kernel, height: int, vectors: int, i: str, j: str, tail: str | None) -> None:
    """One block: accumulators, the loops over the contraction, the stores."""
    out, w, t = k.r.out, k.r.target.lanes, k.t
    cells = [(r, q) for r in range(height) for q in range(vectors)]
    acc = {c: out.fresh("c") for c in cells}
    rows = [{} if k.rows is None else {k.rows: f"({i} + {r})"} for r in range(height)]
    columns = [{k.lane: f"({j} + {q * w})" if q else j} for q in range(vectors)]
    out.blocks = {x: (i, r) for r, row in enumerate(rows) for x in row.values()}
    out.blocks |= {x: (j, q * w) for q, column in enumerate(columns) for x in column.values()}
    for r, q in cells:
        with out.at({**rows[r], **columns[q]}, k.lane, tail):
            first = f"(v{t})(({t})0)" if k.old is None else spread(convert(out.value(k.old), t))
            out.line(f"v{t} {acc[r, q]} = {first};")

    def step() -> None:
        b: list[str] = []
        for q in range(vectors):
            with out.at(columns[q], k.lane, tail):
                b.append(spread(convert(out.value(k.b), t)))
        for r in range(height):
            with out.at(rows[r]):
                a = spread(convert(out.value(k.a), t))
            name = out.fresh("a")
            out.line(f"const v{t} {name} = {a};")
            out.line(" ".join(f"{acc[r, q]} += {name} * {b[q]};" for q in range(vectors)))

    out.plain(list(k.sums), step)
    for r, q in cells:
        with out.at({**rows[r], **columns[q]}, k.lane, tail):
            k.sink(Expr(acc[r, q], t, True))
    out.blocks = {}
