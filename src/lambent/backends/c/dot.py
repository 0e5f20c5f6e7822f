"""Σ of products → register-blocked micro-kernels: rows × vectors of accumulators.

The lane axis is one that only operand B has; the rows run along one that only A has. B is read in
vectors: where it lies (it is contiguous along the lane axis) or from panels of `vectors · LANES`
columns packed here. A is read by broadcast: where it lies, or from a tile, or from panels of whole
blocks of rows.

Schedule: `block` = (rows, vectors). Options: pack_a, pack_b = 0 or 1, else strides decide; pairs =
1: bfloat16 operands are packed with two neighbours along a sum side by side, and multiplied so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lambent.backends.c.emit import Array, Emitter
from lambent.backends.c.expr import kind, storage
from lambent.backends.c.write import Block, Spot, blocks, halves, tile_spot, write
from lambent.backends.roles import FEW, slope
from lambent.kernel.tile import Dot, Load, Map, Reduce, Ref, Value


def summed(dot: Dot) -> Reduce:
    """The Dot as a sum of products."""
    return Reduce("sum", dot.axes, Map("mul", (dot.a, dot.b), dot.dtype))


def pays(out: Emitter, dot: Dot) -> bool:
    """True if a micro-kernel beats a plain sum of products."""
    (a, own_a), (b, own_b) = out.layout.sides(dot)
    near_a, near_b = out.layout.near(a), out.layout.near(b)
    if not own_a | own_b or storage(dot.dtype) == "b":
        return False
    if near_a & own_a or near_b & own_b:
        return True
    near, shared = near_a | near_b, out.layout.axes(a) & out.layout.axes(b) - dot.axes
    few = min(map(out.layout.indices, (own_a, own_b))) < FEW
    in_rows = few and near & dot.axes  # a matrix times a vector, or a few
    return not in_rows and all(out.layout.count[i] < out.lanes for i in near & shared)


def replaced(value: Value, old: Value | str, new: Value) -> Value:
    """The expression with one of its parts, or the Refs to a name, replaced; not in a Dot. What is
    one object stays one, and is computed once."""
    done: dict[int, Value] = {}

    def of(v: Value) -> Value:
        if v == old or (isinstance(v, Ref) and v.name == old):
            return new
        if id(v) not in done and isinstance(v, Map | Reduce):
            x = [of(v.arg)] if isinstance(v, Reduce) else [of(a) for a in v.args]
            done[id(v)] = replace(v, arg=x[0]) if isinstance(v, Reduce) else replace(v, args=(*x,))
        return done.get(id(v), v)

    return of(value)


def multiply(out: Emitter, spot: Spot, value: Value, dot: Dot) -> None:
    """The value, an elementwise expression of the dot, at every index of the spot's axes."""
    layout, lane = out.layout, _lane(out, dot, spot.near)
    (a, own_a), (b, own_b) = layout.sides(dot)
    if lane in own_a:
        a, own_a, b, own_b = b, own_b, a, own_a
    rows = max(own_a, key=lambda i: (layout.count[i], i), default=None)
    block = _block(out, kind(dot.dtype), lane, rows, sorted(own_a - {rows}))
    sums = sorted(dot.axes - layout.unit, key=lambda i: (i in layout.near(a), layout.count[i], i))

    def body() -> None:
        if (k := _twofold(out, dot, sums, lane)) is None:
            v = summed(Dot(dot.axes, _b(out, b, sums, block), _a(out, a, sums, block)))
        else:
            both = _paired(out, b, k, lane), _paired(out, a, k, lane)
            v = Reduce("sum", dot.axes, Map("pairs", both, dot.dtype))
            length, out.length[k] = out.length[k], f"({out.length[k]} / 2)"
        new = replaced(value, dot, v)
        out.nest(sorted(own_b - {lane}), None, lambda: blocks(out, spot, new, v, block))
        if k is not None:
            out.length[k] = length

    with out.block("", barrier=True):
        out.nest([i for i in sorted(spot.axes) if i not in own_a | own_b], None, body)


def _lane(out: Emitter, dot: Dot, wanted: frozenset[int]) -> int:
    def rank(own: tuple[Value, int]) -> tuple[bool, bool, bool, int, int]:
        x, i = own
        count = out.layout.count[i]
        return count >= out.lanes, i in wanted, i in out.layout.near(x), count, i

    return max(((x, i) for x, own in out.layout.sides(dot) for i in own), key=rank)[1]


