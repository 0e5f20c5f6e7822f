"""C expressions of values: their types, conversions, constants and arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lambent.backends.c.prelude import CODES, FLOATS, STORAGE
from lambent.graph.dtypes import DType
from lambent.kernel.tile import Lit, Load, Map

BITS = {"f32": 32, "f64": 64, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "m": 32}
INFIX = {"add": "+", "sub": "-", "mul": "*", "less": "<", "eq": "=="}
LOGIC = {"add": "|", "sub": "^", "mul": "&", "max": "|", "fmax": "|", "less": ">", "eq": "=="}


@dataclass(frozen=True, slots=True)
class Expr:
    """C text of a value: of type `t` (of the prelude), a vector or one element."""

    text: str
    t: str
    vector: bool


def storage(dtype: DType) -> str:
    """The storage code of a tile of that dtype: what it is computed in."""
    return CODES[dtype.compute.name]


def kind(dtype: DType) -> str:
    """The type that a dtype is computed in."""
    return STORAGE[storage(dtype)][1]


def written(e: Expr, t: str, vector: bool) -> str:
    """C text of the expression in a type, as a vector or, if it is none, one element."""
    e = convert(e, t)
    return f"(v{t})({e.text})" if vector and not e.vector else e.text


def convert(e: Expr, t: str) -> Expr:
    """The number in another type, as C converts; of a float an integer is truncated and wrapped,
    0 for NaN."""
    if e.t == t:
        return e
    if t == "m":
        return _truth(f"{e.text} != 0", e.vector)  # also of NaN
    text = f"({e.text} & 1)" if e.t == "m" else e.text
    if e.t in FLOATS and t not in FLOATS:
        wide = e.t == "f64" or t == "i64"
        vector = f"vto_int(CV({text}, vf64))" if wide else f"vto_int_f32({text})"
        text = vector if e.vector else f"to_int({text})"
    return Expr(f"CV({text}, v{t})" if e.vector else f"({t})({text})", t, e.vector)


def _truth(text: str, vector: bool) -> Expr:
    """A comparison as a bool."""
    return Expr(f"CV({text}, vm)" if vector else f"-({text})", "m", vector)


def literal(x: float | int | bool, dtype: DType) -> Expr:
    """C text of a constant."""
    t = kind(dtype)
    if t in FLOATS:
        return Expr(_float(float(x), t), t, False)
    t = "i32" if t == "i64" and -(2**31) <= x < 2**31 else t  # it fits
    return Expr(_integer(-int(bool(x)) if t == "m" else int(x), t), t, False)


def _integer(x: int, t: str) -> str:
    return f"({t})({x + 1}LL - 1)" if x == -(1 << 63) else f"({t})({x}LL)"


def _float(x: float, t: str) -> str:
    if math.isnan(x):
        return f"(({t})NAN)"
    if math.isinf(x):
        return f"({'-' if x < 0 else ''}({t})INFINITY)"
    return f"({x!r}{'f' if t == 'f32' else ''})"


def least(op: str, t: str) -> Expr:
    """What a reduction of nothing gives."""
    if op == "sum" or t in ("m", "u8"):
        return Expr(f"({t})0", t, False)
    text = _float(-math.inf, t) if t in FLOATS else _integer(-(1 << (BITS[t] - 1)), t)
    return Expr(text, t, False)


def mapped(v: Map, args: Sequence[Expr]) -> Expr:
    """A Map of its operands."""
    vector, t, op = any(a.vector for a in args), kind(v.dtype), v.op
    if op == "cast":
        code, source = CODES[v.dtype.name], v.args[0]
        e = convert(args[0], STORAGE[code][1])
        if code not in ("h", "bf") or (isinstance(source, Load) and source.dtype == v.dtype):
            return e
        return Expr(f"{'v' if vector else ''}round_{code}({e.text})", t, vector)
    if op == "not":
        return Expr(f"~{args[0].text}", "m", vector)
    if op in ("mask", "select"):
        zero = Expr(f"({t})0", t, False)
        c, x, y = args[0], *(written(a, t, vector) for a in (*args, zero)[1:3])
        chosen = f"CV({c.text}, vi{BITS[t]})" if c.vector else c.text
        return Expr(f"({chosen} ? {x} : {y})", t, vector)
    compares = op in ("less", "eq")
    if compares:
        t = args[0].t if args[0].t == args[1].t else kind(v.args[0].dtype)
    texts = [written(a, t, vector) for a in args]
    if t == "m" or op in INFIX:
        text = f"({texts[0]} {(LOGIC if t == 'm' else INFIX)[op]} {texts[1]})"
        if compares:
            return _truth(text, vector)
        return Expr(text if vector else f"({t}){text}", t, vector)
    n = v.args[1].value if op == "mod" and isinstance(v.args[1], Lit) else 0
    if t in FLOATS and n == 1:
        return Expr(f"({texts[0]} - __builtin_elementwise_floor({texts[0]}))", t, vector)  # exact
    if t not in FLOATS and 0 < n == int(n) & -int(n):  # a power of two
        low = written(Expr(_integer(int(n) - 1, t), t, False), t, vector)
        return Expr(f"({t if not vector else f'v{t}'})({texts[0]} & {low})", t, vector)
    return Expr(f"{'v' if vector else ''}{op}_{t}({', '.join(texts)})", t, vector)
