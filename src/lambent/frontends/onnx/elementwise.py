"""Operators that work element by element, and casts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import lambent as lt
from lambent.frontends.onnx.known import Known, Value, as_tensor, elementwise, known
from lambent.frontends.onnx.node import At, Row, of, one
from lambent.frontends.onnx.read import dtype_of
from lambent.functional.arithmetic import scalar_of
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType
from lambent.graph.prove import SYMBOLS_ONLY, maximum, minimum
from lambent.graph.tensor import Tensor


def _variadic(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *xs: functools.reduce(f, xs)


# ---- arithmetic ------------------------------------------------------------------------------


def truncated_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b; of integers the quotient toward zero."""
    if a.dtype.is_float:
        return a / b
    q = a // b
    rest = a - q * b
    return q if a.dtype.kind == "u" else q + ((rest != 0) & ((a < 0) ^ (b < 0))).astype(a.dtype)


def _mod(at: At, a: Tensor, b: Tensor) -> Tensor:
    if not at["fmod"] or a.dtype.kind == "u":
        return a % b
    rest = abs(a) % abs(b)  # the least integer is its own abs, and only it is wrong here
    return lt.where(a < 0, -rest, rest)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    """Integers to integer powers exactly, by squaring; others by floats, rounded toward zero."""
    if a.dtype.is_float:
        return lt.pow(a, b.astype(a.dtype))
    n = scalar_of(b)
    if n is not None and n >= 0 and float(n).is_integer():
        return lt.pow(a, int(n))
    if b.dtype.is_float or n is not None:
        found = lt.pow(a.astype("float64"), b.astype("float64"))
        near = found.round()
        return lt.where(abs(found - near) < 1e-9 * abs(near), near, found).astype(a.dtype)
    power, out = b.astype("int64"), lt.ones_like(a)
    for _ in range(6):
        out = out * lt.where(power % 2 == 1, a, 1)
        a, power = a * a, power // 2
    return out


