"""Inverse trigonometric, hyperbolic and inverse hyperbolic functions, elementwise."""

from __future__ import annotations

import math

from lambent.functional.arithmetic import abs, clip, where
from lambent.functional.mathematics import (
    LN2,
    exp,
    expm1,
    in_compute_dtype,
    log,
    log1p,
    polynomial,
)
from lambent.graph.dtypes import float64
from lambent.graph.tensor import Tensor


@in_compute_dtype
def atan(x: Tensor) -> Tensor:
    """The inverse tangent: of 1/|x| beyond 1, its argument halved twice, then the series."""
    size = abs(x)
    t = where(size > 1, 1.0 / where(size > 1, size, 1.0), size)  # no 1/0, for the gradient at 0
    for _ in range(2):  # atan t = 2 atan(t / (1 + √(1 + t²))), at most 0.2 in the end
        t = t / ((t * t + 1.0).sqrt() + 1.0)
    terms = 13 if x.dtype == float64 else 6
    series = [(-1) ** i / (2 * i + 1) for i in range(terms)]
    part = t * polynomial(t * t, series) * 4.0
    return _signed(where(size > 1, math.pi / 2 - part, part), x)


@in_compute_dtype
def asin(x: Tensor) -> Tensor:
    """The inverse sine: `atan(x / √((1 − x)(1 + x)))`; NaN outside of −1 … 1."""
    return atan(x / ((1.0 - x) * (1.0 + x)).sqrt())


@in_compute_dtype
def acos(x: Tensor) -> Tensor:
    """The inverse cosine: `2 atan(√((1 − x) / (1 + x)))`; NaN outside of −1 … 1."""
    return atan(((1.0 - x) / (1.0 + x)).sqrt()) * 2.0


@in_compute_dtype
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine: `(e^x − e^−x) / 2`, near 0 by expm1; overflows no earlier than it."""
    small = expm1(clip(abs(x), 0.0, 1.0))
    near = (small + small / (small + 1.0)) * 0.5
    far = exp(abs(x) - LN2) - exp(-abs(x) - LN2)
    return _signed(where(abs(x) > 1, far, near), x)


@in_compute_dtype
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine: `(e^x + e^−x) / 2`, which overflows no earlier than it must."""
    return exp(abs(x) - LN2) + exp(-abs(x) - LN2)


@in_compute_dtype
def asinh(x: Tensor) -> Tensor:
    """The inverse of sinh: `log1p(|x| + x² / (1 + √(1 + x²)))` with the sign of x."""
    size = abs(x)
    c = clip(size, 0.0, 1e4)
    near = log1p(c + c * c / ((c * c + 1.0).sqrt() + 1.0))
    far = size > 1e4
    return _signed(where(far, log(where(far, size, 1.0)) + LN2, near), x)  # no log 0, as in atan


@in_compute_dtype
def acosh(x: Tensor) -> Tensor:
    """The inverse of cosh: `log1p(t + √(2t + t²))` with t = x − 1; NaN below 1."""
    t = x - 1.0
    c = clip(t, None, 1e4)
    return where(t > 1e4, log(x) + LN2, log1p(c + (c * 2.0 + c * c).sqrt()))


@in_compute_dtype
def atanh(x: Tensor) -> Tensor:
    """The inverse of tanh: `log1p(2|x| / (1 − |x|)) / 2` with the sign of x; NaN beyond ±1."""
    size = abs(x)
    return _signed(log1p(size * 2.0 / (1.0 - size)) * 0.5, x)


def _signed(size: Tensor, x: Tensor) -> Tensor:
    return where(x < 0, -size, size)
