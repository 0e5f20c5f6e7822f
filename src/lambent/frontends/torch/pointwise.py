"""Rows of ATen's elementwise ops: name → meaning, in one table for each rule of promotion.

Operands reach a row broadcastable and in the dtype that PyTorch computes in (float32 for narrower
floats); the result is then cast to what PyTorch stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

import lambent as lt
from lambent.frontends.torch.values import Unsupported, dtype_of
from lambent.functional.arithmetic import scalar_of
from lambent.functional.mathematics import polynomial
from lambent.functional.operands import as_tensor
from lambent.graph.tensor import Tensor

Row = Callable[..., Any]
Value = Any  # a Tensor or a Python number


def promoted(kind: KIND, row: Row) -> Row:
    """The row for operands as they come: tensors cast as PyTorch promotes, numbers not.

    `metas` are PyTorch's own descriptions of the operands.
    """

    def call(*values: Any, metas: tuple[Any, ...], **options: Any) -> Any:
        counted = [m for m in metas if isinstance(m, (torch.Tensor, bool, int, float))]
        counted += [0 for m in metas if isinstance(m, torch.SymInt)]
        dtype = dtype_of(elementwise_dtypes(*counted, type_promotion_kind=kind)[0])
        cast = [
            v.astype(dtype) if isinstance(v, Tensor)
            else as_tensor(v).astype(dtype) if isinstance(v, lt.Dim)
            else v
            for v in values
        ]  # fmt: skip
        return row(*cast, **options)

    return call


# ---- arithmetic ------------------------------------------------------------------------------


def _add(x: Value, y: Value, alpha: Any = 1) -> Tensor:
    return lt.add(x, y if alpha == 1 else lt.mul(y, alpha))


def _sub(x: Value, y: Value, alpha: Any = 1) -> Tensor:
    return lt.sub(x, y if alpha == 1 else lt.mul(y, alpha))


def _div(x: Value, y: Value, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode == "floor":
        return lt.floor_divide(x, y)
    a, b = as_tensor(x), as_tensor(y)
    if rounding_mode == "trunc" and not (a.dtype.is_float or b.dtype.is_float):
        whole = lt.floor_divide(lt.abs(a), lt.abs(b))
        return lt.where(lt.logical_xor(a < 0, b < 0), -whole, whole)
    return lt.trunc(lt.div(x, y)) if rounding_mode == "trunc" else lt.div(x, y)


def _fmod(x: Value, y: Value) -> Tensor:
    """The remainder with the sign of x; for an infinite y it is x."""
    x = as_tensor(x)
    if x.dtype.kind == "u":
        return lt.remainder(x, y)
    rest = lt.remainder(lt.abs(x), lt.abs(y))
    return lt.where(x < 0, -rest, rest)


def _round(x: Tensor, decimals: int = 0) -> Tensor:
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        return lt.round(x)
    return lt.round(x * scale) / scale if decimals > 0 else lt.round(x / scale) * scale


def _clamp(x: Tensor, low: Value = None, high: Value = None) -> Tensor:
    return lt.clip(x, low, high)


def _pow(x: Value, y: Value) -> Tensor:
    n = scalar_of(y) if isinstance(y, Tensor) else y
    if isinstance(n, (int, float)) and abs(n) > 8 and as_tensor(x).dtype.is_float:
        y = as_tensor(float(n), as_tensor(x).dtype)
        return lt.pow(as_tensor(x), y)
    return lt.pow(x, y)


def _copysign(x: Value, y: Value) -> Tensor:
    """|x| with the sign of y, of −0 too."""
    size, y = lt.abs(as_tensor(x)), as_tensor(y)
    return lt.where(_signbit(y), -size, size)


def _signbit(x: Tensor) -> Tensor:
    return (x < 0) | (lt.reciprocal(x) < 0) if x.dtype.is_float else x < 0


def _atan2(y: Value, x: Value) -> Tensor:
    """The angle of (x, y), from the smaller of their ratios."""
    y, x = as_tensor(y), as_tensor(x)
    a, b = lt.abs(y), lt.abs(x)
    big, small = lt.maximum(a, b), lt.minimum(a, b)
    ratio = lt.where(big.isinf(), lt.where(small.isinf(), 1.0, 0.0), small / big)
    angle = lt.atan(lt.where(lt.equal(big, 0), 0.0, ratio))
    angle = lt.where(a > b, math.pi / 2 - angle, angle)
    angle = lt.where(_signbit(x), math.pi - angle, angle)
    nan = lt.where(lt.isnan(x) | lt.isnan(y), math.nan, angle)
    return _copysign(nan, y)


def _fmin(x: Value, y: Value) -> Tensor:
    return _unless_nan(x, y, lt.minimum(x, y))


def _fmax(x: Value, y: Value) -> Tensor:
    return _unless_nan(x, y, lt.maximum(x, y))


def _unless_nan(x: Value, y: Value, both: Tensor) -> Tensor:
    return lt.where(lt.isnan(x), y, lt.where(lt.isnan(y), x, both))


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    a, b = lt.abs(x), lt.abs(y)
    big, small = lt.maximum(a, b), lt.minimum(a, b)
    ratio = small / big
    length = big * lt.sqrt(ratio * ratio + 1.0)
    length = lt.where(lt.equal(big, 0), 0.0, length)
    return lt.where(a.isinf() | b.isinf(), math.inf, length)


def _heaviside(x: Tensor, at_zero: Tensor) -> Tensor:
    step = lt.where(lt.equal(x, 0), at_zero, (x > 0).astype(x.dtype))
    return lt.where(lt.isnan(x), math.nan, step) if x.dtype.is_float else step


# ---- functions -------------------------------------------------------------------------------


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    low = lt.expm1(x * float(input_scale)) * float(alpha * scale)
    return lt.where(x > 0, x * float(scale), low)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x * float(beta)
    return lt.where(scaled > threshold, x, lt.softplus(scaled) / float(beta))


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    big = lt.maximum(x, y)
    rest = lt.log1p(lt.exp(-lt.abs(x - y)))
    return lt.where(lt.equal(x, y) & lt.isinf(x), x, big + rest)


def _xlogy(x: Value, y: Value, log: Row = lt.log) -> Tensor:
    product = lt.where(lt.equal(x, 0), 0.0, lt.mul(x, log(y)))
    return lt.where(lt.isnan(y), math.nan, product)


def _sinc(x: Tensor) -> Tensor:
    angle = x * math.pi
    return lt.where(lt.equal(x, 0), 1.0, lt.sin(angle) / angle)


_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807,
    -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def _erfc(x: Tensor) -> Tensor:
    """1 − erf(x); for |x| above ½ by Numerical Recipes' fit, off by 1.2e-7 of itself."""
    if x.dtype == lt.float64:
        raise Unsupported("erfc in float64: the fit is good for float32")
    size = lt.abs(x)
    t = 1.0 / (size * 0.5 + 1.0)
    far = t * lt.exp(-size * size + polynomial(t, _ERFC))
    far = lt.where(x < 0, 2.0 - far, far)
    return lt.where(size < 0.5, 1.0 - lt.erf(x), far)


