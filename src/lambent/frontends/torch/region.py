"""A region of a PyTorch graph as a program of ours, compiled when it first runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from lambent.frontends.torch.convert import convert, input_of
from lambent.frontends.torch.values import Array, inverse, laid_out, to_array, to_torch
from lambent.graph.dim import Dim
from lambent.graph.dtypes import bool_
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor, input, weight

if TYPE_CHECKING:
    from lambent.frontends.torch.backend import Options

Run = Callable[..., Sequence[Array]]
REBUILDS = 2
"""So often a program is built anew for changed weights; then they become inputs."""


@dataclass(frozen=True, slots=True)
class Call:
    """How a program is called with tensors.

    reads:  the number of the argument that is each of the program's inputs, by its name.
    held:   the same of weights: arguments that are taken for constants.
    orders: how to permute each result; None for as it is.
    """

    reads: Mapping[str, int]
    held: Mapping[str, int]
    orders: Sequence[Sequence[int] | None]

    def __call__(self, run: Run, args: Sequence[Any]) -> list[torch.Tensor]:
        arrays = {name: _array(args[i]) for name, i in self.reads.items()}
        return [
            to_torch(a) if order is None else to_torch(a).permute(*order)
            for a, order in zip(run(**arrays), self.orders, strict=False)
        ]


class Region:
    """Call it as the module that it replaces.

    Args:
        module: of ATen ops that all have rows; its output is one tensor, or several.
        fixed: addresses of tensors that may be taken for constants.
        written: names of placeholders that the graph writes to when it ends.
        tell: gets the region and the file of its program, each time that one is built.
    """

    def __init__(
        self,
        module: GraphModule,
        options: Options,
        fixed: frozenset[int],
        written: set[str],
        tell: Callable[[Region, str], None] | None = None,
    ) -> None:
        self.module, self.options, self.tell = module, options, tell
        self.fixed, self.written = fixed, written
        self.inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.builds = 0
        self.frozen: dict[int, tuple[Any, ...]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.builds == 0 or any(state(args[i]) != s for i, s in self.frozen.items()):
            self._build(args)
        results = self.call(self.run, args)
        return results[0] if self.single else tuple(results)

    def _build(self, args: Sequence[Any]) -> None:
        self.builds += 1
        self.frozen = {}
        for i, (node, arg) in enumerate(zip(self.inputs, args, strict=True)):
            may = self.builds <= REBUILDS and node.name not in self.written
            if may and _is_constant(node, arg) and arg.data_ptr() in self.fixed:
                self.frozen[i] = state(arg)
        constants = {self.inputs[i]: args[i] for i in self.frozen}

        def source(node: Node) -> Tensor:
            held = constants.get(node)
            if node.op == "get_attr":
                held = getattr(self.module, str(node.target))
            return input_of(node) if held is None else weight(node.name, to_array(held))

        values, outputs = convert(self.module.graph, source)
        self.single = isinstance(outputs, Tensor)
        tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        orders = [laid_out(m) for m in _metas(self.module)]
        tensors = [t.permute(o) for t, o in zip(tensors, orders, strict=True)]
        tensors += _carriers(tensors, [(n.name, values[n]) for n in self.inputs])
        self.run, key = ENGINES.get(self.options.device, _compiled)(tensors, self.options)
        read = {n.attr for n in topo([t.node for t in tensors]) if n.op == "input"}
        self.call = Call(
            {n.name: i for i, n in enumerate(self.inputs) if n.name in read},
            {self.inputs[i].name: i for i in self.frozen},
            [None if o == tuple(range(len(o))) else inverse(o) for o in orders],
        )
        if self.tell is not None and key is not None:
            self.tell(self, key)


def _carriers(tensors: Sequence[Tensor], given: Sequence[tuple[str, Any]]) -> list[Tensor]:
    """Results that bring sizes in: one for each size that is given and no input's shape tells."""
    inputs = [n for n in topo([t.node for t in tensors]) if n.op == "input"]
    told = {size for n in inputs for size in n.shape}
    carried = [(name, v) for name, v in given if isinstance(v, Dim) and v not in told]
    return [input(name, (size,), bool_).sum() for name, size in carried]


def _array(x: Any) -> Array:
    """A tensor as an array; a size as an array of that size."""
    return to_array(x) if isinstance(x, torch.Tensor) else np.zeros(x, np.bool_)


def _is_constant(node: Node, arg: Any) -> bool:
    """Whether an argument may be one: a tensor of one size, whose changes PyTorch counts."""
    if not isinstance(arg, torch.Tensor) or arg.is_inference():
        return False
    return all(isinstance(n, int) for n in node.meta["val"].shape)


def state(x: torch.Tensor) -> tuple[Any, ...]:
    """What changes when a tensor becomes another, or its memory does, as far as PyTorch counts."""
    return x.data_ptr(), x._version, x.shape, x.stride()


def _metas(module: GraphModule) -> list[torch.Tensor]:
    """What PyTorch knows of each output."""
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    given = output.args[0]
    return [n.meta["val"] for n in ([given] if isinstance(given, Node) else given)]


def _compiled(tensors: Sequence[Tensor], options: Options) -> tuple[Run, str | None]:
    from lambent.frontends import kept

    return kept.obtained(tuple(tensors), options.device, options.budget, options.seed)


def _evaluated(tensors: Sequence[Tensor], options: Options) -> tuple[Run, str | None]:
    from lambent.backends.reference.graph import evaluate

    return lambda **arrays: evaluate(tensors, arrays), None


ENGINES = {"reference": _evaluated}
"""Devices that are none of `lambent.compile`."""
