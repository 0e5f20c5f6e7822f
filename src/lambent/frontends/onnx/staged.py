"""compile_onnx: an ONNX model as one program, or as programs around what the host must run.

A value's stage is how many host calls, one after the other, lie before it. Each stage is a program
of its own; a value that a later stage reads is a result of its stage and an input of the later
one, while views are taken again there.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import lambent as lt
from lambent.frontends.onnx.build import DimLike, imported
from lambent.frontends.onnx.errors import HostWarning
from lambent.frontends.onnx.host import Call
from lambent.frontends.onnx.read import Array
from lambent.graph.dim import Dim
from lambent.graph.node import Node, above, make, topo
from lambent.graph.ops import VIEWS
from lambent.graph.tensor import Tensor
from lambent.runtime.program import Manifest, Program

if TYPE_CHECKING:
    from lambent.search.driver import Progress

Compile = Callable[[dict[str, Tensor], float], Program]
"""(outputs by name, share of the budget) → program."""


def compile_onnx(
    source: Any,
    *,
    dims: Mapping[str, DimLike] | None = None,
    shapes: Mapping[str, Sequence[int | str | Dim]] | None = None,
    values: Mapping[str, Any] | None = None,
    device: str = "cpu",
    budget: float = 60.0,
    seed: int = 0,
    progress: bool | Callable[[Progress], None] = True,
) -> Program | Staged:
    """Compile an ONNX model; call the result with its inputs by name, for its outputs by name.

    Operators whose results have sizes that depend on data (NonZero, NonMaxSuppression, Unique,
    Compress), and TopK, CumSum and scatters of long lines, run on the host, in NumPy, with a
    `HostWarning`; the rest of the graph is compiled, as one program before and one after each such
    step.

    Args:
        source, dims, shapes, values: as of `from_onnx`.
        device, budget, seed, progress: as of `compile`.

    Raises:
        OnnxError: a ValueError, as of `from_onnx`.
    """
    from lambent.compiler import compile as search

    outputs, calls = imported(source, dims, shapes, values, host=True)

    def compile(graph: dict[str, Tensor], share: float) -> Program:
        return search(graph, device=device, budget=budget * share, seed=seed, progress=progress)

    return staged(outputs, calls, compile)


def staged(outputs: dict[str, Tensor], calls: Sequence[Call], compile: Compile) -> Program | Staged:
    """The program of a graph without calls, else its stages."""
    if not calls:
        return compile(outputs, 1.0)
    told = "; ".join(f"{c.where}: {c.hosted.cost}" for c in calls)
    warnings.warn(
        f"the host runs what a graph cannot say or says slowly, programs around it wait: {told}",
        HostWarning,
        stacklevel=3,
    )
    stages, names = split(outputs, calls)
    some = sum(bool(s.graph) for s in stages)
    programs = [compile(s.graph, 1 / some) if s.graph else None for s in stages]
    return Staged(stages, programs, names)


@dataclass(frozen=True, slots=True)
class Stage:
    """`graph`: what its program computes, by name; then the calls run, on values by name."""

    graph: dict[str, Tensor]
    calls: tuple[tuple[Call, tuple[str | None, ...]], ...]


class Staged:
    """Programs with calls of the host between them; called as a `Program`.

    `manifest` tells inputs, symbols and the names of outputs; nothing of it can be saved.
    """

    def __init__(
        self, stages: Sequence[Stage], programs: Sequence[Program | None], form: dict[str, str]
    ) -> None:
        self.stages, self.programs, self.form = stages, programs, form
        made = {name for s in stages for name, t in s.graph.items() if t.node.op != "input"}
        made |= {t.node.name for s in stages for c, _ in s.calls for t in c.results}
        parts = [p.manifest for p in programs if p is not None]
        slots = {i.name: i for m in parts for i in m.inputs if i.name not in made}
        symbols = {s.name: s for m in parts for s in m.symbols}
        told = f'{{"stages": [{", ".join(m.explain for m in parts)}]}}'
        self.manifest = Manifest(
            parts[0].device, (), tuple(symbols.values()), (), tuple(slots.values()), (), (), (),
            (), tuple(form), 0, (), told,
        )  # fmt: skip

    def __call__(self, /, **arrays: Any) -> dict[str, Array]:
        """Run once: the outputs by name.

        Raises:
            TypeError: a missing or unknown input.
            ValueError: as of a `Program`.
        """
        names = [slot.name for slot in self.manifest.inputs]
        wrong = sorted({*names} ^ {*arrays})
        if wrong:
            raise TypeError(f"the inputs are {', '.join(names)}; missing or unknown: {wrong}")
        known: dict[str, Any] = dict(arrays)
        for stage, program in zip(self.stages, self.programs, strict=True):
            if program is not None:
                known |= program(**{i.name: known[i.name] for i in program.manifest.inputs})
            for call, operands in stage.calls:
                results = call.run([None if n is None else known[n] for n in operands])
                known |= {t.node.name: a for t, a in zip(call.results, results, strict=True)}
        return {name: known[value] for name, value in self.form.items()}

    def explain(self) -> dict[str, Any]:
        """What was found, for each program in order."""
        told: dict[str, Any] = json.loads(self.manifest.explain)
        return told


# ---- cutting ---------------------------------------------------------------------------------


def split(
    outputs: Mapping[str, Tensor], calls: Sequence[Call]
) -> tuple[list[Stage], dict[str, str]]:
    """The stages of a graph, in order; and what the outputs are called among their values."""
    level = _levels([t.node for t in outputs.values()], calls)
    named = {n: n.name if n.op == "input" else f"value {i}" for i, n in enumerate(level)}
    varies = above(level, lambda n: n.op == "input")
    wanted: dict[int, dict[Node, None]] = {}
    operands = [[t.node for t in c.operands if t is not None] for c in calls]
    for n in (*chain(*operands), *(t.node for t in outputs.values())):
        wanted.setdefault(level[n], {})[n] = None
    crossing = {
        base: None
        for n in level for base in map(_base, n.srcs)
        if level[base] < level[n] and base in varies and base.srcs
    }  # fmt: skip
    for n in crossing:
        wanted.setdefault(level[n], {})[n] = None
    at = [max((level[n] for n in nodes), default=0) for nodes in operands]
    stages = []
    for k in range(max([*level.values(), *at]) + 1):
        given = {n: lt.input(named[n], n.shape, n.dtype).node for n in crossing if level[n] < k}
        new = _rebuilt(wanted.get(k, {}), given)
        graph = {named[n]: Tensor(made) for n, made in new.items() if n.srcs or level[n] == 0}
        now = [c for c, when in zip(calls, at, strict=True) if when == k]
        read = [tuple(None if t is None else named[t.node] for t in c.operands) for c in now]
        stages.append(Stage(graph, tuple(zip(now, read, strict=True))))
    return stages, {name: named[t.node] for name, t in outputs.items()}


def _levels(outputs: Sequence[Node], calls: Sequence[Call]) -> dict[Node, int]:
    """The stage of every node, sources first."""
    level: dict[Node, int] = {}
    made: dict[Node, int] = {}

    def visit(roots: Sequence[Node]) -> int:
        for n in topo(roots):
            level.setdefault(n, made.get(n, max((level[s] for s in n.srcs), default=0)))
        return max((level[n] for n in roots), default=0)

    for c in calls:
        after = visit([t.node for t in c.operands if t is not None]) + 1
        made |= dict.fromkeys((t.node for t in c.results), after)
    visit(outputs)
    return level


def _base(n: Node) -> Node:
    return _base(n.srcs[0]) if n.op in VIEWS else n


def _rebuilt(wanted: Mapping[Node, None], given: Mapping[Node, Node]) -> dict[Node, Node]:
    """The wanted nodes, made of inputs where values are given from earlier stages."""
    new: dict[Node, Node] = {}
    for n in topo(wanted, given):
        if n in given:
            new[n] = given[n]
        else:
            new[n] = make(n.op, [new[s] for s in n.srcs], n.shape, n.dtype, n.attr)
    return {n: new[n] for n in wanted}
