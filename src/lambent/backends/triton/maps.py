"""Elementwise operations in Triton."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from lambent.backends.triton.text import LOOSE, PRODUCT, Tile, call, infix
from lambent.graph.dim import Size
from lambent.kernel.tile import Index, Lit, Map, Ref, Value

SIGNS = {"add": "+", "sub": "-", "mul": "*", "less": "<", "eq": "=="}
LOGIC = {"add": "|", "sub": "^", "mul": "&", "max": "|", "fmax": "|"}  # on bools
INDEX: dict[str, Callable[[Size, Size], Size]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul
}  # fmt: skip
CALLS = {
    "exp2": "tl.exp2", "log2": "tl.log2", "sin": "tl.sin", "sqrt": "tl.sqrt", "mod": "floor_mod",
    "max": "nan_max", "fmax": "tl.maximum",
}  # fmt: skip


def mapped(op: str, args: list[Tile], dims: tuple[int, ...], dtype: str) -> Tile:
    """op(args) over the dims; the args are of the type that it computes in."""
    x = args[0]
    if op == "recip":
        return Tile(f"1.0 / {x.at(PRODUCT + 1)}", dims, dtype, LOOSE + 1)
    if op == "not":
        return Tile(f"~{x.at(PRODUCT + 1)}", dims, dtype, LOOSE)
    if op in ("mask", "select"):
        return _selected(args, dims, dtype)
    if op == "less" and x.dtype == "int1":
        return infix("&", mapped("not", [x], x.dims, "int1"), args[1], dims, dtype)
    if dtype == "int1" and op in LOGIC:
        return infix(LOGIC[op], x, args[1], dims, dtype)
    if op in SIGNS:
        return infix(SIGNS[op], x, args[1], dims, dtype)
    whole = not dtype.startswith("float")
    return call("tl.maximum" if op == "max" and whole else CALLS[op], args, dims, dtype)


def _selected(args: list[Tile], dims: tuple[int, ...], dtype: str) -> Tile:
    if dtype == "int1" and len(args) == 2:
        return infix("&", args[0], args[1], dims, dtype)
    zero = Tile("0.0" if dtype.startswith("float") else "0", (), dtype)
    return call("tl.where", [*args, *([] if len(args) == 3 else [zero])], dims, dtype)


def chosen(v: Value) -> Value:
    """k · (c ? ±inf : x) in place of (c ? ±inf : 0) + k · (c ? 0 : x), where k > 0."""
    for a, b in (v.args, v.args[::-1]) if isinstance(v, Map) and v.op == "add" else ():
        factor, masked = factored(b)
        match a, masked:
            case Map(op="mask", args=(c, Lit(value=limit))), Map(op="mask", args=(d, x)) if (
                math.isinf(limit) and _opposite(c, d) and (factor is None or factor.value > 0)
            ):
                found = Map("select", (c, a.args[1], x), v.dtype)
                return found if factor is None else Map("mul", (factor, found), v.dtype)
    return v


def regrouped(v: Value, lets: Mapping[str, Value]) -> Value:
    """a · (x · y) in place of (a · x) · y, where all three have names that do not change."""
    match v:
        case Map(op="mul", args=(Map(op="mul", args=(a, Ref() as x)), Ref() as y)) if (
            v.dtype.is_float and {x.name, y.name} <= lets.keys()
        ):
            product = Map("mul", (x, y), v.dtype)
            for name in (name for name, value in lets.items() if value == product):
                return Map("mul", (a, Ref(name, x.axes | y.axes, v.dtype)), v.dtype)
    return v


def factored(v: Value) -> tuple[Lit | None, Value]:
    """A constant factor, and what it is of."""
    match v:
        case Map(op="mul", args=(Lit() as factor, x)) | Map(op="mul", args=(x, Lit() as factor)):
            return factor, x
    return None, v


def scaled(v: Value, lets: Mapping[str, Value]) -> tuple[float | None, Value]:
    """(c, x) for a value c·x with a constant c > 0: the maximum of c·x is c times that of x."""
    given = lets.get(v.name, v) if isinstance(v, Ref) else v
    factor, x = factored(chosen(given))
    if factor is not None and v.dtype.is_float and factor.value > 0:
        inner, found = scaled(x, lets)
        return factor.value * (1.0 if inner is None else inner), found
    return scaled(given, lets) if isinstance(given, Ref) and given != v else (None, v)


def as_index(v: Value) -> Size | None:
    """The index expression that sums and products of indices are; or None."""
    match v:
        case Index(index=e):
            return e
        case Lit(value=x, dtype=dtype) if dtype.is_integer:
            return int(x)
        case Map(op=op, args=args, dtype=dtype) if op in INDEX and dtype.name == "int64":
            parts = [as_index(a) for a in args]
            known = [p for p in parts if p is not None]
            return INDEX[op](*known) if len(known) == len(parts) else None
    return None


def _opposite(c: Value, d: Value) -> bool:
    pairs = ((c, d), (d, c))
    return any(isinstance(x, Map) and x.op == "not" and x.args == (y,) for x, y in pairs)


def limiting(v: Map) -> str | None:
    """What a select does that limits x to a constant: `c if x < c else x`. NaN stays NaN.

    At 0 the greater one is not always the same zero.
    """
    match v.args:
        case (Map(op="less", args=(a, b)), Lit(value=c) as limit, x) if (
            v.dtype.is_float and c and c == c and {a, b} == {limit, x}
        ):
            return "tl.maximum" if b == limit else "tl.minimum"
    return None
