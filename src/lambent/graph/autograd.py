"""Gradients as graph: one reverse pass over the nodes, with a row per primitive and per view.

What comes out is made of the same primitives, so that forward, backward and an optimiser's step are
one graph, and a gradient can be differentiated again. A view's gradient is the transposed index
map, itself views (and a sum where the view repeats). Bools and integers have no gradient: a
comparison, a mask, an index or a cast to integers ends a path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from lambent.graph import tensor as core
from lambent.graph.dim import Size
from lambent.graph.dtypes import bool_
from lambent.graph.node import Node, above, make, topo
from lambent.graph.products import fill, product, scaled
from lambent.graph.tensor import Tensor, describe, elementwise, view

K = TypeVar("K")
Row: TypeAlias = Callable[[Node, Tensor, int], Tensor]
"""(node, gradient of the loss by it, which operand) → gradient by that operand."""


@overload
def grad(loss: Tensor, params: Tensor) -> Tensor: ...
@overload
def grad(loss: Tensor, params: Mapping[K, Tensor]) -> dict[K, Tensor]: ...
@overload
def grad(loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]: ...
def grad(loss: Tensor, params: Any) -> Any:
    """The gradients of a scalar by some of the values that it is computed from.

    Args:
        loss: floating, of shape ().
        params: floating tensors of the loss's graph: one, several, or several by name. Inputs,
            weights, or values in between.

    Returns:
        Tensors of the shapes and dtypes of the params, in the same form.

    Raises:
        TypeError: a loss or a param that is not floating.
        ValueError: a loss that is no scalar; a param that the loss does not depend on, or only
            through comparisons, integers or `stop_gradient`.
    """
    if isinstance(params, Tensor):
        return grad(loss, [params])[0]
    if not isinstance(params, Mapping):
        return list(grad(loss, dict(enumerate(params))).values())
    if loss.shape != () or not loss.dtype.is_float:
        kind = TypeError if loss.shape == () else ValueError
        raise kind(
            f"grad: the loss is {describe(loss)}, no floating scalar; take .sum() or .mean()"
        )
    found = _adjoints(loss, {p.node for p in params.values()})
    for key, p in params.items():
        name = repr(p.node.name if p.node.op in ("input", "weight") else key)
        if not p.dtype.is_float:
            raise TypeError(f"grad: {name} is {describe(p)}: not floating, it has no gradient")
        if p.node not in found:
            raise ValueError(
                f"grad: the loss does not depend on {name}, {describe(p)}, or only through "
                "comparisons, integers or stop_gradient; leave it out of the params"
            )
    return {key: found[p.node] for key, p in params.items()}


def stop_gradient(x: Tensor) -> Tensor:
    """x itself, taken for a constant by `grad`. It costs nothing: the compiler sees x."""
    return Tensor(make("contiguous", (x.node,), x.shape, x.dtype, _STOP))


def checkpoint(x: Tensor) -> Tensor:
    """x itself, with the hint that it is worth storing for the backward pass.

    What is stored and what is computed again is a choice of the search, kernel by kernel, so the
    hint changes no value and may be ignored.
    """
    return Tensor(make("contiguous", (x.node,), x.shape, x.dtype, "checkpoint"))


_STOP = "stop"


def _adjoints(loss: Tensor, params: set[Node]) -> dict[Node, Tensor]:
    """The gradient by each node between the loss and the params."""
    smooth = [n for n in topo([loss.node]) if n.dtype.is_float and not _stops(n)]
    active = above(smooth, lambda n: n in params)
    found = {loss.node: fill(1.0, loss.dtype, ())} if loss.node in active else {}
    for n in reversed(active):
        for i, s in enumerate(n.srcs):
            if n in found and s in active:
                part = GRADIENTS[n.op](n, found[n], i)
                found[s] = elementwise("add", found[s], part) if s in found else part
    return found


def _stops(n: Node) -> bool:
    return n.op == "contiguous" and n.attr == _STOP


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
