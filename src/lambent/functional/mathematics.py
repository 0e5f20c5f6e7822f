"""Exponential, trigonometric and activation functions, elementwise; integers give float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec

from lambent.functional.arithmetic import abs, clip, maximum, round, where
from lambent.functional.operands import (
    TensorLike,
    as_tensor,
    cast,
    constant,
    float8,
    unary,
)
from lambent.graph.dtypes import float32, float64
from lambent.graph.tensor import Tensor, contiguous

P = ParamSpec("P")

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def as_float(x: TensorLike) -> Tensor:
    """x itself, or as float32 where it is not floating, or of 8 bits."""
    x = as_tensor(x)
    return x if x.dtype.is_float and not float8(x.dtype) else contiguous(x, float32)


def in_compute_dtype(
    f: Callable[Concatenate[Tensor, P], Tensor],
) -> Callable[Concatenate[TensorLike, P], Tensor]:
    """f in float32 where its operand is an integer or narrower, rounded once at the end."""

    @wraps(f)
    def wide(x: TensorLike, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        x = as_float(x)
        return cast(f(cast(x, x.dtype.compute), *args, **kwargs), x.dtype)

    return wide


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Σ coefficients[i] · x^i, by Horner's rule."""
    out = constant(coefficients[-1], x.dtype, x.shape)
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


# ---- exponential and logarithm ---------------------------------------------------------------


def exp2(x: TensorLike) -> Tensor:
    """2^x: the primitive."""
    return unary("exp2", x)


def exp(x: TensorLike) -> Tensor:
    """e^x: `exp2(x · log2 e)`."""
    return unary("exp2", as_float(x) * LOG2E)


def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2: the primitive."""
    return unary("log2", x)


def log(x: TensorLike) -> Tensor:
    """The natural logarithm: `log2(x) · ln 2`."""
    return unary("log2", x) * LN2


def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10: `log2(x) · log10 2`."""
    return unary("log2", x) * 0.3010299956639812


@in_compute_dtype
def expm1(x: Tensor) -> Tensor:
    """e^x − 1, also near 0: there `2t / (1 − t)` with t = tanh(x/2) as a fraction in x."""
    p, q = ([c / 4**i for i, c in enumerate(cs)] for cs in (_LAMBERT_P, _LAMBERT_Q))
    below = [q[0], *(c for i, odd in enumerate(p) for c in (-odd / 2, q[i + 1]))]
    c = clip(x, -1.2, 1.2)
    return where(abs(x) > 1.2, exp(x) - 1.0, c * polynomial(c * c, p) / polynomial(c, below))


@in_compute_dtype
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), also near 0, where it is `2 atanh(x / (2 + x))` as a series."""
    c = clip(x, -0.5, 0.5)
    s = c / (c + 2.0)
    terms = 17 if x.dtype == float64 else 8
    near = s * 2.0 * polynomial(s * s, [1 / (2 * i + 1) for i in range(terms)])
    return where(abs(x) > 0.5, log(x + 1.0), near)


# ---- trigonometric and hyperbolic ------------------------------------------------------------


def sin(x: TensorLike) -> Tensor:
    """The sine: the primitive."""
    return unary("sin", x)


def cos(x: TensorLike) -> Tensor:
    """The cosine: `1 − 2 sin²(x/2)`, whose argument is exact (absolute error 3e-7 in float32)."""
    s = sin(as_float(x) * 0.5)
    return 1.0 - s * s * 2.0


@in_compute_dtype
def tan(x: Tensor) -> Tensor:
    """The tangent: sin r / cos r with r = x − kπ, the cosine as `sin(π/2 − |r|)`, good at poles."""
    k = round(x * (1 / math.pi))
    r = ((x - k * _PI[0]) - k * _PI[1]) - k * _PI[2]
    beside = ((_PI[0] / 2 - abs(r)) + _PI[1] / 2) + _PI[2] / 2
    return sin(r) / sin(beside)


_PI = (3.140625, 0.0009675025939941406, 1.5099579909783765e-07)
"""π in three parts; the first two have few digits, so that k times them is exact."""
_LAMBERT_P = (2027025.0, 270270.0, 6930.0, 36.0)
_LAMBERT_Q = (2027025.0, 945945.0, 51975.0, 630.0, 1.0)
"""tanh x = x · P(x²) / Q(x²) for |x| ≤ 0.6 to 17 digits: Lambert's continued fraction, cut off."""
_TANH_P = (0.9999999794, 0.1338102594, 0.003495588496, 2.060908847e-5, 1.335466942e-8)
_TANH_Q = (1.0, 0.4671434153, 0.02587698357, 3.285635431e-4, 7.776561709e-7)


