"""Nodes of the static graph: hash-consed, immutable, created in a topological order.

`attr` by op: input: its name; weight: its `Weight`; constant: a Python bool, int or float (scalar);
iota: None (shape is (n,)); reduce: the axis (int); contiguous: None (a cast: the node's dtype);
views: see `graph.views`. Operands of a binary primitive already have the node's shape.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lambent.graph.dim import Size
from lambent.graph.dtypes import DType
from lambent.graph.orders import postorder


@dataclass(frozen=True, eq=False)
class Weight:
    """A named array that belongs to the graph; equal only to itself."""

    name: str
    array: np.ndarray[Any, Any] = field(repr=False)

    @cached_property
    def finite(self) -> bool:
        """True if no element is infinite or NaN."""
        return bool(np.isfinite(self.array).all())


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Node:
    """One value of the graph. Made by `make` only: equal nodes are one object."""

    op: str
    srcs: tuple[Node, ...]
    shape: tuple[Size, ...]
    dtype: DType
    attr: Any
    id: int

    @property
    def name(self) -> str:
        """Of an input or a weight."""
        return str(self.attr.name if self.op == "weight" else self.attr)

    def __repr__(self) -> str:
        return f"{self.op}#{self.id}:{self.dtype}[{', '.join(map(str, self.shape))}]"


_lock = threading.Lock()
_ids = itertools.count()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()


def make(
    op: str, srcs: Iterable[Node], shape: Iterable[Size], dtype: DType, attr: Any = None
) -> Node:
    """The one node with these parts (made on first use). Checks nothing: `Tensor` does."""
    srcs, shape = tuple(srcs), tuple(shape)
    # 0.0 == -0.0 and 1 == True, but they are different constants; NaN is equal to itself here
    told = type(attr).__name__, repr(attr) if isinstance(attr, float) else attr
    key = (op, tuple(s.id for s in srcs), shape, dtype, told)
    with _lock:
        node = _table.get(key)
        if node is None:
            node = _table[key] = Node(op, srcs, shape, dtype, attr, next(_ids))
        return node


def topo(roots: Iterable[Node], leaves: Collection[Node] = ()) -> list[Node]:
    """All nodes that the roots need, sources first, in a deterministic order (depth first).

    What only `leaves` need is left out.
    """
    return list(postorder(roots, lambda n: () if n in leaves else n.srcs))


def above(nodes: Iterable[Node], start: Callable[[Node], bool]) -> dict[Node, None]:
    """Those of nodes, sources first, that pass a test or need one that does, in order."""
    out: dict[Node, None] = {}
    for n in nodes:
        if start(n) or any(s in out for s in n.srcs):
            out[n] = None
    return out
