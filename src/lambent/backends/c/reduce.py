"""Reductions → accumulators, in the scope where their result is bound; never wider than a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lambent.backends.c.expr import BITS, Expr, convert, identity, spread
from lambent.backends.c.prelude import FLOATS
from lambent.kernel.tile import Reduce

if TYPE_CHECKING:
    from lambent.backends.c.values import Emitter

CHAINS = 4  # accumulators along the lane axis: they hide the latency of the operation


def reduced(out: Emitter, v: Reduce) -> Expr:
    """The reduction at the current place, one element; along a lane axis where that pays."""
    t = _type(out, v)
    axes = sorted(v.axes - out.layout.unit)
    lane = out.layout.lane(v.arg, axes, frozenset())
    axes.sort(key=lambda i: (i == lane, out.layout.count(i)))
    zero, acc = identity(v.op, t), out.fresh("r")
    if lane is None:
        out.line(f"{t} {acc} = {zero.text};")
        out.plain(axes, lambda: _combine(out, v, acc, t, False))
        return Expr(acc, t, False)
    out.line(f"v{t} {acc}[{CHAINS}] = {{{', '.join([spread(zero)] * CHAINS)}}};")
    out.plain(axes[:-1], lambda: _along(out, v, acc, t, lane))
    total = f"{acc}[0]"
    for i in range(1, CHAINS):
        total = _joined(v.op, t, total, f"{acc}[{i}]")
    if t == "m":
        return Expr(f"(__builtin_reduce_or({total}) != 0)", "m", False)
    return Expr(f"h{v.op}_{t}({total})", t, False)


def columns(out: Emitter, v: Reduce, parts: Sequence[Mapping[int, str]], lane: int) -> list[Expr]:
    """The reduction as vectors at several places along the lane axis, in one pass over its axes."""
    t = _type(out, v)
    acc = [out.fresh("r") for _ in parts]
    for name in acc:
        out.line(f"v{t} {name} = {spread(identity(v.op, t))};")

    def step() -> None:
        for name, part in zip(acc, parts, strict=True):
            with out.at(part, lane, out.scope.tail):
                _combine(out, v, name, t, True)

    out.plain(sorted(v.axes - out.layout.unit), step)
    return [Expr(name, t, True) for name in acc]


def _type(out: Emitter, v: Reduce) -> str:
    return "i64" if out.layout.small(v.arg) else out.type(v.arg)


def _joined(op: str, t: str, a: str, b: str) -> str:
    if t == "m":
        return f"({a} | {b})"
    return f"({a} + {b})" if op == "sum" else f"v{op}_{t}({a}, {b})"


def _combine(
    out: Emitter, v: Reduce, acc: str, t: str, vector: bool, live: str | None = None
) -> None:
    """acc := op(acc, the argument here), in the live lanes."""
    x = convert(out.value(v.arg), t)
    text = spread(x) if vector else x.text
    if live:
        text = f"({live} ? {text} : {spread(identity(v.op, t))})"
    if t == "m":
        out.line(f"{acc} |= {text};")
    elif v.op == "sum":
        out.line(f"{acc} += {text};")
    elif v.op == "fmax" and t in FLOATS:  # acc is never NaN
        name = out.fresh("x")
        out.line(f"const {'v' if vector else ''}{t} {name} = {text};")
        out.line(f"{acc} = {name} > {acc} ? {name} : {acc};")
    else:
        out.line(f"{acc} = {'v' if vector else ''}max_{t}({text}, {acc});")


def _along(out: Emitter, v: Reduce, acc: str, t: str, lane: int) -> None:
    """Along the lane axis: CHAINS vectors at a time, then one, then the live lanes of one."""
    n, w = out.length[lane], out.lanes
    k, u, left = out.fresh("k"), out.fresh("u"), out.fresh("t")
    out.line(f"i64 {k} = 0;")
    if not (n.isdigit() and int(n) < CHAINS * w):
        step = out.block(f"for (; {k} + {CHAINS * w} <= {n}; {k} += {CHAINS * w})")
        chain = f"for (int {u} = 0; {u} < {CHAINS}; {u}++)"
        with step, out.block(chain, {lane: f"({k} + {u}*{w})"}, lane):
            _combine(out, v, f"{acc}[{u}]", t, True)
    if not out.layout.multiple(lane, CHAINS * w):
        with out.block(f"for (; {k} + {w} <= {n}; {k} += {w})", {lane: k}, lane):
            _combine(out, v, f"{acc}[0]", t, True)
    if not out.layout.multiple(lane, w):
        with out.block(f"if ({k} < {n})", {lane: k}, lane, left):
            out.line(f"const i64 {left} = {n} - {k};")
            alive = f"(IOTA < (vi32)((i32){left}))"
            live = alive if BITS[t] == 32 else f"CV({alive}, vi{BITS[t]})"
            _combine(out, v, f"{acc}[0]", t, True, live)
