"""Values → memory: the loops that compute a value and write it to a tile or a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lambent.backends.c.expr import Expr, convert, ctype, spread
from lambent.backends.c.layout import elementwise
from lambent.backends.c.prelude import STORAGE
from lambent.backends.c.reduce import columns
from lambent.kernel.tile import Reduce, Value

if TYPE_CHECKING:
    from lambent.backends.c.render import Renderer

COLUMNS = 8  # vectors of a block of columns


@dataclass(frozen=True, slots=True)
class Spot:
    """Where values go: `where` gives the C pointer at local indices of the axes, outermost first.

    near: the axes along which neighbours are neighbours in memory.
    """

    code: str
    where: Callable[[Mapping[int, str]], str]
    axes: tuple[int, ...]
    near: frozenset[int]


def write(r: Renderer, spot: Spot, value: Value) -> None:
    """The value at every index of the spot's axes."""
    out = r.out
    lane = r.layout.lane(value, spot.axes, spot.near)

    def one() -> None:
        if lane in spot.near or lane is None:
            put(r, spot, out.value(value))
        else:
            scatter(r, spot, out.value(value))

    with out.block("", barrier=True):
        beside = _beside(r, spot, lane)
        sums = [v for v in elementwise(value) if isinstance(v, Reduce)]
        if lane is not None and beside is not None:
            _across(r, spot, value, lane, beside)
        elif sums and lane in spot.near and all(lane in r.layout.axes(v) for v in sums):
            _columns(r, spot, value, sums[0], lane)
        else:
            out.nest(spot.axes, lane, one)


def _beside(r: Renderer, spot: Spot, lane: int | None) -> int | None:
    """The axis to write along where reading goes along another, if squares can be transposed."""
    if lane is None or lane in spot.near or spot.code != "f32":
        return None
    wide = [i for i in sorted(spot.near) if min(r.upper(i), r.upper(lane)) >= r.target.lanes]
    return wide[0] if wide else None


def put(r: Renderer, spot: Spot, e: Expr) -> None:
    """An expression written here: a vector (its live lanes) or one element."""
    e, scope, code = convert(e, STORAGE[spot.code][1]), r.out.scope, spot.code
    pointer = spot.where(scope.idx)
    if scope.lane is None:
        r.out.line(f"put_{code}({pointer}, {e.text});")
    elif scope.tail:
        r.out.line(f"stt_{code}({pointer}, {spread(e)}, {scope.tail});")
    else:
        r.out.line(f"st_{code}({pointer}, {spread(e)});")


def scatter(r: Renderer, spot: Spot, e: Expr) -> None:
    """The lanes of a vector written apart."""
    e = convert(e, STORAGE[spot.code][1])
    name, live = r.out.fresh("x"), r.out.scope.tail or str(r.target.lanes)
    pointer = spot.where(r.out.lane_index("z"))
    r.out.line(f"const {ctype(e.t, True)} {name} = {spread(e)};")
    r.out.line(f"for (i64 z = 0; z < {live}; z++) put_{spot.code}({pointer}, {name}[z]);")


def _columns(r: Renderer, spot: Spot, value: Value, v: Reduce, lane: int) -> None:
    """A reduction over rows: vectors of neighbouring columns share one pass over the rows."""
    out, w = r.out, r.target.lanes
    n, j = out.length[lane], out.fresh("j")

    def block(vectors: int) -> None:
        parts = [{lane: f"({j} + {u * w})"} for u in range(vectors)]
        for part, e in zip(parts, columns(out, v, parts, lane), strict=True):
            with out.at(part, lane):
                out.scope.memo[id(v)] = (v, e)
                put(r, spot, out.value(value))

    def body() -> None:
        out.line(f"i64 {j} = 0;")
        for vectors in (COLUMNS, 1):
            if vectors == 1 or r.upper(lane) >= vectors * w:
                with out.block(f"for (; {j} + {vectors * w} <= {n}; {j} += {vectors * w})"):
                    block(vectors)
        if not r.layout.multiple(lane, w):
            t = out.fresh("t")
            with out.block(f"if ({j} < {n})", {lane: j}, lane, t):
                out.line(f"const i64 {t} = {n} - {j};")
                put(r, spot, out.value(value))

    out.nest([i for i in spot.axes if i != lane], None, body)


def _across(r: Renderer, spot: Spot, value: Value, lane: int, near: int) -> None:
    """Read along one axis, write along another: squares are transposed in registers."""
    out, w = r.out, r.target.lanes
    j, k, u, q = (out.fresh(c) for c in "jkuq")

    def square() -> None:
        out.line(f"vf32 {q}[{w}];")
        rows = f"for (int {u} = 0; {u} < {w}; {u}++)"
        with out.block(rows, {near: f"({j} + {u})", lane: k}, lane):
            out.line(f"{q}[{u}] = {spread(convert(out.value(value), 'f32'))};")
        out.line(f"transpose({q});")
        with out.block(rows, {near: j, lane: f"({k} + {u})"}):
            out.line(f"st_f32({spot.where(out.scope.idx)}, {q}[{u}]);")

    def both() -> None:
        n, m = out.length[near], out.length[lane]
        out.line(f"i64 {j} = 0;")
        with out.block(f"for (; {j} + {w} <= {n}; {j} += {w})"):
            out.line(f"i64 {k} = 0;")
            with out.block(f"for (; {k} + {w} <= {m}; {k} += {w})"):
                square()
            if not r.layout.multiple(lane, w):
                rest = out.block(f"for (; {k} < {m}; {k}++)", {lane: k})
                with (
                    rest,
                    out.block(f"for (int {u} = 0; {u} < {w}; {u}++)", {near: f"({j} + {u})"}),
                ):
                    put(r, spot, out.value(value))
        if not r.layout.multiple(near, w):
            with out.block(f"for (; {j} < {n}; {j}++)", {near: j}), out.loop(lane):
                put(r, spot, out.value(value))

    out.nest([i for i in spot.axes if i not in (lane, near)], None, both)
