"""Operands as users give them: numbers, arrays, other dtypes and shapes become Tensors that go
together. The first layer over the builders of `graph.tensor`, which take nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from functools import reduce as fold
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import (
    DTYPES,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    int64,
)
from lambent.graph.node import Weight, make
from lambent.graph.tensor import (
    DTypeLike,
    Scalar,
    Tensor,
    as_array,
    as_shape,
    contiguous,
    describe,
    elementwise,
    iota,
    reduction,
    scalar,
    view,
)
from lambent.graph.views import Shape

TensorLike: TypeAlias = "Tensor | Scalar | Dim | np.ndarray[Any, Any] | Sequence[Any]"

# ---- values ----------------------------------------------------------------------------------


_ARRAYS: WeakValueDictionary[str, Weight] = WeakValueDictionary()


def tensor(value: Any, dtype: DTypeLike = None) -> Tensor:
    """A Tensor from a number, a Dim, nested lists, or an array: anything with `__array__`.

    A number becomes a constant; an array becomes a weight named after its content, so that equal
    arrays are one. Python floats give float32, Python integers int64.

    Raises:
        TypeError: for an unsupported dtype, or ragged lists.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else cast(value, dtype)
    if isinstance(value, (bool, int, float, Dim)):
        return constant(value, dtype)
    try:
        array, kind = as_array(value, dtype)
    except ValueError as reason:
        raise TypeError(f"tensor: no array can be made of this value: {reason}") from None
    if array.ndim == 0:
        return constant(float(array) if kind.is_float else array.item(), kind)
    content = f"{kind}{array.shape}".encode() + array.tobytes()
    name = f"array_{hashlib.sha256(content).hexdigest()[:16]}"
    held = _ARRAYS.get(name) or _ARRAYS.setdefault(name, Weight(name, array.copy()))
    return Tensor(make("weight", (), array.shape, kind, held))


def constant(value: Scalar | Dim, dtype: DTypeLike = None, shape: Any = ()) -> Tensor:
    """One number, repeated over a shape by a view. A Dim gives the int64 value of that size.

    Raises:
        TypeError, OverflowError: the value has no exact place in an integer or bool dtype.
    """
    kind = _weak_dtype(value) if dtype is None else as_dtype(dtype)
    if isinstance(value, Dim):
        last = iota(value + 1)  # its last element is the size itself
        out = cast(view("reshape", view("slice", last, ((value, 1, 1),)), ()), kind)
    else:
        out = scalar(value, kind)
    return broadcast_to(out, shape)


def _weak_dtype(value: Scalar | Dim) -> DType:
    return bool_ if isinstance(value, bool) else float32 if isinstance(value, float) else int64


def unary(op: str, x: TensorLike) -> Tensor:
    """log2, exp2, sin, sqrt or recip of every element. Integers are taken as float32."""
    x = as_tensor(x)
    fits = x.dtype.is_float and not float8(x.dtype)
    return elementwise(op, x if fits else contiguous(x, float32))


def binary(op: str, x: TensorLike, y: TensorLike) -> Tensor:
    """add, mul, mod or less_than, broadcast; dtypes promoted, but a bool factor stays a mask.

    Raises:
        TypeError, ValueError: dtypes or shapes that do not go together.
    """
    masks = op == "mul" and any(isinstance(v, Tensor) and v.dtype == bool_ for v in (x, y))
    a, b = (as_tensor(x), as_tensor(y)) if masks else promoted(x, y)
    return elementwise(op, *broadcast(op, a, b))


