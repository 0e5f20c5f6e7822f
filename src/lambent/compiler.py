"""compile: the one function that walks the whole path, from a graph to a program that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lambent.algebra.egraph import saturate
from lambent.algebra.segments import cut
from lambent.backends.base import get
from lambent.backends.cache import cache_dir
from lambent.explain.report import Tell, recorder, report
from lambent.graph.dim import hints, symbols_in
from lambent.graph.node import Node, topo
from lambent.graph.tensor import Tensor
from lambent.runtime.build import build
from lambent.runtime.finish import plan_of, time_whole, variants
from lambent.runtime.program import Program
from lambent.search.database import Database
from lambent.search.driver import Work, remembered, search
from lambent.search.tuning import Clock

Outputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
FINISH = 0.1  # the share of the budget for building and timing whole programs


def compile(
    what: Outputs | Callable[..., Outputs],
    *inputs: Any,
    device: str = "cpu",
    budget: float = 60.0,
    seed: int = 0,
    progress: Tell = True,
    stop_gap: float = 0.05,
    donate: Mapping[str, int | str] | None = None,
) -> Program:
    """Search for the fastest program that computes the outputs.

    Args:
        what: a Tensor, several in a list or in a dict by name, or a function or Module that returns
            them when it is called with `inputs`.
        device: where the program is to run.
        budget: seconds that the search may take; the first program found may take longer.
        seed: of the schedules that are sampled.
        progress: True for a line now and then on a terminal, or a function that gets `Progress`.
        stop_gap: the search ends when the best is proved to be this near to what is possible.
        donate: inputs whose arrays are given up: the output, by number or name, that each is to
            hold after a run. Only what differs is written, as far as the compiler can tell.

    Returns:
        A `Program`: call it with the graph's inputs by name.

    Raises:
        TypeError: `what` gives no Tensors.
        ValueError: two inputs or weights of one name; an unknown device; no such budget; a
            donated input and an output that differ in shape or dtype.
    """
    if not budget > 0:
        raise ValueError(f"compile: a budget of {budget} seconds; it must be positive")
    tensors, form = _outputs(what(*inputs) if callable(what) else what)
    nodes = [t.node for t in tensors]
    _check_names(nodes)
    given = _donated(donate or {}, tensors, form)
    clock, backend = Clock(), get(device)
    with clock.phase("saturate"):
        instances, segments = cut(nodes)
        saturated = {s.key: saturate(s.outputs) for s in segments}
    works = [Work(saturated[s.key], sum(i.key == s.key for i in instances)) for s in segments]
    atoms = {atom for n in topo(nodes) for size in n.shape for atom in symbols_in(size)}
    symbols = hints(sorted(atoms))
    key = f"{[i.key for i in instances]} {symbols} {seed} {stop_gap}"
    history, record = recorder(progress)
    db = Database(cache_dir(), backend.device_key())
    effort, known = db.plan(key) or (0.0, None)
    found = search(
        works, backend, budget=budget * (1 - FINISH), db=db, seed=seed, symbols=symbols,
        progress=record, clock=clock, stop_gap=stop_gap,
        known=known if effort >= budget else None,
    )  # fmt: skip
    options = variants(found, [s.key for s in segments])
    made = [plan_of(nodes, instances, o, backend.default_schedule) for o in options]
    plans = [replace(p, donated=given) for p in made]
    begin = clock.elapsed()
    programs = [build(plans[0], backend, form=form)]
    if len(plans) * (clock.elapsed() - begin) < budget - begin:  # there is time for the others
        programs += [build(p, backend, form=form) for p in plans[1:]]
    times = time_whole(programs, plans[0], symbols, min(1.0, budget * FINISH / 4))
    best = min(range(len(programs)), key=lambda i: (times[i], i))
    chosen = options[best]
    spent = 0.0 if found.interrupted else budget
    db.put_plan(key, max(effort, spent), remembered([chosen[s.key] for s in segments]))
    program = programs[best]
    told = report(
        backend, plans[best], chosen, instances, segments, saturated, found, history, program,
        times[best],
    )  # fmt: skip
    program.manifest = replace(program.manifest, explain=told)
    return program


def _outputs(given: Any) -> tuple[list[Tensor], str | tuple[str, ...]]:
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


def _check_names(nodes: Sequence[Node]) -> None:
    seen: dict[str, Node] = {}
    for n in topo(nodes):
        if n.op in ("input", "weight") and seen.setdefault(n.name, n) is not n:
            other = seen[n.name]
            which = f"two {n.op}s" if n.op == other.op else "an input and a weight"
            raise ValueError(
                f"compile: {which} have the name {n.name!r}: {other}, {n}; give one of them "
                "another name, or put the modules that hold them in one module"
            )


def _donated(
    donate: Mapping[str, int | str], tensors: Sequence[Tensor], form: str | tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
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
