"""The NumPy meaning of a graph, node by node: the yardstick for every other way to compute it.

In float64 every float is a float64 and nothing is rounded to a narrower dtype; integers are exact
and wrap at their width. Otherwise a node is computed in `dtype.compute` and rounded to its dtype. A
product whose only use is a sum is never materialised, so that a large matmul stays a matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from lambent.graph.dim import Dim, Size, symbol_range, terms_of
from lambent.graph.dim import evaluate as value_of
from lambent.graph.dtypes import DType, bool_, int64
from lambent.graph.node import Node, topo
from lambent.graph.prove import facts
from lambent.graph.tensor import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"


def evaluate(
    outputs: Sequence[Tensor | Node],
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
    symbols: Mapping[str, int] | None = None,
) -> list[Array]:
    """The values of the outputs for arrays given by input name.

    Args:
        outputs: tensors or their nodes.
        inputs: anything NumPy takes for an array; names that the graph lacks are ignored.
        float64: compute and return every float in float64, without rounding to its dtype.
        symbols: sizes by symbol name, where no input's shape tells.

    Raises:
        KeyError: an input or the size of a symbol is missing.
        TypeError, ValueError: an input of another kind of dtype, or of a shape that does not fit.
    """
    roots = [x.node if isinstance(x, Tensor) else x for x in outputs]
    order = topo(roots)
    given = {n.attr: np.asarray(_given(inputs, n)) for n in order if n.op == "input"}
    sizes = bind([(n, given[n.attr].shape) for n in order if n.op == "input"], symbols or {})
    run = _Run(given, sizes, float64, _lazy_nodes(order, set(roots)))
    uses = dict.fromkeys(order, 0)
    for used in [*(s for n in order for s in n.srcs), *roots]:
        uses[used] += 1
    values: dict[Node, Array | _Product] = {}
    with np.errstate(all="ignore"):
        for n in order:
            values[n] = run.node(n, [values[s] for s in n.srcs])
            for s in n.srcs:
                uses[s] -= 1
                if uses[s] == 0:
                    del values[s]
        return [_stored(_dense(values[n]), n.dtype, float64) for n in roots]


def _given(inputs: Mapping[str, Any], node: Node) -> Any:
    if node.attr not in inputs:
        raise KeyError(f"input {node.attr!r} ({node}) is missing; given: {', '.join(inputs)}")
    return inputs[node.attr]


def bind(
    shapes: Sequence[tuple[Node, tuple[int, ...]]], symbols: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the symbols, from those given and from the actual shapes of inputs.

    Raises:
        ValueError: a shape that does not fit, a size out of its range, or a fact that is false.
    """
    sizes = dict(symbols)
    pairs = []
    for node, actual in shapes:
        if len(actual) != len(node.shape):
            raise ValueError(f"input {node.attr!r} has shape {actual}, but is declared as {node}")
        pairs += [(node, size, n) for size, n in zip(node.shape, actual, strict=True)]
    for _, size, n in pairs:
        name, number = _solve(size, n)
        if name and name not in sizes:
            sizes[name] = number
    for node, size, n in pairs:
        if value_of(size, sizes) != n:
            raise ValueError(f"input {node.attr!r}: a dim is {n}, but {size} is declared by {node}")
    for name, number in sizes.items():
        low, high = symbol_range(name)
        if not low <= number <= high:
            raise ValueError(f"{name} = {number} is out of its range {low} … {high}")
    for fact in facts():
        if _known(fact, sizes) and value_of(fact, sizes) < 0:
            raise ValueError(f"the declared fact {fact} >= 0 is false at {sizes}")
    return sizes


def _solve(size: Size, n: int) -> tuple[str, int]:
    """The symbol and its value if size is `c · symbol + k`, else no name."""
    terms = terms_of(size)
    free = [(c, m) for c, m in terms if m]
    if len(free) != 1 or len(free[0][1]) != 1:
        return "", 0
    coefficient, ((atom, power),) = free[0]
    constant = sum(c for c, m in terms if not m)
    if atom.kind != "symbol" or power != 1 or (n - constant) % coefficient:
        return "", 0
    return str(atom.args[0]), (n - constant) // coefficient


def _known(size: Size, sizes: Mapping[str, int]) -> bool:
    try:
        value_of(size, sizes)
    except KeyError:
        return False
    return True


# ---- one node --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Product:
    """Σ over axes of the product of arrays of one full shape, not computed yet."""

    factors: tuple[Array, ...]
    dtype: np.dtype[Any]
    whole: Callable[[], Array]  # the product itself, as the graph says
    axes: tuple[int, ...] = ()  # summed, counted in the full shape

    @property
    def left(self) -> list[int]:
        """The dims that are not summed, in order."""
        return [i for i in range(self.factors[0].ndim) if i not in self.axes]