def _clip(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    return lt.clip(x, low, high)


# ---- bits ------------------------------------------------------------------------------------


def _bitwise(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """f of the bits: a new last dim of them, which is summed with the powers of 2 again."""

    def build(a: Tensor, b: Tensor) -> Tensor:
        count = 8 * a.dtype.itemsize
        powers = lt.tensor([1 << i if i < 63 else -(1 << 63) for i in range(count)]).astype("int64")
        digits = f(_bits(a, powers), _bits(b, powers))
        return (digits * powers).sum(-1).astype(a.dtype)

    return build


def _bits(x: Tensor, powers: Tensor) -> Tensor:
    """[…] → […, bits], bool, the lowest first."""
    wide = x.astype("int64").unsqueeze(-1)
    low = (wide // powers) % 2 == 1
    return lt.where(lt.iota(powers.shape[0]) == 63, wide < 0, low)


def _shift(at: At, x: Tensor, by: Tensor) -> Tensor:
    """Shifts by the width or more, or by less than 0, leave nothing but the sign."""
    last, left = 8 * x.dtype.itemsize - 1, at["direction"] == "LEFT"
    fits = (by >= 0) & (by <= last)
    places = lt.where(fits, by, 0 if left else last)
    wide, power = x.astype("int64"), lt.exp2(places.astype("float64"))
    if left:
        return lt.where(fits, wide * power.astype("int64"), 0).astype(x.dtype)
    fine = lt.minimum(power, 2.0**62).astype("int64")  # the sign is all that 62 places leave
    return (wide // fine).astype(x.dtype)


# ---- activations -----------------------------------------------------------------------------


def _celu(at: At, x: Tensor) -> Tensor:
    alpha = at["alpha"]
    return lt.maximum(x, 0.0) + lt.minimum(lt.expm1(x / alpha) * alpha, 0.0)


def _selu(at: At, x: Tensor) -> Tensor:
    gamma: float = at["gamma"]
    return lt.elu(x, at["alpha"]) * gamma


def _hard_sigmoid(at: At, x: Tensor) -> Tensor:
    return lt.clip(x * at["alpha"] + at["beta"], 0.0, 1.0)


def _shrink(at: At, x: Tensor) -> Tensor:
    edge, bias = at["lambd"], at["bias"]
    wide = x if x.dtype.is_float else x.astype("float32")
    out = lt.where(wide < -edge, wide + bias, lt.where(wide > edge, wide - bias, 0.0))
    return out.astype(x.dtype)


def _dropout(at: At, x: Tensor, ratio: Any = None, training: Any = None) -> list[Tensor]:
    at.need(not one(training) or one(ratio) == 0, "dropout in training mode draws random numbers")
    return [x, lt.ones(*x.shape, dtype=bool)]


def _is_inf(at: At, x: Tensor) -> Tensor:
    up, down = at["detect_positive"], at["detect_negative"]
    none = lt.zeros_like(x, bool)
    return (x == math.inf if up else none) | (x == -math.inf if down else none)


# ---- casts -----------------------------------------------------------------------------------


def cast(x: Tensor, dtype: DType) -> Tensor:
    return x.astype(dtype)


def _cast(at: At, x: Tensor) -> Tensor:
    return cast(x, dtype_of(at["to"], "its result"))


def _cast_like(at: At, x: Value, like: Value) -> Value:
    if isinstance(x, Known) and (not x.symbolic or like.dtype.is_integer):
        return known(x.array, like.dtype)
    return cast(as_tensor(x), like.dtype)


def _cast_known(at: At, x: Known) -> Known | None:
    to = dtype_of(at["to"], "its result")
    return known(x.array, to) if to.is_integer else None


# ---- sizes -----------------------------------------------------------------------------------


def _decided(f: Callable[[Size], bool | None]) -> Callable[..., Known | None]:
    """A comparison with 0 of the difference of two sizes, where it is proved."""
    return elementwise(lambda a, b: f(a - b))


def is_zero(d: Size) -> bool | None:
    """Whether a size is 0 for all its symbols, or for none; None if that is not known."""
    if not isinstance(d, Dim):
        return bool(d == 0)
    return False if SYMBOLS_ONLY.ge0(d - 1) or SYMBOLS_ONLY.ge0(-d - 1) else None


def below_zero(d: Size) -> bool | None:
    if SYMBOLS_ONLY.ge0(d):
        return False
    return True if SYMBOLS_ONLY.ge0(-d - 1) else None


def _opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _divided(a: Size, b: Size) -> Size | None:
    """Toward zero is down where nothing is negative."""
    fits = SYMBOLS_ONLY.ge0(a) and SYMBOLS_ONLY.ge0(b - 1)
    return a // b if fits else None


def _modulo(a: Size, b: Size) -> Size | None:
    fits = SYMBOLS_ONLY.ge0(a) and SYMBOLS_ONLY.ge0(b - 1)
    return a % b if fits else None


def _folded(f: Callable[[Size, Size], Size]) -> Callable[..., Known | None]:
    return elementwise(lambda *sizes: functools.reduce(f, sizes))


_EQUAL, _LESS = _decided(is_zero), _decided(below_zero)

ROWS: dict[str, Row] = {
    "Abs": of(abs, fold=elementwise(lambda a: maximum(a, -a))),
    "Acos": of(lt.acos),
    "Acosh": of(lt.acosh),
    "Add": of(lt.add, fold=_folded(lambda a, b: a + b)),
    "And": of(lt.logical_and),
    "Asin": of(lt.asin),
    "Asinh": of(lt.asinh),
    "Atan": of(lt.atan),
    "Atanh": of(lt.atanh),
    "BitShift": Row(_shift, until=28, note="by powers of 2 in float64"),
    "BitwiseAnd": of(_bitwise(lt.logical_and), note="8 to 64 products an element"),
    "BitwiseNot": of(lt.invert),
    "BitwiseOr": of(_bitwise(lt.logical_or), note="8 to 64 products an element"),
    "BitwiseXor": of(_bitwise(lt.logical_xor), note="8 to 64 products an element"),
    "Cast": Row(_cast, fold=_cast_known, until=28),
    "CastLike": Row(_cast_like, values=True, until=28),
    "Ceil": of(lt.ceil),
    "Celu": Row(_celu, until=28),
    "Clip": of(_clip),
    "Cos": of(lt.cos),
    "Cosh": of(lt.cosh),
    "Div": of(truncated_divide, fold=elementwise(_divided)),
    "Dropout": Row(_dropout, static=(1, 2), note="inference only"),
    "Elu": Row(lambda at, x: lt.elu(x, at["alpha"])),
    "Equal": of(lt.equal, fold=_EQUAL),
    "Erf": of(lt.erf),
    "Exp": of(lt.exp),
    "Floor": of(lt.floor),
    "Gelu": Row(lambda at, x: lt.gelu(x, at["approximate"])),
    "Greater": of(lt.greater, fold=elementwise(lambda a, b: below_zero(b - a))),
    "GreaterOrEqual": of(
        lt.greater_equal, fold=elementwise(lambda a, b: _opposite(below_zero(a - b)))
    ),
    "HardSigmoid": Row(_hard_sigmoid),
    "HardSwish": of(lt.hardswish),
    "Identity": of(lambda x: x, fold=lambda at, x: x, until=28),
    "IsInf": Row(_is_inf),
    "IsNaN": of(lt.isnan),
    "LeakyRelu": Row(lambda at, x: lt.leaky_relu(x, at["alpha"])),
    "Less": of(lt.less, fold=_LESS),
    "LessOrEqual": of(lt.less_equal, fold=elementwise(lambda a, b: _opposite(below_zero(b - a)))),
    "Log": of(lt.log),
    "Max": of(_variadic(lt.maximum), fold=_folded(maximum)),
    "Mean": of(lambda *xs: functools.reduce(lt.add, xs) / len(xs)),
    "Min": of(_variadic(lt.minimum), fold=_folded(minimum)),
    "Mish": of(lt.mish),
    "Mod": Row(_mod, until=28, fold=elementwise(_modulo)),
    "Mul": of(lt.mul, fold=_folded(lambda a, b: a * b)),
    "Neg": of(lt.neg, fold=elementwise(lambda a: -a)),
    "Not": of(lt.logical_not),
    "Or": of(lt.logical_or),
    "PRelu": of(lambda x, slope: lt.where(x < 0, x * slope, x)),
    "Pow": of(_pow),
    "Reciprocal": of(lt.reciprocal),
    "Relu": of(lt.relu, fold=elementwise(lambda a: maximum(a, 0))),
    "Round": of(lt.round),
    "Selu": Row(_selu),
    "Shrink": Row(_shrink),
    "Sigmoid": of(lt.sigmoid),
    "Sign": of(lt.sign),
    "Sin": of(lt.sin),
    "Sinh": of(lt.sinh),
    "Softplus": of(lt.softplus),
    "Softsign": of(lambda x: x / (1.0 + abs(x))),
    "Sqrt": of(lt.sqrt),
    "Sub": of(lt.sub, fold=elementwise(lambda a, b: a - b)),
    "Sum": of(_variadic(lt.add)),
    "Swish": Row(lambda at, x: x * lt.sigmoid(x * at["alpha"]), until=28),
    "Tan": of(lt.tan),
    "Tanh": of(lt.tanh),
    "ThresholdedRelu": Row(lambda at, x: lt.where(x > at["alpha"], x, 0.0)),
    "Where": of(
        lt.where,
        fold=elementwise(lambda c, a, b: None if isinstance(c, Dim) else a if c else b),
    ),
    "Xor": of(lt.logical_xor),
}
