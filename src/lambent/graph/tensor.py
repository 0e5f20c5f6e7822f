"""Tensor: the handle that users build graphs with, and the checked builders of every node.

Nothing runs here. A builder checks dtypes by the rows of `ops.PRIMITIVES` and shapes by
`views.view_shape`, then asks `node.make` for the node. Operands of other dtypes and shapes are
brought together in `functional.operands`, and everything else is composed in `functional`;
`functional.methods` says what of it is a method or an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType, as_dtype, bool_, float32, int64
from lambent.graph.node import Node, Weight, make
from lambent.graph.ops import PRIMITIVES
from lambent.graph.prove import SYMBOLS_ONLY
from lambent.graph.views import Shape, view_shape

if TYPE_CHECKING:
    from lambent.functional.methods import Methods
else:
    Methods = object

Scalar: TypeAlias = "bool | int | float"
DTypeLike: TypeAlias = Any
"""A DType, its name, a Python type, or what NumPy takes for a dtype."""


class Tensor(Methods):
    """A value of the graph: a shape, a dtype and the way to compute it. Immutable; holds no data.

    Operators and methods are those of NumPy and PyTorch; each builds nodes. `==` is elementwise, so
    tensors hash by identity (equal nodes are one object: compare `a.node is b.node`).
    """

    __slots__ = ("__weakref__", "node")
    __array_ufunc__ = None  # NumPy arrays leave arithmetic with a Tensor to us

    def __init__(self, node: Node) -> None:
        self.node = node

    __hash__ = object.__hash__

    @property
    def shape(self) -> Shape:
        """Sizes of the dims: ints, or Dims where symbolic."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> Size:
        """The number of elements."""
        return prod(self.node.shape)

    def __repr__(self) -> str:
        return f"Tensor({describe(self)}, {self.node.op})"

    def _no_value(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            f"a Tensor ({describe(self)}) has no value while the graph is built: compile it or "
            "call lambent.evaluate; to choose by its truth, lambent.where(condition, a, b)"
        )

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __array__ = _no_value


def describe(*xs: Tensor) -> str:
    """Dtype and shape of each, for error messages: `float32[2, s]`."""
    return " and ".join(f"{x.dtype}[{', '.join(map(str, x.shape))}]" for x in xs)


# ---- shapes ----------------------------------------------------------------------------------


def at_least(size: Size, least: int) -> bool:
    """True if size >= least is proved for every value of its symbols."""
    return SYMBOLS_ONLY.ge0(size - least)


def as_shape(op: str, *sizes: Any) -> Shape:
    """Sizes from `f(2, s)`, `f((2, s))` or `f(2)`: plain ints and Dims, none negative.

    Raises:
        TypeError, ValueError: something is not a size.
    """
    if len(sizes) == 1 and not isinstance(sizes[0], (int, np.integer, Dim)):
        sizes = tuple(sizes[0])
    return tuple(as_size(op, s) for s in sizes)


def as_size(op: str, size: Any) -> Size:
    """One size: an int >= 0 or a Dim."""
    if isinstance(size, np.integer):
        size = int(size)
    if not isinstance(size, (int, Dim)) or isinstance(size, bool):
        raise TypeError(f"{op}: {size!r} is no size; give an int or a Dim")
    if not at_least(size, 0):
        raise ValueError(f"{op}: the size {size} may be negative")
    return size


# ---- sources ---------------------------------------------------------------------------------


def input(name: str, shape: Iterable[Size] | Size, dtype: DTypeLike = float32) -> Tensor:
    """A tensor that is given by this name when the program runs. Sizes may be symbolic."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"input: the name must be a string that is not empty, not {name!r}")
    return Tensor(make("input", (), as_shape("input", shape), as_dtype(dtype), name))


def weight(name: str, array: Any, dtype: DTypeLike = None) -> Tensor:
    """A named array that belongs to the graph: known when compiling, saved with the program."""
    array, kind = as_array(array, dtype)
    return Tensor(make("weight", (), array.shape, kind, Weight(name, array)))


def as_array(value: Any, dtype: DTypeLike) -> tuple[np.ndarray[Any, Any], DType]:
    """A NumPy array of anything, and its dtype; Python floats become float32."""
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64 and not hasattr(value, "dtype"):
        dtype = float32  # Python floats have no width of their own
    kind = as_dtype(array.dtype if dtype is None else dtype)
    return np.asarray(array, dtype=kind.numpy), kind


def scalar(value: Scalar, dtype: DType) -> Tensor:
    """One number, of shape ().

    Raises:
        TypeError, OverflowError: it has no exact place in an integer or bool dtype.
    """
    if dtype.is_float:
        value = float(value)
    elif not float(value).is_integer() or (dtype == bool_ and value not in (0, 1)):
        raise TypeError(f"constant: {value} cannot be {dtype} exactly; use another dtype")
    elif dtype == bool_:
        value = bool(value)
    else:
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise OverflowError(
                f"constant: {value} is out of range for {dtype}; cast to a wider dtype"
            )
        value = int(value)
    return Tensor(make("constant", (), (), dtype, value))


def iota(size: Size) -> Tensor:
    """0, 1, …, size − 1 as int64, shape (size,)."""
    return Tensor(make("iota", (), (as_size("iota", size),), int64))


# ---- primitives ------------------------------------------------------------------------------


def elementwise(op: str, *xs: Tensor) -> Tensor:
    """A unary or binary primitive of operands of one shape.

    Raises:
        TypeError, ValueError: dtypes that the primitive does not take, shapes that differ.
    """
    if any(x.shape != xs[0].shape for x in xs):
        raise ValueError(f"{op}: the shapes of {describe(*xs)} differ; expand them")
    return Tensor(make(op, (x.node for x in xs), xs[0].shape, _result_dtype(op, *xs)))


def _result_dtype(op: str, *xs: Tensor) -> DType:
    rule, accepts = PRIMITIVES[op]
    dtype = rule(tuple(x.dtype for x in xs))
    if dtype is None:
        raise TypeError(f"{op}: needs {accepts}, got {describe(*xs)}; cast with .astype(dtype)")
    return dtype


def reduction(op: str, x: Tensor, axis: int) -> Tensor:
    """sum_reduce or max_reduce over one axis, which is dropped.

    Raises:
        TypeError, ValueError: bool sums, a possibly empty axis of max.
    """
    dtype = _result_dtype(op, x)
    if op == "max_reduce" and not at_least(x.shape[axis], 1):
        raise ValueError(
            f"{op}: axis {axis} of {describe(x)} may be empty, and an empty maximum has no value; "
            "declare Dim(…, min=1) or take the maximum with a first element"
        )
    return Tensor(make(op, (x.node,), (*x.shape[:axis], *x.shape[axis + 1 :]), dtype, axis))


def contiguous(x: Tensor, dtype: DTypeLike = None) -> Tensor:
    """The value laid out anew, in a given dtype: floats truncate toward zero, integers wrap."""
    dtype = x.dtype if dtype is None else as_dtype(dtype)
    if dtype == bool_ and x.dtype != bool_:
        raise TypeError(f"contiguous: {describe(x)} to bool is a comparison: use .astype(bool)")
    return Tensor(make("contiguous", (x.node,), x.shape, dtype))


def view(op: str, x: Tensor, attr: Any) -> Tensor:
    """A view by the rules of `graph.views`; one that changes nothing is x itself."""
    shape = view_shape(op, x.shape, attr)
    if shape == x.shape and (op in ("expand", "reshape") or attr == tuple(range(x.ndim))):
        return x
    return Tensor(make(op, (x.node,), shape, x.dtype, attr))
