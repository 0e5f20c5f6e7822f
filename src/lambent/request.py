"""What a caller asks of `compile`: outputs in their form, names that are unique, donated inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lambent.backends.base import LACKING, Backend
from lambent.graph.node import Node, topo
from lambent.graph.tensor import Tensor

Outputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Donated = tuple[tuple[str, int], ...]
"""Of every donated input its name and the number of its output."""


def asked(
    what: Outputs | Callable[..., Outputs], inputs: Sequence[Any], budget: float,
    donate: Mapping[str, int | str], backend: Backend,
) -> tuple[list[Node], str | tuple[str, ...], Donated]:  # fmt: skip
    """The outputs' nodes, their form, and what is donated, all checked."""
    if not budget > 0:
        raise ValueError(f"compile: a budget of {budget} seconds; it must be positive")
    tensors, form = outputs_of(what(*inputs) if callable(what) else what)
    nodes = [t.node for t in tensors]
    check_names(nodes)
    check_dtypes(nodes, backend)
    return nodes, form, donated(donate, tensors, form)


def outputs_of(given: Any) -> tuple[list[Tensor], str | tuple[str, ...]]:
    """The outputs as a list, and how the program returns them."""
    if isinstance(given, Tensor):
        return [given], "one"
    form: str | tuple[str, ...] = "tuple"
    tensors = list(given) if isinstance(given, Sequence) else []
    if isinstance(given, Mapping):
        tensors, form = list(given.values()), tuple(map(str, given))
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise TypeError(f"compile: expected a Tensor, or several in a list or dict, not {given!r}")
    return tensors, form


def check_names(nodes: Sequence[Node]) -> None:
    seen: dict[str, Node] = {}
    for n in topo(nodes):
        if n.op in ("input", "weight") and seen.setdefault(n.name, n) is not n:
            other = seen[n.name]
            which = f"two {n.op}s" if n.op == other.op else "an input and a weight"
            raise ValueError(
                f"compile: {which} have the name {n.name!r}: {other}, {n}; give one of them "
                "another name, or put the modules that hold them in one module"
            )


def check_dtypes(nodes: Sequence[Node], backend: Backend) -> None:
    kinds = {word: LACKING[word] for word in backend.device_key().split() if word in LACKING}
    for n, word in ((n, word) for n in topo(nodes) for word in kinds):
        if n.dtype.name in kinds[word]:
            raise TypeError(
                f"compile: device {backend.name!r} ({word}) has no {n.dtype}: {n}; give it in "
                "another dtype (float16 has every number of the floats of 8 bits), or compile for "
                "a GPU that has"
            )


def donated(
    donate: Mapping[str, int | str], tensors: Sequence[Tensor], form: str | tuple[str, ...]
) -> Donated:
    """(input, number of its output) of every donated input."""
    names = (*range(len(tensors)), *(() if isinstance(form, str) else form))
    outputs = {name: (i % len(tensors), tensors[i % len(tensors)]) for i, name in enumerate(names)}
    inputs = {n.name: n for n in topo([t.node for t in tensors]) if n.op == "input"}
    for what, given, known in (("input", donate, inputs), ("output", donate.values(), outputs)):
        for name in given:
            if name not in known:
                there = ", ".join(map(str, known))
                raise ValueError(f"compile: donate: no {what} {name!r}; there are: {there}")
    found = {name: outputs[output][0] for name, output in donate.items()}
    for name, output in donate.items():
        n, t = inputs[name], outputs[output][1]
        if (n.shape, n.dtype) != (t.shape, t.dtype) or [*found.values()].count(found[name]) > 1:
            raise ValueError(
                f"compile: donate: {output!r} is {t}, {name!r} is {n}; each output takes the "
                "memory of one input of its shape and dtype"
            )
    return tuple(found.items())
