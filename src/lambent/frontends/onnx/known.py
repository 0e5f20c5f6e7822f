"""Values of an ONNX graph: tensors of ours, and arrays that are known when the graph is built.

Shapes are computed by ONNX nodes. Such a value is `Known`: an array of numbers, or of sizes that
may be symbolic, so that chains of Shape, Gather, Mul, Concat and the like end in a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

import lambent as lt
from lambent.backends.reference.graph import evaluate
from lambent.frontends.onnx.read import Array
from lambent.graph.dim import Dim, Size
from lambent.graph.dtypes import DType, as_dtype
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor

SMALL = 4096
"""Elements of an array up to which it is folded when the graph is built."""

LARGEST = 1 << 22
"""Elements of the largest intermediate of what is folded."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """An array whose elements are numbers or, where its NumPy dtype is object, also Dims.

    name: of the weight that it becomes in the graph, if it is a large one.
    """

    array: Array
    dtype: DType
    name: str = ""
    _tensor: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def symbolic(self) -> bool:
        return bool(self.array.dtype == object)

    def tensor(self) -> Tensor:
        """The value as part of the graph, always the same one."""
        if not self._tensor:
            self._tensor.append(self._made())
        return self._tensor[0]

    def _made(self) -> Tensor:
        if self.symbolic:
            parts = [lt.constant(e, self.dtype) for e in self.array.ravel()]
            return lt.stack(parts).reshape(self.array.shape)
        if self.array.size == 1:  # the algebra looks at constants
            return lt.constant(self.array.reshape(()).item(), self.dtype, self.array.shape)
        if self.name and self.array.size > SMALL:
            return lt.weight(self.name, self.array)
        return lt.tensor(self.array, self.dtype)


Value: TypeAlias = Tensor | Known


def known(values: Any, dtype: Any = None) -> Known:
    """Known numbers or sizes, in a dtype: by default the array's own, int64 of sizes."""
    array = np.asarray(values)
    symbolic = array.dtype == object and any(isinstance(e, Dim) for e in array.flat)
    if dtype is None:
        dtype = lt.int64 if array.dtype == object else array.dtype
    kind = as_dtype(dtype)
    return Known(array if symbolic else array.astype(kind.numpy, copy=False), kind)


def as_known(shape: Sequence[Size]) -> Known:
    """A shape as a vector."""
    vector = np.empty(len(shape), object)
    vector[:] = shape
    return known(vector, lt.int64)


def as_tensor(value: Value) -> Tensor:
    return value.tensor() if isinstance(value, Known) else value


def foldable(values: Sequence[Any]) -> bool:
    """True if all that is given is known and small."""
    given = [v for v in values if v is not None]
    return all(isinstance(v, Known) for v in given) and prod(v.array.size for v in given) <= LARGEST


def evaluated(results: Sequence[Value]) -> list[Value]:
    """Tensors of constants alone as arrays, where that is cheap; the others as they are."""
    found: list[Value] = []
    for value in results:
        if isinstance(value, Tensor) and _cheap(value):
            value = Known(evaluate([value], {})[0], value.dtype)
        found.append(value)
    return found


def _cheap(x: Tensor) -> bool:
    nodes = topo([x.node])
    sizes = [prod(node.shape) for node in nodes]
    known_alone = all(node.op != "input" for node in nodes)
    return (
        known_alone
        and all(isinstance(n, int) and n <= LARGEST for n in sizes)
        and (sizes[-1] <= SMALL)
    )


def elementwise(f: Callable[..., Any]) -> Callable[..., Known | None]:
    """A fold by a function of two numbers or sizes; None from it means that nobody knows."""

    def fold(at: Any, *values: Known) -> Known | None:
        shape = np.broadcast_shapes(*(v.array.shape for v in values))
        if prod(shape) > SMALL:
            return None
        columns = zip(
            *(np.broadcast_to(v.array, shape).ravel().tolist() for v in values), strict=True
        )
        out = [f(*column) for column in columns]
        if any(e is None for e in out):
            return None
        array = np.empty(len(out), object)
        array[:] = out
        return known(array.reshape(shape), at.result)

    return fold
