"""From the search's choices to a plan, segment by segment; and whole programs timed in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lambent.algebra.segments import Instance
from lambent.backends.base import Backend
from lambent.backends.measuring.operands import draw, spec
from lambent.graph.node import Node, topo
from lambent.kernel.kernel import Buffer
from lambent.kernel.show import show
from lambent.runtime.plan import Plan, Step
from lambent.runtime.program import Program
from lambent.search.driver import Choice, Chosen, Found

Array = np.ndarray[Any, Any]
NEAR = 1.1  # covers whose sums differ by less are told apart only by running them


def plan_of(
    outputs: Sequence[Node], instances: Sequence[Instance], choices: Mapping[str, Choice]
) -> Plan:
    """The plan of a whole graph: for each instance the kernels chosen for its segment.

    Raises:
        ValueError: two weights of one name.
    """
    nodes = topo(outputs)
    weights = _weights(nodes)
    named = {n: n.attr for n in nodes if n.op == "input"}
    named |= {n: n.attr.name for n in nodes if n.op == "weight"}
    taken = set(named.values())
    buffers = {name: _buffer(name, n) for n, name in named.items()}
    steps: list[Step] = []
    load: list[Step] = []
    for number, instance in enumerate(instances):
        local = {f"x{i}": named[n] for i, n in enumerate(instance.inputs)}
        local |= {f"w{i}": named[n] for i, n in enumerate(instance.weights)}
        for i, n in enumerate(instance.outputs):
            name = f"s{number}.out{i}"
            local[f"out{i}"] = named[n] = _fresh(name, taken)
            buffers[named[n]] = _buffer(named[n], n)
        for chosen in choices[instance.key].kernels:
            names = []
            for b in chosen.buffers:
                if b.name not in local:
                    local[b.name] = _fresh(f"s{number}.{b.name}", taken)
                    buffers[local[b.name]] = replace(b, name=local[b.name])
                names.append(local[b.name])
            step = Step(chosen.program, tuple(names))
            once = chosen.program.kernel.weights_only and chosen.buffers[0].weight
            (load if once else steps).append(step)
    used = {name for s in (*steps, *load) for name in s.buffers}
    inputs = tuple(dict.fromkeys(n.attr for n in nodes if n.op == "input"))
    results = tuple(named[n] for n in outputs)
    kept = {name: a for name, a in weights.items() if name in used or name in results}
    keep = {*used, *inputs, *results}
    return Plan(
        tuple(steps),
        tuple(load),
        {name: b for name, b in buffers.items() if name in keep},
        inputs,
        results,
        kept,
    )


def _weights(nodes: Sequence[Node]) -> dict[str, Array]:
    found: dict[str, Any] = {}
    for n in nodes:
        if n.op == "weight":
            known = found.setdefault(n.attr.name, n.attr)
            if known is not n.attr:
                raise ValueError(
                    f"two weights have the name {n.attr.name!r}; give one of them another name, "
                    "or put the modules that hold them in one module"
                )
    return {name: weight.array for name, weight in found.items()}


def _buffer(name: str, n: Node) -> Buffer:
    return Buffer(name, n.dtype, n.shape, n.op == "weight")


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


# ---- whole programs --------------------------------------------------------------------------


def variants(found: Found, keys: Sequence[str], most: int = 3) -> list[dict[str, Choice]]:
    """The best choice everywhere first; then that with one segment's next best instead.

    Sums of isolated times are some 10 % off: only what may be better by that is worth building.
    """
    first = {key: region[0] for key, region in zip(keys, found.regions, strict=True)}
    others = [
        (choice.seconds - region[0].seconds, i, choice)
        for i, region in enumerate(found.regions)
        for choice in region[1:]
        if choice.seconds < NEAR * region[0].seconds
    ]
    others.sort(key=lambda o: o[:2])
    return [first, *({**first, keys[i]: c} for _, i, c in others[: most - 1])]


def time_whole(
    programs: Sequence[Program], plan: Plan, symbols: Mapping[str, int], seconds: float
) -> list[float]:
    """Median seconds of a run of each program, taken in turns on the same random inputs."""
    arrays = {
        name: draw(spec(plan.buffers[name], symbols), i) for i, name in enumerate(plan.inputs)
    }
    times: list[list[float]] = [[] for _ in programs]
    start = time.monotonic()
    while len(times[0]) < 4 or (time.monotonic() - start < seconds and len(times[0]) < 40):
        for program, found in zip(programs, times, strict=True):
            begin = time.perf_counter()
            program(**arrays)
            found.append(time.perf_counter() - begin)
    return [statistics.median(found[1:]) for found in times]


# ---- the report ------------------------------------------------------------------------------


def report(
    backend: Backend, plan: Plan, choices: Mapping[str, Choice], instances: Sequence[Instance],
    found: Found, program: Program, seconds: float | None,
) -> dict[str, Any]:  # fmt: skip
    """What is told of the search and its result: the part of `explain` that is known here."""
    total = sum(choices[i.key].seconds for i in instances)
    inner = dict.fromkeys(name for s in plan.steps for name in s.writes if name not in plan.outputs)
    error = abs(total - seconds) / seconds if seconds else None
    return {
        "device": backend.name,
        "candidates": found.candidates,
        "measured": found.measured,
        "schedules": found.schedules,
        "gap": found.gap,
        "noise": found.noise,
        "additivity_error": error,
        "certificate_void": found.void,
        "capped": list(found.capped),
        "rejected": found.rejected,
        "rejected_because": found.messages,
        "ms": None if seconds is None else seconds * 1e3,
        "stored": [_stored(plan.buffers[name]) for name in inner],
        "kernels": _kernels(backend, choices, instances),
        "arena_bytes": program.arena_bytes(),
        "seconds": found.seconds,
    }


def _stored(b: Buffer) -> dict[str, Any]:
    from lambent.graph.dim import representative

    size = b.dtype.itemsize
    for d in b.shape:
        size *= representative(d)
    shape = [d if isinstance(d, int) else str(d) for d in b.shape]
    return {"name": b.name, "shape": shape, "dtype": b.dtype.name, "bytes": size}


def _kernels(
    backend: Backend, choices: Mapping[str, Choice], instances: Sequence[Instance]
) -> list[dict[str, Any]]:
    """Each distinct kernel once, in order of first use, with how often a run calls it."""
    count: dict[int, int] = {}
    first: dict[int, Chosen] = {}
    for i in instances:
        for c in choices[i.key].kernels:
            count[id(c.program)] = count.get(id(c.program), 0) + 1
            first.setdefault(id(c.program), c)
    return [
        {
            "name": f"k{n}",
            "count": count[key],
            "ms": c.seconds * 1e3,
            "bound_ms": c.bound * 1e3,
            "tile_program": show(c.program),
            "source": backend.source(c.program),
        }
        for n, (key, c) in enumerate(first.items())
    ]
