"""C expressions of values: their types, conversions, constants and arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lambent.backends.c.prelude import CODES, FLOATS, STORAGE
from lambent.graph.dtypes import DType
from lambent.kernel.tile import Lit, Value

BITS = {"f32": 32, "f64": 64, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "m": 32}


@dataclass(frozen=True, slots=True)
class Expr:
    """C text of a value: of type `t` (of the prelude), a vector or one element."""

    text: str
    t: str
    vector: bool


def ctype(t: str, vector: bool) -> str:
    """The C type of an expression."""
    return f"v{t}" if vector else t


def spread(e: Expr) -> str:
    """The expression as a vector."""
    if e.vector:
        return e.text
    return f"(vi32)(-({e.text}))" if e.t == "m" else f"(v{e.t})({e.text})"


def truth(e: Expr) -> Expr:
    """x != 0, also of NaN."""
    if not e.vector:
        return Expr(f"({e.text} != 0)", "m", False)
    text = f"({e.text} != 0)"
    return Expr(text if BITS[e.t] == 32 else f"CV({text}, vi32)", "m", True)


def convert(e: Expr, t: str) -> Expr:
    """The number in another type: as C converts, floats to narrow integers through 32 bits."""
    if e.t == t:
        return e
    if t == "m":
        return truth(e)
    text = e.text
    if e.t == "m" and e.vector:
        text = f"({text} & 1)"
    if e.t in FLOATS and t not in FLOATS:
        return _truncated(e, t)
    return Expr(f"CV({text}, v{t})" if e.vector else f"({t})({text})", t, e.vector)


def _truncated(e: Expr, t: str) -> Expr:
    """A float as an integer: truncated, wrapped; NaN is 0."""
    if not e.vector:
        return Expr(f"({t})to_int({e.text})", t, False)
    if e.t == "f64" or t == "i64":
        return Expr(f"CV(vto_int(CV({e.text}, vf64)), v{t})", t, True)
    return Expr(f"CV(vto_int_f32({e.text}), v{t})", t, True)


def literal(x: float | int | bool, dtype: DType) -> Expr:
    """C text of a constant."""
    t = STORAGE[CODES[dtype.compute.name]][1]
    if t == "m":
        return Expr(str(int(bool(x))), t, False)
    if t in FLOATS:
        return Expr(_float(float(x), t), t, False)
    return Expr(f"({t}){_integer(int(x))}", t, False)


def _integer(x: int) -> str:
    return f"({x + 1}LL - 1)" if x == -(1 << 63) else f"({x}LL)" if abs(x) >= 2**31 else f"({x})"


def _float(x: float, t: str) -> str:
    if math.isnan(x):
        return f"(({t})NAN)"
    if t == "f32":
        with np.errstate(over="ignore"):
            x = float(np.float32(x))
    if math.isinf(x):
        return f"({'-' if x < 0 else ''}({t})INFINITY)"
    return f"({x!r}{'f' if t == 'f32' else ''})"


def identity(op: str, t: str) -> Expr:
    """What a reduction of nothing gives."""
    if op == "sum" or t == "m":
        return Expr("0" if t == "m" else f"({t})0", t, False)
    if t in FLOATS:
        return Expr(f"(-({t})INFINITY)", t, False)
    low = 0 if t == "u8" else -(1 << (BITS[t] - 1))
    return Expr(f"({t}){_integer(low)}", t, False)


def arithmetic(op: str, args: list[Expr], t: str, vector: bool, sources: tuple[Value, ...]) -> Expr:
    """A map of numbers of one type."""
    texts = [spread(a) if vector else a.text for a in args]
    if t == "m":
        sign = {"add": "|", "mul": "&", "sub": "^", "fmax": "|", "max": "|"}[op]
        return Expr(f"({texts[0]} {sign} {texts[1]})", t, vector)
    if op in ("add", "sub", "mul"):
        sign = {"add": "+", "sub": "-", "mul": "*"}[op]
        wrap = "" if vector else f"({t})"
        return Expr(f"{wrap}({texts[0]} {sign} {texts[1]})", t, vector)
    if op == "mod" and t in FLOATS and isinstance(sources[-1], Lit) and sources[-1].value == 1:
        return Expr(f"({texts[0]} - __builtin_elementwise_floor({texts[0]}))", t, vector)  # exact
    return Expr(f"{'v' if vector else ''}{op}_{t}({', '.join(texts)})", t, vector)


def compared(op: str, args: list[Expr], t: str, vector: bool) -> Expr:
    """less or eq of two numbers, or bools, of one type."""
    a, b = args
    if not vector:
        return Expr(f"({a.text} {'==' if op == 'eq' else '<'} {b.text})", "m", False)
    x, y = spread(a), spread(b)
    if t == "m":  # false < true
        return Expr(f"~({x} ^ {y})" if op == "eq" else f"(~{x} & {y})", "m", True)
    text = f"({x} {'==' if op == 'eq' else '<'} {y})"
    return Expr(text if BITS[t] == 32 else f"CV({text}, vi32)", "m", True)


def selected(args: list[Expr], t: str, vector: bool) -> Expr:
    """mask or select: the second argument where the first holds, else the third or 0."""
    condition, x, *rest = args
    x = convert(x, t)
    y = convert(rest[0], t) if rest else Expr(f"({t})0", t, False)
    if not vector:
        return Expr(f"({condition.text} ? {x.text} : {y.text})", t, False)
    c = condition.text
    if condition.vector and BITS[t] != 32:
        c = f"CV({c}, vi{BITS[t]})"
    return Expr(f"({c} ? {spread(x)} : {spread(y)})", t, True)