def reduce(op: str, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """sum_reduce or max_reduce over one axis; a sum over an axis of size 0 is zeros.

    Raises:
        TypeError, ValueError, IndexError: bool sums, a possibly empty axis of max, no such axis.
    """
    axis = as_axis(op, x, axis)
    x = cast(x, float32) if op == "sum_reduce" and float8(x.dtype) else x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if x.shape[axis] == 0 and op == "sum_reduce" and x.dtype != bool_:
        out = constant(0, x.dtype, before + after)
    else:
        out = reduction(op, x, axis)
    return view("reshape", out, (*before, 1, *after)) if keepdims else out


def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`contiguous` in another dtype; to bool it is `x != 0`; to its own dtype it is x itself."""
    dtype = as_dtype(dtype)
    if dtype == x.dtype:
        return x
    if dtype != bool_:
        return contiguous(x, dtype)
    is_zero = binary("mul", _invert(binary("less_than", x, 0)), _invert(binary("less_than", 0, x)))
    if x.dtype.is_float:  # NaN, which is not 0, is below nothing: x < 1 tells it from 0
        is_zero = binary("mul", is_zero, binary("less_than", x, 1))
    return _invert(is_zero)


def _invert(x: Tensor) -> Tensor:
    return binary("less_than", x, constant(True))


# ---- operands --------------------------------------------------------------------------------


def as_tensor(x: TensorLike, like: DType | None = None) -> Tensor:
    """A Tensor of anything that stands for one; a Python number takes the dtype `like`."""
    return tensor(x, like if isinstance(x, (bool, int, float)) else None)


def promote(a: DType, b: DType) -> DType:
    """The array API's promotion; an integer with a float gives the float (as PyTorch).

    Floats of 8 bits are for storing: two of them give float32, in which their products are exact.
    """
    if {a, b} == {float16, bfloat16}:
        return float32  # neither holds the other
    if float8(a) or float8(b):
        others = [d for d in (a, b) if d.is_float and not float8(d)]
        return others[0] if others else float32
    if a.is_float != b.is_float:
        return a if a.is_float else b
    return DTYPES[np.promote_types(a.numpy, b.numpy).name]


def float8(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize == 1


def promoted(*xs: TensorLike) -> tuple[Tensor, ...]:
    """The operands in their common dtype.

    Tensors and arrays promote as in the array API. A Python number is weak: it takes the dtype of
    the tensors, except that a float makes integers float32 and an int makes bool int64.
    """
    strong = [x if isinstance(x, (bool, int, float)) else as_tensor(x) for x in xs]
    given = [x.dtype for x in strong if isinstance(x, Tensor)]
    weak = [_weak_dtype(x) for x in strong if not isinstance(x, Tensor)]
    common = fold(promote, given or weak)
    common = float32 if float8(common) and len(xs) > 1 else common
    dtype = max((common, *weak), key=lambda d: "biuf".index(d.kind))  # the first of equal rank
    return tuple(cast(x, dtype) if isinstance(x, Tensor) else constant(x, dtype) for x in strong)


def broadcast(op: str, *xs: Tensor) -> tuple[Tensor, ...]:
    """The operands expanded to their common shape."""
    shape = broadcast_shapes(op, *(x.shape for x in xs))
    return tuple(broadcast_to(x, shape) for x in xs)


def as_axis(op: str, x: Tensor, axis: Any, extra: int = 0) -> int:
    """The axis counted from 0; `extra` more are allowed where an axis is inserted."""
    n = x.ndim + extra
    if not isinstance(axis, (int, np.integer)) or not -n <= axis < n:
        raise IndexError(f"{op}: axis {axis!r} is out of range for {describe(x)}")
    return int(axis) % n


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """NumPy's broadcasting. A symbol is never 1, and equals only the same expression.

    Raises:
        ValueError: two sizes differ and neither is 1.
    """
    out: list[Size] = []
    for sizes in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = next((size for size in sizes if size != 1), 1)
        other = next((size for size in sizes if size not in (1, wide)), None)
        if other is not None:
            shown = " with ".join(str(list(s)) for s in shapes)
            raise ValueError(f"{op}: cannot broadcast {shown}: {wide} and {other} differ")
        out.append(wide)
    return tuple(out[::-1])


def broadcast_to(x: Tensor, *shape: Any) -> Tensor:
    """Repeat x over new leading dims and over dims of size 1 (a view: nothing is copied)."""
    target = as_shape("broadcast_to", *shape)
    extra = len(target) - x.ndim
    if extra < 0 or broadcast_shapes("broadcast_to", x.shape, target) != target:
        raise ValueError(f"broadcast_to: {describe(x)} does not broadcast to {list(target)}")
    return view("expand", view("reshape", x, (1,) * extra + x.shape), target)
