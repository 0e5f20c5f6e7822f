"""Nodes of the static graph: hash-consed, immutable, created in a topological order.

`attr` by op: input: its name; weight: its `Weight`; constant: a Python bool, int or float (scalar);
iota: None (shape is (n,)); reduce: the axis (int); contiguous: None (a cast: the node's dtype);
views: see `graph.views`. Operands of a binary primitive already have the node's shape.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lambent.graph.dim import Size
from lambent.graph.dtypes import DType


class Weight:
    """A named array that belongs to the graph; equal only to itself."""

    __slots__ = ("__weakref__", "array", "name")

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self.name, self.array = name, array

    def __repr__(self) -> str:
        return f"Weight({self.name!r}, {self.array.dtype}{list(self.array.shape)})"


class Node:
    """One value of the graph. Made by `make` only: equal nodes are one object."""

    __slots__ = ("__weakref__", "attr", "dtype", "id", "op", "shape", "srcs")

    op: str
    srcs: tuple[Node, ...]
    shape: tuple[Size, ...]
    dtype: DType
    attr: Any
    id: int

    def __repr__(self) -> str:
        return f"{self.op}#{self.id}:{self.dtype}[{', '.join(map(str, self.shape))}]"


_lock = threading.Lock()
_ids = itertools.count()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()


def _attr_key(attr: Any) -> Any:
    # 0.0 == -0.0 and 1 == True, but they are different constants; NaN is equal to itself here
    if isinstance(attr, float):
        return ("float", repr(attr) if math.isnan(attr) else attr.hex())
    return (type(attr).__name__, attr)


def make(
    op: str, srcs: Iterable[Node], shape: Iterable[Size], dtype: DType, attr: Any = None
) -> Node:
    """The one node with these parts (made on first use). Checks nothing: `Tensor` does."""
    srcs, shape = tuple(srcs), tuple(shape)
    key = (op, tuple(s.id for s in srcs), shape, dtype, _attr_key(attr))
    with _lock:
        node = _table.get(key)
        if node is None:
            node = Node()
            node.op, node.srcs, node.shape, node.dtype, node.attr = op, srcs, shape, dtype, attr
            node.id = next(_ids)
            _table[key] = node
        return node


def topo(roots: Iterable[Node]) -> list[Node]:
    """All nodes that the roots need, sources first, in a deterministic order (depth first)."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack.append((root, iter(root.srcs)))
        while stack:
            node, rest = stack[-1]
            child = next((s for s in rest if s not in seen), None)
            if child is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(child.srcs)))
    return order
