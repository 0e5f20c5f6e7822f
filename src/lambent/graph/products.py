"""Products whose constants are gathered in one factor at the end, for graphs that are derived.

Written as they come, a gradient's constants stand all over its products, and the e-graph lists
every place that each can drift to: see docs/decisions.md.
"""

from __future__ import annotations

import math
from functools import reduce

from lambent.graph import tensor as core
from lambent.graph.dtypes import DType
from lambent.graph.tensor import Tensor, elementwise, view
from lambent.graph.views import Shape


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