def _lazy_nodes(order: Sequence[Node], roots: set[Node]) -> set[Node]:
    """Products and sums of products whose only use is a sum or a product that is lazy too."""
    users: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for s in n.srcs:
            users[s].append(n)
    lazy: set[Node] = set()
    for n in reversed(order):
        if n in roots or len(users[n]) != 1 or n.dtype == bool_:
            continue
        user = users[n][0]
        if n.op == "mul" and (user.op == "sum_reduce" or (user.op == "mul" and user in lazy)):
            lazy.add(n)
        if n.op == "sum_reduce" and user.op == "sum_reduce":
            lazy.add(n)
    return lazy


@dataclass(frozen=True, slots=True)
class _Run:
    """What the meaning of a node may depend on beside its operands."""

    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    float64: bool
    lazy: set[Node]

    def node(self, n: Node, operands: Sequence[Array | _Product]) -> Array | _Product:
        product = operands[0] if operands else None
        if n.op == "sum_reduce" and isinstance(product, _Product):
            axes = (*product.axes, product.left[n.attr])
            total = replace(product, axes=axes)
            if n in self.lazy:
                return total
            return _rounded(_contract(total), n.dtype, self.float64)
        if n.op == "mul" and n in self.lazy:
            return self.product(n, operands)
        xs = [_dense(x) for x in operands]
        out = np.asarray(MEANING[n.op](self, n, *xs))
        shape = self.at(n.shape)
        if out.shape != shape:
            raise AssertionError(f"{n.op} of {n.srcs} gave {out.shape}, not {shape}")
        return _rounded(out, n.dtype, self.float64)

    def product(self, n: Node, operands: Sequence[Array | _Product]) -> _Product:
        """A product that is left for later: its factors, and the way to compute it as it stands."""

        def whole() -> Array:
            xs = [x.whole() if isinstance(x, _Product) else x for x in operands]
            return _multiply(self, n, *xs)

        parts = [x.factors if isinstance(x, _Product) else (x,) for x in operands]
        return _Product(parts[0] + parts[1], self.working(n.dtype), whole)

    def at(self, attr: Any) -> Any:
        """An attribute with every size replaced by its number."""
        if isinstance(attr, tuple):
            return tuple(self.at(a) for a in attr)
        return value_of(attr, self.sizes) if isinstance(attr, Dim) else attr

    def working(self, dtype: DType) -> np.dtype[Any]:
        """What values of a dtype are held in: floats in float64, or in their compute dtype."""
        return np.dtype(np.float64) if self.float64 and dtype.is_float else dtype.compute.numpy


def _rounded(x: Array, dtype: DType, float64: bool) -> Array:
    """x as it reads back after being stored in dtype."""
    if not dtype.is_float:
        return x.astype(dtype.numpy, copy=False)
    if float64:
        return x.astype(np.float64, copy=False)
    stored = x.astype(dtype.numpy, copy=False)
    return stored.astype(dtype.compute.numpy, copy=False)


def _stored(x: Array, dtype: DType, float64: bool) -> Array:
    keep = dtype.is_float and float64
    return np.array(x, dtype=np.float64 if keep else dtype.numpy, order="C")


def _input(run: _Run, n: Node) -> Array:
    x = run.inputs[n.attr]
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "fV"}[n.dtype.kind]  # bfloat16 is of kind V
    if x.dtype.kind not in kinds:
        raise TypeError(f"input {n.attr!r} has dtype {x.dtype}, but {n.dtype} is declared by {n}")
    out: Array = x.astype(run.working(n.dtype), copy=False)
    return out


def _multiply(run: _Run, n: Node, x: Array, y: Array) -> Array:
    if x.dtype == y.dtype:
        return np.multiply(x, y)
    mask, value = (x, y) if n.srcs[0].dtype == bool_ else (y, x)
    return np.where(mask, value, value.dtype.type(0))


def _cast(run: _Run, n: Node, x: Array) -> Array:
    if x.dtype.kind == "f" and n.dtype.is_integer:
        x = x.astype(int64.numpy)  # truncates; narrower integers then wrap
    return x.astype(run.working(n.dtype))


def _slice(run: _Run, n: Node, x: Array) -> Array:
    key = []
    for start, step, count in run.at(n.attr):
        stop = start + step * count
        key.append(slice(start, stop if stop >= 0 else None, step) if count else slice(0, 0))
    return x[tuple(key)]


def _window(run: _Run, n: Node, x: Array) -> Array:
    dim, size, stride, dilation = run.at(n.attr)
    every = np.lib.stride_tricks.sliding_window_view(x, (size - 1) * dilation + 1, dim)
    out: Array = every[(slice(None),) * dim + (slice(None, None, stride),)][..., ::dilation]
    return out


