"""The primitive table: twelve operations, and the sources and views around them.

Everything else is composed of these. A row says how many operands an op has and which dtype it
gives; every interpretation (NumPy meaning, gradient, renderer) is a dictionary over `PRIMITIVES`,
and a test checks that each such dictionary is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lambent.graph.dtypes import DType, bool_

DTypeRule = Callable[[tuple[DType, ...]], DType | None]
"""The result's dtype, or None when the op refuses these operands."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """`accepts` says the operands in words, for errors."""

    dtype: DTypeRule
    accepts: str


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
_UNARY = ("log2", "exp2", "sin", "sqrt", "recip")
REDUCE = ("sum_reduce", "max_reduce")
PRIMITIVES: dict[str, Primitive] = {
    **dict.fromkeys(_UNARY, Primitive(_floating, "a floating dtype")),
    "add": Primitive(_numeric, _SAME),
    "mul": Primitive(_multiply, "one dtype, or a bool and any (masking)"),
    "mod": Primitive(_numeric, _SAME),
    "less_than": Primitive(_less, "two operands of one dtype"),
    "sum_reduce": Primitive(_numeric, "a dtype that is not bool"),
    "max_reduce": Primitive(_first, "any dtype, a non-empty axis"),
    "contiguous": Primitive(_first, "any dtype; attr is the dtype of the result"),
}
SOURCES = ("input", "weight", "constant", "iota")
VIEWS = ("permute", "expand", "reshape", "slice", "pad", "window")
