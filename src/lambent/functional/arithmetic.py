"""Arithmetic, comparison, logic and rounding, elementwise with NumPy's broadcasting."""

from __future__ import annotations

import math

from lambent.functional import operands
from lambent.functional.operands import (
    TensorLike,
    binary,
    cast,
    constant,
    promoted,
    unary,
)
from lambent.graph import tensor as core
from lambent.graph.dtypes import DType, bool_, float32, float64, int64
from lambent.graph.node import Node
from lambent.graph.ops import VIEWS
from lambent.graph.tensor import Tensor

# ---- what is known of a value when the graph is built ------------------------------------------


def scalar_of(x: Tensor) -> core.Scalar | None:
    """The number that every element of x is, if x is a constant seen through views; else None."""
    node = x.node
    while node.op in VIEWS and node.op != "pad":
        node = node.srcs[0]
    return node.attr if node.op == "constant" else None


def _never_nan(x: Tensor) -> bool:
    node: Node = x.node
    while node.op in VIEWS or node.op == "contiguous":
        node = node.srcs[0]
    if node.op == "constant":
        return not math.isnan(node.attr)
    return not node.dtype.is_float


def _wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


# ---- logic -----------------------------------------------------------------------------------


def less(x: TensorLike, y: TensorLike) -> Tensor:
    """x < y: the primitive `less_than`."""
    return binary("less_than", x, y)


def greater(x: TensorLike, y: TensorLike) -> Tensor:
    """x > y: `y < x`."""
    return binary("less_than", y, x)


def less_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x <= y: `not (y < x)`, and neither is NaN."""
    a, b = promoted(x, y)
    return _unless_nan(logical_not(binary("less_than", b, a)), a, b)


def greater_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x >= y: `not (x < y)`, and neither is NaN."""
    return less_equal(y, x)


def equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x == y: `not (x < y) and not (y < x)`, and neither is NaN."""
    a, b = promoted(x, y)
    below, above = binary("less_than", a, b), binary("less_than", b, a)
    return _unless_nan(logical_and(logical_not(below), logical_not(above)), a, b)


def not_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x != y: `not (x == y)`; NaN is not equal to anything."""
    return logical_not(equal(x, y))


def _unless_nan(condition: Tensor, *xs: Tensor) -> Tensor:
    for x in xs:
        if not _never_nan(x):
            condition = logical_and(condition, logical_not(isnan(x)))
    return condition


def logical_not(x: TensorLike) -> Tensor:
    """not x: `x < True`, after `x != 0` where x is not bool."""
    return binary("less_than", cast(operands.as_tensor(x), bool_), True)


def logical_and(x: TensorLike, y: TensorLike) -> Tensor:
    """x and y: the product of bools."""
    return binary("mul", cast(operands.as_tensor(x), bool_), cast(operands.as_tensor(y), bool_))


def logical_or(x: TensorLike, y: TensorLike) -> Tensor:
    """x or y: `not (not x and not y)`."""
    return logical_not(logical_and(logical_not(x), logical_not(y)))


def logical_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """x or y but not both: `x < y or y < x`."""
    a, b = cast(operands.as_tensor(x), bool_), cast(operands.as_tensor(y), bool_)
    return logical_or(less(a, b), less(b, a))


