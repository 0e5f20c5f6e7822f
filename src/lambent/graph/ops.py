"""The primitive table: twelve operations, and the sources and views around them.

Everything else is composed of these. A row says which dtype an op gives, and in words what it
accepts, for errors; every interpretation (NumPy meaning, gradient, renderer) is a dictionary over
`PRIMITIVES`, and a test checks that each such dictionary is complete.
"""

from __future__ import annotations

from collections.abc import Callable

from lambent.graph.dtypes import DType, bool_

DTypeRule = Callable[[tuple[DType, ...]], DType | None]
"""The result's dtype, or None when the op refuses these operands."""


def _first(d: tuple[DType, ...]) -> DType | None:
    return d[0]


def _floating(d: tuple[DType, ...]) -> DType | None:
    return d[0] if d[0].is_float else None


def _numeric(d: tuple[DType, ...]) -> DType | None:
    return d[0] if len(set(d)) == 1 and d[0].kind != "b" else None


def _multiply(d: tuple[DType, ...]) -> DType | None:
    if d[0] == d[1]:
        return d[0]
    return d[1] if d[0] == bool_ else d[0] if d[1] == bool_ else None


def _less(d: tuple[DType, ...]) -> DType | None:
    return bool_ if d[0] == d[1] else None


_SAME = "two operands of one dtype that is not bool"
REDUCE = ("sum_reduce", "max_reduce")
PRIMITIVES: dict[str, tuple[DTypeRule, str]] = {
    **dict.fromkeys(("log2", "exp2", "sin", "sqrt", "recip"), (_floating, "a floating dtype")),
    "add": (_numeric, _SAME),
    "mul": (_multiply, "one dtype, or a bool and any (masking)"),
    "mod": (_numeric, _SAME),
    "less_than": (_less, "two operands of one dtype"),
    "sum_reduce": (_numeric, "a dtype that is not bool"),
    "max_reduce": (_first, "any dtype, a non-empty axis"),
    "contiguous": (_first, "any dtype; attr is the dtype of the result"),
}
SOURCES = ("input", "weight", "constant", "iota")
VIEWS = ("permute", "expand", "reshape", "slice", "pad", "window")
