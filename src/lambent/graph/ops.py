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
    """`kind`: unary, binary, reduce or layout. `accepts` says the operands in words, for errors."""

    name: str
    kind: str
    dtype: DTypeRule
    accepts: str


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


def _ordered(d: tuple[DType, ...]) -> DType | None:
    return d[0]


_FLOAT, _SAME = "a floating dtype", "two operands of one dtype that is not bool"
PRIMITIVES: dict[str, Primitive] = {
    p.name: p
    for p in (
        Primitive("log2", "unary", _floating, _FLOAT),
        Primitive("exp2", "unary", _floating, _FLOAT),
        Primitive("sin", "unary", _floating, _FLOAT),
        Primitive("sqrt", "unary", _floating, _FLOAT),
        Primitive("recip", "unary", _floating, _FLOAT),
        Primitive("add", "binary", _numeric, _SAME),
        Primitive("mul", "binary", _multiply, "one dtype, or a bool and any (masking)"),
        Primitive("mod", "binary", _numeric, _SAME),
        Primitive("less_than", "binary", _less, "two operands of one dtype"),
        Primitive("sum_reduce", "reduce", _numeric, "a dtype that is not bool"),
        Primitive("max_reduce", "reduce", _ordered, "any dtype, a non-empty axis"),
        Primitive("contiguous", "layout", _ordered, "any dtype; attr is the dtype of the result"),
    )
}
UNARY = tuple(p.name for p in PRIMITIVES.values() if p.kind == "unary")
BINARY = tuple(p.name for p in PRIMITIVES.values() if p.kind == "binary")
REDUCE = tuple(p.name for p in PRIMITIVES.values() if p.kind == "reduce")
SOURCES = ("input", "weight", "constant", "iota")
VIEWS = ("permute", "expand", "reshape", "slice", "pad", "window")