def _log_sigmoid(x: Tensor) -> tuple[Tensor, None]:
    return -lt.softplus(-x), None


def _bits(of_bools: Row, op: str) -> Row:
    def row(x: Tensor, y: Value) -> Tensor:
        if not all(isinstance(v, bool) or getattr(v, "dtype", None) == lt.bool_ for v in (x, y)):
            raise Unsupported(f"{op} of the bits of integers")
        return as_tensor(of_bools(x, y))

    return row


DEFAULT: dict[str, Row] = {
    "abs": lt.abs,
    "add": _add,
    "bitwise_and": _bits(lt.logical_and, "and"),
    "bitwise_not": lambda x: ~x,
    "bitwise_or": _bits(lt.logical_or, "or"),
    "bitwise_xor": _bits(lt.logical_xor, "xor"),
    "ceil": lt.ceil,
    "clamp": _clamp,
    "clamp_max": lt.minimum,
    "clamp_min": lt.maximum,
    "copysign": _copysign,
    "div.Scalar_mode": _div,
    "div.Tensor_mode": _div,
    "elu": _elu,
    "floor": lt.floor,
    "floor_divide": lt.floor_divide,
    "fmax": _fmax,
    "fmin": _fmin,
    "fmod": _fmod,
    "frac": lambda x: x - lt.trunc(x),
    "gelu": lt.gelu,
    "hardsigmoid": lt.hardsigmoid,
    "hardswish": lt.hardswish,
    "hardtanh": lambda x, low=-1.0, high=1.0: lt.clip(x, low, high),
    "heaviside": _heaviside,
    "hypot": _hypot,
    "leaky_relu": lambda x, slope=0.01: lt.leaky_relu(x, float(slope)),
    "log_sigmoid_forward": _log_sigmoid,
    "logaddexp": _logaddexp,
    "maximum": lt.maximum,
    "minimum": lt.minimum,
    "mish": lt.mish,
    "mul": lt.mul,
    "neg": lt.neg,
    "positive": lambda x: x,
    "pow": _pow,
    "relu": lt.relu,
    "remainder": lt.remainder,
    "round": _round,
    "rsub": lambda x, y, alpha=1: _sub(y, x, alpha),
    "sgn": lt.sign,
    "sign": lt.sign,
    "silu": lt.silu,
    "softplus": _softplus,
    "square": lt.square,
    "sub": _sub,
    "threshold": lambda x, least, value: lt.where(x <= least, value, x),
    "trunc": lt.trunc,
}

