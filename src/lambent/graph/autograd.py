"""Gradients as graph: one reverse pass over the nodes, with a row per primitive and per view.

What comes out is made of the same primitives, so that forward, backward and an optimiser's step are
one graph, and a gradient can be differentiated again. A view's gradient is the transposed index
map, itself views (and a sum where the view repeats). Bools and integers have no gradient: a
comparison, a mask, an index or a cast to integers ends a path. `functional.gradient` is what users
call.

Constants are gathered in one factor at the end. Written as they come they stand all over the
products of a gradient, and the e-graph lists every place that each can drift to: see
docs/decisions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import reduce
from typing import TypeAlias

from lambent.graph import tensor as core
from lambent.graph.dim import Size
from lambent.graph.dtypes import DType, bool_
from lambent.graph.node import Node, above, topo
from lambent.graph.tensor import Tensor, elementwise, view
from lambent.graph.views import Shape

Row: TypeAlias = Callable[[Node, Tensor, int], Tensor]
"""(node, gradient of the loss by it, which operand) → gradient by that operand."""
STOP = "stop"
"""The attribute of a `contiguous` through which no gradient goes."""


def adjoints(loss: Tensor, params: Collection[Node]) -> dict[Node, Tensor]:
    """The gradient by each node between the loss and the params."""
    smooth = [
        n for n in topo([loss.node]) if n.dtype.is_float and (n.op, n.attr) != ("contiguous", STOP)
    ]
    active = above(smooth, lambda n: n in params)
    found = {loss.node: fill(1.0, loss.dtype, ())} if loss.node in active else {}
    for n in reversed(active):
        for i, s in enumerate(n.srcs):
            if n in found and s in active:
                part = GRADIENTS[n.op](n, found[n], i)
                found[s] = elementwise("add", found[s], part) if s in found else part
    return found


# ---- products -------------------------------------------------------------------------------


def fill(value: core.Scalar, dtype: DType, shape: Shape) -> Tensor:
    """A number, repeated."""
    return view("expand", view("reshape", core.scalar(value, dtype), (1,) * len(shape)), shape)


def product(*xs: Tensor | float) -> Tensor:
    """The product of tensors of one shape, of which one at least is floating, and of numbers."""
    like = next(x for x in xs if isinstance(x, Tensor) and x.dtype.is_float)
    parts = [(None, x) if isinstance(x, float) else scaled(x) for x in xs]
    rest, scale = [x for x, _ in parts if x is not None], math.prod(c for _, c in parts)
    if scale != 1.0 or not any(x.dtype.is_float for x in rest):
        rest.append(fill(scale, like.dtype, like.shape))
    return reduce(lambda x, y: elementwise("mul", x, y), rest)


def scaled(x: Tensor) -> tuple[Tensor | None, float]:
    """(y, c) with x = y · c for a finite constant c; no y where x is the constant."""
    node = x.node
    while node.op in ("expand", "reshape"):
        node = node.srcs[0]
    if node.op == "constant" and x.dtype.is_float and math.isfinite(node.attr):
        return None, node.attr
    if x.node.op == "mul" and all(s.dtype.is_float for s in x.node.srcs):  # masks stay outside
        left, right = map(Tensor, x.node.srcs)
        none, c = scaled(right)
        if none is None:
            y, d = scaled(left)
            return y, c * d
    return x, 1.0


# ---- primitives ------------------------------------------------------------------------------


def _spread(x: Tensor, axis: int, size: Size) -> Tensor:
    """x repeated along a new axis."""
    y, scale = scaled(x)
    before, after = x.shape[:axis], x.shape[axis:]
    if y is None:
        return fill(scale, x.dtype, (*before, size, *after))
    out = view("expand", view("reshape", y, (*before, 1, *after)), (*before, size, *after))
    return product(out, scale)


def _sum(x: Tensor, axis: int) -> Tensor:
    if x.shape[axis] != 0:
        return core.reduction("sum_reduce", x, axis)
    return fill(0.0, x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _recip(x: Tensor) -> Tensor:
    return elementwise("recip", x)


def _source(n: Node, i: int = 0) -> Tensor:
    return Tensor(n.srcs[i])


def _cos(x: Tensor) -> Tensor:
    """1 − 2 sin²(x/2), whose argument is exact."""
    s = elementwise("sin", product(x, 0.5))
    return elementwise("add", fill(1.0, x.dtype, x.shape), product(s, s, -2.0))


def _mod(n: Node, g: Tensor, i: int) -> Tensor:
    """x mod y = x − y·⌊x/y⌋, where the floor is taken for constant."""
    if i == 0:
        return g
    floored = elementwise("add", product(_source(n), -1.0), Tensor(n))
    return product(g, floored, _recip(_source(n, 1)))


def _hits(n: Node) -> Tensor:
    """Where the operand of a maximum attains it (or the maximum is NaN)."""
    x = _source(n)
    below = elementwise("less_than", x, _spread(Tensor(n), n.attr, x.shape[n.attr]))
    return elementwise("less_than", below, fill(True, bool_, x.shape))


def _ties(n: Node) -> Tensor:
    """How many elements attain a maximum, counted through maxima of maxima."""
    if n.op != "max_reduce":
        return fill(1.0, n.dtype, n.shape)
    return core.reduction("sum_reduce", product(_hits(n), _ties(n.srcs[0])), n.attr)


def _max(n: Node, g: Tensor, i: int) -> Tensor:
    """All that attain the maximum share equally, also where it is taken one axis after another."""
    share = _spread(product(g, _recip(_ties(n))), n.attr, n.srcs[0].shape[n.attr])
    return product(_hits(n), product(share, _ties(n.srcs[0])))


# ---- views -----------------------------------------------------------------------------------


def _cut(x: Tensor, dim: int, *part: Size) -> Tensor:
    """start, step and count along one dim."""
    return view("slice", x, tuple(part if i == dim else (0, 1, n) for i, n in enumerate(x.shape)))


def _pad(x: Tensor, dim: int, *pads: Size) -> Tensor:
    """Zeros before and after one dim."""
    return view("pad", x, tuple(pads if i == dim else (0, 0) for i in range(x.ndim)))


def _placed(x: Tensor, dim: int, start: Size, step: Size, size: Size) -> Tensor:
    """The elements along a dim at start, start + step, … of `size` zeros."""
    count, before, after = x.shape[dim], x.shape[:dim], x.shape[dim + 1 :]
    if count == 0:
        return _pad(x, dim, 0, size)
    if isinstance(step, int) and step < 0:
        x, start, step = _cut(x, dim, count - 1, -1, count), start + step * (count - 1), -step
    if step != 1:
        x = _pad(view("reshape", x, (*before, count, 1, *after)), dim + 1, 0, step - 1)
        x = view("reshape", x, (*before, count * step, *after))
        x = _cut(x, dim, 0, 1, (count - 1) * step + 1)
    return _pad(x, dim, start, size - start - x.shape[dim])


def _slice(n: Node, g: Tensor, i: int) -> Tensor:
    for dim, (start, step, _) in enumerate(n.attr):
        g = _placed(g, dim, start, step, n.srcs[0].shape[dim])
    return g


def _window(n: Node, g: Tensor, i: int) -> Tensor:
    """out[p] = Σ_k g[(p − k · dilation) / stride, k].

    With the strides filled by zeros, a window of as many taps reads every (p − j · dilation, k),
    and the pairs with j = k lie a constant step apart: no comparison is needed.
    """
    dim, taps, stride, dilation = n.attr
    if not isinstance(taps, int):
        raise ValueError(f"grad: a window of the symbolic size {taps} over {n.srcs[0]}; fix it")
    g = _placed(g, dim, 0, stride, n.srcs[0].shape[dim])
    g = view("window", _pad(g, dim, (taps - 1) * dilation, 0), (dim, taps, 1, dilation))
    g = view("reshape", g, (*g.shape[:-2], taps * taps))
    return _sum(_cut(g, g.ndim - 1, taps - 1, max(taps - 1, 1), taps), g.ndim - 1)


def _expand(n: Node, g: Tensor, i: int) -> Tensor:
    source = n.srcs[0].shape
    for axis in reversed(range(len(source))):
        if source[axis] != n.shape[axis]:
            g = _sum(g, axis)
    return view("reshape", g, source)


def _pads(n: Node, g: Tensor, i: int) -> Tensor:
    parts = zip(n.attr, n.srcs[0].shape, strict=True)
    return view("slice", g, tuple((low, 1, size) for (low, _), size in parts))


GRADIENTS: dict[str, Row] = {
    "log2": lambda n, g, i: product(g, _recip(_source(n)), 1 / math.log(2)),
    "exp2": lambda n, g, i: product(g, Tensor(n), math.log(2)),
    "sin": lambda n, g, i: product(g, _cos(_source(n))),
    "sqrt": lambda n, g, i: product(g, _recip(Tensor(n)), 0.5),
    "recip": lambda n, g, i: product(g, Tensor(n), Tensor(n), -1.0),
    "add": lambda n, g, i: g,
    "mul": lambda n, g, i: product(_source(n, 1 - i), g),
    "mod": _mod,
    "sum_reduce": lambda n, g, i: _spread(g, n.attr, n.srcs[0].shape[n.attr]),
    "max_reduce": _max,
    "contiguous": lambda n, g, i: core.contiguous(g, n.srcs[0].dtype),
    "permute": lambda n, g, i: view("permute", g, tuple(map(n.attr.index, range(g.ndim)))),
    "expand": _expand,
    "reshape": lambda n, g, i: view("reshape", g, n.srcs[0].shape),
    "slice": _slice,
    "pad": _pads,
    "window": _window,
}
"""A row per primitive and view but `less_than`, whose result, a bool, has no gradient."""