_TANH_SHORT_P = (0.99996349, 0.10332746, 0.00069969205)
_TANH_SHORT_Q = (1.0, 0.4364256, 0.013103029)


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent: `c · P(c²) / Q(c²)` with c = clip(x, −9, 9), off by 2e-8 at most.

    For floats of 16 bits a shorter fraction, clipped at 4.7 and off by 4e-5 of the value, which is
    a sixth of float16's rounding. In float64 `1 − 2 / (1 + e^2x)`, and a fraction near 0. None
    overflows.
    """
    x = as_float(x)
    if x.dtype.itemsize < 4:
        c = clip(cast(x, x.dtype.compute), -4.7, 4.7)
        return cast(_odd_fraction(c, _TANH_SHORT_P, _TANH_SHORT_Q), x.dtype)
    if x.dtype != float64:
        return _odd_fraction(clip(x, -9.0, 9.0), _TANH_P, _TANH_Q)
    near = _odd_fraction(x, _LAMBERT_P, _LAMBERT_Q)
    return where(abs(x) > 0.6, 1.0 - sigmoid(x * -2.0) * 2.0, near)


def _odd_fraction(x: Tensor, p: Sequence[float], q: Sequence[float]) -> Tensor:
    z = x * x
    return x * polynomial(z, p) / polynomial(z, q)


_ERF_P = (1.128379118, 0.2015436102, 0.05408991101, 0.004199349095, 2.873858139e-4, 1.877641934e-6)
_ERF_Q = (1.0, 0.5119453613, 0.1185911626, 0.01585362073, 0.001253452261, 3.641230714e-5)


@in_compute_dtype
def erf(x: Tensor) -> Tensor:
    """The error function: `c · P(c²) / Q(c²)` with c = clip(x, −4, 4), off by 4e-7 at most.

    The fit ends just above 1 and is clipped to ±1, so that 1 + erf(x) is exactly 0 far out.
    """
    return clip(_odd_fraction(clip(x, -4.0, 4.0), _ERF_P, _ERF_Q), -1.0, 1.0)


# ---- activations -----------------------------------------------------------------------------


def sigmoid(x: TensorLike) -> Tensor:
    """`1 / (1 + e^−x)`; an overflow of e^−x gives the right 0."""
    return unary("recip", exp(-as_float(x)) + 1.0)


def relu(x: TensorLike) -> Tensor:
    """`maximum(x, 0)`."""
    return maximum(x, 0)


def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """`where(x < 0, x · slope, x)`."""
    x = as_float(x)
    return where(x < 0, x * negative_slope, x)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """`where(x < 0, alpha · expm1(x), x)`."""
    x = as_float(x)
    return where(x < 0, expm1(x) * alpha, x)


@in_compute_dtype
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """`x/2 · (1 + erf(x/√2))`; with "tanh" `x/2 · (1 + tanh(u))`, which is `x · sigmoid(2u)`.

    Raises:
        ValueError: approximate is neither "none" nor "tanh".
    """
    if approximate == "none":
        return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)
    if approximate != "tanh":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return x * sigmoid((x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)))


def silu(x: TensorLike) -> Tensor:
    """`x · sigmoid(x)`, also known as swish."""
    x = as_float(x)
    return x * sigmoid(x)


@in_compute_dtype
def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow: `maximum(x, 0) + log1p(e^−|x|)`."""
    return maximum(x, 0.0) + log1p(exp(-abs(x)))


@in_compute_dtype
def mish(x: Tensor) -> Tensor:
    """x · tanh(softplus(x)), with the tanh as a fraction of w = e^−|x|."""
    w = exp(-abs(x))
    up, down = w * 2.0 + 1.0, w * (w + 2.0)
    return x * where(x < 0, down / (down + 2.0), up / (up + w * w * 2.0))


def hardsigmoid(x: TensorLike) -> Tensor:
    """`clip(x + 3, 0, 6) / 6`."""
    return clip(as_float(x) + 3.0, 0.0, 6.0) / 6.0


def hardswish(x: TensorLike) -> Tensor:
    """`x · clip(x + 3, 0, 6) / 6`."""
    x = as_float(x)
    return x * hardsigmoid(x)
