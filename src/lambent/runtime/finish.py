"""From the search's choices to a plan, segment by segment; and whole programs timed in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from lambent.algebra.segments import Instance
from lambent.backends.base import Backend, Step
from lambent.backends.measuring.operands import draw, spec
from lambent.graph.dim import representative
from lambent.graph.node import Node, topo
from lambent.kernel.kernel import Buffer
from lambent.kernel.show import show
from lambent.runtime.plan import Plan
from lambent.runtime.program import Program
from lambent.search.driver import Choice, Found

NEAR = 1.1  # covers whose sums differ by less are told apart only by running them


def plan_of(
    outputs: Sequence[Node], instances: Sequence[Instance], choices: Mapping[str, Choice]
) -> Plan:
    """The plan of a whole graph: for each instance the kernels chosen for its segment."""
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
            for b in kernel.buffers:
                if b.name not in local:
                    name = local[b.name] = _fresh(f"s{number}.{b.name}", buffers)
                    buffers[name] = replace(b, name=name)
            once = kernel.program.kernel.weights_only and kernel.buffers[0].weight
            step = Step(kernel.program, tuple(local[b.name] for b in kernel.buffers))
            (load if once else run).append(step)
        named |= {n: local[f"out{i}"] for i, n in enumerate(instance.outputs)}
    inputs = tuple(n.name for n in nodes if n.op == "input")
    results = tuple(named[n] for n in outputs)
    return Plan(tuple(run), tuple(load), buffers, inputs, results, weights)


def _fresh(name: str, taken: Container[str]) -> str:
    return _fresh(f"{name}_", taken) if name in taken else name


# ---- whole programs --------------------------------------------------------------------------


def variants(found: Found, keys: Sequence[str], most: int = 3) -> list[dict[str, Choice]]:
    """The best choice everywhere first; then that with one segment's next best instead.

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
    return [first, *others[: most - 1]]


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
    names = {"void": "certificate_void", "messages": "rejected_because"}
    told = {names.get(f.name, f.name): getattr(found, f.name) for f in fields(found)}
    del told["regions"]
    return told | {
        "device": backend.name,
        "additivity_error": abs(total - seconds) / seconds if seconds else None,
        "ms": None if seconds is None else seconds * 1e3,
        "stored": [_stored(plan.buffers[name]) for name in inner],
        "kernels": _kernels(backend, choices, instances),
        "arena_bytes": program.arena_bytes(),
    }


def _stored(b: Buffer) -> dict[str, Any]:
    shape = [d if isinstance(d, int) else str(d) for d in b.shape]
    size = math.prod(map(representative, b.shape)) * b.dtype.itemsize
    return {"name": b.name, "shape": shape, "dtype": b.dtype.name, "bytes": size}


def _kernels(
    backend: Backend, choices: Mapping[str, Choice], instances: Sequence[Instance]
) -> list[dict[str, Any]]:
    """Each distinct kernel once, in order of first use, with how often a run calls it."""
    used = [kernel for i in instances for kernel in choices[i.key].kernels]
    first = {id(kernel.program): kernel for kernel in reversed(used)}
    count = Counter(id(kernel.program) for kernel in used)
    return [
        {
            "name": f"k{number}",
            "count": times,
            "ms": first[key].seconds * 1e3,
            "bound_ms": first[key].bound * 1e3,
            "schedule": first[key].schedule,
            "tile_program": show(first[key].program),
            "source": backend.source(first[key].program),
        }
        for number, (key, times) in enumerate(count.items())
    ]
