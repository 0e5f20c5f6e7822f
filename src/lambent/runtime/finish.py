"""From the search's choices to a plan, segment by segment; and to others that may be as good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lambent.algebra.segments import Instance
from lambent.algebra.term import fresh
from lambent.backends.base import Step
from lambent.graph.node import Node, topo
from lambent.kernel.kernel import Buffer, Kernel
from lambent.kernel.lower import lower
from lambent.kernel.panels import packing
from lambent.kernel.tile import Schedule, TileProgram
from lambent.runtime.plan import Plan
from lambent.search.driver import Choice, Found

NEAR = 1.1  # covers whose sums differ by less are told apart only by running them


def plan_of(
    outputs: Sequence[Node],
    instances: Sequence[Instance],
    choices: Mapping[str, Choice],
    schedule: Callable[[Kernel], Schedule],
) -> Plan:
    """The plan of a whole graph: for each instance the kernels chosen for its segment.

    schedule: for kernels that lay weights out.
    """
    nodes = topo(outputs)
    weights = {n.name: n.attr.array for n in nodes if n.op == "weight"}
    named = {n: n.name for n in nodes if n.op in ("input", "weight")}
    buffers = {name: Buffer(name, n.dtype, n.shape, n.op == "weight") for n, name in named.items()}
    run: list[Step] = []
    load: list[Step] = []
    for number, instance in enumerate(instances):
        local = {f"x{i}": named[n] for i, n in enumerate(instance.inputs)}
        local |= {f"w{i}": named[n] for i, n in enumerate(instance.weights)}
        for kernel in choices[instance.key].kernels:
            own = kernel.entry.form.buffers
            for b in own:
                if b.name not in local:
                    name = local[b.name] = fresh(f"s{number}.{b.name}", buffers)
                    buffers[name] = replace(b, name=name)
            once = kernel.program.kernel.weights_only and own[0].weight
            names = [local[b.name] for b in own]
            for i, b in enumerate(kernel.program.kernel.inputs, len(kernel.program.kernel.outputs)):
                if b.name in kernel.program.panels:
                    names[i] = _in_panels(names[i], b, kernel.program, buffers, load, schedule)
            (load if once else run).append(Step(kernel.program, tuple(names)))
        named |= {n: local[f"out{i}"] for i, n in enumerate(instance.outputs)}
    inputs = tuple(n.name for n in nodes if n.op == "input")
    results = tuple(named[n] for n in outputs)
    return Plan(tuple(run), tuple(load), buffers, inputs, results, weights)


def _in_panels(
    name: str, b: Buffer, program: TileProgram, buffers: dict[str, Buffer], load: list[Step],
    schedule: Callable[[Kernel], Schedule],
) -> str:  # fmt: skip
    """A weight laid out at load as the input `b` of a program wants it; returns its name."""
    dim, width = program.panels[b.name], dict(program.schedule.options)["panel"]
    new = f"{name} in panels {dim} {width}"
    if new not in buffers:
        kernel = packing(buffers[name], dim, width)
        load.append(Step(lower(kernel, schedule(kernel)), (new, name)))
        buffers[new] = replace(b, name=new)
    return new


# ---- whole programs --------------------------------------------------------------------------


def variants(found: Found, keys: Sequence[str], most: int = 3) -> list[dict[str, Choice]]:
    """The best choice everywhere first; then what was chosen before; then the best with one
    segment's next best instead.

    Sums of isolated times are some 10 % off: only what may be better by that is worth building.
    """
    first = {key: region[0] for key, region in zip(keys, found.regions, strict=True)}
    others = [
        first | {key: choice}
        for key, region in zip(keys, found.regions, strict=True)
        for choice in region[1:]
        if choice.seconds < NEAR * region[0].seconds
    ]
    others.sort(key=lambda choices: sum(c.seconds for c in choices.values()))
    before = [dict(zip(keys, found.before, strict=True))] if found.before else []
    return [first, *before, *others][:most]
