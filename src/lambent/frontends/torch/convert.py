"""An ATen graph as a graph of ours: node by node, each by its row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from lambent.frontends.torch import gradients, networks, pointwise, reducing, shaping
from lambent.frontends.torch.values import (
    Unsupported,
    dtype_of,
    refuse_foreign,
    size_of,
)
from lambent.graph.dim import representative
from lambent.graph.tensor import Tensor, describe, input

Row = Callable[..., Any]
Source = Callable[[Node], Tensor]

ROWS: dict[str, Row] = (
    pointwise.ROWS | shaping.ROWS | reducing.ROWS | networks.ROWS | gradients.ROWS
)
"""ATen op, with or without its overload → meaning. The more exact name wins."""

HOST: dict[str, str] = {
    **dict.fromkeys(
        ("_local_scalar_dense", "masked_select", "nonzero", "_unique2", "unique_consecutive"),
        "its result's shape or value steers the program",
    ),
    **dict.fromkeys(
        ("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm",
         "bernoulli", "normal_functional", "multinomial", "uniform", "exponential", "cauchy",
         "geometric", "log_normal"),
        "random numbers",
    ),
    **dict.fromkeys(
        ("_fft_r2c", "_fft_c2r", "_fft_c2c"), "complex numbers",
    ),
    **dict.fromkeys(
        ("median", "nanmedian", "mode"), "a sort; composed of primitives all pairs are compared",
    ),
    "masked_scatter": "a scan over the mask; composed of primitives every prefix is computed anew",
}  # fmt: skip
"""Ops that the primitives express badly or not at all, and why."""

_IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


def row_of(node: Node) -> Row:
    """The row of a node's op.

    Raises:
        Unsupported: it has none.
    """
    if node.target is operator.getitem:
        return operator.getitem
    space, _, rest = str(node.target).partition(".")
    name, _, overload = rest.partition(".")
    row = ROWS.get(f"{name}.{overload}") or ROWS.get(name) if space == "aten" else None
    if row is None:
        raise Unsupported(HOST.get(name, "it has no row in our tables"))
    return row


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A value that no row of ours can read."""

    name: str


class Conversion:
    """The values of a graph's nodes, as far as they are converted.

    Args:
        source: makes the Tensor of a placeholder or of an attribute of the module.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.values: dict[Node, Any] = {}

    def node(self, node: Node) -> Any:
        """The value of one node; those that it reads are there already.

        Raises:
            Unsupported: why it has none, without its name.
        """
        meta = node.meta.get("val")
        if node.op in ("placeholder", "get_attr") or isinstance(meta, _NUMBERS):
            self.values[node] = self._leaf(node, meta)
            return self.values[node]
        for each in meta if isinstance(meta, (tuple, list)) else [meta]:
            if isinstance(each, torch.Tensor):
                refuse_foreign(each)
        row = row_of(node)
        kept = {k: v for k, v in node.kwargs.items() if k not in _IGNORED and v is not None}
        args, kwargs = (self.given(v) for v in (list(node.args), kept))
        if row in _WITH_METAS:
            kwargs["metas"] = torch.fx.node.map_arg(node.args, lambda n: n.meta.get("val"))
        try:
            self.values[node] = _as_told(row(*args, **kwargs), meta)
        except Unsupported:
            raise
        except (ValueError, TypeError, IndexError, OverflowError, KeyError) as error:
            raise Unsupported(str(error)) from error
        for user in node.users:
            if user.target is operator.getitem and self.values[node][user.args[1]] is None:
                raise Unsupported(f"its result number {user.args[1]} is not computed")
        return self.values[node]

    def given(self, value: Any) -> Any:
        """An argument: values in place of nodes, dtypes of ours, sizes of ours."""
        if isinstance(value, Node):
            return self.given(self.values[value])
        if isinstance(value, _Foreign):
            raise Unsupported(f"it reads {value.name}, a value that our graphs cannot hold")
        if isinstance(value, (list, tuple)):
            return [self.given(v) for v in value]
        if isinstance(value, dict):
            return {k: self.given(v) for k, v in value.items()}
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, complex):
            raise Unsupported("a complex number")
        return value

    def _leaf(self, node: Node, meta: Any) -> Any:
        if isinstance(meta, torch.Tensor):
            refuse_foreign(meta)
            return self.source(node)
        if isinstance(meta, torch.SymInt):
            return size_of(meta)
        if isinstance(meta, (torch.SymFloat, torch.SymBool)):
            raise Unsupported(f"{meta}, a number that is known when it runs only")
        if node.op == "get_attr":
            return self.source(node)
        return meta


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_WITH_METAS = frozenset(pointwise.ROWS.values()) | shaping.WITH_METAS
"""Rows that want to know what PyTorch knows of their operands."""


def _as_told(out: Any, meta: Any) -> Any:
    """The result in the dtype that PyTorch says.

    Raises:
        Unsupported: another shape than PyTorch says, or floats where it says integers.
    """
    if isinstance(meta, (tuple, list)):
        if len(out) != len(meta):
            raise Unsupported(f"{len(out)} results, where PyTorch has {len(meta)}")
        return [_as_told(o, m) for o, m in zip(out, meta, strict=True)]
    if not isinstance(meta, torch.Tensor) or out is None:
        return out
    shape = [representative(size_of(n)) for n in meta.shape]
    if [representative(n) for n in out.shape] != shape:
        raise Unsupported(f"our result is {describe(out)}, PyTorch's has the shape {shape}")
    dtype = dtype_of(meta.dtype)
    if out.dtype.is_float and not dtype.is_float:
        raise Unsupported(f"our result is {describe(out)}, PyTorch's is {dtype}")
    return out.astype(dtype)


def input_of(node: Node, name: str | None = None) -> Tensor:
    """An input of the node's shape and dtype, under its name."""
    meta = node.meta["val"]
    return input(name or node.name, tuple(map(size_of, meta.shape)), dtype_of(meta.dtype))


def unsupported(graph: Graph) -> dict[Node, str]:
    """The nodes that have to stay with PyTorch, and why."""
    run = Conversion(input_of)
    refused: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        try:
            if node.target is operator.getitem and node.args[0] in refused:
                raise Unsupported(refused[node.args[0]])
            run.node(node)
        except Unsupported as reason:
            refused[node] = str(reason)
            run.values[node] = _stand_in(node.meta.get("val"), node.name)
    return refused


def _stand_in(meta: Any, name: str) -> Any:
    """What later nodes may read of a value that PyTorch computes."""
    if isinstance(meta, (list, tuple)):
        return [_stand_in(m, f"{name}_{i}") for i, m in enumerate(meta)]
    try:
        if isinstance(meta, torch.Tensor):
            refuse_foreign(meta)
            return input(name, tuple(map(size_of, meta.shape)), dtype_of(meta.dtype))
    except Unsupported:
        pass
    return _Foreign(name)


def convert(graph: Graph, source: Source) -> tuple[Mapping[Node, Any], Any]:
    """The values of all nodes, and of the graph's output (in its own structure).

    Raises:
        Unsupported: a node has no row, or its row refuses the operands; the message names the op.
    """
    run = Conversion(source)
    for node in graph.nodes:
        if node.op == "output":
            return run.values, run.given(node.args[0])
        try:
            run.node(node)
        except Unsupported as reason:
            raise Unsupported(f"{node.target}: {reason}") from reason
    raise AssertionError("a graph without an output")