def _block(out: Emitter, t: str, lane: int, rows: int | None, outer: Sequence[int]) -> Block:
    """The register block, wider where the tile has few rows; its heights cover any tile."""
    layout = out.layout
    height, width = layout.program.schedule.block
    most = max(1, -(-layout.upper(lane) // out.lanes))
    if rows is None:
        return Block(lane, min(most, 8 if t in ("f32", "i32") else 4))
    if t in ("f64", "i64"):
        width = max(1, width // 2)  # a vector of these is two registers
    low = max(1, min(height, layout.upper(rows)))
    heights = range(low, 0, -1) if len(layout.lengths(rows)) <= 2 else halves(low)
    return Block(lane, min(width * height // low, most), rows, heights, outer)


def _b(out: Emitter, b: Value, sums: Sequence[int], block: Block) -> Value:
    """B itself where vectors can be read from it, else panels of it."""
    layout, lane = out.layout, block.lane
    wanted, usable = out.options.get("pack_b"), lane in layout.near(b)
    if isinstance(b, Load) and usable:
        flat = layout.place(b).flat
        usable = layout.step(flat, lane) == 1
        rows = 1 if block.rows is None else layout.count[block.rows]
        if wanted is None and rows >= 4 * block.heights[0] and sums:
            step = slope(flat, sums[-1])
            wanted = not isinstance(step, int) or abs(step) >= 2 * layout.count[lane]
    return b if usable and not wanted else _packed(out, b, sums, lane, block.vectors * out.lanes)


def _a(out: Emitter, a: Value, sums: Sequence[int], block: Block) -> Value:
    """A itself where elements can be read from it, else a tile or panels of it."""
    layout, height = out.layout, block.heights[0]
    wanted, usable = out.options.get("pack_a"), isinstance(a, Ref)
    if isinstance(a, Load):
        place = layout.place(a)
        usable = a.dtype == a.dtype.compute and place.inside
        if wanted is None and sums and slope(place.flat, sums[-1]) != 1:
            wanted = layout.count[block.lane] >= 4 * block.vectors * out.lanes
    if usable and not wanted:
        return a
    if block.rows is not None and height > 1 and wanted:
        return _packed(out, a, sums, block.rows, math.lcm(height, out.lanes))
    return _packed(out, a, sums, sums[-1] if sums else block.rows)


def _packed(
    out: Emitter, v: Value, sums: Sequence[int], inner: int | None, width: int = 0
) -> Value:
    """A copy of an operand as a tile over its axes, but those that the loops around it bind."""
    axes, name = out.layout.axes(v) - frozenset(out.scope.idx), out.fresh("%pack")
    inner = inner if inner in axes else None
    order = [*sorted(axes.difference(sums)), *(i for i in sums if i in axes)]
    array = out.tile(name, order, storage(v.dtype), inner, width)
    out.layout.inner[name] = inner
    write(out, tile_spot(out, array), v)
    out.arrays[name] = array
    return Ref(name, axes, v.dtype)


def _twofold(out: Emitter, dot: Dot, sums: Sequence[int], lane: int) -> int | None:
    """The axis along which neighbours are multiplied at once, if that is asked for and can be."""
    layout, wide = out.layout, out.layout.upper(lane) % out.lanes == 0
    narrow = all(isinstance(v, Load) and v.dtype.name == "bfloat16" for v in (dot.a, dot.b))
    even = (k for k in reversed(sums) if all(n % 2 == 0 for n in layout.lengths(k)))
    return next(even, None) if out.options.get("pairs") and narrow and wide else None


def _paired(out: Emitter, v: Value, k: int, lane: int) -> Value:
    """A copy of an operand with two neighbours along k side by side, read as one along the lane."""
    axes, name = out.layout.axes(v) - frozenset(out.scope.idx), out.fresh("%pairs")
    array = out.tile(name, sorted(axes - {k}, key=lambda i: (i == lane, i)), "bf", k, 2)
    write(out, replace(tile_spot(out, array), near=frozenset()), v)
    strides = {i: stride // 2 for i, stride in array.strides.items()}
    inner = lane if lane in axes else None
    out.arrays[name] = Array(
        f"((u32 *){array.name})", "pair", strides, inner, out.layout.upper(lane)
    )
    return Ref(name, axes, v.dtype)