def _bits(op: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    a, b = promoted(x, y)
    if a.dtype != bool_:
        raise TypeError(f"{op}: needs two bools, got {core.describe(a, b)}; use logical_and/or/xor")
    return a, b


def bitwise_and(x: TensorLike, y: TensorLike) -> Tensor:
    """x & y of bools: their product."""
    return logical_and(*_bits("&", x, y))


def bitwise_or(x: TensorLike, y: TensorLike) -> Tensor:
    """x | y of bools: logical_or."""
    return logical_or(*_bits("|", x, y))


def bitwise_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """x ^ y of bools: logical_xor."""
    return logical_xor(*_bits("^", x, y))


def invert(x: TensorLike) -> Tensor:
    """~x: logical_not of bools, `-1 - x` of integers (which reverses their order)."""
    x = operands.as_tensor(x)
    if x.dtype == bool_:
        return logical_not(x)
    if x.dtype.is_float:
        raise TypeError(f"~: needs bool or integers, got {core.describe(x)}")
    return binary("add", neg(x), constant(_wrapped(-1, x.dtype), x.dtype))


def isnan(x: TensorLike) -> Tensor:
    """True for NaN, which alone is neither below +inf nor above −inf."""
    below, above = _of_infinities(operands.as_tensor(x))
    return logical_and(logical_not(below), logical_not(above))


def isinf(x: TensorLike) -> Tensor:
    """True for ±inf: `x < inf` xor `-inf < x`."""
    return logical_xor(*_of_infinities(operands.as_tensor(x)))


def isfinite(x: TensorLike) -> Tensor:
    """True for what is neither infinite nor NaN: `x < inf and -inf < x`."""
    return logical_and(*_of_infinities(operands.as_tensor(x)))


def _of_infinities(x: Tensor) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_float:
        yes = constant(True, shape=x.shape)
        return yes, yes
    return less(x, math.inf), less(-math.inf, x)


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """x where the condition holds, else y: `c·x + (not c)·y`, exact as a bool product masks.

    A term that is the constant 0 is left out. Zeros lose their sign.
    """
    c = cast(operands.as_tensor(condition), bool_)
    a, b = promoted(x, y)
    shape = operands.broadcast_shapes("where", c.shape, a.shape, b.shape)
    terms = [
        binary("mul", mask, value)
        for mask, value in ((c, a), (logical_not(c), b))
        if scalar_of(value) not in (0, False)
    ]
    if not terms:
        return constant(0, a.dtype, shape)
    return operands.broadcast_to(terms[0] if len(terms) == 1 else add(*terms), shape)


# ---- arithmetic ------------------------------------------------------------------------------


def add(x: TensorLike, y: TensorLike) -> Tensor:
    """x + y: the primitive; of two bools it is `or`."""
    a, b = promoted(x, y)
    return logical_or(a, b) if a.dtype == bool_ else binary("add", a, b)


def mul(x: TensorLike, y: TensorLike) -> Tensor:
    """x · y: the primitive. A bool times anything masks: 0 where False, even of inf and NaN."""
    return binary("mul", x, y)


def neg(x: TensorLike) -> Tensor:
    """−x: `x · (−1)`; integers wrap.

    Raises:
        TypeError: for bool; use `~`.
    """
    x = operands.as_tensor(x)
    if x.dtype == bool_:
        raise TypeError(f"negation of {core.describe(x)}: use ~x or x.astype(int)")
    value = scalar_of(x)
    if value is not None:
        value = -value if x.dtype.is_float else _wrapped(-int(value), x.dtype)
        return constant(value, x.dtype, x.shape)
    minus = -1.0 if x.dtype.is_float else _wrapped(-1, x.dtype)
    return binary("mul", x, constant(minus, x.dtype))


def sub(x: TensorLike, y: TensorLike) -> Tensor:
    """x − y: `x + y · (−1)`.

    Raises:
        TypeError: for two bools; use `^` or `!=`.
    """
    a, b = promoted(x, y)
    return binary("add", a, neg(b))


def rsub(x: Tensor, y: TensorLike) -> Tensor:
    """y − x."""
    return sub(y, x)


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x: the primitive `recip`."""
    return unary("recip", x)


def div(x: TensorLike, y: TensorLike) -> Tensor:
    """x / y: `x · recip(y)`; integers give float32. Zero divisors give ±inf and NaN, as IEEE.

    The reciprocal is rounded once before the product, and overflows below about 3e-39 in float32.
    """
    a, b = promoted(x, y)
    if not a.dtype.is_float:
        a, b = core.contiguous(a, float32), core.contiguous(b, float32)
    value = scalar_of(b)
    if value is None:
        return binary("mul", a, unary("recip", b))
    inverse = 1 / value if value else math.copysign(math.inf, value)
    return binary("mul", a, constant(inverse, a.dtype, b.shape))


def rdiv(x: Tensor, y: TensorLike) -> Tensor:
    """y / x."""
    return div(y, x)


def remainder(x: TensorLike, y: TensorLike) -> Tensor:
    """x % y with the sign of y (floored): the primitive `mod`. For integers, x % 0 is 0.

    Raises:
        TypeError: for bools.
    """
    a, b = _numbers("%", x, y)
    if not a.dtype.is_float:
        b = _no_zero(b)  # x mod 1 is 0
    return binary("mod", a, b)


def rmod(x: Tensor, y: TensorLike) -> Tensor:
    """y % x."""
    return remainder(y, x)


def floor_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """x // y, rounded down. For integers exact at every value of every width, and x // 0 is 0.

    `(x − x mod y) / y` comes out even. Floats round it, as the reciprocal is inexact. Integers
    find it in float64, which is off by far less than ½ up to 49 bits; the rest of an int64
    quotient, exact in wrapping arithmetic, is small and found the same way.

    Raises:
        TypeError: for bools.
    """
    a, b = _numbers("//", x, y)
    if a.dtype.is_float:
        return _floor_divide_floats(a, b)
    zero, b = equal(b, 0), _no_zero(b)
    rest = binary("mod", a, b)
    exact, inverse = sub(a, rest), unary("recip", cast(b, float64))
    q = mul(sub(cast(a, float64), cast(rest, float64)), inverse)
    if a.dtype == int64:
        first = _nearest_int(minimum(q, float(2**63 - 1024)))  # the largest float64 below 2^63
        q = mul(cast(sub(exact, mul(first, b)), float64), inverse)
        return where(zero, 0, add(first, _nearest_int(q)))
    return where(zero, 0, cast(_nearest_int(q), a.dtype))


def rfloordiv(x: Tensor, y: TensorLike) -> Tensor:
    """y // x."""
    return floor_divide(y, x)


def _numbers(op: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    a, b = promoted(x, y)
    if a.dtype == bool_:
        raise TypeError(f"{op}: needs numbers, got {core.describe(a, b)}; cast with .astype(int)")
    return a, b


def _no_zero(b: Tensor) -> Tensor:
    """b with 1 for 0: a machine traps on an integer division by 0."""
    return b if scalar_of(b) else add(b, cast(equal(b, 0), b.dtype))


def _nearest_int(q: Tensor) -> Tensor:
    return core.contiguous(add(q, where(less(q, 0), -0.5, 0.5)), int64)


def _floor_divide_floats(a: Tensor, b: Tensor) -> Tensor:
    q = div(sub(a, binary("mod", a, b)), b)
    q = floor(add(q, 0.5))
    opposite = logical_xor(less(a, 0), less(b, 0))
    far = neg(cast(logical_and(opposite, not_equal(a, 0)), a.dtype))  # a // ±inf of a finite a
    q = where(logical_and(isinf(b), isfinite(a)), far, q)
    return where(equal(b, 0), div(a, b), q)


def abs(x: TensorLike) -> Tensor:
    """|x|: `where(x < 0, −x, x)`."""
    x = operands.as_tensor(x)
    return x if x.dtype.kind in "bu" else where(less(x, 0), neg(x), x)


def sign(x: TensorLike) -> Tensor:
    """−1, 0 or 1 (0 for NaN, as PyTorch): `(0 < x) − (x < 0)`."""
    x = operands.as_tensor(x)
    positive = cast(less(0, x), x.dtype)
    return positive if x.dtype.kind in "bu" else sub(positive, cast(less(x, 0), x.dtype))


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """The larger one, NaN where either is: `where(x < y or isnan(y), y, x)`."""
    a, b = promoted(x, y)
    return where(_or_nan(less(a, b), b), b, a)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """The smaller one, NaN where either is: `where(y < x or isnan(y), y, x)`."""
    a, b = promoted(x, y)
    return where(_or_nan(less(b, a), b), b, a)


def _or_nan(condition: Tensor, x: Tensor) -> Tensor:
    return condition if _never_nan(x) else logical_or(condition, isnan(x))


def clip(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x limited to min … max: `minimum(maximum(x, min), max)`; NaN stays."""
    out = operands.as_tensor(x)
    out = out if min is None else maximum(out, min)
    return out if max is None else minimum(out, max)


# ---- rounding --------------------------------------------------------------------------------

_WHOLE = {"float16": 2.0**10, "bfloat16": 2.0**7, "float32": 2.0**23, "float64": 2.0**52}
_WHOLE |= {"float8_e4m3fn": 2.0**3, "float8_e5m2": 2.0**2}
"""From here on every float of the dtype is an integer."""


def floor(x: TensorLike) -> Tensor:
    """The integer at or below: `x − x mod 1` where |x| is small enough to have a fraction."""
    x = operands.as_tensor(x)
    if not x.dtype.is_float:
        return x
    small = less(abs(x), _WHOLE[x.dtype.name])
    return where(small, sub(x, binary("mod", x, constant(1.0, x.dtype))), x)


def ceil(x: TensorLike) -> Tensor:
    """The integer at or above: `−floor(−x)`."""
    x = operands.as_tensor(x)
    return neg(floor(neg(x))) if x.dtype.is_float else x


def trunc(x: TensorLike) -> Tensor:
    """The integer toward zero: floor of |x|, with the sign of x."""
    x = operands.as_tensor(x)
    whole = floor(abs(x))
    return where(less(x, 0), neg(whole), whole) if x.dtype.is_float else x


def round(x: TensorLike) -> Tensor:
    """The nearest integer, halves to even: floor, plus 1 above one half and where it is odd."""
    x = operands.as_tensor(x)
    if not x.dtype.is_float:
        return x
    low = floor(x)
    rest = sub(x, low)
    odd = binary("mod", low, constant(2.0, x.dtype))
    near = where(less(rest, 0.5), low, add(low, where(less(0.5, rest), 1.0, odd)))
    return where(less(abs(x), _WHOLE[x.dtype.name]), near, x)


# ---- powers ----------------------------------------------------------------------------------


def sqrt(x: TensorLike) -> Tensor:
    """√x: the primitive."""
    return unary("sqrt", x)


def rsqrt(x: TensorLike) -> Tensor:
    """1 / √x: `recip(sqrt(x))`."""
    return unary("recip", sqrt(x))


def square(x: TensorLike) -> Tensor:
    """x · x."""
    return mul(x, x)


def pow(x: TensorLike, y: TensorLike) -> Tensor:
    """x to the power y, all signs as PyTorch.

    A whole number y up to 64 is repeated multiplication, ½ a square root. Otherwise it is
    `exp2(y · log2|x|)` (relative error up to 1e-5 in float32) with the sign of x where y is odd,
    and NaN for a negative x where y is no integer.

    Raises:
        TypeError, ValueError: integers to an integer tensor (take floats), or to a negative number.
    """
    a, b = promoted(x, y)
    n = scalar_of(b)
    if not a.dtype.is_float:
        if n is None:
            raise TypeError(f"**: {core.describe(a, b)}: the exponent must be a number, or floats")
        if n < 0:
            raise ValueError(f"**: {core.describe(a)} to the negative power {n}; use floats")
    if n is not None and float(n).is_integer() and (-64 <= n <= 64 or not a.dtype.is_float):
        shape = operands.broadcast_shapes("**", a.shape, b.shape)
        whole = operands.broadcast_to(_whole_power(a, int(n if n > 0 else -n)), shape)
        return whole if n >= 0 else unary("recip", whole)
    return sqrt(a) if n == 0.5 else rsqrt(a) if n == -0.5 else _general_power(a, b)


def rpow(x: Tensor, y: TensorLike) -> Tensor:
    """y to the power x."""
    return pow(y, x)


def _whole_power(x: Tensor, n: int) -> Tensor:
    out: Tensor | None = None
    while n:
        if n & 1:
            out = x if out is None else mul(out, x)
        n >>= 1
        x = mul(x, x) if n else x
    return constant(1, x.dtype, x.shape) if out is None else out


def _general_power(a: Tensor, b: Tensor) -> Tensor:
    size = abs(a)
    power = unary("exp2", mul(b, unary("log2", size)))
    power = where(logical_and(equal(size, 1), isinf(b)), 1.0, power)
    negative = logical_or(less(a, 0), less(unary("recip", a), 0))  # also −0
    odd = equal(binary("mod", b, constant(2.0, b.dtype)), 1)
    broken = less(0, binary("mod", b, constant(1.0, b.dtype)))
    power = where(logical_and(negative, odd), neg(power), power)
    refused = logical_and(logical_and(less(a, 0), less(-math.inf, a)), broken)
    power = where(refused, math.nan, power)
    return where(logical_or(equal(b, 0), equal(a, 1)), 1.0, power)