Meaning: TypeAlias = Callable[..., Any]
MEANING: dict[str, Meaning] = {
    "input": _input,
    "weight": lambda run, n: n.attr.array.astype(run.working(n.dtype), copy=False),
    "constant": lambda run, n: np.asarray(n.attr, run.working(n.dtype)),
    "iota": lambda run, n: np.arange(*run.at(n.shape), dtype=np.int64),
    "log2": lambda run, n, x: np.log2(x),
    "exp2": lambda run, n, x: np.exp2(x),
    "sin": lambda run, n, x: np.sin(x),
    "sqrt": lambda run, n, x: np.sqrt(x),
    "recip": lambda run, n, x: np.divide(x.dtype.type(1), x),
    "add": lambda run, n, x, y: np.add(x, y),
    "mul": _multiply,
    "mod": lambda run, n, x, y: np.mod(x, y),
    "less_than": lambda run, n, x, y: np.less(x, y),
    "sum_reduce": lambda run, n, x: np.sum(x, axis=n.attr, dtype=x.dtype),
    "max_reduce": lambda run, n, x: np.max(x, axis=n.attr),
    "contiguous": _cast,
    "permute": lambda run, n, x: np.transpose(x, n.attr),
    "expand": lambda run, n, x: np.broadcast_to(x, run.at(n.shape)),
    "reshape": lambda run, n, x: np.reshape(x, run.at(n.shape)),
    "slice": _slice,
    "pad": lambda run, n, x: np.pad(x, run.at(n.attr)),
    "window": _window,
}
"""op → its NumPy meaning, given (run, node, *operand values)."""


# ---- sums of products ------------------------------------------------------------------------


def _dense(x: Array | _Product) -> Array:
    return _contract(x) if isinstance(x, _Product) else x


def _contract(p: _Product) -> Array:
    """The sum of products, without their full shape where that cannot change the value."""
    shape = p.factors[0].shape
    if 0 in shape or not _is_safe(p):
        return np.asarray(np.sum(p.whole(), axis=p.axes, dtype=p.dtype))
    dims = [[i for i in range(f.ndim) if f.strides[i] and f.shape[i] > 1] for f in p.factors]
    small = [
        f[tuple(slice(None) if i in d else 0 for i in range(f.ndim))].astype(p.dtype, copy=False)
        for f, d in zip(p.factors, dims, strict=True)
    ]  # a mask is 0 or 1 here
    seen = {i for d in dims for i in d}
    kept = [i for i in p.left if i in seen]
    summed = [i for i in p.axes if i in seen]
    if p.dtype.kind == "f" and len(small) == 2 and all(np.isfinite(f).all() for f in small):
        out = _matmul(small, dims, kept, summed, shape)
    else:
        operands = [part for pair in zip(small, dims, strict=True) for part in pair]
        out = np.einsum(*operands, kept, optimize=len(small) > 2)
    out = out * p.dtype.type(prod(shape[i] for i in p.axes if i not in seen))
    out = np.reshape(out, [shape[i] if i in seen else 1 for i in p.left])
    return np.broadcast_to(out, [shape[i] for i in p.left])


def _is_safe(p: _Product) -> bool:
    """True if masks may be factors 0 and 1, and the products be taken in any order."""
    if p.dtype.kind != "f":
        return True
    numbers = [f for f in p.factors if f.dtype.kind == "f"]
    if len(numbers) == len(p.factors) == 2:
        return True
    if not all(np.isfinite(_once(f)).all() for f in numbers):
        return False
    largest = [max(1.0, float(np.max(np.abs(_once(f))))) for f in numbers]
    return bool(prod(largest) < np.finfo(p.dtype).max)


def _once(x: Array) -> Array:
    """x without the repetitions of a broadcast."""
    return x[tuple(slice(None) if s else slice(0, 1) for s in x.strides)]


def _matmul(
    xs: Sequence[Array],
    dims: Sequence[Sequence[int]],
    kept: Sequence[int],
    summed: Sequence[int],
    shape: Sequence[int],
) -> Array:
    """Two operands with named dims as one (batched) matrix product."""
    both = [i for i in kept if i in dims[0] and i in dims[1]]
    rows = [i for i in kept if i not in dims[1]]
    columns = [i for i in kept if i not in dims[0]]

    def arranged(k: int, *groups: Sequence[int]) -> Array:
        want = [i for group in groups for i in group]
        x = np.transpose(xs[k], [dims[k].index(i) for i in want if i in dims[k]])
        x = x[tuple(slice(None) if i in dims[k] else None for i in want)]
        x = np.broadcast_to(x, [shape[i] for i in want])
        return x.reshape([prod(shape[i] for i in group) for group in groups])

    out = np.matmul(arranged(0, both, rows, summed), arranged(1, both, summed, columns))
    order = [*both, *rows, *columns]
    out = out.reshape([shape[i] for i in order])
    return np.transpose(out, [order.index(i) for i in kept])