INT_TO_FLOAT: dict[str, Row] = {
    "acos": lt.acos,
    "acosh": lt.acosh,
    "asin": lt.asin,
    "asinh": lt.asinh,
    "atan": lt.atan,
    "atan2": _atan2,
    "atanh": lt.atanh,
    "cos": lt.cos,
    "cosh": lt.cosh,
    "div": _div,
    "erf": lt.erf,
    "erfc": _erfc,
    "exp": lt.exp,
    "exp2": lt.exp2,
    "expm1": lt.expm1,
    "log": lt.log,
    "log10": lt.log10,
    "log1p": lt.log1p,
    "log2": lt.log2,
    "reciprocal": lt.reciprocal,
    "rsqrt": lt.rsqrt,
    "sigmoid": lt.sigmoid,
    "sin": lt.sin,
    "sinc": _sinc,
    "sinh": lt.sinh,
    "special_xlog1py": lambda x, y: _xlogy(x, y, lt.log1p),
    "sqrt": lt.sqrt,
    "tan": lt.tan,
    "tanh": lt.tanh,
    "xlogy": _xlogy,
}

COMPARE: dict[str, Row] = {
    "eq": lt.equal,
    "ge": lt.greater_equal,
    "gt": lt.greater,
    "isfinite": lt.isfinite,
    "isinf": lt.isinf,
    "isnan": lt.isnan,
    "le": lt.less_equal,
    "logical_and": lt.logical_and,
    "logical_not": lt.logical_not,
    "logical_or": lt.logical_or,
    "logical_xor": lt.logical_xor,
    "lt": lt.less,
    "ne": lt.not_equal,
    "signbit": _signbit,
}

ROWS: dict[str, Row] = {
    name: promoted(kind, row)
    for kind, table in (
        (KIND.DEFAULT, DEFAULT),
        (KIND.INT_TO_FLOAT, INT_TO_FLOAT),
        (KIND.ALWAYS_BOOL, COMPARE),
    )
    for name, row in table.items()
}
