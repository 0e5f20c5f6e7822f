"""What a program tells of its search: plain JSON data, kept in its manifest for `explain`."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lambent.algebra.egraph import Saturated
from lambent.algebra.segments import Instance, Segment
from lambent.algebra.term import walk
from lambent.backends.base import Backend, Calibration
from lambent.explain.rejected import rejected
from lambent.explain.show import show
from lambent.graph.node import Node, topo
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import TileProgram
from lambent.runtime.plan import Plan
from lambent.runtime.program import Program
from lambent.search.bound import Bounder
from lambent.search.driver import Choice, Chosen, Found, Progress

Tell = bool | Callable[[Progress], None]
"""True for a line on a terminal every other second, or whom to tell."""
MOST = 10**300  # programs counted
POINTS = 200  # of the search's progress
LONG = 60  # characters of an attribute


def report(
    backend: Backend, plan: Plan, choices: Mapping[str, Choice], instances: Sequence[Instance],
    segments: Sequence[Segment], saturated: Mapping[str, Saturated], found: Found,
    history: Sequence[Progress], program: Program, seconds: float,
) -> str:  # fmt: skip
    """What is told of the search and its result, as JSON text.

    Args:
        choices: the cover that the program runs, by the key of its segment; `saturated` likewise.
        history: the search's states, in order.
        seconds: the median time of a run.
    """
    total = sum(choices[i.key].seconds for i in instances)
    inner = dict.fromkeys(name for s in plan.steps for name in s.writes if name not in plan.outputs)
    told = {"gap": found.gap, "certificate_void": found.void, "interrupted": found.interrupted}
    rates = backend.calibrate()
    every = _graph([saturated[s.key] for s in segments]) | found.told | told | {
        "device": backend.name,
        "sizes": {s.name: [s.low, s.high, s.hint] for s in program.manifest.symbols},
        "additivity_error": abs(total - seconds) / seconds if seconds else None,
        "ms": seconds * 1e3,
        "stored": [_stored(plan.buffers[name]) for name in inner],
        "kernels": _kernels(backend, choices, instances, segments, rates),
        "arena_bytes": program.arena_bytes(),
        "segments": [_segment(s, saturated[s.key]) for s in segments],
        "instances": _instances(instances, [s.key for s in segments]),
        "progress": _progress(history),
        "roofline": {"flops": rates.flops, "levels": rates.levels, "launch": rates.launch},
    }  # fmt: skip
    return json.dumps(every)


# ---- the graph -------------------------------------------------------------------------------


def _graph(saturated: Sequence[Saturated]) -> dict[str, Any]:
    """Sums over the distinct segments; equal ones count once, as they are searched once."""
    stats = [s.stats for s in saturated]
    return {
        "e_classes": sum(s.e_classes for s in stats),
        "e_nodes": sum(s.e_nodes for s in stats),
        "rounds": max(s.rounds for s in stats),
        "saturated": all(s.saturated for s in stats),
        "rules": dict(sum((Counter(s.rules) for s in stats), Counter[str]())),
        "programs": min(MOST, math.prod(map(count_programs, saturated))),
    }


def count_programs(saturated: Saturated) -> int:
    """How many ways there are to compute the roots: choices of a node for every use of a class.

    A lower bound: choices that go through a class twice are left out, and so is what to store.
    """
    ways: dict[int, int] = {}
    for c, eclass in saturated.classes.items():
        smaller = [n for n in eclass.nodes if all(k < c for k in n.below)]
        ways[c] = sum(math.prod(ways[k] for k in n.below) for n in smaller)
    return math.prod(ways[root.cls] for root in saturated.roots if root.output)


def _segment(segment: Segment, saturated: Saturated) -> dict[str, Any]:
    """`nodes`: op, dtype, shape, attribute, numbers of operands; sources first."""
    nodes = topo(segment.outputs)
    number = {n: i for i, n in enumerate(nodes)}
    return {
        "rules": {name: found for name, found in saturated.stats.rules.items() if found},
        "e_classes": saturated.stats.e_classes,
        "e_nodes": saturated.stats.e_nodes,
        "nodes": [
            [n.op, n.dtype.name, _shape(n.shape), _attr(n), [number[s] for s in n.srcs]]
            for n in nodes
        ],
        "outputs": [number[n] for n in segment.outputs],
    }


def _attr(n: Node) -> str:
    if n.op in ("input", "weight"):
        return n.name
    told = "" if n.attr is None else str(n.attr)
    return told if len(told) <= LONG else told[: LONG - 1] + "…"


def _instances(instances: Sequence[Instance], keys: Sequence[str]) -> list[dict[str, Any]]:
    """For each its segment, and what its inputs are: names, or numbers of earlier instances."""
    made = {n: i for i, instance in enumerate(instances) for n in instance.outputs}
    return [
        {"segment": keys.index(i.key), "inputs": [made.get(n, n.name) for n in i.inputs]}
        for i in instances
    ]


# ---- kernels ---------------------------------------------------------------------------------


def _stored(b: Buffer) -> dict[str, Any]:
    return {"name": b.name, "shape": _shape(b.shape), "dtype": b.dtype.name, "bytes": b.bytes}


def _shape(shape: Sequence[Any]) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]


def _kernels(
    backend: Backend, choices: Mapping[str, Choice], instances: Sequence[Instance],
    segments: Sequence[Segment], rates: Calibration,
) -> list[dict[str, Any]]:  # fmt: skip
    """Each distinct kernel once, in order of first use, with how often a run calls it."""
    used = [kernel for i in instances for kernel in choices[i.key].kernels]
    first = {kernel.program: kernel for kernel in reversed(used)}
    count = Counter(kernel.program for kernel in used)
    where = {
        key: [i for i, s in enumerate(segments) if _runs(choices[s.key], key)] for key in count
    }
    return [
        {
            "name": f"k{number}",
            "count": times,
            "ms": first[key].seconds * 1e3,
            "bound_ms": first[key].entry.bound * 1e3,
            "tile_program": show(key),
            "source": backend.source(key),
            "schedule": first[key].schedule,
            "segments": where[key],
            **_demand(first[key], rates),
            "rejected": [asdict(r) for r in rejected(first[key])],
        }
        for number, (key, times) in enumerate(count.items())
    ]


def _runs(choice: Choice, program: TileProgram) -> bool:
    return any(kernel.program is program for kernel in choice.kernels)


def _demand(kernel: Chosen, rates: Calibration) -> dict[str, Any]:
    """What a run of the kernel reads, writes and computes at least, as its bound counts it."""
    made, names = kernel.program.kernel, [b.name for b in kernel.entry.form.buffers]
    terms, bounder = list(walk(*(o.term for o in made.outputs))), Bounder(rates, made.extents)
    operations = sum(s * rates.rate(t.dtype) for t, s in bounder.work(terms))
    read, written = bounder.footprint(made, terms)
    return {
        "at_load": made.weights_only,
        "reads": names[len(made.outputs) :],
        "writes": names[: len(made.outputs)],
        "operations": operations,
        "bytes_read": read,
        "bytes_written": written,
    }


# ---- the search ------------------------------------------------------------------------------


def _progress(history: Sequence[Progress]) -> list[list[float | None]]:
    """Seconds, best and bound of the whole program in ms: evenly thinned, the last one kept."""
    step = max(1, -(-len(history) // POINTS))
    kept = [*history[:-1:step], *history[-1:]]
    return [[s.seconds, *(None if t is None else t * 1e3 for t in (s.best, s.bound))] for s in kept]


def recorder(progress: Tell) -> tuple[list[Progress], Callable[[Progress], None]]:
    """A list of the search's states, and what fills it and tells them now and then."""
    history: list[Progress] = []

    def record(state: Progress) -> None:
        before = history[-1].seconds if history else 0.0
        history.append(state)
        if callable(progress):
            progress(state)
        elif progress and sys.stderr.isatty() and state.seconds // 2 > before // 2:
            best = "-" if state.best is None else f"{state.best * 1e3:.3g} ms"
            told = f"{state.measured} of {state.candidates} kernels measured, best {best}"
            print(f"lambent: {told}, {state.seconds:.0f} s", file=sys.stderr)

    return history, record
