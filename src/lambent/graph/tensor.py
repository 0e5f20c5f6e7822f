"""Tensor: the handle that users build graphs with, and the checked builders of every node.

Nothing runs here. A builder checks dtypes by the rows of `ops.PRIMITIVES` and shapes by
broadcasting or `views.view_shape`, then asks `node.make` for the node. Everything else is composed
of these in `functional`; `functional.methods` says what of it is a method or an operator.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from functools import reduce as fold
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType, as_dtype, bool_, float32, int64, promote
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
TensorLike: TypeAlias = "Tensor | Scalar | Dim | np.ndarray[Any, Any] | Sequence[Any]"


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

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise TypeError(f"len() of {describe(self)}: the first dim is missing or symbolic")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

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


# ---- sources ---------------------------------------------------------------------------------


def input(name: str, shape: Iterable[Size] | Size, dtype: DTypeLike = float32) -> Tensor:
    """A tensor that is given by this name when the program runs. Sizes may be symbolic."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"input: the name must be a string that is not empty, not {name!r}")
    return Tensor(make("input", (), as_shape("input", shape), as_dtype(dtype), name))


def weight(name: str, array: Any, dtype: DTypeLike = None) -> Tensor:
    """A named array that belongs to the graph: known when compiling, saved with the program."""
    array, kind = _as_array(array, dtype)
    return Tensor(make("weight", (), array.shape, kind, Weight(name, array)))


def _as_array(value: Any, dtype: DTypeLike) -> tuple[np.ndarray[Any, Any], DType]:
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64 and not hasattr(value, "dtype"):
        dtype = float32  # Python floats have no width of their own
    kind = as_dtype(array.dtype if dtype is None else dtype)
    return np.asarray(array, dtype=kind.numpy), kind


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
        array, kind = _as_array(value, dtype)
    except ValueError as reason:
        raise TypeError(f"tensor: no array can be made of this value: {reason}") from None
    if array.ndim == 0:
        return constant(array.item() if kind.name != "bfloat16" else float(array), kind)
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
        out = Tensor(make("constant", (), (), kind, _python_scalar(value, kind)))
    return broadcast_to(out, shape)


def _weak_dtype(value: Scalar | Dim) -> DType:
    return bool_ if isinstance(value, bool) else float32 if isinstance(value, float) else int64


def _python_scalar(value: Scalar, dtype: DType) -> Scalar:
    if dtype.is_float:
        return float(value)
    if not float(value).is_integer() or (dtype == bool_ and value not in (0, 1)):
        raise TypeError(f"constant: {value} cannot be {dtype} exactly; use another dtype")
    if dtype == bool_:
        return bool(value)
    info = np.iinfo(dtype.numpy)
    if not info.min <= value <= info.max:
        raise OverflowError(f"constant: {value} is out of range for {dtype}; cast to a wider dtype")
    return int(value)


def iota(size: Size) -> Tensor:
    """0, 1, …, size − 1 as int64, shape (size,)."""
    return Tensor(make("iota", (), (as_size("iota", size),), int64))


# ---- primitives ------------------------------------------------------------------------------


def unary(op: str, x: TensorLike) -> Tensor:
    """log2, exp2, sin, sqrt or recip of every element. Integers are taken as float32."""
    x = as_tensor(x)
    return _primitive(op, x if x.dtype.is_float else contiguous(x, float32))


def binary(op: str, x: TensorLike, y: TensorLike) -> Tensor:
    """add, mul, mod or less_than, broadcast; dtypes promoted, but a bool factor stays a mask.

    Raises:
        TypeError, ValueError: dtypes or shapes that do not go together.
    """
    masks = op == "mul" and any(isinstance(v, Tensor) and v.dtype == bool_ for v in (x, y))
    a, b = (as_tensor(x), as_tensor(y)) if masks else promoted(x, y)
    return _primitive(op, *broadcast(op, a, b))


def _primitive(op: str, *xs: Tensor) -> Tensor:
    return Tensor(make(op, (x.node for x in xs), xs[0].shape, _result_dtype(op, *xs)))


def _result_dtype(op: str, *xs: Tensor) -> DType:
    rule, accepts = PRIMITIVES[op]
    dtype = rule(tuple(x.dtype for x in xs))
    if dtype is None:
        raise TypeError(f"{op}: needs {accepts}, got {describe(*xs)}; cast with .astype(dtype)")
    return dtype


def reduce(op: str, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """sum_reduce or max_reduce over one axis; a sum over an axis of size 0 is zeros.

    Raises:
        TypeError, ValueError, IndexError: bool sums, a possibly empty axis of max, no such axis.
    """
    axis = as_axis(op, x, axis)
    dtype = _result_dtype(op, x)
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if op == "max_reduce" and not at_least(size, 1):
        raise ValueError(
            f"{op}: axis {axis} of {describe(x)} may be empty, and an empty maximum has no value; "
            "declare Dim(…, min=1) or take the maximum with a first element"
        )
    if size == 0:
        out = constant(0, dtype, before + after)
    else:
        out = Tensor(make(op, (x.node,), before + after, dtype, axis))
    return view("reshape", out, (*before, 1, *after)) if keepdims else out


def contiguous(x: Tensor, dtype: DTypeLike = None) -> Tensor:
    """The value laid out anew, in a given dtype: floats truncate toward zero, integers wrap."""
    dtype = x.dtype if dtype is None else as_dtype(dtype)
    if dtype == bool_ and x.dtype != bool_:
        raise TypeError(f"contiguous: {describe(x)} to bool is a comparison: use .astype(bool)")
    return Tensor(make("contiguous", (x.node,), x.shape, dtype))


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


def promoted(*xs: TensorLike) -> tuple[Tensor, ...]:
    """The operands in their common dtype.

    Tensors and arrays promote as in the array API. A Python number is weak: it takes the dtype of
    the tensors, except that a float makes integers float32 and an int makes bool int64.
    """
    strong = [x if isinstance(x, (bool, int, float)) else as_tensor(x) for x in xs]
    given = [x.dtype for x in strong if isinstance(x, Tensor)]
    weak = [_weak_dtype(x) for x in strong if not isinstance(x, Tensor)]
    common = fold(promote, given or weak)
    dtype = max((common, *weak), key=lambda d: "biuf".index(d.kind))  # the first of equal rank
    return tuple(cast(x, dtype) if isinstance(x, Tensor) else constant(x, dtype) for x in strong)


def broadcast(op: str, *xs: Tensor) -> tuple[Tensor, ...]:
    """The operands expanded to their common shape."""
    shape = broadcast_shapes(op, *(x.shape for x in xs))
    return tuple(broadcast_to(x, shape) for x in xs)


# ---- views that broadcasting needs; the others are in functional.shaping --------------------


def view(op: str, x: Tensor, attr: Any) -> Tensor:
    """A view by the rules of `graph.views`; one that changes nothing is x itself."""
    shape = view_shape(op, x.shape, attr)
    if shape == x.shape and (op in ("expand", "reshape") or attr == tuple(range(x.ndim))):
        return x
    return Tensor(make(op, (x.node,), shape, x.dtype, attr))


def broadcast_to(x: Tensor, *shape: Any) -> Tensor:
    """Repeat x over new leading dims and over dims of size 1 (a view: nothing is copied)."""
    target = as_shape("broadcast_to", *shape)
    extra = len(target) - x.ndim
    if extra < 0 or broadcast_shapes("broadcast_to", x.shape, target) != target:
        raise ValueError(f"broadcast_to: {describe(x)} does not broadcast to {list(target)}")
    return view("expand", view("reshape", x, (1,) * extra + x.shape), target)
